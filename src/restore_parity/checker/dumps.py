"""A run's dump as one row index: built once in one streaming pass, rows read again from their places in the file."""

import io
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..journal import Journal
from .problems import Problem, progress
from ..params import Params
from ..records import Key, RestoreRecord, Row

COLUMNS = ("token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs")
COLUMNS += ("generation_top2", "prev_top2")  # which a row may lack
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)  # what a file that is not what it should be raises


class Chunk(msgspec.Struct):
    """One trained chunk; its rows are decoded one by one, so that a broken one does not hide the others."""

    train_step: int
    rows: list[msgspec.Raw]


class Head(msgspec.Struct):
    """What tells whose row it is."""

    group_id: str
    prompt_idx: int
    generation_index: int


class RowRef(msgspec.Struct, frozen=True):
    """What the index keeps of a row, and where it stands: the byte its line begins at, and its place in that line."""

    group_id: str
    sound: bool  # nothing is wrong in the row by itself
    place: str
    offset: int
    nth: int


class Run:
    """One run as the checks read it. `rows` maps a key to all rows that carry it: one, unless rows were doubled."""

    def __init__(self, name: str, dump: Path | bytes | None = None):
        self.name, self.dump, self.folder = name, dump, None  # the folder of run.json, where there is one
        self.info: Any = None  # its RunInfo (saved.py)
        self.params: Params | None = None
        self.planned: set[Key] = set()  # the rows that must be there, where the parameters are known
        self.rows: dict[Key, list[RowRef]] = {}
        self.problems: list[Problem] = []
        self.lines = 0
        self.journal: Journal | None = None
        self.restores: list[RestoreRecord] = []
        self._chunk = lru_cache(maxsize=1)(self._read_chunk)  # the rows of one line are asked for one after another

    def open(self) -> BinaryIO:
        return io.BytesIO(self.dump) if isinstance(self.dump, bytes) else self.dump.open("rb")

    def only(self, key: Key) -> Row | None:
        """The row of a key, or None where it is missing, doubled or unsound (told by other checks)."""
        refs = self.rows.get(key, [])
        return _decode_row(self._chunk(refs[0].offset).rows[refs[0].nth]) if len(refs) == 1 and refs[0].sound else None

    def damaged(self, key: object, where: str, expected: str, got: object, file: Path | None = None) -> None:
        following = f"look at that line of {file or (self.dump if isinstance(self.dump, Path) else 'the rows')}"
        self.problems.append(Problem("dump-complete", str(key), f"{self.name}: {where}", expected, str(got), following))

    def _read_chunk(self, offset: int) -> Chunk:
        with self.open() as stream:
            stream.seek(offset)
            return decode_line(stream.readline())


def run_of(name: str, rows: Iterable[tuple[int, Row]]) -> Run:
    """A run over rows at hand, each with its train step, as if it had been read from a dump of one row a line."""
    encode = msgspec.json.Encoder().encode
    run = Run(name, b"".join(b'{"train_step":%d,"rows":[%b]}\n' % (step, encode(row)) for step, row in rows))
    index_dump(run, "memory")
    return run


def decode_line(line: bytes) -> Chunk:
    """Raises one of BROKEN."""
    try:
        return _decode_chunk(line)
    except msgspec.DecodeError:  # the origin writes bare NaN and Infinity: null here, which no column of numbers takes
        return _decode_chunk(json.dumps(json.loads(line, parse_constant=lambda name: None)).encode())


_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_row = msgspec.json.Decoder(Row).decode
_decode_head = msgspec.json.Decoder(Head).decode


def index_dump(run: Run, file: str) -> None:
    offset = 0
    with run.open() as stream:
        for line in progress(stream, f"{run.name}: index", unit="line"):  # a binary file's lines end at b"\n" only
            run.lines += 1
            try:
                chunk = decode_line(line) if line.strip() else Chunk(0, [])
            except BROKEN as error:
                torn = "" if line.endswith(b"\n") else "torn last line: "
                run.damaged("", f"{file}, line {run.lines}", "a trained chunk in JSON", f"{torn}{error}")
                chunk = Chunk(0, [])
            for nth, raw in enumerate(chunk.rows):
                _index_row(run, chunk.train_step, raw, f"{file}, line {run.lines}, row {nth}", offset, nth)
            offset += len(line)


def _index_row(run: Run, train_step: int, raw: msgspec.Raw, place: str, offset: int, nth: int) -> None:
    row = None
    try:
        row = _decode_row(raw)
        faults = _faults(row)
    except msgspec.MsgspecError as error:
        faults = [
            (
                "",
                "every field of a row, each of its type, its numbers finite",
                str(error).replace("null`", "null`, NaN or Infinity"),
            )
        ]
        with suppress(msgspec.MsgspecError):  # most often enough stands to say whose row it is
            row = _decode_head(raw)
    key = Key(train_step, row.prompt_idx, row.generation_index) if row else ""
    for field, expected, got in faults:
        run.damaged(key, f"{place}{field}", expected, got)
    if row:
        run.rows.setdefault(key, []).append(RowRef(row.group_id, not faults, place, offset, nth))


def _faults(row: Row) -> list[tuple[str, str, object]]:
    """(field, expected, got) of what is wrong in a row by itself, beyond what its types say."""
    sizes = {name: len(column) for name in COLUMNS if (column := getattr(row, name)) is not None}
    told = f"{row.input_length} entries, as input_length says"
    ragged = [(f", {name}", told, size) for name, size in sizes.items() if size != row.input_length]
    untrained = [] if any(row.token_loss_mask) else [(", token_loss_mask", "at least one trained token", "none")]
    return ragged + untrained
