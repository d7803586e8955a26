"""The checks of two rows of one key: contents, and log-probabilities of equal tokens."""

import pytest
from builders import at_place, change_row, failed, judged, params, tie
from edits import (
    FINISHED,
    LOOSE,
    LOOSE_ALL,
    NO_MEANS,
    ROW,
    change_every_row,
    change_lines,
    found_by,
    judged_without_killed,
    resized,
    row_of,
)

from restore_parity.checker.checks import judge
from restore_parity.checker.loading import load_runs
from restore_parity.checker.results import verdict_line


def lower(place, column="generation_logprobs", by=0.5):
    """A change of a row: one log-probability is lower."""

    def change(row):
        row[column][place] -= by

    return change


# --- columns and row-exact ------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_a_column_that_one_run_alone_has_is_reported(runs, run):
    change_row(runs, FINISHED, lambda row: row.pop("generation_top_logprobs"), run)
    (problem,) = judged(runs).problems
    assert (problem.check, problem.key) == ("dump-complete", FINISHED)
    assert problem.where == "generation_top_logprobs"


@pytest.mark.parametrize("key", [FINISHED, ROW], ids=["a finished row", "a cut row"])
@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda row: row.update(reward=0.9), "reward"),
        (lambda row: row.update(sample_loss_mask=0.0), "sample_loss_mask"),
    ],
    ids=["reward", "sample mask"],
)
def test_what_a_row_is_worth_is_the_baselines(runs, key, change, where):
    change_row(runs, key, change)
    (problem,) = judged(runs).problems
    assert (problem.check, problem.key, problem.where) == ("row-exact", key, where)


def test_another_token_of_a_finished_row_is_shown_in_its_place(runs):
    change_row(runs, FINISHED, at_place(-3, token_ids=99))
    (problem,) = judged(runs).of("row-exact")
    assert problem.key == FINISHED
    assert problem.where == "token_ids[112]"
    assert "[99]" in problem.got


def test_another_mask_of_a_finished_row_is_shown_in_its_place(runs):
    change_row(runs, "2/1/0", at_place(-1, token_loss_mask=0))
    (problem,) = judged(runs).of("row-exact")
    assert problem.where == "token_loss_mask[107]"


def test_a_row_longer_than_the_baselines_is_reported(runs):
    change_row(runs, FINISHED, resized(lambda values: [*values, values[-1]]))
    ids, advantages = judged(runs).of("row-exact")
    assert (ids.where, advantages.where) == ("token_ids[115]", "advantages[115]")
    assert ids.expected.endswith("[end]")


def test_rewards_permuted_within_a_step_are_told_row_by_row(runs):
    keys = [str(key) for key in params().row_keys() if key.train_step == 1]
    rewards = [row_of(runs, key).reward for key in keys]
    for key, reward in zip(keys, [*rewards[1:], rewards[0]], strict=True):
        change_row(runs, key, lambda row, reward=reward: row.update(reward=reward))
    assert found_by(judged(runs)) == [("row-exact", key) for key in keys]


def text_of_thousands(ids):
    """Ids that are 1000 apart are one text."""
    return "".join(chr(token % 1000) for token in ids)


def test_other_ids_of_equal_text_are_called_retokenised(runs):
    token = row_of(runs, FINISHED).token_ids[-3]
    change_row(runs, FINISHED, at_place(-3, token_ids=token + 1000))
    (problem,) = judge(load_runs(runs), params(), decode=text_of_thousands).of("row-exact")
    assert problem.got.endswith("; the decoded text of both rows is equal: re-tokenised")


def test_other_ids_of_other_text_are_not_called_retokenised(runs):
    change_row(runs, FINISHED, at_place(-3, token_ids=99))
    (problem,) = judge(load_runs(runs), params(), decode=str).of("row-exact")
    assert "re-tokenised" not in problem.got


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_rows_behind_a_lost_one_are_still_compared(runs, run):
    change_lines(runs, lambda lines: lines[1:], run)
    change_row(runs, "2/0/0", lambda row: row.update(reward=0.9))
    assert [problem.key for problem in judged(runs).of("row-exact")] == ["2/0/0"]


# --- log-probabilities ----------------------------------------------------------------------------


def test_a_log_probability_too_far_away_is_told_with_both(runs):
    before = row_of(runs, FINISHED).generation_logprobs[-1]
    change_row(runs, FINISHED, lower(-1))
    (problem,) = judged(runs, **NO_MEANS).of("tail-logprobs")
    assert problem.key == FINISHED
    assert problem.where == "generation_logprobs[114]"
    assert problem.expected == f"{before} within 0.0 nats"
    assert problem.got == f"{before - 0.5}, 0.5 away"


