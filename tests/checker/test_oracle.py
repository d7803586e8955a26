"""The checker against the naive comparer, on random healthy and broken runs: the same verdict, the same rows named."""

import msgspec
import pytest
from builders import STOP, healthy_runs, params
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import LISTS, oracle

from restore_parity.mutations import MUTATIONS, World, judged, splice, subjects, world_of
from restore_parity.records import Restored
from restore_parity.saved import load_runs

WORKLOADS = [
    params(),
    params(steps=1, generations_per_prompt=3, cut_tokens={"1/0/2#0": 1, "1/1/0#1": 2}),
    params(prompts_per_step=1, list_lengths=[3], closing_limit_tokens=[20], cut_tokens={"1/0/1#1": "limit-1"}),
    params(seed=5, tool_limit_tokens=3, cut_tokens={"1/0/0#0": "limit", "2/1/1#1": 1}),
]
BOUNDS = st.fixed_dictionaries(
    {
        "near_tie_margin": st.sampled_from([0.0, 0.3, 3.0]),
        "max_set_aside": st.sampled_from([0.0, 0.5, 1.0]),
        "max_logprob_diff": st.sampled_from([0.0, 0.3]),
        "max_policy_diff": st.sampled_from([0.0, 0.001]),
    }
)


@pytest.fixture(scope="session")
def worlds(tmp_path_factory) -> list[World]:
    folder = tmp_path_factory.mktemp("worlds")
    return [world_of(*load_runs(healthy_runs(folder / f"{i}", workload))) for i, workload in enumerate(WORKLOADS)]


def plain(world: World) -> dict:
    """The same world as dictionaries, for a comparer that shares nothing with the checker."""
    calls = [msgspec.to_builtins(call) | {"key": str(call.key)} for call in world.calls.values()]
    infos = {name: msgspec.to_builtins(info) for name, info in world.infos.items()}
    extra = [(f"{step}/{row.prompt_idx}/{row.generation_index}", msgspec.to_builtins(row)) for step, row in world.extra]
    return {
        "planned": [str(key) for key in world.baseline],
        "baseline": [(str(key), msgspec.to_builtins(row)) for key, row in world.baseline.items()],
        "restored": [(str(key), msgspec.to_builtins(row)) for key, row in world.rows.items()] + extra,
        "calls": calls,
        "records": [msgspec.to_builtins(record) for record in world.records],
        "infos": infos,
        "stop_ids": world.infos["restored"].setup.get("stop_token_ids", []),
    }


def change_token(draw, world: World, key, row):
    """One entry of one column becomes another value that this column may hold."""
    name = draw(st.sampled_from(LISTS))
    at = draw(st.integers(0, row.input_length - 1))
    values = {
        "token_ids": st.sampled_from([STOP, 48, 49, 60, 99]),
        "token_loss_mask": st.sampled_from([0.0, 1.0]),
        "generation_top2": st.sampled_from([None, [(48, -0.1), (60, -0.2)]]),
    }
    value = draw(values.get(name, st.sampled_from([0.0, -0.25, float("nan")])))
    return msgspec.structs.replace(row, **{name: [*getattr(row, name)[:at], value, *getattr(row, name)[at + 1 :]]})


def change_span(draw, world: World, key, row):
    """Tokens are lost, doubled, or come from another row."""
    start = draw(st.integers(0, row.input_length))
    stop = draw(st.integers(start, min(row.input_length, start + 3)))
    source = world.baseline[draw(st.sampled_from(sorted(world.baseline)))]
    first = draw(st.integers(0, source.input_length))
    return splice(row, start, stop, source, first, draw(st.integers(first, min(source.input_length, first + 3))))


def change_field(draw, world: World, key, row):
    name, value = draw(
        st.sampled_from([("reward", 0.5), ("sample_loss_mask", 0.0), ("group_id", "x"), ("input_length", 3)])
    )
    return msgspec.structs.replace(row, **{name: value})


def break_row(draw, world: World) -> World:
    side = draw(st.sampled_from(["rows", "rows", "baseline"]))
    rows = getattr(world, side)
    if not rows:
        return world
    key = draw(st.sampled_from(sorted(rows)))
    change = draw(st.sampled_from([change_token, change_token, change_span, change_field]))
    return msgspec.structs.replace(world, **{side: rows | {key: change(draw, world, key, rows[key])}})


def break_record(draw, world: World) -> World:
    if not world.records:
        return world
    at = draw(st.integers(0, len(world.records) - 1))
    record = world.records[at]
    fields = {"prefix_tokens": st.integers(0, 5), "source_call_id": st.sampled_from([c for c in world.calls] + ["x"])}
    if isinstance(record, Restored):
        fields |= {"max_tokens": st.integers(0, 20), "prefix_ids_sha256": st.none(), "group_id": st.none()}
    name = draw(st.sampled_from([*fields, "drop", "double"]))
    kept = {"drop": [], "double": [record, record]}.get(name)
    if kept is None:
        kept = [msgspec.structs.replace(record, **{name: draw(fields[name])})]
    return msgspec.structs.replace(world, records=[*world.records[:at], *kept, *world.records[at + 1 :]])


def break_capture(draw, world: World) -> World:
    call = world.calls[draw(st.sampled_from(sorted(world.calls)))]
    cut = draw(st.integers(0, len(call.ids)))
    changed = draw(
        st.sampled_from(
            [
                {"ids": call.ids[:cut], "logprobs": call.logprobs[:cut]},
                {"ids": [*call.ids[:cut], STOP, *call.ids[cut + 1 :]]},
                {"logprobs": [0.0] * len(call.ids)},
                {"max_tokens": cut},
            ]
        )
    )
    return msgspec.structs.replace(world, calls=world.calls | {call.call_id: msgspec.structs.replace(call, **changed)})


def apply_mutation(draw, world: World) -> World:
    mutation = draw(st.sampled_from(MUTATIONS))
    if mutation.id == "logprob-null" or not world.rows.keys() >= world.baseline.keys():
        return world
    candidates = subjects(world, params())
    return next(filter(None, (mutation.change(world, subject) for subject in candidates)), None) or world


@given(st.data(), BOUNDS)
@settings(max_examples=2000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_checker_and_oracle_agree(worlds, data, bounds):
    world = data.draw(st.sampled_from(worlds))
    for _ in range(data.draw(st.integers(0, 3))):
        world = data.draw(st.sampled_from([break_row, break_row, break_record, break_capture, apply_mutation]))(
            data.draw, world
        )
    judgement = judged(world, params(**bounds))
    named = {problem.key.split("#")[0] for problem in judgement.problems} - {""}
    assert (judgement.verdict, named) == oracle(plain(world), bounds)


def test_both_pass_healthy_runs(worlds):
    bounds = {"near_tie_margin": 0.0, "max_set_aside": 0.0, "max_logprob_diff": 0.0, "max_policy_diff": 0.0}
    assert [oracle(plain(world), bounds) for world in worlds] == [("PASS", set())] * len(worlds)
