"""The origin's artifacts: its selection and its log, as they really look."""

import json

import pytest
from builders import change_row, params

from restore_parity.checks import judge
from restore_parity.errors import IncompleteError, UsageError
from restore_parity.foreign import read_log, read_selection
from restore_parity.records import AlreadyTerminal, Completed, Restored, ids_sha256
from restore_parity.saved import load_run

RESTORED = "generation prefix restored: rollout_id=r model_call_id=new source_model_call_id=old prefix_tokens=3"
COMPLETED = (
    "generation prefix completed: rollout_id=r model_call_id=new source_model_call_id=old prefix_tokens=3 tail_tokens=11 "
    "total_generation_tokens=14"
)


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        (tmp_path / "log").write_text("".join(line + "\n" for line in lines))
        return tmp_path / "log"

    return write


@pytest.fixture
def selection(tmp_path):
    def write(content):
        (tmp_path / "selection.json").write_text(json.dumps(content))
        return tmp_path / "selection.json"

    return write


def cut(**changes):
    return {"group_id": "r-s1p0", "generation_index": 0, "model_call_id": "old", "effective_output_limit": 14} | changes


@pytest.fixture
def foreign(runs):
    """The healthy runs' dumps as the origin has them: no top-2, and groups as the restored run names them."""
    for run in ("uninterrupted", "restored"):
        for key in params().row_keys():
            change_row(runs, str(key), lambda row: row.pop("generation_top2"), run)
    return [load_run(runs / run / "training.jsonl", run) for run in ("uninterrupted", "restored")]


@pytest.mark.parametrize(
    "line",
    [
        RESTORED,
        f"(Worker pid=7) INFO 11-29 {RESTORED}",
        f"\x1b[36m(pid=7)\x1b[0m {RESTORED}\x1b[0m",
        f"{RESTORED} weight_version_span=[1,2]",
    ],
    ids=["bare", "prefixed", "coloured", "with later parts"],
)
def test_a_restored_line_is_found_in_free_text(log, line):
    assert read_log(log("noise", line)) == [Restored(call_id="new", source_call_id="old", prefix_tokens=3)]


def test_completed_and_terminal_lines_are_read(log):
    terminal = "generation prefix already terminal: rollout_id=r model_call_id=new prefix_tokens=9 reason=output_limit"
    completed, ended = read_log(log(COMPLETED, terminal))
    assert completed == Completed(call_id="new", source_call_id="old", prefix_tokens=3, tail_tokens=11)
    assert ended == AlreadyTerminal(call_id="new", source_call_id="old", prefix_tokens=9, reason="output_limit")


def test_lines_that_ray_folded_are_incomplete(log):
    with pytest.raises(IncompleteError, match=r"line 2.*RAY_DEDUP_LOGS=0"):
        read_log(log("noise", f"{RESTORED} [repeated 3x across cluster]"))


def test_a_broken_line_is_named(log):
    with pytest.raises(UsageError, match="line 1"):
        read_log(log(RESTORED.replace("prefix_tokens=3", "prefix_tokens=many")))


@pytest.mark.parametrize(
    "content",
    [cut(group_id="k-s1p0"), {"cuts": [cut(group_id="k-s1p0")]}, [cut(group_id="k-s1p0")]],
    ids=["one", "cuts", "a list"],
)
def test_a_selection_joins_its_rows_by_group_and_generation(selection, pristine, content):
    (found,) = read_selection(selection(content), load_run(pristine / "restored"))
    assert (str(found.key), found.call_id, found.max_tokens, found.call_index) == ("1/0/0", "old", 14, None)


def test_a_selected_cut_without_a_row_is_incomplete(selection, pristine):
    with pytest.raises(IncompleteError, match="no row"):
        read_selection(selection(cut(group_id="gone")), load_run(pristine / "restored"))


@pytest.mark.parametrize("content", [3, {}, {"cuts": 3}, {"cuts": [{}]}, [cut(), cut()]], ids=str)
def test_a_file_that_is_no_selection_is_told(selection, pristine, content):
    with pytest.raises(UsageError, match=r"no selection|cut twice"):
        read_selection(selection(content), load_run(pristine / "restored"))


def test_the_origins_files_are_judged_with_what_they_can_show(foreign, selection, log):
    uninterrupted, restored = foreign
    row = restored.only(next(iter(restored.rows)))
    first = row.segments()[-1][0]
    lines = [f"{RESTORED} prefix_ids_sha256={ids_sha256(row.token_ids[first : first + 3])}", COMPLETED]
    cuts = read_selection(selection(cut(group_id="k-s1p0")), restored)
    restored.restores = read_log(log(*lines))
    judgement = judge(uninterrupted, restored, None, params(), cuts)
    assert judgement.verdict == "PASS" and judgement.seen["prefix-hash"] == 1
    assert set(judgement.not_run) == {"kill-happened", "same-setup", "prefix-captured", "prefix-logprobs"}


def test_a_wrong_tail_count_in_the_origins_log_is_reported(foreign, selection, log):
    cuts = read_selection(selection(cut(group_id="k-s1p0")), foreign[1])
    lines = [RESTORED, COMPLETED.replace("tail_tokens=11", "tail_tokens=10")]
    foreign[1].restores = read_log(log(*lines))
    judgement = judge(*foreign, None, params(), cuts)
    assert [problem.check for problem in judgement.problems] == ["call-position"]


def test_a_terminal_line_joins_its_restored_one_by_the_new_call(foreign, selection, log):
    """The line names no source; the cut of all 14 tokens of the call is ended by it."""
    terminal = "generation prefix already terminal: rollout_id=r model_call_id=new prefix_tokens=14 reason=output_limit"
    records = read_log(log(RESTORED.replace("prefix_tokens=3", "prefix_tokens=14"), terminal))
    cuts = read_selection(selection(cut(group_id="k-s1p0")), foreign[1])
    foreign[1].restores = records
    judgement = judge(*foreign, None, params(), cuts)
    assert [problem.check for problem in judgement.problems] == ["cut-coverage"] and judgement.seen["already-terminal"] == 2
