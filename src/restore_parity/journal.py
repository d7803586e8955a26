"""The journal: an append-only file of what the engine produced, and how JSON lines are read.

Written with group commit (one write and one fsync an engine step at most), read back after a kill.
"""

import math
import os
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Struct

from .records import CutKey, Key, Logprob, TokenId, TopLogprobs


class Start(Struct, frozen=True, kw_only=True, tag="start", tag_field="event"):
    """A call was requested: its prompt without a prefix, the limit of prefix and tail together."""

    call_id: str
    key: str
    call_index: int
    group_id: str
    prompt_ids: list[TokenId]
    max_tokens: int
    t: float  # seconds since the epoch, as in every record
    prefix_tokens: int = 0


class Delta(Struct, frozen=True, kw_only=True, tag="delta", tag_field="event"):
    """The tokens one engine step gave a call; all three lists are (tokens,)."""

    call_id: str
    ids: list[TokenId]
    logprobs: list[Logprob]
    top_logprobs: list[TopLogprobs] = []
    top2: list[TopLogprobs] = []  # the same under its old name
    t: float


class End(Struct, frozen=True, kw_only=True, tag="end", tag_field="event"):
    """A call ended. Its tool's result comes in the same record, so that no kill parts the two."""

    call_id: str
    finish_reason: Literal["stop", "length"]
    t: float
    tool_ids: list[TokenId] | None = None  # the untrained tokens that follow the call


Record = Start | Delta | End
FINAL_BYTES = 1 << 20  # more than one engine step writes for a few hundred calls


class JsonlWriter:
    """Appends records; one write and one fsync for all that gathered since the last commit."""

    def __init__(self, path: Path, fsync_ms: float = 0.0):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._encode = msgspec.json.Encoder().encode
        self._gathered: list[bytes] = []
        self._fsync_s = fsync_ms / 1000
        self._committed = -math.inf

    def append(self, record: Struct) -> None:
        """Gather a record; nothing is written before the next commit."""
        self._gathered += (self._encode(record), b"\n")

    def commit(self, now: bool = False) -> None:
        """Make what was appended durable, at most once every `fsync_ms` unless `now`.

        Raises OSError (disk full).
        """
        early = time.monotonic() - self._committed < self._fsync_s
        if not self._gathered or (early and not now):
            return
        unwritten = memoryview(b"".join(self._gathered))
        while unwritten:
            unwritten = unwritten[os.write(self._file, unwritten) :]
        os.fsync(self._file)
        self._gathered.clear()
        self._committed = time.monotonic()

    def close(self) -> None:
        """Commit what is left and close the file. Raises OSError."""
        self.commit(now=True)
        os.close(self._file)


class Line(NamedTuple):
    """One line of a file of JSON lines: counted from 1, with the byte it begins at."""

    number: int
    offset: int
    content: bytes
    torn: bool  # the file's last bytes, without an end of line

    @property
    def record(self) -> bytes:
        """What stands in it, without the mark that some editors put at a file's beginning."""
        return self.content.removeprefix(BOM_UTF8).strip()


def lines(stream: BinaryIO, number: int = 0, offset: int = 0) -> Iterator[Line]:
    """The lines of a stream that stands behind line `number`, at byte `offset`; blank ones too.

    A line ends at a line feed and nowhere else: text may hold other line ends.
    """
    for content in stream:
        number += 1
        yield Line(number, offset, content, torn=not content.endswith(b"\n"))
        offset += len(content)


class Call(Struct, kw_only=True):
    """One model request: what is captured of it, or its whole answer.

    Lists are (tokens,), log-probabilities in nats.
    """

    call_id: str
    key: Key
    call_index: int
    group_id: str
    prompt_ids: list[int]
    max_tokens: int  # the limit of prefix and tail together
    started: float = 0.0
    ids: list[int] = []
    logprobs: list[float] = []
    top_logprobs: list[TopLogprobs] = []
    finish_reason: Literal["stop", "length"] | None = None
    tool_ids: list[int] | None = None

    @property
    def name(self) -> str:
        """As the call prints: `1/3/0#1`."""
        return str(CutKey(self.key, self.call_index))

    @property
    def is_open(self) -> bool:
        """Whether the call has not ended."""
        return self.finish_reason is None

    def extend(
        self, ids: list[int], logprobs: list[float], top_logprobs: list[TopLogprobs]
    ) -> None:
        """Take in more tokens; all three lists are (tokens,)."""
        self.ids += ids
        self.logprobs += logprobs
        self.top_logprobs += top_logprobs


