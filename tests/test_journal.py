"""The journal: durable, group-committed, read back whole or with its damage told."""

import errno
import io
import json
import os

import pytest
from msgspec.structs import replace

from restore_parity.journal import (
    FINAL_BYTES,
    Delta,
    End,
    Journal,
    JournalError,
    JsonlWriter,
    Line,
    Start,
    lines,
    moments,
)
from restore_parity.records import Key

START = Start(
    call_id="c",
    key="1/0/0",
    call_index=0,
    group_id="g",
    prompt_ids=[5, 6],
    max_tokens=9,
    t=1.0,
)
TOP2 = [[(7, -0.5), (9, -2.0)], [(8, -0.25), (9, -2.0)]]
DELTA = Delta(call_id="c", ids=[7, 8], logprobs=[-0.5, -0.25], top_logprobs=TOP2, t=2.0)
END = End(call_id="c", finish_reason="stop", t=3.0, tool_ids=[4])


@pytest.fixture
def journal(tmp_path) -> Journal:
    """A journal that is not there yet."""
    return Journal(tmp_path / "journal.jsonl")


def write(journal: Journal, *records, then: bytes = b"") -> Journal:
    """Append records to a journal, and bytes as they are behind them."""
    writer = JsonlWriter(journal.path)
    for record in records:
        writer.append(record)
    writer.close()
    with journal.path.open("ab") as stream:
        stream.write(then)
    return journal


def line_of(record, tmp_path) -> bytes:
    """A record as it stands in a file."""
    return write(Journal(tmp_path / "another.jsonl"), record).path.read_bytes()


# --- reading --------------------------------------------------------------------------------------


def test_a_call_comes_back_as_it_was_written(journal):
    call = write(journal, START, DELTA, END).poll().calls["c"]
    assert call.ids == [7, 8]
    assert call.logprobs == [-0.5, -0.25]
    assert call.top_logprobs == TOP2
    assert call.finish_reason == "stop"
    assert call.tool_ids == [4]
    assert call.started == 1.0
    assert call.name == "1/0/0#0"


def test_the_runs_of_a_rows_tool_are_counted(journal):
    without_tool = End(call_id="d", finish_reason="length", t=3.0)
    other = replace(START, call_id="d", key="1/0/1")
    assert write(journal, START, other, END, without_tool).poll().tool_runs == {Key(1, 0, 0): 1}


def test_a_call_without_an_end_is_open(journal):
    (call,) = write(journal, START, DELTA).poll().open_calls()
    assert call.call_id == "c"
    assert call.is_open


def test_a_call_that_ended_is_not_open(journal):
    assert write(journal, START, DELTA, END).poll().open_calls() == []


def test_a_journal_that_is_not_there_holds_nothing(journal):
    assert journal.poll().calls == {}
    assert journal.torn is None


def test_polling_takes_in_only_what_is_new(journal):
    tokens = [write(journal, START).poll().tokens]
    tokens.append(write(journal, DELTA).poll().tokens)
    tokens.append(journal.poll().tokens)
    assert tokens == [0, 2, 2]


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, -2], ids=["one byte", "half", "all but the end"])
def test_a_torn_last_record_is_dropped_and_told(journal, tmp_path, size):
    torn = line_of(DELTA, tmp_path)[:size]
    write(journal, START, then=torn).poll()
    assert journal.tokens == 0
    place = f"{journal.path}, line 2, byte {journal.path.stat().st_size - len(torn)}"
    assert journal.torn == f"{place}: torn last record of {len(torn)} bytes dropped"


def test_a_torn_record_is_taken_once_it_is_whole(journal, tmp_path):
    line = line_of(END, tmp_path)
    write(journal, START, then=line[:9]).poll()
    assert journal.torn
    write(journal, then=line[9:]).poll()
    assert journal.torn is None
    assert journal.calls["c"].finish_reason == "stop"


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"event":"delta"}',
        b"\x00\x00",
        b'{"event":"end","call_id":"x","finish_reason":"stop","t":1}',
        b'{"event":"end","call_id":"c","finish_reason":"abort","t":1}',
        b'{"event":"start","call_id":' + b"[" * 100_000,
    ],
    ids=[
        "no event",
        "no fields",
        "no JSON",
        "no start of its call",
        "an unknown end",
        "nested",
    ],
)
def test_a_broken_record_names_file_line_and_byte(journal, line):
    write(journal, START, then=line + b"\n")
    offset = journal.path.stat().st_size - len(line) - 1
    with pytest.raises(JournalError, match=rf"journal\.jsonl, line 2, byte {offset}: broken "):
        journal.poll()


def test_blank_lines_are_skipped_as_in_every_file(journal):
    call = write(journal, START, then=b"\n  \n").poll().calls["c"]
    assert write(journal, DELTA, END).poll().calls["c"] is call
    assert call.ids == [7, 8]


@pytest.mark.parametrize("token", [-5, 2**32])
@pytest.mark.parametrize(
    ("record", "column"),
    [(START, "prompt_ids"), (DELTA, "ids"), (END, "tool_ids")],
    ids=["prompt", "generated", "tool result"],
)
def test_an_id_that_is_no_tokens_is_a_broken_record(journal, tmp_path, record, column, token):
    fields = json.loads(line_of(record, tmp_path))
    fields[column][0] = token
    with pytest.raises(JournalError, match=rf"Expected `int`.*`\$\.{column}\[0\]`"):
        write(journal, then=json.dumps(fields).encode() + b"\n").poll()


