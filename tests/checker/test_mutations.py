"""Mutations: each is reported by its check, and each check is needed."""

from collections import Counter

import pytest
from builders import healthy_runs, params
from edits import ROW, TRAINED
from msgspec.structs import replace

from restore_parity.checker.judgement import CHECKS
from restore_parity.checker.loading import load_runs
from restore_parity.checker.mutations import MUTATIONS
from restore_parity.checker.proof import apply_mutations
from restore_parity.checker.worlds import judge_world, world_of
from restore_parity.records import Key

# what else a mutation truly breaks, beyond the one check that must report it
FOLLOWERS = {
    "prefix-logprobs": {"tail-logprobs"},
    "call-position": {
        "already-terminal",
        "dump-complete",
        "near-tie",
        "policy-logprobs",
        "prefix-captured",
        "prefix-hash",
        "prefix-logprobs",
        "row-exact",
        "tail-generated",
        "tail-logprobs",
        "token-budget",
    },
    "prefix-captured": {
        "already-terminal",
        "near-tie",
        "prefix-hash",
        "prefix-logprobs",
        "tail-logprobs",
    },
    "near-tie": {"call-position", "tail-logprobs", "tail-generated"},
    "already-terminal": {"near-tie", "prefix-hash", "call-position"},
    "before-cut-call": {"near-tie", "prefix-captured"},
    "row-membership": {"restored-once", "group-membership"},
}


@pytest.fixture(scope="module")
def world(pristine):
    return world_of(load_runs(pristine))


@pytest.fixture(scope="module")
def caught_by(world):
    """The checks that report each mutation of the healthy runs."""
    return {result.id: result.caught_by for result in apply_mutations(world, params())}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_a_mutation_is_reported_by_its_check(caught_by, mutation):
    assert mutation.check in caught_by[mutation.id]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_only_checks_whose_matter_it_is_report_it_too(caught_by, mutation):
    others = set(caught_by[mutation.id]) - {mutation.check}
    assert others <= FOLLOWERS.get(mutation.check, set())


def test_every_check_has_a_mutation():
    assert {mutation.check for mutation in MUTATIONS} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_check_some_mutation_passes_unseen(caught_by, check):
    unseen = [name for name, checks in caught_by.items() if set(checks) == {check}]
    assert unseen, f"{check} reports nothing that the others do not: it is redundant"


def test_there_are_many():
    assert len(MUTATIONS) >= 45


def test_each_mutation_has_a_name_of_its_own():
    names = Counter(mutation.id for mutation in MUTATIONS)
    assert [name for name, count in names.items() if count > 1] == []


def test_mutations_are_pure(world, pristine):
    apply_mutations(world, params())
    assert world == world_of(load_runs(pristine))


def test_calls_cut_at_their_limit_have_no_place_for_what_needs_a_tail(tmp_path):
    cuts = {"1/0/0#1": "limit", "1/1/0#1": "limit"}
    given = params(cut_tokens=cuts, steps=1, generations_per_prompt=1)
    world = world_of(load_runs(healthy_runs(tmp_path / "runs", given, steps=60)))
    results = {result.id: result for result in apply_mutations(world, given)}
    assert results["tail-lost"].caught_by is None
    assert results["completed-twice"].caught_by is None
    tried = [result for result in results.values() if result.caught_by is not None]
    assert [result.id for result in tried if not result.caught] == []


# --- worlds ---------------------------------------------------------------------------------------


def test_a_healthy_world_is_judged_as_its_runs_are(world):
    judgement = judge_world(world, params())
    assert judgement.verdict == "PASS"
    assert judgement.counts["rows"] == 8
    assert len(judgement.cuts) == 5


def test_a_world_may_hold_some_rows_alone(pristine):
    world = world_of(load_runs(pristine), [Key(1, 0, 0), Key(1, 1, 1)])
    assert [*map(str, world.rows)] == ["1/0/0", "1/1/1"]
    assert sorted(world.calls) == ["k:1/0/0#1", "k:1/1/1#0"]
    assert {record.source_call_id for record in world.records} == {*world.calls}


@pytest.mark.parametrize("run", TRAINED)
def test_a_world_holds_no_row_that_one_dump_lacks(pristine, run):
    loaded = load_runs(pristine)
    del getattr(loaded, run).rows[Key.parse(ROW)]
    world = world_of(loaded)
    assert ROW not in map(str, world.rows)
    assert "k:1/0/0#1" not in world.calls


def test_the_calls_that_a_smaller_world_opens_are_those_it_holds(world):
    smaller = replace(world, calls=dict([*world.calls.items()][:2]))
    assert judge_world(smaller, params()).of("kill-happened") == []
