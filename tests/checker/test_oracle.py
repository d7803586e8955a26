"""The checker against the naive comparer, on random runs, healthy and broken.

They give the same verdict and name the same rows.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from builders import STOP, STRICT, healthy_runs, params
from edits import LOOSE_ALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle import LISTS, oracle

from restore_parity.checker.broken_restores import with_tie
from restore_parity.checker.loading import load_runs
from restore_parity.checker.mutations import MUTATIONS
from restore_parity.checker.worlds import (
    World,
    judge_world,
    subjects,
    with_tokens,
    with_values,
    without_tokens,
    world_of,
)
from restore_parity.records import Key, Restored, Row
from restore_parity.tokens import ids_sha256

Draw = Callable[..., Any]

WORKLOADS = [
    params(),
    params(steps=1, generations_per_prompt=3, cut_tokens={"1/0/2#0": 1, "1/1/0#1": 2}),
    params(
        prompts_per_step=1,
        list_lengths=[3],
        closing_limit_tokens=[20],
        cut_tokens={"1/0/1#1": "limit-1"},
    ),
    params(seed=5, tool_limit_tokens=3, cut_tokens={"1/0/0#0": "limit", "2/1/1#1": 1}),
]
BOUNDS = st.fixed_dictionaries(
    {
        "near_tie_margin": st.sampled_from([0.0, 0.3, 3.0]),
        "max_set_aside": st.sampled_from([0.0, 0.5, 1.0]),
        "max_logprob_diff": st.sampled_from([0.0, 0.3]),
        "max_mean_logprob_diff": st.sampled_from([0.0, 0.05]),
        "max_gap_increase": st.sampled_from([0.0, 0.01]),
        "max_policy_diff": st.sampled_from([0.0, 0.001]),
    }
)


@pytest.fixture(scope="session")
def worlds(tmp_path_factory) -> list[World]:
    folder = tmp_path_factory.mktemp("worlds")
    return [
        world_of(load_runs(healthy_runs(folder / str(nth), workload)), workload)
        for nth, workload in enumerate(WORKLOADS)
    ]


def plain(world: World) -> dict:
    """The world as dictionaries, for a comparer that shares nothing with the checker."""
    restored = [(key, row) for key, row in world.rows.items()]
    for step, row in world.extra:
        restored.append((Key(step, row.prompt_idx, row.generation_index), row))
    return {
        "planned": [str(key) for key in world.baseline],
        "baseline": [(str(key), msgspec.to_builtins(row)) for key, row in world.baseline.items()],
        "restored": [(str(key), msgspec.to_builtins(row)) for key, row in restored],
        "calls": [
            msgspec.to_builtins(call) | {"key": str(call.key)} for call in world.calls.values()
        ],
        "records": [msgspec.to_builtins(record) for record in world.records],
        "infos": {name: msgspec.to_builtins(info) for name, info in world.infos.items()},
        "limits": {
            (str(key), index): world.workload.limit_tokens(key, index)
            for key in world.baseline
            for index in range(150)
        },
        "stop_ids": world.infos["restored"].setup.get("stop_token_ids", []),
    }


# --- what is broken -------------------------------------------------------------------------------


def change_token(draw: Draw, world: World, row: Row) -> Row:
    """One entry of one column becomes another value that this column may hold."""
    name = draw(st.sampled_from(LISTS))
    at = draw(st.integers(0, row.input_length - 1))
    values = {
        "token_ids": st.sampled_from([STOP, 48, 49, 60, 99]),
        "token_loss_mask": st.sampled_from([0.0, 1.0]),
        "generation_top_logprobs": st.sampled_from([None, [(48, -0.1), (60, -0.2)]]),
    }
    value = draw(values.get(name, st.sampled_from([0.0, -0.25, float("nan")])))
    return with_values(row, at, **{name: value})


def change_span(draw: Draw, world: World, row: Row) -> Row:
    """Tokens are lost, doubled, or come from another row."""
    start = draw(st.integers(0, row.input_length))
    stop = draw(st.integers(start, min(row.input_length, start + 3)))
    source = world.baseline[draw(st.sampled_from(sorted(world.baseline)))]
    first = draw(st.integers(0, source.input_length))
    last = draw(st.integers(first, min(source.input_length, first + 3)))
    return with_tokens(without_tokens(row, start, stop), start, source, first, last)


def change_field(draw: Draw, world: World, row: Row) -> Row:
    """A field that is no column is another."""
    fields = {"reward": 0.5, "sample_loss_mask": 0.0, "group_id": "x", "input_length": 3}
    name = draw(st.sampled_from(list(fields)))
    return replace(row, **{name: fields[name]})


def break_row(draw: Draw, world: World) -> World:
    """A row of either run is another; more often the restored run's."""
    side = draw(st.sampled_from(["rows", "rows", "baseline"]))
    rows = getattr(world, side)
    if not rows:
        return world
    key = draw(st.sampled_from(sorted(rows)))
    change = draw(st.sampled_from([change_token, change_token, change_span, change_field]))
    return replace(world, **{side: rows | {key: change(draw, world, rows[key])}})