def test_candidates_under_their_old_name_are_read(journal):
    delta = replace(DELTA, top_logprobs=[], top2=TOP2)
    assert write(journal, START, delta).poll().calls["c"].top_logprobs == TOP2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": "x"}, "'x' does not name a row"),
        ({"key": "1/0"}, "'1/0' does not name a row"),
        ({"call_index": -5}, "call_index or max_tokens out of range"),
        ({"max_tokens": 0}, "call_index or max_tokens out of range"),
    ],
    ids=str,
)
def test_a_call_of_no_place_is_a_broken_record(journal, tmp_path, fields, message):
    start = json.loads(line_of(START, tmp_path)) | fields
    write(journal, then=json.dumps(start).encode() + b"\n")
    with pytest.raises(JournalError, match=rf"line 1, byte 0: broken journal record: {message}"):
        journal.poll()


def test_a_call_that_starts_twice_is_a_broken_record(journal):
    with pytest.raises(JournalError, match=r"line 2.*call c started twice"):
        write(journal, START, START).poll()


@pytest.mark.parametrize(
    "columns",
    [{"logprobs": [-0.5]}, {"top_logprobs": []}, {"ids": [7, 8, 9]}],
    ids=["a log-probability less", "no candidates", "an id more"],
)
def test_ragged_deltas_are_broken_records(journal, columns):
    with pytest.raises(JournalError, match="ids, logprobs and top_logprobs differ in length"):
        write(journal, START, replace(DELTA, **columns)).poll()


# --- writing --------------------------------------------------------------------------------------


def test_records_wait_for_the_group_commit(tmp_path):
    file = tmp_path / "journal.jsonl"
    writer = JsonlWriter(file, fsync_ms=3_600_000)
    writer.append(START)
    assert file.read_bytes() == b""
    writer.commit()  # the first is due at once
    writer.append(DELTA)
    writer.commit()
    assert file.read_bytes().count(b"\n") == 1
    writer.commit(now=True)
    assert file.read_bytes().count(b"\n") == 2
    writer.close()


def test_closing_commits_what_is_left(tmp_path):
    writer = JsonlWriter(tmp_path / "journal.jsonl", fsync_ms=3_600_000)
    for record in (START, DELTA):
        writer.append(record)
        writer.commit()
    writer.close()
    assert Journal(tmp_path / "journal.jsonl").poll().tokens == 2


def test_a_writer_goes_on_behind_what_stands_there(journal):
    write(journal, START)
    write(journal, DELTA)
    assert journal.poll().tokens == 2


def test_a_full_disk_is_an_error_and_not_a_silent_loss(tmp_path):
    os.symlink("/dev/full", tmp_path / "journal.jsonl")
    writer = JsonlWriter(tmp_path / "journal.jsonl")
    writer.append(START)
    with pytest.raises(OSError, match="No space left") as caught:
        writer.commit()
    assert caught.value.errno == errno.ENOSPC


# --- lines ----------------------------------------------------------------------------------------


def test_lines_are_counted_with_the_bytes_they_begin_at():
    assert list(lines(io.BytesIO(b"ab\n\ncd\n"))) == [
        Line(1, 0, b"ab\n", torn=False),
        Line(2, 3, b"\n", torn=False),
        Line(3, 4, b"cd\n", torn=False),
    ]


def test_last_bytes_without_an_end_are_torn():
    assert list(lines(io.BytesIO(b"ab\ncd")))[1] == Line(2, 3, b"cd", torn=True)


def test_lines_count_on_from_where_a_stream_stands():
    stream = io.BytesIO(b"ab\ncd\n")
    stream.seek(3)
    assert list(lines(stream, 1, 3)) == [Line(2, 3, b"cd\n", torn=False)]


@pytest.mark.parametrize(
    "end", ["\r", "\u2028", "\x85", "\x0b"], ids=["CR", "line separator", "NEL", "VT"]
)
def test_a_line_ends_at_a_line_feed_alone(end):
    assert len(list(lines(io.BytesIO(f"a{end}b\n".encode())))) == 1


def test_a_stream_of_nothing_has_no_lines():
    assert list(lines(io.BytesIO(b""))) == []


# --- moments --------------------------------------------------------------------------------------


def restored_at(time: float) -> Start:
    return replace(START, t=time, prefix_tokens=3)


def delta_at(time: float) -> Delta:
    return Delta(call_id="c", ids=[], logprobs=[], top_logprobs=[], t=time)


def test_first_and_last_tokens_are_found(journal):
    write(journal, START, delta_at(2.0), delta_at(4.0), delta_at(5.0))
    assert moments(journal.path) == {"first token": 2.0, "last token": 5.0}


def test_the_first_restored_call_is_found(journal):
    write(journal, START, restored_at(1.5), restored_at(1.7), delta_at(2.0))
    assert moments(journal.path)["restored"] == 1.5


def test_a_torn_last_record_is_not_its_last_moment(journal, tmp_path):
    write(journal, START, delta_at(2.0), delta_at(4.0), then=line_of(END, tmp_path)[:-9])
    assert moments(journal.path)["last token"] == 4.0


def test_the_last_moment_of_a_large_journal_is_found(journal):
    write(journal, START, delta_at(2.0), then=b" " * FINAL_BYTES + b"\n")
    write(journal, delta_at(7.0))
    assert moments(journal.path)["last token"] == 7.0


def test_a_journal_that_is_not_there_has_no_moments(tmp_path):
    assert moments(tmp_path / "gone") == {}


def test_a_journal_of_something_else_has_no_moments(journal):
    write(journal, then=b"[]\n")
    assert moments(journal.path) == {}
