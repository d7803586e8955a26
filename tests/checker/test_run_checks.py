"""The checks of whole runs: setup, kill, dumps, membership, groups."""

from shutil import copy

import pytest
from builders import STOP, change_row, failed, judged, params
from edits import (
    FINISHED,
    TRAINED,
    change_both,
    change_info,
    change_journal,
    change_lines,
    exit_of,
    row_of,
)

from restore_parity.checker.checks import judge
from restore_parity.checker.dumps import Runs
from restore_parity.checker.loading import load_run


def setup_with(**changes):
    """The setup of the healthy runs, other settings in it."""
    return {"model": "scripted", "workload": params().sha256(), "stop_token_ids": [STOP]} | changes


def without_row(number):
    """A change of a dump's lines."""
    return lambda lines: [*lines[:number], *lines[number + 1 :]]


# --- kill-happened --------------------------------------------------------------------------------


def test_a_run_ended_by_another_signal_was_not_killed(runs):
    change_info(runs, "killed", exit=exit_of(runs) | {"signal": 15})
    judgement = judged(runs)
    assert failed(judgement) == {"kill-happened"}
    assert judgement.problems[0].got.startswith("signal 15, calls open: ")


def test_the_supervisor_and_the_journal_count_the_same_tokens(runs):
    opened = exit_of(runs)["open_calls"] | {"k:1/0/0#1": 2}
    change_info(runs, "killed", exit=exit_of(runs) | {"open_calls": opened})
    assert failed(judged(runs)) == {"kill-happened"}


def test_a_run_that_never_ended_was_not_killed(runs):
    change_info(runs, "killed", exit=None)
    assert failed(judged(runs)) == {"kill-happened"}


def test_a_kill_with_no_call_open_cuts_nothing(runs):
    change_info(runs, "killed", exit=exit_of(runs) | {"open_calls": {}})
    (runs / "killed" / "journal.jsonl").write_text("")
    (problem,) = judged(runs).of("kill-happened")
    assert problem.expected == "signal 9, calls open: none"


# --- same-setup -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        ("restored", {"setup": setup_with(model="another")}),
        ("killed", {"setup": setup_with(workload="another")}),
        ("uninterrupted", {"setup": setup_with(stop_token_ids=[])}),
        ("restored", {"setup": setup_with(seed=1)}),
        ("restored", {"phase": "uninterrupted"}),
        ("restored", {"run_id": "u"}),
        ("restored", {"trained": None}),
        ("restored", {"exit": None}),
        ("uninterrupted", {"exit": {"time": 1, "signal": 9}}),
    ],
    ids=[
        "another model",
        "another workload",
        "no stop tokens",
        "a setting that one run alone has",
        "another phase",
        "the run id of another run",
        "not trained to its end",
        "never ended",
        "killed itself",
    ],
)
def test_runs_that_are_not_what_they_are_taken_for_are_reported(runs, run, fields):
    change_info(runs, run, **fields)
    judgement = judged(runs)
    assert failed(judgement) == {"same-setup"}
    assert judgement.verdict == "INCOMPLETE"


def test_a_different_setting_is_named_with_both_values(runs):
    change_info(runs, "restored", setup=setup_with(model="another"))
    (problem,) = judged(runs).problems
    assert problem.where == "restored/run.json, model"
    assert (problem.expected, problem.got) == ("'scripted'", "'another'")


def test_a_run_without_run_json_beside_a_killed_one_is_reported(runs):
    (runs / "restored" / "run.json").unlink()
    (problem,) = judged(runs).of("same-setup")
    assert problem.where == "restored/run.json"
    assert problem.got == "no such file"


@pytest.mark.parametrize(
    ("source", "target"),
    [("restored", "uninterrupted"), ("uninterrupted", "restored")],
    ids=["the restored one's", "the baseline's"],
)
def test_a_dump_that_is_a_copy_of_the_other_is_no_second_run(runs, source, target):
    """Case 33: everything else in the folders is right."""
    copy((runs / source / "training.jsonl"), runs / target / "training.jsonl")
    judgement = judged(runs)
    (problem,) = judgement.of("same-setup")
    assert problem.where == f"{target} dump"
    assert judgement.verdict != "PASS"


def test_a_copied_baseline_is_incomplete(runs):
    copy(runs / "restored" / "training.jsonl", runs / "uninterrupted" / "training.jsonl")
    assert judged(runs).verdict == "INCOMPLETE"


def test_parameters_that_are_not_those_of_their_hash_are_reported(runs):
    change_info(runs, "restored", params=params(steps=1, cut_tokens={}).model_dump())
    assert "restored/run.json, params_sha256" in [one.where for one in judged(runs).problems]


# --- dump-complete --------------------------------------------------------------------------------


@pytest.mark.parametrize("run", TRAINED)
def test_a_damaged_row_is_compared_with_nothing(runs, run):
    change_row(runs, "1/0/0", lambda row: row["token_ids"].pop(), run)
    (problem,) = judged(runs).problems
    assert problem.check == "dump-complete"
    assert (problem.expected, problem.got) == ("122 entries, as input_length says", "121")


@pytest.mark.parametrize("column", ["generation_logprobs", "prev_logprobs", "advantages"])
def test_rows_that_are_equal_and_nothing_but_nan_are_damaged(runs, column):
    for key in map(str, params().row_keys()):
        length = row_of(runs, key).input_length
        nothing = {column: [float("nan")] * length}
        change_both(runs, key, lambda row, nothing=nothing: row.update(nothing))
    assert len(judged(runs).of("dump-complete")) == 16


