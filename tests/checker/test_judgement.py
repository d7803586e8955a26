"""A judgement: how comparisons become problems, problems a status, and all of them a verdict."""

import pytest
from builders import at_place, change_row, judged, params
from edits import CUT, FINISHED, ROW, change_info, judged_without_killed

from restore_parity.checker.checks import judge
from restore_parity.checker.judgement import ASSUMPTIONS, CHECKS, Judgement, MutationResult
from restore_parity.checker.loading import load_runs

STOP = 2


@pytest.fixture
def judgement() -> Judgement:
    """A judgement of nothing yet."""
    return Judgement(params=params(), stop_ids={STOP}, cut_options="--runs x")


# --- expect and same ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holds", "problems"), [(True, 0), (False, 1)], ids=["holds", "does not hold"]
)
def test_a_comparison_is_counted_and_its_outcome_returned(judgement, holds, problems):
    assert judgement.expect("row-exact", holds, "a", "b", where="x") is holds
    assert judgement.seen == {"row-exact": 1}
    assert len(judgement.problems) == problems


def test_a_problem_holds_what_was_compared(judgement):
    judgement.expect("row-exact", False, 1, [2], where="reward", key=CUT)
    (problem,) = judgement.problems
    assert (problem.check, problem.key, problem.where) == ("row-exact", CUT, "reward")
    assert (problem.expected, problem.got) == ("1", "[2]")


def test_a_problem_of_a_cut_names_the_command_that_shows_it(judgement):
    judgement.expect("row-exact", False, 1, 2, where="reward", key=CUT)
    assert judgement.problems[0].next == f"restore-parity cut {CUT} --runs x"


def test_a_command_without_options_ends_by_its_cut(judgement):
    judgement.cut_options = ""
    judgement.expect("row-exact", False, 1, 2, where="reward", key=CUT)
    assert judgement.problems[0].next == f"restore-parity cut {CUT}"


def test_a_problem_of_no_row_names_its_place(judgement):
    judgement.expect("same-setup", False, 1, 2, where="run.json, seed")
    assert judgement.problems[0].key == ""
    assert judgement.problems[0].next == "look at run.json, seed"


def test_a_row_that_has_a_problem_is_known_by_its_key(judgement):
    judgement.expect("row-exact", True, 1, 1, where="reward", key=ROW)
    judgement.expect("row-exact", False, 1, 2, where="reward", key=CUT)
    assert judgement.failed_keys == {CUT}


def test_problems_found_elsewhere_count_too(judgement, runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9))
    judgement.add(*judged(runs).problems)
    assert judgement.failed_keys == {FINISHED}
    assert judgement.status("row-exact") == "fail"


def test_equal_lists_are_the_same(judgement):
    assert judgement.same("row-exact", [1, 2], [1, 2], where="ids", key=ROW)
    assert judgement.seen == {"row-exact": 1}


@pytest.mark.parametrize(
    ("expected", "actual", "place", "shown"),
    [
        ([1, 2], [1, 3], 1, ("1, [2]", "1, [3]")),
        ([1, 2], [1], 1, ("1, [2]", "1, [end]")),
        ([], [4], 0, ("[end]", "[4]")),
    ],
    ids=["another value", "a value less", "a value of none"],
)
def test_lists_that_are_not_the_same_are_shown_around_their_first_difference(
    judgement, expected, actual, place, shown
):
    assert not judgement.same("row-exact", expected, actual, where="ids", key=ROW)
    (problem,) = judgement.problems
    assert problem.where == f"ids[{place}]"
    assert (problem.expected, problem.got) == shown


def test_a_note_follows_what_was_got(judgement):
    judgement.same("row-exact", [1], [2], where="ids", key=ROW, note="; noted")
    assert judgement.problems[0].got == "[2]; noted"


def test_token_ids_are_shown_with_their_text(judgement):
    judgement.decode = lambda ids: f"text of {ids}"
    judgement.same("row-exact", [1], [2], where="ids", key=ROW)
    assert judgement.problems[0].expected == "[1]  'text of [1]'"
    assert judgement.problems[0].got == "[2]  'text of [2]'"


