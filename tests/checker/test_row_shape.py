"""The shape of a row: prompt, then calls and tool results in turn, and nothing behind (case 34)."""

import pytest
from builders import STOP, at_place, change_row, choose, judged
from edits import (
    FINISHED,
    LOOSE_ALL,
    TRAINED,
    change_both,
    change_every_row,
    judged_without_killed,
    resized,
    row_of,
)

TIED = "1/1/1"  # its first call, tokens 54 to 66, was cut; the second, 108 to 116, ends by a stop


@pytest.fixture
def tied(runs):
    """The restored row parts from the baseline at a tie in its first call, and is set aside."""
    token = row_of(runs, TIED, "uninterrupted").token_ids[64]
    choose(runs, "uninterrupted", TIED, 64, [token, 99], 0.0)
    choose(runs, "restored", TIED, 64, [99, token], 0.0)
    assert judged(runs, **LOOSE_ALL).verdict == "PASS"
    return runs


def all_but_the_last_untrained(row):
    row["token_loss_mask"][108:115] = [0] * 7


def untrained_behind(row):
    size = row["input_length"]
    resized(lambda values: [*values, *values[-40:]])(row)
    row["token_loss_mask"][size:] = [0] * 40


def beyond_its_limit(row):
    row["token_ids"][115] = 50
    resized(lambda values: [*values, *[values[-1]] * 20])(row)


SHAPES = [
    (all_but_the_last_untrained, "[125, 10]", "restored row, tool result 0"),
    (beyond_its_limit, "a stop token last, or", "restored row, call 1"),
    (at_place(110, token_ids=STOP), "no stop token before", "restored row, call 1"),
    (resized(lambda row: row[:66] + row[108:]), "2 calls", "restored row"),
    (resized(lambda row: row[:106] + row[108:]), "[", "restored row, tool result 0"),
    (untrained_behind, "nothing behind the last call", "restored row"),
]
NAMES = [
    "a call untrained but for its last token",
    "a call beyond its limit",
    "a call going on behind a stop token",
    "a tool result lost",
    "a tool result without its end",
    "untrained tokens behind the row",
]


@pytest.mark.parametrize(("change", "expected", "where"), SHAPES, ids=NAMES)
def test_what_stands_behind_a_tie_keeps_the_shape_of_a_row(tied, change, expected, where):
    change_row(tied, TIED, change)
    judgement = judged(tied, **LOOSE_ALL)
    problem = judgement.of("row-shape")[0]
    assert judgement.verdict == "FAIL"
    assert problem.expected.startswith(expected)
    assert problem.where.startswith(where)


def test_a_rows_shape_is_told_with_its_run(runs):
    """Both runs went on behind a stop token: no comparison of the two shows it."""
    change_both(runs, FINISHED, at_place(111, token_ids=STOP))
    where = [problem.where for problem in judged(runs).of("row-shape")]
    assert where == [f"{run} row, call 1" for run in TRAINED]


def test_a_row_begins_with_its_prompt(runs):
    change_both(runs, FINISHED, resized(lambda values: values[55:]))
    problems = judged(runs).of("row-shape")
    assert [problem.expected for problem in problems] == ["a prompt before the first call"] * 2


def test_without_limits_and_stop_tokens_the_end_of_a_call_is_not_judged_and_counted(pristine):
    judgement = judged_without_killed_and_settings(pristine)
    reason = "calls whose end cannot be judged: no limit or stop token known"
    assert judgement.status("row-shape") == "pass"
    assert judgement.lacking["row-shape"][reason] == 27  # but for those of the cuts


def judged_without_killed_and_settings(runs):
    """The judgement of two dumps of which no run.json tells."""
    return judged_without_killed(runs, settings=False)


def test_another_trainers_row_may_end_by_a_tool_result_as_the_baseline_does(runs):
    change_every_row(runs, lambda row: row["token_loss_mask"].__setitem__(-1, 0))
    assert judged_without_killed_and_settings(runs).status("row-shape") == "fail"
