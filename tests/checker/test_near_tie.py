"""Near-ties: what counts as evidence that a restored run may take another token."""

import math

import pytest
from builders import at_place, change_row, choose, judged, tie
from edits import (
    CUT,
    LOOSE,
    ROW,
    change_both,
    change_every_row,
    cut_of,
    found_by,
    judged_without_killed,
    row_of,
)
from msgspec.structs import replace

from restore_parity.checker.near_tie import (
    LN_HALF,
    Tie,
    choice_of,
    find_tie,
    is_greedy,
    trainer_margin,
)
from restore_parity.records import Row


def two_token_row(**columns) -> Row:
    """A prompt of one token and two generated ones, of which 7 and 8 are the likeliest."""
    row = Row(
        group_id="g",
        prompt_idx=0,
        generation_index=0,
        input_length=3,
        sample_loss_mask=1.0,
        reward=0.0,
        token_ids=[1, 7, 8],
        token_loss_mask=[0.0, 1.0, 1.0],
        advantages=[0.0, 0.0, 0.0],
        generation_logprobs=[0.0, -0.5, -0.6],
        prev_logprobs=[0.0, -0.5, -0.6],
        generation_top_logprobs=[None, [(7, -0.5), (9, -2.0)], [(8, -0.6), (9, -0.7)]],
    )
    return replace(row, **columns)


# --- is_greedy ------------------------------------------------------------------------------------


def test_a_row_whose_tokens_are_all_the_likeliest_is_greedy():
    assert is_greedy(two_token_row())


def test_an_exact_tie_for_the_likeliest_is_greedy():
    assert is_greedy(
        two_token_row(
            generation_top_logprobs=[None, [(9, -0.5), (7, -0.5)], [(8, -0.6), (9, -0.7)]]
        )
    )


def test_a_candidate_without_a_finite_log_probability_is_no_rival():
    top2 = [None, [(9, None), (7, -0.5)], [(8, -0.6)]]
    assert is_greedy(two_token_row(generation_top_logprobs=top2))


@pytest.mark.parametrize(
    "columns",
    [
        {"generation_top_logprobs": None},
        {"token_loss_mask": [0.0, 0.0, 0.0]},
        {"generation_top_logprobs": [None, None, [(8, -0.6), (9, -0.7)]]},
        {"generation_top_logprobs": [None, [(7, -0.5), (9, -0.4)], [(8, -0.6)]]},
        {"generation_logprobs": [0.0, -0.5, -0.61]},
        {"token_ids": [1, 7, 5]},
        {"generation_top_logprobs": [None, [(7, None), (9, -2.0)], [(8, -0.6)]]},
    ],
    ids=[
        "no column",
        "nothing generated",
        "no candidates of one token",
        "a likelier candidate",
        "another log-probability in the row",
        "a token that was no candidate",
        "no finite log-probability",
    ],
)
def test_a_row_that_does_not_show_it_is_not_greedy(columns):
    assert not is_greedy(two_token_row(**columns))


# --- find_tie -------------------------------------------------------------------------------------


def taking_the_other(**columns) -> Row:
    """The row that takes 9 as its last token."""
    other = {
        "token_ids": [1, 7, 9],
        "generation_logprobs": [0.0, -0.5, -0.62],
        "generation_top_logprobs": [None, [(7, -0.5)], [(9, -0.62), (8, -0.67)]],
    }
    return two_token_row(**other | columns)


def tie_at(
    baseline: Row, restored: Row, at: int = 2, bound: float = 0.3, vocabulary: int | None = None
) -> Tie:
    """What two rows show of a tie at a token."""
    choices = choice_of("uninterrupted", baseline, at), choice_of("restored", restored, at)
    return find_tie(*choices, bound, vocabulary)


def test_margins_are_each_runs_own():
    margins = tie_at(two_token_row(), taking_the_other()).margins
    assert margins == (pytest.approx(0.1), pytest.approx(0.05))


