"""The origin's artifacts: its selection and its log, as they really look."""

import json

import pytest
from builders import params
from edits import (
    CUT,
    TRAINED,
    change_every_row,
    change_lines,
    change_record,
    judged_without_killed,
    repeat_record,
)

from restore_parity.checker.checks import judge
from restore_parity.checker.dumps import Runs
from restore_parity.checker.foreign import cuts_of_records, read_log, read_selection
from restore_parity.checker.judgement import CHECKS, Judgement
from restore_parity.checker.loading import load_run
from restore_parity.errors import IncompleteError, UsageError
from restore_parity.records import AlreadyTerminal, Completed, Restored
from restore_parity.tokens import ids_sha256

CALLS = "rollout_id=r model_call_id=new source_model_call_id=old"
RESTORED = f"generation prefix restored: {CALLS} prefix_tokens=3"
COMPLETED = (
    f"generation prefix completed: {CALLS} prefix_tokens=3 tail_tokens=11 "
    "total_generation_tokens=14"
)
TERMINAL = (
    "generation prefix already terminal: rollout_id=r model_call_id=new prefix_tokens=14 "
    "reason=output_limit"
)


@pytest.fixture
def log(tmp_path):
    """Write lines into a log."""

    def write(*lines):
        (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))
        return tmp_path / "log"

    return write


@pytest.fixture
def selection(tmp_path):
    """Write a selection."""

    def write(content):
        (tmp_path / "selection.json").write_text(json.dumps(content))
        return tmp_path / "selection.json"

    return write


@pytest.fixture
def foreign(runs) -> Runs:
    """The healthy runs' dumps as the origin has them, without candidates."""
    change_every_row(runs, lambda row: row.pop("generation_top_logprobs"))
    return Runs(**{run: load_run(runs / run / "training.jsonl", run) for run in TRAINED})


def cut(**changes):
    """One entry of a selection."""
    entry = {"group_id": "k-s1p0", "generation_index": 0, "model_call_id": "old"}
    return entry | {"effective_output_limit": 14} | changes


# --- the log --------------------------------------------------------------------------------------


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
    expected = Restored(call_id="new", source_call_id="old", prefix_tokens=3)
    assert read_log(log("noise", line)) == [expected]


def test_a_completed_line_is_read(log):
    expected = Completed(call_id="new", source_call_id="old", prefix_tokens=3, tail_tokens=11)
    assert read_log(log(COMPLETED)) == [expected]


def test_a_terminal_line_joins_its_restored_one_by_the_new_call(log):
    assert read_log(log(RESTORED, TERMINAL))[1] == AlreadyTerminal(
        call_id="new", source_call_id="old", prefix_tokens=14, reason="output_limit"
    )


def test_a_terminal_line_of_no_restored_one_has_an_unknown_source(log):
    (record,) = read_log(log(TERMINAL))
    assert record.source_call_id == "unknown"


def test_lines_that_ray_folded_are_incomplete(log):
    with pytest.raises(IncompleteError, match=r"line 2.*RAY_DEDUP_LOGS=0"):
        read_log(log("noise", f"{RESTORED} [repeated 3x across cluster]"))


def test_a_broken_line_is_named(log):
    with pytest.raises(UsageError, match=r"log, line 2: a restore record "):
        read_log(log("noise", RESTORED.replace("prefix_tokens=3", "prefix_tokens=many")))


def test_a_log_without_a_record_is_incomplete(log):
    with pytest.raises(IncompleteError, match=r"log: no line of a restored, completed or "):
        read_log(log("noise"))


def test_a_log_that_cannot_be_read_is_a_mistake(tmp_path):
    with pytest.raises(UsageError, match="Is a directory"):
        read_log(tmp_path)


