"""One cut as text; what the command `cut` prints."""

import pytest
from builders import change_row, tie
from edits import CUT, FINISHED, ROW, change_lines, repeat_record, row_of

from restore_parity.checker.cut_text import cut_text
from restore_parity.errors import IncompleteError, UsageError


@pytest.mark.parametrize("name", ["1/0/0#-1", "1/0/0#1#2", "1/0", "nonsense", ""])
def test_a_name_that_is_none_says_how_one_is_written(pristine, name):
    with pytest.raises(UsageError, match=r"does not name a cut\n.*as 1/3/0#1$"):
        cut_text(name, pristine)


@pytest.mark.parametrize("name", ["1/0/0#9", "9/9/9", "9/9/9#0"])
def test_a_cut_that_is_not_there_names_those_that_are(pristine, name):
    with pytest.raises(UsageError, match=rf"^no row and no call {name} in .*\n.*1/0/0#1, 2/0/1#1$"):
        cut_text(name, pristine)


def test_runs_that_are_not_there_are_incomplete(tmp_path):
    with pytest.raises(IncompleteError, match=r"uninterrupted: no such dump"):
        cut_text(CUT, tmp_path)


def test_a_cut_begins_with_its_records(pristine):
    title, killed, restored, completed = cut_text(CUT, pristine).splitlines()[:4]
    assert title == "cut 1/0/0#1"
    assert killed == "killed    k:1/0/0#1: 3 tokens of 14, open at the kill"
    assert restored.startswith('restored  {"event":"restored","call_id":"r:1/0/0#1"')
    assert completed.startswith('restored  {"event":"completed","call_id":"r:1/0/0#1"')


def test_a_row_is_shown_with_all_its_calls(pristine):
    lines = cut_text(ROW, pristine).splitlines()
    assert lines[1] == "killed    k:1/0/0#0: 12 tokens of 12, length"
    assert lines[2] == "killed    k:1/0/0#1: 3 tokens of 14, open at the kill"


def test_both_rows_are_told_with_their_segments(pristine):
    text = cut_text(CUT, pristine)
    told = "122 tokens, reward 0.09375, trained segments [(54, 66), (108, 122)]"
    assert f"row       uninterrupted: {told}\n" in text
    assert f"row       restored: {told}\n" in text


def test_a_missing_row_is_told(runs):
    change_lines(runs, lambda lines: lines[1:])
    text = cut_text(CUT, runs)
    assert "row       restored: missing, doubled or unsound" in text
    assert "token   mask" not in text


def test_the_tokens_around_the_cut_are_shown(pristine):
    lines = cut_text(CUT, pristine).splitlines()
    first = lines.index("cut, after 3 tokens, token 111")
    shown = lines[first + 2 : first + 13]
    assert [line.split()[0] for line in shown] == [str(at) for at in range(106, 117)]
    token = row_of(pristine, ROW).token_ids[111]
    assert shown[5].split()[:3] == ["111", "1", str(token)]
    assert "the token ids of both runs are equal" in lines


def test_the_tokens_around_the_first_difference_are_shown(runs):
    tie(runs, 0.1)
    lines = cut_text(CUT, runs).splitlines()
    assert "first difference, token 118" in lines
    (differing,) = [line for line in lines if line.endswith("  <- differs")]
    token = row_of(runs, ROW, "uninterrupted").token_ids[118]
    assert differing.split()[2] == str(token)
    assert f"99 -0.6000 [99:-0.6000 {token}:-0.7000]" in differing


def test_a_row_that_ends_earlier_is_shown_to_its_end(runs):
    def shorter(row):
        for column in row.values():
            if isinstance(column, list):
                column.pop()
        row["input_length"] -= 1

    change_row(runs, FINISHED, shorter)
    lines = cut_text(FINISHED, runs).splitlines()
    assert "first difference, token 114" in lines
    assert lines[-1].split()[:2] == ["114", "-"]
    assert lines[-1].endswith("end  <- differs")


def test_a_cut_without_records_is_shown_all_the_same(runs):
    repeat_record(runs, "restored", 0)
    repeat_record(runs, "completed", 0)
    assert "restored  {" not in cut_text(CUT, runs)


def test_a_cut_ends_with_the_ways_to_run_it_again(pristine):
    *_, title, papermill, jupyter = cut_text(CUT, pristine).splitlines()
    assert title == "run this cut again, by prefill and by decode:"
    assert papermill.endswith(f" -p runs {pristine} -p cut '1/0/0#1'")
    assert jupyter.startswith("  or jupyter lab ")


def test_a_row_without_a_cut_has_nothing_to_run_again(pristine):
    assert "run this cut again" not in cut_text(FINISHED, pristine)


def test_a_broken_journal_is_told_and_not_shown_as_no_call(runs):
    file = runs / "killed" / "journal.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(IncompleteError, match=r"journal\.jsonl.*no start of call"):
        cut_text("1/0/0#1", runs)