@pytest.mark.parametrize(
    ("baseline", "restored"),
    [
        ({}, {"token_loss_mask": [0.0, 1.0, 0.0]}),
        ({"token_loss_mask": [0.0, 1.0, 0.0]}, {}),
        ({"generation_top_logprobs": [None, [(7, -0.5)], [(8, -0.6), (5, -0.7)]]}, {}),
        ({}, {"generation_top_logprobs": [None, [(7, -0.5)], [(9, -0.62), (5, -0.67)]]}),
        ({}, {"generation_top_logprobs": None}),
        ({"generation_top_logprobs": None}, {}),
        ({}, {"generation_logprobs": [0.0, -0.4, -0.62]}),
        ({"generation_logprobs": [0.0, -0.4, -0.6]}, {}),
    ],
    ids=[
        "a tool's token in the restored run",
        "a tool's token in the baseline",
        "not among the baseline's likeliest",
        "not among the restored run's likeliest",
        "no column in the restored run",
        "no column in the baseline",
        "an earlier token of the restored run is not its likeliest",
        "an earlier token of the baseline is not its likeliest",
    ],
)
def test_without_evidence_there_are_no_margins(baseline, restored):
    tie = tie_at(two_token_row(**baseline), taking_the_other(**restored))
    assert tie.margins is None
    assert tie.reason


def test_behind_a_rows_end_there_is_no_candidate():
    longer = two_token_row(
        input_length=4,
        token_ids=[1, 7, 8, 9],
        token_loss_mask=[0.0, 1.0, 1.0, 1.0],
        generation_logprobs=[0.0, -0.5, -0.6, -0.7],
        generation_top_logprobs=[None, [(7, -0.5)], [(8, -0.6)], [(9, -0.7)]],
    )
    assert tie_at(two_token_row(), longer, at=3).margins is None


@pytest.mark.parametrize(
    ("logprobs", "bound", "margin"),
    [
        ((-0.6, -0.7), 0.3, 0.1),
        ((-0.7, -1.2), 0.3, 0.5),
        ((LN_HALF + 0.3, -0.6), 0.3, abs(LN_HALF + 0.9)),
        ((-0.2, -0.3), 0.3, None),
        ((-0.6, -0.2), 0.3, None),
        ((0.0, 0.0), 0.8, None),
        ((0.0, -0.1), 0.8, None),
        ((-0.1, 0.0), 0.8, None),
    ],
    ids=[
        "near",
        "far",
        "as sure as one of two tied candidates can seem",
        "surer than that",
        "one surer than that",
        "both certain: processed, whatever the bound",
        "the baseline's certain",
        "the restored run's certain",
    ],
)
def test_without_candidates_two_chosen_tokens_are_evidence_as_unsure_as_a_tie(
    logprobs, bound, margin
):
    rows = [
        two_token_row(generation_top_logprobs=None, generation_logprobs=[0.0, -0.5, logprob])
        for logprob in logprobs
    ]
    expected = None if margin is None else (pytest.approx(margin), pytest.approx(margin))
    assert tie_at(*rows, bound=bound).margins == expected


def test_a_half_is_the_most_that_two_tied_candidates_have():
    assert math.exp(LN_HALF) == 0.5


VOCABULARY = 49_152  # the likeliest of so many is never below -10.8


@pytest.mark.parametrize(
    ("logprobs", "is_near"),
    [((-12.0, -12.2), False), ((-10.7, -12.2), False), ((-10.5, -10.7), True)],
    ids=["both", "one", "neither"],
)
def test_a_choice_less_likely_than_the_likeliest_can_be_is_no_tie(logprobs, is_near):
    """Case 38."""
    rows = [
        two_token_row(generation_top_logprobs=None, generation_logprobs=[0.0, -0.5, logprob])
        for logprob in logprobs
    ]
    assert tie_at(*rows, vocabulary=VOCABULARY).is_near(0.3) == is_near