def test_the_place_of_the_largest_difference_is_told(runs):
    change_row(runs, FINISHED, lower(-3, by=0.25))
    change_row(runs, FINISHED, lower(-2))
    change_row(runs, FINISHED, lower(-1, by=0.25))
    (problem,) = judged(runs, **NO_MEANS).of("tail-logprobs")
    assert problem.where == "generation_logprobs[113]"


@pytest.mark.parametrize(
    ("bound", "status"),
    [(0.25, "pass"), (0.24, "fail")],
    ids=["up to the bound", "beyond it"],
)
def test_log_probabilities_may_differ_up_to_the_bound(runs, bound, status):
    change_row(runs, FINISHED, at_place(-1, generation_logprobs=-0.5))
    change_row(runs, FINISHED, at_place(-1, generation_logprobs=-0.75), "uninterrupted")
    judgement = judged(runs, **NO_MEANS, max_logprob_diff=bound)
    assert judgement.status("tail-logprobs") == status


@pytest.mark.parametrize(
    ("bound", "checks"),
    [(0.25, set()), (0.24, {"policy-logprobs"})],
    ids=["up to the bound", "beyond it"],
)
def test_the_trainers_log_probabilities_have_a_bound_of_their_own(runs, bound, checks):
    change_row(runs, FINISHED, at_place(-1, prev_logprobs=-0.5))
    change_row(runs, FINISHED, at_place(-1, prev_logprobs=-0.75), "uninterrupted")
    assert failed(judged(runs, **NO_MEANS, max_policy_diff=bound)) == checks


@pytest.mark.parametrize("place", [-14, -12, -11, -1], ids=["prefix", "seam", "tail", "end"])
def test_log_probabilities_of_a_cut_call_are_the_baselines(runs, place):
    """No other check sees a wrong capture of them that the restore agrees with."""
    change_row(runs, ROW, lower(place), "uninterrupted")
    assert failed(judged(runs, **NO_MEANS)) == {"tail-logprobs"}


def test_log_probabilities_of_an_earlier_call_of_a_cut_row_are_compared(runs):
    start, _ = row_of(runs, ROW).segments()[0]
    change_row(runs, ROW, lower(start))
    assert [problem.key for problem in judged(runs, **NO_MEANS).of("tail-logprobs")] == [ROW]


def test_log_probabilities_of_untrained_tokens_are_not_compared(runs):
    change_row(runs, ROW, at_place(0, generation_logprobs=-9.0, prev_logprobs=-9.0))
    assert not judged(runs).problems


def test_log_probabilities_at_a_tie_itself_may_differ(runs):
    tie(runs, 0.1)
    token = row_of(runs, ROW, "uninterrupted").token_ids[-4]
    top2 = [[99, -0.9], [token, -1.0]]
    change_row(runs, ROW, at_place(-4, generation_top_logprobs=top2, generation_logprobs=-0.9))
    assert not judged(runs, **LOOSE).problems


def test_log_probabilities_before_a_tie_are_compared(runs):
    tie(runs, 0.1)
    change_row(runs, ROW, lower(-14, "prev_logprobs", by=50))
    assert found_by(judged(runs, **LOOSE | NO_MEANS)) == [("policy-logprobs", ROW)]


def test_differences_are_counted_by_powers_of_two(runs):
    change_row(runs, FINISHED, lower(-1, by=0.25))
    judgement = judged(runs, **NO_MEANS, max_logprob_diff=0.3)
    assert judgement.noise == {-2: 1, None: 149}
    assert judgement.largest["tail-logprobs"] == 0.25


@pytest.mark.parametrize("key", ["2/0/0", "2/1/1"])
def test_policy_is_compared_in_every_step_while_nothing_is_set_aside(runs, key):
    change_row(runs, key, lower(-1, "prev_logprobs"))
    assert found_by(judged(runs, **NO_MEANS)) == [("policy-logprobs", key)]


@pytest.mark.parametrize("key", [FINISHED, "1/1/1"], ids=["of its group", "of another group"])
def test_policy_is_compared_in_the_step_of_a_set_aside_row(runs, key):
    """The step's weights were made before it trained on that row."""
    tie(runs, 0.1)
    change_row(runs, key, lower(-1, "prev_logprobs"))
    assert found_by(judged(runs, **LOOSE | NO_MEANS)) == [("policy-logprobs", key)]


def test_rows_trained_behind_a_set_aside_one_are_counted_and_not_compared_by_policy(runs):
    tie(runs, 0.1)
    change_row(runs, "2/0/0", lower(-1, "prev_logprobs"))
    judgement = judged(runs, **LOOSE)
    assert not judgement.problems
    assert judgement.counts["rows_after_set_aside"] == 4


def tail_of_call(change):
    """A change of a row: the log-probabilities behind its captured prefix."""

    def apply(row):
        row["generation_logprobs"][-11:] = change(row["generation_logprobs"][-11:])

    return apply


