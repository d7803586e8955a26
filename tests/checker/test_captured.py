"""Calls that ended before the kill stand in the restored rows as the journal has them (case 35)."""

import pytest
from builders import change_row, judged
from edits import FINISHED, ROW, change_journal, resized

CALL = f"{FINISHED}#1"


def other_ids(delta):
    delta["ids"] = [token + 1 for token in delta["ids"]]


def other_logprobs(delta):
    delta["logprobs"] = [value - 1e-6 for value in delta["logprobs"]]


def other_tool_result(end):
    end["tool_ids"][5] += 1


def longer_tool_result(end):
    end["tool_ids"].append(10)


@pytest.mark.parametrize("row", [FINISHED, ROW], ids=["a row without a cut", "a cut row"])
@pytest.mark.parametrize(
    ("event", "change", "what"),
    [
        ("delta", other_ids, "token_ids"),
        ("delta", other_logprobs, "generation_logprobs"),
        ("end", other_tool_result, "tool result"),
        ("end", longer_tool_result, "tool result"),
    ],
    ids=["other tokens", "other log-probabilities", "another tool result", "a longer one"],
)
def test_a_finished_call_is_the_captured_one(runs, row, event, change, what):
    change_journal(runs, event, change, cut=f"{row}#0")
    judgement = judged(runs)
    (problem,) = judgement.of("finished-captured")
    assert judgement.verdict == "FAIL"
    assert problem.key == row
    assert problem.where.startswith(f"call 0, {what}[")


def test_a_finished_last_call_is_the_captured_one(runs):
    change_journal(runs, "delta", other_logprobs, cut=CALL)
    (problem,) = judged(runs).problems
    assert problem.check == "finished-captured"
    assert problem.where == "call 1, generation_logprobs[0]"


def test_a_captured_prompt_is_the_rows(runs):
    change_journal(runs, "start", lambda start: start["prompt_ids"].__setitem__(3, 1), cut=CALL)
    (problem,) = judged(runs).problems
    assert problem.where == "call 1, token_ids[3]"


def test_a_finished_call_that_the_row_lacks_is_reported(runs):
    change_row(runs, FINISHED, resized(lambda values: values[:100]))
    *_, problem = judged(runs).of("finished-captured")
    assert problem.where == "call 1"
    assert (problem.expected, problem.got) == ("in the restored row", "1 calls there")