def test_without_a_known_vocabulary_no_choice_is_too_unlikely():
    rows = [
        two_token_row(generation_top_logprobs=None, generation_logprobs=[0.0, -0.5, logprob])
        for logprob in (-12.0, -12.2)
    ]
    assert tie_at(*rows).is_near(0.3)


# --- trainer_margin -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "margin"),
    [
        ([(8, -0.9), (9, -1.0)], 0.1),
        ([(9, -0.9), (8, -1.0)], -0.1),
        ([(8, -0.9), (5, -1.0)], None),
        ([(5, -0.9), (9, -1.0)], None),
        ([(8, -0.9), (9, None)], None),
        (None, None),
    ],
    ids=[
        "prefers the baseline's",
        "prefers the restored run's",
        "did not see the restored run's",
        "did not see the baseline's",
        "not finite",
        "saw none",
    ],
)
def test_the_trainer_is_a_witness_where_it_saw_both_tokens(seen, margin):
    expected = None if margin is None else pytest.approx(margin)
    row = two_token_row(prev_top_logprobs=[None, None, seen])
    assert trainer_margin(row, 2, 8, 9) == expected


def test_a_trainer_without_candidates_is_no_witness():
    assert trainer_margin(two_token_row(), 2, 8, 9) is None


def test_the_trainers_view_stands_beside_the_engines(runs):
    tie(runs, 0.1)
    baseline = row_of(runs, ROW, "uninterrupted")
    seen = [None] * baseline.input_length
    seen[-4] = [[baseline.token_ids[-4], -0.9], [99, -1.0]]
    change_both(runs, ROW, lambda row: row.update(prev_top_logprobs=seen))
    cut = cut_of(judged(runs, **LOOSE))
    assert cut.margin_trainer == pytest.approx(0.1)
    assert cut.status == "set_aside"


# --- the check ------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.3])
def test_a_shown_near_tie_is_set_aside(runs, margin):
    tie(runs, margin)
    judgement = judged(runs, near_tie_margin=0.3000001, max_set_aside=0.5)
    cut = cut_of(judgement)
    assert not judgement.problems
    assert cut.status == "set_aside"
    assert cut.margin_uninterrupted == pytest.approx(margin)
    assert cut.margin_restored == pytest.approx(margin)


@pytest.mark.parametrize("margin", [0.31, 2.5])
@pytest.mark.parametrize("place", [-11, -4], ids=["the tail's first token", "a later one"])
def test_a_margin_beyond_the_bound_is_told(runs, margin, place):
    tie(runs, margin, place)
    judgement = judged(runs, **LOOSE)
    (problem,) = judgement.problems
    assert (problem.check, problem.key) == ("near-tie", CUT)
    assert problem.expected.endswith(", or a near-tie within 0.3 nats")
    assert problem.got.endswith(f", margins {margin} and {margin} nats")
    assert cut_of(judgement).status == "broken"


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_a_near_tie_is_near_in_both_runs(runs, run):
    tie(runs, 0.1)
    token = row_of(runs, ROW, "uninterrupted").token_ids[-4]
    tokens = {"uninterrupted": [token, 99], "restored": [99, token]}
    choose(runs, run, ROW, -4, tokens[run], 2.4)
    judgement = judged(runs, **LOOSE)
    cut = cut_of(judgement)
    far = {"uninterrupted": cut.margin_uninterrupted, "restored": cut.margin_restored}
    assert found_by(judgement) == [("near-tie", CUT)]
    assert far.pop(run) == pytest.approx(2.4)
    assert [*far.values()] == [pytest.approx(0.1)]


def not_finite(row):
    return [[99, -0.6], [row["token_ids"][-4], float("nan")]]