@pytest.mark.parametrize(
    "change",
    [lambda values: [0.0] * len(values), lambda values: [*values[1:], values[0]]],
    ids=["zeroed", "shifted by one place"],
)
def test_a_tail_of_other_log_probabilities_shows_in_its_mean(runs, change):
    """Each is within the bound for a single one (case 36)."""
    change_row(runs, ROW, tail_of_call(change))
    (problem,) = judged(runs, **LOOSE_ALL).of("tail-logprobs")
    assert problem.where == "generation_logprobs, call 1"
    assert problem.expected == "a mean difference within 0.05 nats"


def test_one_log_probability_within_its_bound_moves_no_mean(runs):
    change_row(runs, ROW, lower(-1, by=0.25))
    assert not judged(runs, **LOOSE_ALL).problems


def zero_logprobs(row):
    row["generation_logprobs"] = [0.0] * row["input_length"]


def test_log_probabilities_of_nothing_but_zero_are_not_compared_and_counted(runs):
    """Processed ones, say: equal for whatever was generated (case 37)."""
    change_every_row(runs, zero_logprobs)
    judgement = judged_without_killed(runs)
    assert judgement.status("tail-logprobs") == "not_run"
    reason = "0 compared; not compared: 8 rows with log-probabilities of 0.0 alone"
    assert judgement.why("tail-logprobs") == reason


def test_zeros_on_one_side_alone_are_compared(runs):
    change_row(runs, FINISHED, zero_logprobs)
    assert judged_without_killed(runs).status("tail-logprobs") == "fail"


# --- advantages -----------------------------------------------------------------------------------


def negated(row):
    row["advantages"] = [-value for value in row["advantages"]]


@pytest.mark.parametrize(
    "keys",
    [[ROW], [FINISHED], ["2/0/0", "2/0/1", "2/1/0", "2/1/1"]],
    ids=["of a cut row", "of its sibling", "of a whole step"],
)
def test_advantages_are_the_baselines(runs, keys):
    """Case 32."""
    for key in keys:
        change_row(runs, key, negated)
    assert found_by(judged(runs)) == [("row-exact", key) for key in keys]


@pytest.mark.parametrize("key", [ROW, FINISHED], ids=["set aside", "its sibling"])
def test_advantages_of_a_group_with_a_set_aside_row_may_differ(runs, key):
    """They are relative to the rewards of the group."""
    tie(runs, 0.1)
    change_row(runs, key, negated)
    assert not judged(runs, **LOOSE).problems


def test_advantages_of_the_other_groups_are_compared_beside_a_set_aside_row(runs):
    tie(runs, 0.1)
    change_row(runs, "1/1/0", negated)
    assert found_by(judged(runs, **LOOSE)) == [("row-exact", "1/1/0")]


# --- the gap between engine and trainer -----------------------------------------------------------


def lower_all(column, by):
    """A change of a row: a whole column is lower where trained."""

    def change(row):
        masks = row["token_loss_mask"]
        values = zip(row[column], masks, strict=True)
        row[column] = [value - by * mask for value, mask in values]

    return change


def change_step_2(runs, change):
    for key in params().row_keys():
        if key.train_step == 2:
            change_row(runs, str(key), change)


@pytest.mark.parametrize("judge_runs", [judged, judged_without_killed], ids=["own", "foreign"])
def test_wrong_weights_behind_a_set_aside_row_show_in_the_gap(runs, judge_runs):
    """Case 28: the policy of those rows is compared with nothing."""
    tie(runs, 0.1)
    change_step_2(runs, lower_all("prev_logprobs", 9.0))
    judgement = judge_runs(runs, **LOOSE_ALL)
    (problem,) = judgement.problems
    assert problem.check == "engine-trainer-gap"
    assert problem.where == "step 2, |generation_logprobs - prev_logprobs|"
    assert judgement.largest["engine-trainer-gap"] == pytest.approx(9.0)


def test_the_verdict_says_how_many_rows_policy_was_not_compared_of(runs):
    tie(runs, 0.1)
    line = verdict_line(judged(runs, **LOOSE))
    assert "4 rows behind a set-aside one not compared by policy-logprobs" in line


@pytest.mark.parametrize(
    ("by", "bound", "status"),
    [
        (0.1, 0.01, "fail"),
        (0.2, 0.01, "fail"),
        (0.011, 0.01, "fail"),
        (0.009, 0.01, "pass"),
        (0.001, 0.0005, "fail"),
    ],
    ids=lambda value: str(value),
)
def test_an_engine_that_missed_an_update_shows_in_the_gap(runs, by, bound, status):
    """Case 29: from a drift of the bound on, on average; all tokens are equal."""
    change_step_2(runs, lower_all("prev_logprobs", by))
    judgement = judged_without_killed(runs, **LOOSE_ALL | {"max_gap_increase": bound})
    assert judgement.status("engine-trainer-gap") == status
