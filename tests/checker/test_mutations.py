"""Mutations: each is reported by its check, each check is needed, and the report proves both on the rows it judges."""

from collections import Counter

import pytest
from builders import change_row, healthy_runs, judged, params, tie

from restore_parity import mutations
from restore_parity.checks import CHECKS, judge
from restore_parity.index import COLUMNS
from restore_parity.mutations import MUTATIONS, apply_mutations, prove, world_of
from restore_parity.saved import load_runs

# what else a mutation truly breaks, beyond the one check that must report it
FOLLOWERS = {
    "prefix-logprobs": {"tail-logprobs"},
    "call-position": {
        "tail-generated",
        "near-tie",
        "prefix-captured",
        "prefix-hash",
        "prefix-logprobs",
        "row-exact",
        "tail-logprobs",
    }
    | {"dump-complete", "already-terminal", "policy-logprobs", "token-budget"},
    "prefix-captured": {"prefix-hash", "near-tie", "prefix-logprobs", "already-terminal", "tail-logprobs"},
    "near-tie": {"call-position", "tail-logprobs", "tail-generated"},
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


def unseen(world, subject):
    """A change of what no check reads."""
    return mutations.with_row(world, subject.key, mutations.replace(subject.row, sample_id="another"))


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
    harmless = mutations.Mutation("harmless", "row-exact", unseen)
    monkeypatch.setattr(mutations, "MUTATIONS", [harmless])
    judgement = judged(pristine)
    prove(judgement, load_runs(pristine), params())
    (problem,) = judgement.problems
    assert (judgement.verdict, problem.where, problem.got) == ("FAIL", "mutation harmless", "reported by no check")


def test_what_a_broken_run_already_reports_does_not_count_as_caught(runs, monkeypatch):
    """The run's own failure of row-exact must not stand for the check having seen the mutation."""
    change_row(runs, "2/0/0", lambda row: row.update(reward=0.9))
    harmless = mutations.Mutation("harmless", "row-exact", unseen)
    monkeypatch.setattr(mutations, "MUTATIONS", [harmless])
    assert apply_mutations(world_of(*load_runs(runs)), params())[0].caught_by == []


def test_a_mutation_without_a_place_says_so_and_is_not_counted(pristine, monkeypatch):
    nowhere = mutations.Mutation("nowhere", "row-exact", lambda world, subject: None)
    monkeypatch.setattr(mutations, "MUTATIONS", [nowhere, mutations.MUTATIONS[0]])
    judgement = judged(pristine)
    prove(judgement, load_runs(pristine), params())
    assert judgement.mutations[0].caught_by is None and (judgement.seen["mutations"], judgement.verdict) == (1, "PASS")


def test_runs_without_a_place_for_any_mutation_do_not_pass(pristine, monkeypatch):
    monkeypatch.setattr(mutations, "MUTATIONS", [mutations.Mutation("nowhere", "row-exact", lambda world, subject: None)])
    judgement = judged(pristine)
    prove(judgement, load_runs(pristine), params())
    (problem,) = judgement.problems
    assert (judgement.verdict, problem.check, problem.got) == ("FAIL", "mutations", "no place for any")


def test_a_large_dump_is_proven_on_some_groups_of_one_step(tmp_path, monkeypatch):
    given = params(prompts_per_step=3, list_lengths=[3] * 3, closing_limit_tokens=[14, 9, 9])
    runs, kept = load_runs(healthy_runs(tmp_path / "runs", given)), []
    monkeypatch.setattr(mutations, "MANY_TOKENS", 100)
    monkeypatch.setattr(mutations, "apply_mutations", lambda world, params: kept.extend(world.rows) or [])
    prove(judge(runs[0], runs[2], runs[1], given), runs, given)
    assert [str(key) for key in kept] == ["1/1/0", "1/1/1", "1/0/0", "1/0/1"]


def test_a_change_that_changes_nothing_is_no_mutation(pristine, monkeypatch):
    same = mutations.Mutation(
        "same", "row-exact", lambda world, subject: mutations.replace(world, records=[*world.records])
    )
    monkeypatch.setattr(mutations, "MUTATIONS", [same])
    assert apply_mutations(world_of(*load_runs(pristine)), params())[0].caught_by is None


def test_a_run_that_fails_at_a_place_already_does_not_hide_a_mutation_there(runs):
    """A change behind the same check, key and place is told by what it got."""
    for key in map(str, params().row_keys()):
        change_row(runs, key, lambda row: row["generation_logprobs"].__setitem__(-1, -0.9))
    results = {result.id: result for result in apply_mutations(world_of(*load_runs(runs)), params())}
    assert [
        result.id for result in results.values() if result.caught_by is not None and result.check not in result.caught_by
    ] == []


def test_calls_cut_at_their_limit_have_no_place_for_what_needs_a_tail(tmp_path):
    given = params(cut_tokens={"1/0/0#1": "limit", "1/1/0#1": "limit"}, steps=1, generations_per_prompt=1)
    world = world_of(*load_runs(healthy_runs(tmp_path / "runs", given, steps=60)))
    results = {result.id: result for result in apply_mutations(world, given)}
    assert results["tail-lost"].caught_by is None and results["completed-twice"].caught_by is None
    assert [
        result.id for result in results.values() if result.caught_by is not None and result.check not in result.caught_by
    ] == []


LOOSE = {"near_tie_margin": 0.3, "max_set_aside": 0.5, "max_logprob_diff": 0.3, "max_policy_diff": 1e-3}


def proven(runs, given=None, **loose):
    """The judgement of runs with their mutations."""
    given = given or params(**loose)
    loaded = load_runs(runs)
    judgement = judge(loaded[0], loaded[2], loaded[1], given)
    prove(judgement, loaded, given)
    return judgement


def test_a_near_tie_in_an_early_step_hides_no_mutation(runs):
    """Rows behind a set-aside one are rightly not compared by policy: the mutation must show elsewhere."""
    tie(runs, 0.1)
    assert proven(runs, **LOOSE).verdict == "PASS"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_cuts_without_a_tail_do_not_hide_that_all_others_are_set_aside(tmp_path, share):
    cuts = {"1/0/0#1": "limit", "1/1/0#1": "limit", "2/0/1#1": "limit", "1/1/1#1": 4}
    given = params(**LOOSE | {"cut_tokens": cuts, "max_set_aside": share})
    assert proven(healthy_runs(tmp_path / "runs", given, steps=60), given).verdict == "PASS"


@pytest.mark.parametrize(("width", "steps"), [(1, 12), (1, 47), (1, 60), (1, 62), (1, 64), (2, 13), (4, 11), (None, 1)])
def test_wherever_the_kill_falls_healthy_runs_hide_no_mutation(tmp_path, width, steps):
    given = params(**LOOSE, cut_tokens={})
    judgement = proven(healthy_runs(tmp_path / "runs", given, steps=steps, width=width), given)
    assert [problem.where for problem in judgement.problems if problem.check == "mutations"] == []


@pytest.mark.parametrize("size", [1, 60, 108], ids=lambda size: f"{size} tokens")
def test_a_row_without_its_cut_call_can_still_be_proven_on(runs, size):
    def cut_short(row):
        row.update({name: row[name][:size] for name in COLUMNS if row.get(name)}, input_length=size)
        row["token_loss_mask"][0] = 1

    change_row(runs, "1/0/0", cut_short)
    assert proven(runs).verdict == "FAIL"