@pytest.mark.parametrize(
    "change",
    [
        at_place(-4, generation_top_logprobs=None),
        at_place(-4, generation_top_logprobs=[[99, -0.6], [7, -0.7]]),
        at_place(-4, generation_top_logprobs=[[7, 0.0], [99, -0.6]]),
        at_place(-4, generation_logprobs=-0.5),
        lambda row: row["generation_top_logprobs"].__setitem__(-4, not_finite(row)),
        at_place(-1, token_ids=77),
    ],
    ids=[
        "no candidates",
        "another candidate",
        "the likelier one was not taken",
        "another log-probability",
        "NaN",
        "a later token that is not the likeliest",
    ],
)
def test_a_near_tie_without_evidence_is_no_excuse(runs, change):
    tie(runs, 0.1)
    change_row(runs, ROW, change)
    (problem,) = judged(runs, **LOOSE).of("near-tie")
    assert problem.key == CUT
    assert "margins" not in problem.got


def test_a_run_without_the_column_shows_nothing(runs):
    tie(runs, 0.1)
    change_row(runs, ROW, lambda row: row.pop("generation_top_logprobs"))
    found = found_by(judged(runs, **LOOSE))
    assert found == [("near-tie", CUT), ("dump-complete", ROW)]


def test_a_tie_at_a_tools_token_is_none(runs):
    """A tool that ran twice and answered otherwise, with candidates made up for it."""
    choose(runs, "uninterrupted", "1/1/1", 80, [50, 51], 0.0)
    choose(runs, "restored", "1/1/1", 80, [51, 50], 0.0)
    assert row_of(runs, "1/1/1").token_loss_mask[80] == 0
    assert ("near-tie", "1/1/1#0") in found_by(judged(runs, **LOOSE))


def test_a_tie_of_dumps_without_candidates_is_judged_by_its_two_tokens(runs):
    tie(runs, 0.1)
    change_every_row(runs, lambda row: row.pop("generation_top_logprobs"))
    cut = cut_of(judged(runs, **LOOSE))
    assert cut.status == "set_aside"
    assert cut.margin_restored == 0.0


def far_down(row, vocabulary_tie=(-12.0, -12.2)):
    row["generation_logprobs"][-4] = vocabulary_tie[row["token_ids"][-4] == 99]


@pytest.mark.parametrize(
    ("vocabulary", "status"), [(0, "set_aside"), (49_152, "broken")], ids=["not known", "known"]
)
def test_the_vocabulary_comes_from_the_parameters_where_no_run_tells_it(runs, vocabulary, status):
    tie(runs, 0.1)
    change_every_row(runs, lambda row: row.pop("generation_top_logprobs"))
    change_both(runs, ROW, far_down)
    judgement = judged_without_killed(runs, **LOOSE, vocabulary_tokens=vocabulary)
    assert cut_of(judgement).status == status


@pytest.mark.parametrize(
    ("recorded", "status"), [(3, "set_aside"), (2, "broken")], ids=["three", "two"]
)
def test_three_tied_tokens_are_shown_where_more_than_two_likeliest_are_recorded(
    runs, recorded, status
):
    """Case 39: either run's second likeliest is the third one."""
    tie(runs, 0.016)
    token = row_of(runs, ROW, "uninterrupted").token_ids[-4]
    for run, chosen, other in (("uninterrupted", token, 99), ("restored", 99, token)):
        tied = [[chosen, -0.6], [77, -0.616], [other, -0.616]][:recorded]
        change_row(runs, ROW, at_place(-4, generation_top_logprobs=tied), run)
    judgement = judged(runs, **LOOSE)
    assert cut_of(judgement).status == status


def test_a_token_that_was_not_recorded_is_told_with_how_far_down_it_is(runs):
    tie(runs, 0.016)
    token = row_of(runs, ROW, "uninterrupted").token_ids[-4]
    change_row(runs, ROW, at_place(-4, generation_top_logprobs=[[99, -0.6], [77, -0.616]]))
    (problem,) = judged(runs, **LOOSE).of("near-tie")
    assert problem.got.endswith(
        f"token {token} of the uninterrupted run is not among the restored run's 2 likeliest, "
        "so at least 0.016 nats below its choice"
    )