def break_record(draw: Draw, world: World) -> World:
    """A restore record is lost, doubled or another."""
    if not world.records:
        return world
    at = draw(st.integers(0, len(world.records) - 1))
    record = world.records[at]
    fields = {
        "prefix_tokens": st.integers(0, 5),
        "source_call_id": st.sampled_from([*world.calls, "x"]),
    }
    if isinstance(record, Restored):
        fields["max_tokens"] = st.integers(0, 20)
        fields["prefix_ids_sha256"] = st.none()
        fields["group_id"] = st.none()
    name = draw(st.sampled_from([*fields, "drop", "double"]))
    kept = {"drop": [], "double": [record, record]}.get(name)
    if kept is None:
        kept = [replace(record, **{name: draw(fields[name])})]
    return replace(world, records=[*world.records[:at], *kept, *world.records[at + 1 :]])


def break_capture(draw: Draw, world: World) -> World:
    """The journal holds something else of a call."""
    call = world.calls[draw(st.sampled_from(sorted(world.calls)))]
    size = draw(st.integers(0, len(call.ids)))
    changes = [
        {"ids": call.ids[:size], "logprobs": call.logprobs[:size]},
        {"ids": [*call.ids[:size], STOP, *call.ids[size + 1 :]]},
        {"logprobs": [0.0] * len(call.ids)},
        {"max_tokens": size},
    ]
    changed = replace(call, **draw(st.sampled_from(changes)))
    return replace(world, calls=world.calls | {call.call_id: changed})


def take_other_token(draw: Draw, world: World) -> World:
    """The restored row parts at a tie, in a call captured or not; the capture perhaps with it."""
    key = draw(st.sampled_from(sorted(world.rows)))
    row = world.rows[key]
    at = draw(st.sampled_from([at for at, mask in enumerate(row.token_loss_mask) if mask] or [0]))
    margin = draw(st.sampled_from([0.0, 0.2, 1.0]))
    if key not in world.baseline or at >= world.baseline[key].input_length:
        return world
    tied = with_tie(world, key, at, margin)
    if tied is None or not draw(st.booleans()):
        return tied or world
    return with_tie_in_capture(tied, key, at)


def with_tie_in_capture(world: World, key: Key, at: int) -> World:
    """The killed run took the restored row's token as well."""
    row, calls = world.rows[key], dict(world.calls)
    for call in world.calls.values():
        if call.key != key or call.call_index >= len(row.segments()):
            continue
        start, _ = row.segments()[call.call_index]
        changed = replace(call, prompt_ids=row.token_ids[:start])
        nth = at - start
        if 0 <= nth < len(call.ids):
            ids, logprobs, top_logprobs = [*call.ids], [*call.logprobs], [*call.top_logprobs]
            ids[nth] = row.token_ids[at]
            logprobs[nth] = row.generation_logprobs[at]
            top_logprobs[nth] = row.generation_top_logprobs[at]
            changed = replace(changed, ids=ids, logprobs=logprobs, top_logprobs=top_logprobs)
        calls[call.call_id] = changed
    records = []
    for record in world.records:
        call = calls.get(record.source_call_id)
        if isinstance(record, Restored) and call and call.key == key:
            record = replace(record, prefix_ids_sha256=ids_sha256(call.ids))
        records.append(record)
    return replace(world, calls=calls, records=records)


def apply_mutation(draw: Draw, world: World) -> World:
    """One of the checker's own mutations, where it has a place."""
    mutation = draw(st.sampled_from(MUTATIONS))
    if mutation.id == "logprob-null" or not world.rows.keys() >= world.baseline.keys():
        return world
    for subject in subjects(world):
        changed = mutation.change(world, subject)
        if changed:
            return changed
    return world


BREAKS = st.sampled_from(
    [break_row, break_row, break_record, break_capture, take_other_token, apply_mutation]
)


@given(st.data(), BOUNDS)
@settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_checker_and_oracle_agree(worlds, data, bounds):
    world = data.draw(st.sampled_from(worlds))
    for _ in range(data.draw(st.integers(0, 3))):
        world = data.draw(BREAKS)(data.draw, world)
    judgement = judge_world(replace(world, thresholds=params(**bounds)))
    named = {problem.key.split("#")[0] for problem in judgement.problems} - {""}
    assert (judgement.verdict, named) == oracle(plain(world), bounds)


@pytest.mark.parametrize("nth", range(len(WORKLOADS)), ids=lambda nth: f"workload {nth}")
def test_the_oracle_passes_healthy_runs(worlds, nth):
    assert oracle(plain(worlds[nth]), STRICT) == ("PASS", set())


@pytest.mark.parametrize(
    "mutation",
    [mutation for mutation in MUTATIONS if mutation.id != "logprob-null"],
    ids=lambda mutation: mutation.id,
)
def test_checker_and_oracle_agree_on_each_mutation(worlds, mutation):
    """By loose thresholds, where some mutations show in one check alone."""
    loose = replace(worlds[0], thresholds=params(**LOOSE_ALL))
    broken = [mutation.change(loose, subject) for subject in subjects(loose)]
    world = next(world for world in broken if world is not None)
    judgement = judge_world(world)
    named = {problem.key.split("#")[0] for problem in judgement.problems} - {""}
    assert (judgement.verdict, named) == oracle(plain(world), LOOSE_ALL)