def test_lines_of_both_dumps_are_counted(pristine):
    assert judged(pristine).seen["dump-complete"] == 8 + 8 + 2 * 8  # and two columns of each pair


def with_column(runs, run, keys=None, size=None):
    """Give rows of a run a further column."""
    for key in keys or map(str, params().row_keys()):
        length = size or row_of(runs, key, run).input_length
        change_row(runs, key, lambda row, length=length: row.update(entropy=[0.5] * length), run)


def test_a_column_that_no_check_reads_is_told_and_not_compared(runs):
    """Case 40: whatever its length."""
    for run in TRAINED:
        with_column(runs, run)
    with_column(runs, "restored", keys=[FINISHED], size=500)
    judgement = judged(runs)
    assert judgement.verdict == "PASS"
    assert judgement.unread == {"entropy"}


@pytest.mark.parametrize("run", TRAINED)
@pytest.mark.parametrize("keys", [None, [FINISHED]], ids=["all rows", "one row"])
def test_a_further_column_that_one_dump_lacks_is_reported(runs, run, keys):
    with_column(runs, run, keys)
    (problem,) = judged(runs).problems
    assert problem.check == "dump-complete"
    assert problem.where == "column entropy"


# --- row-membership -------------------------------------------------------------------------------


@pytest.mark.parametrize("run", TRAINED)
def test_a_lost_row_is_told_with_its_dump(runs, run):
    change_lines(runs, without_row(1), run)
    (problem,) = judged(runs).problems
    assert (problem.check, problem.key) == ("row-membership", FINISHED)
    assert problem.where == f"{run} dump"
    assert (problem.expected, problem.got) == ("1 row", "0: none")


def test_a_missing_and_a_doubled_row_are_told_with_their_lines(runs):
    change_lines(runs, lambda lines: [*lines[:2], lines[3], *lines[3:]])
    got = {problem.key: problem.got for problem in judged(runs).of("row-membership")}
    assert got == {
        "1/1/0": "0: none",
        "1/1/1": "2: training.jsonl, line 3, row 0; training.jsonl, line 4, row 0",
    }


@pytest.mark.parametrize("run", TRAINED)
def test_a_row_that_one_dump_alone_lacks_is_reported_without_a_plan(runs, run):
    change_lines(runs, without_row(1), run)
    dumps = {name: load_run(runs / name / "training.jsonl", name) for name in TRAINED}
    judgement = judge(Runs(**dumps), params())
    assert [problem.key for problem in judgement.of("row-membership")] == [FINISHED]


@pytest.mark.parametrize("run", TRAINED)
def test_a_row_lost_from_both_dumps_is_reported_where_one_run_knows_the_plan(runs, run):
    for name in TRAINED:
        change_lines(runs, without_row(1), name)
    (runs / run / "run.json").unlink()
    assert {problem.key for problem in judged(runs).of("row-membership")} == {FINISHED}


def test_a_cut_row_lost_from_both_dumps_is_reported_without_a_plan(runs):
    for name in TRAINED:
        change_lines(runs, without_row(0), name)
        (runs / name / "run.json").unlink()
    assert [problem.key for problem in judged(runs).of("row-membership")] == ["1/0/0", "1/0/0"]


def test_a_cut_of_a_row_that_was_never_planned_is_reported(runs):
    change_journal(runs, "start", lambda start: start.update(key="9/9/9"))
    keys = [problem.key for problem in judged(runs).of("row-membership")]
    assert keys == ["9/9/9", "9/9/9"]


def test_a_row_that_was_not_planned_is_reported(runs):
    for run in TRAINED:
        change_row(runs, FINISHED, lambda row: row.update(generation_index=7), run)
    found = {(one.key, one.expected, one.got[0]) for one in judged(runs).of("row-membership")}
    assert found == {(FINISHED, "1 row", "0"), ("1/0/7", "0 row", "1")}


def test_a_lost_row_is_told_beside_a_broken_journal(runs):
    """Case 48: what cannot be read hides nothing of what can."""
    change_lines(runs, without_row(1))
    with (runs / "killed" / "journal.jsonl").open("a") as stream:
        stream.write("{}\n")
    judgement = judged(runs)
    assert {"row-membership", "kill-happened"} <= failed(judgement)
    assert judgement.verdict == "FAIL"


def test_a_row_of_a_prompt_that_was_not_planned_is_told_and_compared(runs):
    for run in TRAINED:
        change_row(runs, FINISHED, lambda row: row.update(prompt_idx=7), run)
    assert ("1/7/1", "0 row") in {(one.key, one.expected) for one in judged(runs).problems}


# --- group-membership -----------------------------------------------------------------------------


def test_a_row_of_a_group_of_its_own_parts_its_siblings(runs):
    change_row(runs, FINISHED, lambda row: row.update(group_id="k-another"))
    (problem,) = judged(runs).problems
    assert problem.where == "restored, prompt 1/0"
    assert problem.got == "['group k-another', 'group k-s1p0']"


def test_two_prompts_of_one_group_are_reported(runs):
    for key in ("1/0/0", "1/0/1"):
        change_row(runs, key, lambda row: row.update(group_id="k-s1p1"))
    (problem,) = judged(runs).of("group-membership")
    assert problem.where == "restored, group k-s1p1"
    assert problem.got == "['prompt 1/0', 'prompt 1/1']"


def test_a_row_moved_into_another_group_is_reported_by_both(runs):
    change_row(runs, FINISHED, lambda row: row.update(group_id="k-s1p1"))
    where = [problem.where for problem in judged(runs).problems]
    assert where == ["restored, prompt 1/0", "restored, group k-s1p1"]