def test_bytes_that_are_no_text_do_not_hide_a_line(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe " + RESTORED.encode() + b"\n")
    assert len(read_log(tmp_path / "log")) == 1


# --- the selection --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [cut(), {"cuts": [cut()]}, [cut()]], ids=["one", "cuts", "a list"]
)
def test_a_selection_joins_its_rows_by_group_and_generation(selection, pristine, content):
    (found,) = read_selection(selection(content), load_run(pristine / "restored"))
    assert str(found.key) == "1/0/0"
    assert found.call_id == "old"
    assert found.limit_tokens == 14


def test_a_selected_cut_is_named_by_its_row(selection, pristine):
    """The selection does not say which call of the row was cut."""
    (found,) = read_selection(selection(cut()), load_run(pristine / "restored"))
    assert found.call_index is None
    assert found.name == "1/0/0"


def test_a_selected_cut_without_a_row_has_no_key_and_is_named_by_its_group(selection, pristine):
    selected = selection(cut(group_id="gone"))
    (found,) = read_selection(selected, load_run(pristine / "restored"))
    assert found.key is None
    assert found.name == "gone, generation 0"


@pytest.mark.parametrize(
    "content",
    [3, {}, {"cuts": 3}, {"cuts": [{}]}],
    ids=["a number", "an empty mapping", "cuts that are a number", "a cut of nothing"],
)
def test_a_file_that_is_no_selection_is_a_mistake(selection, pristine, content):
    with pytest.raises(UsageError, match=r"selection\.json: not a selection of cuts: "):
        read_selection(selection(content), load_run(pristine / "restored"))


def test_a_call_that_is_selected_twice_is_a_mistake(selection, pristine):
    with pytest.raises(UsageError, match="one model_call_id is cut twice"):
        read_selection(selection([cut(), cut()]), load_run(pristine / "restored"))


# --- cuts of records alone ------------------------------------------------------------------------


def test_restore_records_tell_the_cuts(pristine):
    cuts = cuts_of_records(load_run(pristine / "restored"))
    assert [one.name for one in cuts] == ["1/0/0#1", "1/1/0#1", "1/1/1#0", "2/0/1#1", "2/1/1#1"]
    assert {one.limit_tokens for one in cuts} == {None}


def test_a_completed_record_alone_tells_no_cut(runs):
    """Nothing says then that its call was restored."""
    repeat_record(runs, "restored", 0)
    cuts = cuts_of_records(load_run(runs / "restored"))
    assert CUT not in [one.name for one in cuts]


def test_records_that_do_not_say_whose_row_they_are_of_tell_no_cut(pristine, log):
    run = load_run(pristine / "restored")
    run.restores = read_log(log(RESTORED, COMPLETED))
    assert cuts_of_records(run) == []


# --- judged ---------------------------------------------------------------------------------------


@pytest.fixture
def judged_with(foreign, selection, log):
    """The judgement of the origin's dumps with one cut and these lines of its log."""

    def judged(*lines) -> Judgement:
        foreign.restored.restores = read_log(log(*lines))
        return judge(foreign, params(), cuts=read_selection(selection(cut()), foreign.restored))

    return judged


def test_the_origins_files_are_judged_with_what_they_can_show(judged_with, foreign):
    row = foreign.restored.only(next(iter(foreign.restored.rows)))
    digest = ids_sha256(row.token_ids[108:111])
    judgement = judged_with(f"{RESTORED} prefix_ids_sha256={digest}", COMPLETED)
    assert judgement.verdict == "PASS"
    assert judgement.seen["prefix-hash"] == 1
    assert {check for check in CHECKS if judgement.status(check) == "not_run"} == {
        "kill-happened",
        "same-setup",
        "prefix-captured",
        "prefix-logprobs",
        "finished-captured",
    }


def test_the_origins_files_without_a_hash_say_so(judged_with):
    judgement = judged_with(RESTORED, COMPLETED)
    assert judgement.status("prefix-hash") == "not_run"
    assert judgement.lacking["prefix-hash"] == {"cuts without a hash in their record": 1}


