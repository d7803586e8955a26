"""The journal: an append-only file of what the engine produced, group-committed, read back after a kill."""

import math
import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from .records import Key, TopTwo, cut_name


class Start(Struct, frozen=True, tag="start", tag_field="event"):
    """A call was requested: its prompt without a prefix, and the limit of prefix and tail together."""

    call_id: str
    key: str
    call_index: int
    group_id: str
    prompt_ids: list[int]
    max_tokens: int
    t: float  # seconds since the epoch, as in every record
    prefix_tokens: int = 0


class Delta(Struct, frozen=True, tag="delta", tag_field="event"):
    """Tokens one engine step gave a call; all three lists are as long as `ids`."""

    call_id: str
    ids: list[int]
    logprobs: list[float]
    top2: list[TopTwo]
    t: float


class End(Struct, frozen=True, tag="end", tag_field="event"):
    """A call ended. Where the tool ran for it, its result comes in the same record, so that no kill parts the two."""

    call_id: str
    finish_reason: Literal["stop", "length"]
    t: float
    tool_ids: list[int] | None = None  # the untrained tokens that follow the call


Record = Start | Delta | End
TAIL_BYTES = 1 << 20  # more than one engine step writes for a few hundred calls


class JsonlWriter:
    """Appends records; one write and one fsync for all that gathered since the last commit."""

    def __init__(self, path: Path, fsync_ms: float = 0.0):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._encode = msgspec.json.Encoder().encode
        self._gathered: list[bytes] = []
        self._every = fsync_ms / 1000
        self._last = -math.inf

    def append(self, record: msgspec.Struct) -> None:
        self._gathered += (self._encode(record), b"\n")

    def commit(self, now: bool = False) -> None:
        """Make what was appended durable, at most once every `fsync_ms` unless `now`. Raises OSError (disk full)."""
        if not self._gathered or (not now and time.monotonic() - self._last < self._every):
            return
        rest = memoryview(b"".join(self._gathered))
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fsync(self._file)
        self._gathered.clear()
        self._last = time.monotonic()

    def close(self) -> None:
        self.commit(now=True)
        os.close(self._file)


class Call(msgspec.Struct):
    """One model request as far as it is known: captured prefix or whole answer. Lists are (tokens,), log-probs in nats.

    A call that no journal tells of (the origin's) has `ids` None, and perhaps neither index nor limit.
    """

    call_id: str
    key: Key
    call_index: int | None  # None: the row's last call
    group_id: str
    prompt_ids: list[int] = []
    max_tokens: int | None = None  # the limit of prefix and tail together
    started: float = 0.0
    ids: list[int] | None = []
    logprobs: list[float] = []
    top2: list[TopTwo] = []
    finish_reason: str | None = None
    tool_ids: list[int] | None = None

    @property
    def name(self) -> str:
        return str(self.key) if self.call_index is None else cut_name(self.key, self.call_index)

    @property
    def is_open(self) -> bool:
        return self.finish_reason is None

    def extend(self, ids: list[int], logprobs: list[float], top2: list[TopTwo]) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.top2 += top2


class Moment(Struct):
    """What any record tells of when it was written."""

    event: str
    t: float
    prefix_tokens: int = 0


def moments(file: Path) -> dict[str, float]:
    """When a journal's first and last tokens came and its first restored call began, epoch seconds, where it tells.

    Both ends of the file are read, not what lies between: a journal can be large.
    """
    told, decode = {}, msgspec.json.Decoder(Moment).decode
    with suppress(OSError, msgspec.MsgspecError), file.open("rb") as stream:
        for line in stream:
            record = decode(line)
            if record.prefix_tokens:
                told.setdefault("restored", record.t)
            if record.event == "delta":
                told["first token"] = record.t
                break
        stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
        for line in stream.read().split(b"\n")[1:]:
            with suppress(msgspec.MsgspecError):
                told["last token"] = decode(line).t
    return told


class JournalError(Exception):
    """A record that is broken where no kill can have broken it; says file, line and byte."""


class Journal:
    """Reads a journal as it grows: `poll` takes in what was committed since. `torn` tells of a dropped last record."""

    def __init__(self, path: Path):
        self.path = path
        self.calls: dict[str, Call] = {}
        self.torn: str | None = None
        self.tokens = 0
        self.tool_runs: Counter[Key] = Counter()  # by row key
        self._rest = b""
        self._read = 0
        self._lines = 0
        self._decode = msgspec.json.Decoder(Record).decode

    def poll(self) -> "Journal":
        """Raises JournalError."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._read)
                fresh = stream.read()
        except FileNotFoundError:
            return self
        *lines, rest = (self._rest + fresh).split(b"\n")  # only b"\n": text may hold other line ends
        place = self._read - len(self._rest)
        self._read += len(fresh)
        self._rest = rest
        for line in lines:
            self._lines += 1
            try:
                self._take(self._decode(line))
            except (msgspec.MsgspecError, KeyError, ValueError, RecursionError) as error:
                told = f"no start of call {error}" if isinstance(error, KeyError) else str(error)
                raise JournalError(
                    f"{self.path}, line {self._lines}, byte {place}: broken journal record: {told}"
                ) from None
            place += len(line) + 1
        torn = f"{self.path}, line {self._lines + 1}, byte {place}: torn last record of {len(rest)} bytes dropped"
        self.torn = torn if rest else None
        return self

    def open_calls(self) -> list[Call]:
        return [call for call in self.calls.values() if call.is_open]

    def _take(self, record: Record) -> None:
        if isinstance(record, Start):
            if record.call_index < 0 or record.max_tokens < 1:
                raise ValueError("call_index or max_tokens out of range")
            if record.call_id in self.calls:
                raise ValueError(f"call {record.call_id} started twice")
            place = (Key.parse(record.key), record.call_index, record.group_id)
            self.calls[record.call_id] = Call(
                record.call_id, *place, record.prompt_ids, record.max_tokens, started=record.t
            )
            return
        call = self.calls[record.call_id]
        if isinstance(record, Delta):
            if not len(record.ids) == len(record.logprobs) == len(record.top2):
                raise ValueError("ids, logprobs and top2 differ in length")
            call.extend(record.ids, record.logprobs, record.top2)
            self.tokens += len(record.ids)
        else:
            call.finish_reason, call.tool_ids = record.finish_reason, record.tool_ids
            self.tool_runs[call.key] += record.tool_ids is not None