class Moment(Struct):
    """What any record tells of when it was written."""

    event: str
    t: float
    prefix_tokens: int = 0


def moments(file: Path) -> dict[str, float]:
    """When a journal's first and last tokens came and its first restored call began.

    Epoch seconds, what it does not tell left out. Both ends of the file are read, not what lies
    between: a journal can be large.
    """
    found: dict[str, float] = {}
    decode = msgspec.json.Decoder(Moment).decode
    with suppress(OSError, msgspec.MsgspecError), file.open("rb") as stream:
        for line in lines(stream):
            record = decode(line.content)
            if record.prefix_tokens:
                found.setdefault("restored", record.t)
            if record.event == "delta":
                found["first token"] = record.t
                break
        stream.seek(max(0, file.stat().st_size - FINAL_BYTES))
        for line in list(lines(stream))[1:]:  # the first one may be part of a line
            with suppress(msgspec.MsgspecError):
                found["last token"] = decode(line.content).t
    return found


class JournalError(ValueError):
    """A record that is broken where no kill can have broken it; says file, line and byte."""


class Journal:
    """A journal as it grows: `poll` takes in what was committed since.

    `torn` says which last record was dropped, where one was.
    """

    def __init__(self, path: Path):
        self.path = path
        self.calls: dict[str, Call] = {}
        self.torn: str | None = None
        self.tokens = 0
        self.tool_runs: Counter[Key] = Counter()
        self._line = 0
        self._offset = 0  # behind that line
        self._decode = msgspec.json.Decoder(Record).decode

    def poll(self) -> "Journal":
        """Take in the records that are there now. Raises JournalError."""
        self.torn = None
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                for line in lines(stream, self._line, self._offset):
                    self._take(line)
        except FileNotFoundError:
            pass
        return self

    def open_calls(self) -> list[Call]:
        """The calls that have not ended, in the order of their starts."""
        return [call for call in self.calls.values() if call.is_open]

    def _take(self, line: Line) -> None:
        place = f"{self.path}, line {line.number}, byte {line.offset}"
        if line.torn:  # the next poll reads it again
            self.torn = f"{place}: torn last record of {len(line.content)} bytes dropped"
            return
        try:
            if line.record:
                self._apply(self._decode(line.record))
        except KeyError as error:
            raise JournalError(
                f"{place}: broken journal record: no start of call {error}"
            ) from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise JournalError(f"{place}: broken journal record: {error}") from None
        self._line = line.number
        self._offset = line.offset + len(line.content)

    def _apply(self, record: Record) -> None:
        if isinstance(record, Start):
            self._start(record)
            return
        call = self.calls[record.call_id]
        if isinstance(record, Delta):
            top_logprobs = record.top_logprobs or record.top2
            if not len(record.ids) == len(record.logprobs) == len(top_logprobs):
                raise ValueError("ids, logprobs and top_logprobs differ in length")
            call.extend(record.ids, record.logprobs, top_logprobs)
            self.tokens += len(record.ids)
            return
        call.finish_reason = record.finish_reason
        call.tool_ids = record.tool_ids
        if record.tool_ids is not None:
            self.tool_runs[call.key] += 1

    def _start(self, record: Start) -> None:
        if record.call_index < 0 or record.max_tokens < 1:
            raise ValueError("call_index or max_tokens out of range")
        if record.call_id in self.calls:
            raise ValueError(f"call {record.call_id} started twice")
        self.calls[record.call_id] = Call(
            call_id=record.call_id,
            key=Key.parse(record.key),
            call_index=record.call_index,
            group_id=record.group_id,
            prompt_ids=record.prompt_ids,
            max_tokens=record.max_tokens,
            started=record.t,
        )