def test_a_wrong_tail_count_in_the_origins_log_is_reported(judged_with):
    judgement = judged_with(RESTORED, COMPLETED.replace("tail_tokens=11", "tail_tokens=10"))
    assert [problem.check for problem in judgement.problems] == ["call-position"]


def test_a_tail_beyond_the_selected_limit_is_reported(judged_with):
    lines = [line.replace("prefix_tokens=3", "prefix_tokens=4") for line in (RESTORED, COMPLETED)]
    problems = judged_with(*lines).problems
    assert [problem.check for problem in problems] == ["call-position", "token-budget"]
    assert problems[1].got == "10 asked for, 11 generated"


def test_a_terminal_line_ends_the_cut_of_all_tokens_of_a_call(judged_with):
    judgement = judged_with(RESTORED.replace("prefix_tokens=3", "prefix_tokens=14"), TERMINAL)
    assert [problem.check for problem in judgement.problems] == ["cut-coverage"]
    assert judgement.seen["already-terminal"] == 2


# --- what the selection says was captured ---------------------------------------------------------


@pytest.mark.parametrize("field", ["generation_token_count", "prefix_token_count"])
@pytest.mark.parametrize("captured", [0, 2, 5, 33], ids=lambda count: f"{count} captured")
def test_another_count_than_was_captured_is_reported(foreign, selection, log, field, captured):
    """Case 30: log and row agree on 3."""
    foreign.restored.restores = read_log(log(RESTORED, COMPLETED))
    cuts = read_selection(selection(cut(**{field: captured})), foreign.restored)
    (problem,) = judge(foreign, params(), cuts=cuts).problems
    assert problem.check == "prefix-captured"
    assert problem.expected == f"{captured} tokens, as captured"
    assert problem.got == "3 restored"


@pytest.mark.parametrize(
    ("restored", "found"),
    [(" prefix_digest=abc", []), (" prefix_digest=other", ["prefix-captured"]), ("", [])],
    ids=["the same", "another", "none in the log"],
)
def test_digests_are_compared_where_both_files_have_one(foreign, selection, log, restored, found):
    foreign.restored.restores = read_log(log(RESTORED + restored, COMPLETED))
    selected = selection(cut(generation_token_count=3, digest="abc"))
    judgement = judge(foreign, params(), cuts=read_selection(selected, foreign.restored))
    assert [problem.check for problem in judgement.problems] == found


def test_a_count_as_captured_holds(foreign, selection, log):
    foreign.restored.restores = read_log(log(RESTORED, COMPLETED))
    cuts = read_selection(selection(cut(generation_token_count=3)), foreign.restored)
    judgement = judge(foreign, params(), cuts=cuts)
    assert judgement.verdict == "PASS"
    assert judgement.status("prefix-captured") == "pass"


# --- a cut's row that is not there ----------------------------------------------------------------


def lost(dump: list[bytes]) -> list[bytes]:
    return dump[1:]


def torn(dump: list[bytes]) -> list[bytes]:
    return [dump[0][:100] + b"\n", *dump[1:]]


def two_on_one_line(dump: list[bytes]) -> list[bytes]:
    return [dump[0].rstrip() + dump[1], *dump[2:]]


@pytest.mark.parametrize(
    ("change", "check"),
    [(lost, "row-membership"), (torn, "dump-complete"), (two_on_one_line, "dump-complete")],
    ids=["missing", "torn", "two chunks on one line"],
)
def test_a_cut_whose_row_is_not_there_is_told_and_all_else_is_judged(
    runs, selection, log, change, check
):
    """Case 31."""
    change_lines(runs, change)
    change_row_of_lines(runs)
    dumps = Runs(**{run: load_run(runs / run / "training.jsonl", run) for run in TRAINED})
    dumps.restored.restores = read_log(log(RESTORED, COMPLETED))
    judgement = judge(dumps, params(), cuts=read_selection(selection(cut()), dumps.restored))
    found = {problem.check for problem in judgement.problems}
    assert {check, "row-exact"} <= found
    assert judgement.verdict == "FAIL"
    assert [one.status for one in judgement.cuts] == ["broken"]


