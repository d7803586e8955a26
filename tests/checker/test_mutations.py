"""Mutations: each is reported by its check, and each check is needed."""

from collections import Counter

import pytest
from builders import healthy_runs, params
from edits import LOOSE_ALL, ROW, TRAINED
from msgspec.structs import replace

from restore_parity.checker.judgement import CHECKS
from restore_parity.checker.loading import load_runs
from restore_parity.checker.mutations import MUTATIONS
from restore_parity.checker.proof import apply_mutations
from restore_parity.checker.worlds import judge_world, world_of
from restore_parity.records import Key

# what else a mutation truly breaks, beyond the one check that must report it
FOLLOWERS = {
    "already-terminal": {"call-position", "near-tie", "row-exact", "row-shape"},
    "before-cut-call": {"finished-captured", "near-tie", "prefix-captured"},
    "call-position": {
        "finished-captured",
        "near-tie",
        "prefix-captured",
        "prefix-hash",
        "prefix-logprobs",
        "row-exact",
        "row-shape",
        "tail-generated",
        "token-budget",
    },
    "engine-trainer-gap": {"set-aside-share"},
    "near-tie": {"row-exact", "tail-generated"},
    "policy-logprobs": {"engine-trainer-gap"},
    "prefix-captured": {"near-tie", "prefix-hash", "prefix-logprobs"},
    "prefix-logprobs": {"tail-logprobs"},
    "row-exact": {"finished-captured", "row-shape"},
    "row-membership": {"group-membership"},
    "same-setup": {"row-shape"},
    "tail-generated": {"row-exact"},
    "tail-logprobs": {"engine-trainer-gap"},
}
# by thresholds of 0, any changed log-probability or lost token moves a step's mean
ALWAYS_FOLLOWS = {"strict": {"engine-trainer-gap"}, "loose": set()}


@pytest.fixture(scope="module")
def world(pristine):
    return world_of(load_runs(pristine), params())


@pytest.fixture(scope="module")
def caught_by(pristine):
    """The checks that report each mutation of the healthy runs, by thresholds."""
    found = {}
    for name, thresholds in {"strict": params(), "loose": params(**LOOSE_ALL)}.items():
        results = apply_mutations(world_of(load_runs(pristine), thresholds))
        found[name] = {result.id: result.caught_by for result in results}
    return found


@pytest.mark.parametrize("thresholds", ["strict", "loose"])
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_a_mutation_is_reported_by_its_check(caught_by, mutation, thresholds):
    assert mutation.check in caught_by[thresholds][mutation.id]


@pytest.mark.parametrize("thresholds", ["strict", "loose"])
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_only_checks_whose_matter_it_is_report_it_too(caught_by, mutation, thresholds):
    others = set(caught_by[thresholds][mutation.id]) - {mutation.check}
    known = FOLLOWERS.get(mutation.check, set())
    assert others - ALWAYS_FOLLOWS[thresholds] <= known


def test_every_check_has_a_mutation():
    assert {mutation.check for mutation in MUTATIONS} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_check_some_mutation_passes_unseen(caught_by, check):
    """By loose thresholds: by those of 0, a mean tells of whatever single values tell of."""
    unseen = [name for name, checks in caught_by["loose"].items() if set(checks) == {check}]
    assert unseen, f"{check} reports nothing that the others do not: it is redundant"


def test_there_are_many():
    assert len(MUTATIONS) >= 85


def test_each_mutation_has_a_name_of_its_own():
    names = Counter(mutation.id for mutation in MUTATIONS)
    assert [name for name, count in names.items() if count > 1] == []


def test_mutations_are_pure(world, pristine):
    apply_mutations(world)
    assert world == world_of(load_runs(pristine), params())


def test_calls_cut_at_their_limit_have_no_place_for_what_needs_a_tail(tmp_path):
    cuts = {"1/0/0#1": "limit", "1/1/0#1": "limit"}
    given = params(cut_tokens=cuts, steps=1, generations_per_prompt=1)
    world = world_of(load_runs(healthy_runs(tmp_path / "runs", given, steps=60)), given)
    results = {result.id: result for result in apply_mutations(world)}
    assert results["tail-lost"].caught_by is None
    assert results["completed-twice"].caught_by is None
    tried = [result for result in results.values() if result.caught_by is not None]
    assert [result.id for result in tried if not result.caught] == []


# --- worlds ---------------------------------------------------------------------------------------


def test_a_healthy_world_is_judged_as_its_runs_are(world):
    judgement = judge_world(world)
    assert judgement.verdict == "PASS"
    assert judgement.counts["rows"] == 8
    assert len(judgement.cuts) == 5


def test_a_world_may_hold_some_rows_alone(pristine):
    world = world_of(load_runs(pristine), params(), [Key(1, 0, 0), Key(1, 1, 1)])
    assert [*map(str, world.rows)] == ["1/0/0", "1/1/1"]
    assert sorted(world.calls) == ["k:1/0/0#0", "k:1/0/0#1", "k:1/1/1#0"]
    assert {call.call_id for call in world.cuts} == {"k:1/0/0#1", "k:1/1/1#0"}
    assert {one.source_call_id for one in world.records} == {"k:1/0/0#1", "k:1/1/1#0"}


@pytest.mark.parametrize("run", TRAINED)
def test_a_world_holds_no_row_that_one_dump_lacks(pristine, run):
    loaded = load_runs(pristine)
    del getattr(loaded, run).rows[Key.parse(ROW)]
    world = world_of(loaded, params())
    assert ROW not in map(str, world.rows)
    assert "k:1/0/0#1" not in world.calls


def test_the_calls_that_a_smaller_world_opens_are_those_it_holds(world):
    first, *_ = world.cuts
    smaller = replace(world, calls={first.call_id: first})
    assert judge_world(smaller).of("kill-happened") == []
