"""The journal: durable, group-committed, read back whole or with its damage told."""

import errno
import os

import pytest

from restore_parity.journal import Delta, End, Journal, JournalError, JsonlWriter, Start
from restore_parity.records import Key

START = Start(
    call_id="c", key="1/0/0", call_index=0, group_id="g", prompt_ids=[5, 6], max_tokens=9, t=1.0
)
TOP2 = [[(7, -0.5), (9, -2.0)], [(8, -0.25), (9, -2.0)]]
DELTA = Delta(call_id="c", ids=[7, 8], logprobs=[-0.5, -0.25], top2=TOP2, t=2.0)
END = End(call_id="c", finish_reason="stop", t=3.0, tool_ids=[4])


def written(tmp_path, *records, after=b""):
    writer = JsonlWriter(tmp_path / "journal.jsonl")
    for record in records:
        writer.append(record)
    writer.close()
    with (tmp_path / "journal.jsonl").open("ab") as stream:
        stream.write(after)
    return Journal(tmp_path / "journal.jsonl")


def test_a_call_comes_back_as_it_was_written(tmp_path):
    journal = written(tmp_path, START, DELTA, END).poll()
    call = journal.calls["c"]
    assert (call.ids, call.logprobs, call.finish_reason, call.tool_ids) == ([7, 8], [-0.5, -0.25], "stop", [4])
    assert journal.tool_runs == {Key(1, 0, 0): 1}


def test_a_call_without_end_is_open(tmp_path):
    assert [call.call_id for call in written(tmp_path, START, DELTA).poll().open_calls()] == ["c"]


def test_polling_takes_in_only_what_is_new(tmp_path):
    journal = written(tmp_path, START).poll()
    writer = JsonlWriter(tmp_path / "journal.jsonl")
    writer.append(DELTA)
    writer.close()
    assert journal.tokens == 0 and journal.poll().tokens == 2 and journal.poll().tokens == 2


@pytest.mark.parametrize("kept", [1, 20, -2], ids=["one byte", "half", "all but the end"])
def test_a_torn_last_record_is_dropped_and_reported(tmp_path, kept):
    line = written(tmp_path / ".." / tmp_path.name, DELTA).path.read_bytes()
    (tmp_path / "journal.jsonl").unlink()
    journal = written(tmp_path, START, after=line[:kept]).poll()
    assert journal.tokens == 0 and "line 2, byte" in journal.torn and "torn last record" in journal.torn


def test_a_torn_record_is_taken_once_it_is_whole(tmp_path):
    journal = written(tmp_path, START)
    line = b'{"event":"end","call_id":"c","finish_reason":"stop","t":1}\n'
    for part in (line[:9], line[9:]):
        with journal.path.open("ab") as stream:
            stream.write(part)
        journal.poll()
    assert journal.torn is None and journal.calls["c"].finish_reason == "stop"


@pytest.mark.parametrize(
    "line",
    [b"{}", b'{"event":"delta"}', b"\x00\x00", b'{"event":"end","call_id":"x","finish_reason":"stop","t":1}'],
    ids=["no event", "no fields", "no JSON", "no start"],
)
def test_a_broken_record_names_file_line_and_byte(tmp_path, line):
    journal = written(tmp_path, START, after=line + b"\n")
    size = journal.path.stat().st_size - len(line) - 1
    with pytest.raises(JournalError, match=rf"journal\.jsonl, line 2, byte {size}: "):
        journal.poll()


def test_ragged_deltas_are_broken(tmp_path):
    with pytest.raises(JournalError, match="differ in length"):
        written(tmp_path, START, Delta(call_id="c", ids=[1], logprobs=[], top2=[], t=1.0)).poll()


def test_records_wait_for_the_group_commit(tmp_path):
    writer = JsonlWriter(tmp_path / "j", fsync_ms=3_600_000)
    writer.append(START)
    writer.commit()  # the first is due at once
    writer.append(DELTA)
    writer.commit()
    lines = (tmp_path / "j").read_bytes().count(b"\n")
    writer.close()
    assert (lines, (tmp_path / "j").read_bytes().count(b"\n")) == (1, 2)


def test_a_full_disk_is_an_error_and_not_a_silent_loss(tmp_path):
    os.symlink("/dev/full", tmp_path / "journal.jsonl")
    writer = JsonlWriter(tmp_path / "journal.jsonl")
    writer.append(START)
    with pytest.raises(OSError) as caught:
        writer.commit()
    assert caught.value.errno == errno.ENOSPC