def change_row_of_lines(runs):
    """Another reward in the restored dump's last line, whatever stands before it."""

    def change(dump: list[bytes]) -> list[bytes]:
        chunk = json.loads(dump[-1])
        chunk["rows"][0]["reward"] = 0.9
        return [*dump[:-1], json.dumps(chunk).encode() + b"\n"]

    change_lines(runs, change)


def test_the_row_that_a_selected_cut_has_not_is_named_by_its_group(foreign, selection, log):
    foreign.restored.restores = read_log(log(RESTORED, COMPLETED))
    cuts = read_selection(selection(cut(group_id="gone")), foreign.restored)
    (problem,) = judge(foreign, params(), cuts=cuts).of("row-membership")
    assert problem.key == "gone, generation 0"


# --- evidence that some cuts lack -----------------------------------------------------------------


def test_a_record_without_a_hash_among_others_with_one_is_counted(runs):
    """Case 37: its prefix is compared with nothing, which must not pass unsaid."""
    change_record(runs, "restored", prefix_ids_sha256=None)
    judgement = judged_without_killed(runs)
    reason = "4 compared; not compared: 1 cuts without a hash in their record"
    assert judgement.why("prefix-hash") == reason


def test_a_terminal_call_without_a_known_limit_is_counted(foreign, selection, log):
    foreign.restored.restores = read_log(
        log(RESTORED.replace("prefix_tokens=3", "prefix_tokens=14"), TERMINAL)
    )
    selected = selection(cut(effective_output_limit=None))
    judgement = judge(foreign, params(), cuts=read_selection(selected, foreign.restored))
    reason = "calls said to be terminal without a known limit and stop token"
    assert judgement.lacking["already-terminal"] == {reason: 1}


def test_a_call_said_to_be_terminal_below_its_known_limit_is_counted_or_reported(
    foreign, selection, log
):
    """It may have ended by a stop token, which these files do not tell."""
    foreign.restored.restores = read_log(
        log(RESTORED.replace("prefix_tokens=3", "prefix_tokens=14"), TERMINAL)
    )
    selected = selection(cut(effective_output_limit=20))
    judgement = judge(foreign, params(), cuts=read_selection(selected, foreign.restored))
    assert judgement.lacking["already-terminal"].total() == 1


def test_a_completed_call_without_a_tail_is_reported(judged_with):
    lines = [
        RESTORED.replace("prefix_tokens=3", "prefix_tokens=14"),
        COMPLETED.replace("prefix_tokens=3", "prefix_tokens=14").replace("=11", "=0"),
    ]
    assert "tail-generated" in [problem.check for problem in judged_with(*lines).problems]


# --- lines of several writers ---------------------------------------------------------------------


def test_two_records_on_one_line_are_both_read(log):
    """Case 41."""
    first, second = read_log(log(f"(pid=1) {RESTORED}(pid=2) {COMPLETED}"))
    assert (type(first), type(second)) == (Restored, Completed)
    assert first.prefix_tokens == 3


def test_the_same_record_twice_on_one_line_is_a_double_restore(judged_with):
    judgement = judged_with(f"{RESTORED} {RESTORED}", COMPLETED)
    assert [problem.check for problem in judgement.problems] == ["restored-once"]


def test_the_same_record_on_two_lines_is_a_double_restore(judged_with):
    judgement = judged_with(RESTORED, RESTORED, COMPLETED)
    assert [problem.check for problem in judgement.problems] == ["restored-once"]


def test_a_terminal_line_before_its_restored_one_joins_it(log):
    terminal, restored = read_log(log(TERMINAL, RESTORED))
    assert terminal.source_call_id == restored.source_call_id == "old"
