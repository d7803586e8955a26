"""Mutations: each is reported by its check, each check is needed, and the report proves both on the rows it judges."""

from collections import Counter

import pytest
from builders import change_row, judged, params

from restore_parity import mutations
from restore_parity.checks import CHECKS
from restore_parity.index import load_runs
from restore_parity.mutations import MUTATIONS, apply_mutations, prove, world_of

# what else a mutation truly breaks, beyond the one check that must report it
FOLLOWERS = {
    "call-position": {"near-tie", "prefix-captured", "prefix-hash", "prefix-logprobs", "row-exact", "tail-logprobs"}
    | {"dump-complete", "already-terminal", "policy-logprobs", "token-budget"},
    "prefix-captured": {"prefix-hash", "near-tie", "prefix-logprobs", "already-terminal", "tail-logprobs"},
    "near-tie": {"call-position", "tail-logprobs"},
    "already-terminal": {"near-tie", "prefix-hash", "call-position"},
    "before-cut-call": {"near-tie", "prefix-captured"},
    "row-membership": {"restored-once", "group-membership"},
    "dump-complete": set(),
}


@pytest.fixture(scope="module")
def world(pristine):
    return world_of(*load_runs(pristine))


@pytest.fixture(scope="module")
def results(world):
    return {result.id: result for result in apply_mutations(world, params())}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_a_mutation_is_reported_by_its_check(results, mutation):
    assert mutation.check in results[mutation.id].caught_by


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.id)
def test_only_checks_whose_matter_it_is_report_it_too(results, mutation):
    others = set(results[mutation.id].caught_by) - {mutation.check}
    assert others <= FOLLOWERS.get(mutation.check, set())


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_check_some_mutation_passes_unseen(results, check):
    unseen = [result.id for result in results.values() if not set(result.caught_by) - {check}]
    assert unseen, f"{check} reports nothing that the others do not: it is redundant"


def test_there_are_many_and_each_has_a_name_of_its_own():
    assert len(MUTATIONS) >= 45 and max(Counter(mutation.id for mutation in MUTATIONS).values()) == 1


def test_mutations_are_pure(world, pristine):
    apply_mutations(world, params())
    assert world == world_of(*load_runs(pristine))


def test_an_unreported_mutation_is_a_problem_and_fails_the_verdict(pristine, monkeypatch):
    harmless = mutations.Mutation("harmless", "row-exact", lambda world, subject: world)
    monkeypatch.setattr(mutations, "MUTATIONS", [harmless])
    judgement = judged(pristine)
    prove(judgement, load_runs(pristine), params())
    (problem,) = judgement.problems
    assert (judgement.verdict, problem.where, problem.got) == ("FAIL", "mutation harmless", "reported by no check")


def test_what_a_broken_run_already_reports_does_not_count_as_caught(runs, monkeypatch):
    """The run's own failure of row-exact must not stand for the check having seen the mutation."""
    change_row(runs, "2/0/0", lambda row: row.update(reward=0.9))
    harmless = mutations.Mutation("harmless", "row-exact", lambda world, subject: world)
    monkeypatch.setattr(mutations, "MUTATIONS", [harmless])
    assert apply_mutations(world_of(*load_runs(runs)), params())[0].caught_by == []


def test_runs_without_a_place_say_so_and_are_not_counted(pristine, monkeypatch):
    nowhere = mutations.Mutation("nowhere", "row-exact", lambda world, subject: None)
    monkeypatch.setattr(mutations, "MUTATIONS", [nowhere])
    judgement = judged(pristine)
    prove(judgement, load_runs(pristine), params())
    assert judgement.mutations[0].caught_by is None and judgement.seen["mutations"] == 0


def test_a_large_dump_is_proven_on_one_steps_rows(pristine, monkeypatch):
    monkeypatch.setattr(mutations, "MANY_ROWS", 4)
    kept = []
    monkeypatch.setattr(mutations, "apply_mutations", lambda world, params: kept.extend(world.rows) or [])
    prove(judged(pristine), load_runs(pristine), params())
    assert [key.train_step for key in kept] == [1] * 4
