"""The proof on a report's own rows: a mutation that no check reports fails the verdict."""

import pytest
from builders import change_row, healthy_runs, judged, params, tie
from edits import LOOSE_ALL, ROW, resized
from msgspec.structs import replace

from restore_parity.checker import proof
from restore_parity.checker.checks import judge
from restore_parity.checker.dumps import COLUMNS
from restore_parity.checker.judgement import Judgement
from restore_parity.checker.loading import load_runs
from restore_parity.checker.mutations import MUTATIONS, Mutation
from restore_parity.checker.proof import apply_mutations, prove
from restore_parity.checker.worlds import with_row, world_of

NOWHERE = Mutation("nowhere", "row-exact", lambda world, subject: None)
HARMLESS = Mutation(  # a change of what no check reads
    "harmless",
    "row-exact",
    lambda world, subject: with_row(world, subject.key, replace(subject.row, sample_id="another")),
)
SAME = Mutation("same", "row-exact", lambda world, subject: replace(world))


@pytest.fixture
def only(monkeypatch):
    """Let these be all mutations there are."""
    return lambda *mutations: monkeypatch.setattr(proof, "MUTATIONS", [*mutations])


def proven(runs, given=None) -> Judgement:
    """The judgement of runs with their mutations."""
    given = given or params()
    loaded = load_runs(runs)
    judgement = judge(loaded, given)
    prove(judgement, loaded, given)
    return judgement


def unreported(results) -> list[str]:
    """The mutations that had a place and that their check did not report."""
    return [one.id for one in results if one.caught_by is not None and not one.caught]


# --- what is a problem ----------------------------------------------------------------------------


def test_healthy_runs_report_every_mutation(pristine):
    judgement = proven(pristine)
    assert judgement.verdict == "PASS"
    assert len(judgement.mutations) == len(MUTATIONS)
    assert judgement.seen["mutations"] == len(MUTATIONS)


def test_an_unreported_mutation_fails_the_verdict(pristine, only):
    only(HARMLESS)
    judgement = proven(pristine)
    (problem,) = judgement.problems
    assert judgement.verdict == "FAIL"
    assert problem.where == "mutation harmless"
    assert problem.expected == "reported by row-exact"
    assert problem.got == "reported by no check"


def test_a_mutation_that_another_check_reports_is_told_with_that(pristine, only):
    (lost,) = [mutation for mutation in MUTATIONS if mutation.id == "tail-lost"]
    only(lost._replace(check="prefix-hash"))
    (problem,) = proven(pristine).problems
    assert "near-tie" in problem.got.removeprefix("reported by ").split(", ")


def test_a_mutation_without_a_place_is_not_counted(pristine, only):
    only(NOWHERE, MUTATIONS[0])
    judgement = proven(pristine)
    assert judgement.mutations[0].caught_by is None
    assert judgement.seen["mutations"] == 1
    assert judgement.verdict == "PASS"


def test_runs_without_a_place_for_any_mutation_do_not_pass(pristine, only):
    only(NOWHERE)
    judgement = proven(pristine)
    (problem,) = judgement.problems
    assert judgement.verdict == "FAIL"
    assert (problem.check, problem.got) == ("mutations", "no place for any")


def test_runs_that_fail_already_need_no_place(runs, only):
    only(NOWHERE)
    change_row(runs, "2/0/0", lambda row: row.update(reward=0.9))
    assert [problem.check for problem in proven(runs).problems] == ["row-exact"]


def test_a_change_that_changes_nothing_is_no_mutation(pristine, only):
    only(SAME)
    (result,) = apply_mutations(world_of(load_runs(pristine), params()))
    assert result.caught_by is None


# --- what runs report already ---------------------------------------------------------------------


def test_what_runs_already_report_does_not_count_as_caught(runs, only):
    """Their own failure of row-exact must not stand for the check having seen the mutation."""
    only(HARMLESS)
    change_row(runs, "2/0/0", lambda row: row.update(reward=0.9))
    (result,) = apply_mutations(world_of(load_runs(runs), params()))
    assert result.caught_by == []


def test_runs_that_fail_at_a_place_do_not_hide_a_mutation_there(runs):
    """A change behind the same check, key and place is told by what it got."""
    for key in map(str, params().row_keys()):
        change_row(runs, key, lambda row: row["generation_logprobs"].__setitem__(-1, -0.9))
    assert unreported(apply_mutations(world_of(load_runs(runs), params()))) == []


def test_a_near_tie_in_an_early_step_hides_no_mutation(runs):
    """Rows behind a set-aside one are not compared by policy: the mutation must show elsewhere."""
    tie(runs, 0.1)
    assert proven(runs, params(**LOOSE_ALL)).verdict == "PASS"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_cuts_without_a_tail_do_not_hide_that_all_others_are_set_aside(tmp_path, share):
    cuts = {"1/0/0#1": "limit", "1/1/0#1": "limit", "2/0/1#1": "limit", "1/1/1#1": 4}
    given = params(**LOOSE_ALL | {"cut_tokens": cuts, "max_set_aside": share})
    assert proven(healthy_runs(tmp_path / "runs", given, steps=60), given).verdict == "PASS"


@pytest.mark.parametrize(
    ("width", "steps"),
    [(1, 12), (1, 47), (1, 60), (1, 62), (1, 64), (2, 13), (4, 11), (None, 1)],
    ids=lambda value: str(value),
)
def test_wherever_the_kill_falls_healthy_runs_hide_no_mutation(tmp_path, width, steps):
    given = params(**LOOSE_ALL, cut_tokens={})
    runs = healthy_runs(tmp_path / "runs", given, steps=steps, width=width)
    assert proven(runs, given).of("mutations") == []


@pytest.mark.parametrize("size", [1, 60, 108], ids=lambda size: f"{size} tokens")
def test_a_row_without_its_cut_call_can_still_be_proven_on(runs, size):
    def cut_short(row):
        row.update({name: row[name][:size] for name in COLUMNS if row.get(name)}, input_length=size)
        row["token_loss_mask"][0] = 1

    change_row(runs, ROW, cut_short)
    assert proven(runs).verdict == "FAIL"


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
@pytest.mark.parametrize("key", [ROW, "1/1/0"], ids=["the last call", "a call of one more token"])
def test_a_row_longer_than_the_others_can_still_be_proven_on(runs, run, key):
    change_row(runs, key, resized(lambda values: [values[0], *values]), run)
    assert proven(runs).verdict == "FAIL"


# --- large dumps ----------------------------------------------------------------------------------


def test_a_large_dump_is_proven_on_some_groups_of_one_step(tmp_path, monkeypatch, only):
    """The groups with most cuts, at least two of them."""
    seen = []
    only(Mutation("looks", "row-exact", lambda world, subject: seen.append(world)))
    monkeypatch.setattr(proof, "MANY_TOKENS", 100)
    given = params(prompts_per_step=3, list_lengths=[3] * 3, closing_limit_tokens=[14, 9, 9])
    proven(healthy_runs(tmp_path / "runs", given), given)
    assert [str(key) for key in seen[0].rows] == ["1/1/0", "1/1/1", "1/0/0", "1/0/1"]


def test_a_small_dump_is_proven_on_whole(pristine, only):
    seen = []
    only(Mutation("looks", "row-exact", lambda world, subject: seen.append(world)))
    judged_rows = judged(pristine).counts["rows"]
    proven(pristine)
    assert len(seen[0].rows) == judged_rows