def test_log_probabilities_have_no_text(judgement):
    judgement.decode = lambda ids: f"text of {ids}"
    judgement.same("prefix-logprobs", [-0.5], [-0.6], where="logprobs", key=CUT)
    assert judgement.problems[0].got == "[-0.6]"


@pytest.mark.parametrize(
    ("key", "place", "check"),
    [(ROW, -13, "prefix-captured"), (ROW, -4, "near-tie"), (FINISHED, -3, "row-exact")],
    ids=["prefix", "tail", "finished row"],
)
def test_every_check_of_token_ids_shows_their_text(runs, key, place, check):
    change_row(runs, key, at_place(place, token_ids=49))
    judgement = judge(load_runs(runs), params(), decode=lambda ids: f"text of {ids}")
    problem = judgement.of(check)[0]
    assert "text of [" in problem.expected
    assert "text of [" in problem.got


# --- stop tokens and log-probabilities ------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "ends"),
    [([7, STOP], True), ([STOP, 7], False), ([], False)],
    ids=["last", "not last", "no token"],
)
def test_a_call_ends_by_a_stop_token_that_is_its_last(judgement, ids, ends):
    assert judgement.ends_by_stop(ids) is ends


def test_the_largest_difference_is_kept_of_each_check(judgement):
    judgement.note_gaps("tail-logprobs", [0.25, 0.0])
    judgement.note_gaps("tail-logprobs", [0.125])
    judgement.note_gaps("policy-logprobs", [0.5])
    assert judgement.largest == {"tail-logprobs": 0.25, "policy-logprobs": 0.5}


def test_noise_is_of_the_engines_log_probabilities_alone(judgement):
    judgement.note_gaps("tail-logprobs", [0.25, 0.3, 0.0])
    judgement.note_gaps("policy-logprobs", [0.5])
    assert judgement.noise == {-2: 2, None: 1}


# --- status and verdict ---------------------------------------------------------------------------


def test_statuses_are_told_apart(pristine, runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9))
    judgement = judged_without_killed(runs)
    found = {check: judgement.status(check) for check in ("near-tie", "row-exact", "kill-happened")}
    assert found == {"near-tie": "pass", "row-exact": "fail", "kill-happened": "not_run"}


def test_a_judgement_without_problems_passes(judgement):
    assert judgement.verdict == "PASS"


@pytest.mark.parametrize("check", ASSUMPTIONS)
def test_an_assumption_that_does_not_hold_is_incomplete(judgement, check):
    judgement.expect(check, False, 1, 2, where="x")
    assert judgement.verdict == "INCOMPLETE"


@pytest.mark.parametrize("check", [*sorted(set(CHECKS) - set(ASSUMPTIONS)), "mutations"])
def test_any_other_check_that_does_not_hold_fails(judgement, check):
    judgement.expect(check, False, 1, 2, where="x")
    assert judgement.verdict == "FAIL"


def test_incomplete_never_hides_a_fail(judgement):
    for check in (*ASSUMPTIONS, "row-exact"):
        judgement.expect(check, False, 1, 2, where="x")
    assert judgement.verdict == "FAIL"


def test_a_whole_comparison_tells_rows_by_key_and_files_by_place(runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9))
    change_info(runs, "killed", exit=None)
    steps = {problem.check: problem.next for problem in judged(runs).problems}
    assert steps == {
        "row-exact": f"restore-parity cut {FINISHED}",
        "kill-happened": "look at killed/run.json, exit",
    }


@pytest.mark.parametrize(
    ("caught_by", "caught"),
    [(None, False), ([], False), (["near-tie"], False), (["near-tie", "row-exact"], True)],
    ids=["no place", "by none", "by another", "by its own too"],
)
def test_a_mutation_is_caught_by_its_own_check(caught_by, caught):
    assert MutationResult(id="x", check="row-exact", caught_by=caught_by).caught is caught
