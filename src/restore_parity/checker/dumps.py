"""A run's dump as one row index: built in one streaming pass, rows read again from their places."""

import io
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import IncompleteError
from ..journal import Journal, Line, lines
from ..params import Params
from ..records import Key, RestoreRecord, Row, TopLogprobs
from ..runs import BROKEN, RunInfo
from .problems import Problem
from .progress import progress

COLUMNS = (
    "token_ids",
    "token_loss_mask",
    "advantages",
    "generation_logprobs",
    "prev_logprobs",
    "generation_top_logprobs",  # this one and the next a row may lack
    "prev_top_logprobs",
)


class Chunk(Struct):
    """One trained chunk; its rows are decoded one by one: a broken one does not hide the others."""

    train_step: int
    rows: list[msgspec.Raw]


class RowIdentity(Struct):
    """The fields that say whose row it is."""

    group_id: str
    prompt_idx: int
    generation_index: int


class SavedRow(Row, frozen=True, kw_only=True):
    """A row as a dump may hold it: with columns under their old names."""

    generation_top2: list[TopLogprobs | None] | None = None
    prev_top2: list[TopLogprobs | None] | None = None


class RowRef(Struct, frozen=True, kw_only=True):
    """What the index keeps of a row, and where it stands.

    `offset` is the byte its line begins at, `nth` its place among the rows of that line.
    """

    group_id: str
    sound: bool  # nothing is wrong in the row by itself
    place: str
    offset: int
    nth: int


class Fault(NamedTuple):
    """What is wrong in a row by itself."""

    field: str  # empty: the row as a whole
    expected: str
    got: object


class Run:
    """A run that trained: its dump's index and its restore records.

    `rows` maps a key to all rows that carry it: one, unless rows were doubled. `planned` are the
    rows that must be there, where the parameters are known.
    """

    def __init__(self, name: str, dump: Path | bytes):
        self.name = name
        self.dump = dump
        self.folder: Path | None = None  # of run.json, where there is one
        self.info: RunInfo | None = None
        self.params: Params | None = None
        self.planned: set[Key] = set()
        self.rows: dict[Key, list[RowRef]] = {}
        self.problems: list[Problem] = []
        self.lines = 0
        self.columns: Counter[str] = Counter()  # in how many rows each stands
        self.restores: list[RestoreRecord] = []
        # the rows of one line are asked for one after another
        self._chunk = lru_cache(maxsize=1)(self._read_chunk)

    def open(self) -> BinaryIO:
        """The dump's bytes, from the start."""
        return io.BytesIO(self.dump) if isinstance(self.dump, bytes) else self.dump.open("rb")

    def only(self, key: Key) -> Row | None:
        """The one sound row of a key; None where it is missing, doubled or unsound.

        Each of these is a problem of row-membership or dump-complete.
        """
        refs = self.rows.get(key, [])
        if len(refs) != 1 or not refs[0].sound:
            return None
        return decode_row(self._chunk(refs[0].offset).rows[refs[0].nth])

    def damaged(self, file: Path | str, *, key: object, where: str, fault: Fault) -> None:
        """Note damage of a line of a file."""
        self.problems.append(
            Problem(
                check="dump-complete",
                key=str(key),
                where=f"{self.name}: {where}{fault.field}",
                expected=fault.expected,
                got=str(fault.got),
                next=f"look at that line of {file}",
            )
        )

    def _read_chunk(self, offset: int) -> Chunk:
        with self.open() as stream:
            stream.seek(offset)
            return decode_chunk(stream.readline())


class KilledRun(Struct, kw_only=True):
    """The run that was killed: it trained on nothing, and its journal says what it captured.

    What is missing or broken is None, and told in `problems`.
    """

    folder: Path
    info: RunInfo | None = None
    journal: Journal | None = None
    name: str = "killed"
    problems: list[Problem] = field(default_factory=list)

    def whole(self) -> tuple[RunInfo, Journal]:
        """Its run.json and its journal. Raises IncompleteError where one is missing or broken."""
        if self.info is None or self.journal is None:
            raise IncompleteError("\n".join(map(str, self.problems)))
        return self.info, self.journal


class Runs(Struct, kw_only=True):
    """The runs of one comparison; other trainers' have no killed run to show."""

    uninterrupted: Run
    restored: Run
    killed: KilledRun | None = None

    @property
    def every(self) -> list[Run | KilledRun]:
        """All of them, in the order in which they ran."""
        if self.killed is None:
            return [self.uninterrupted, self.restored]
        return [self.uninterrupted, self.killed, self.restored]

    @property
    def trained(self) -> list[Run]:
        """The two that have a dump."""
        return [self.uninterrupted, self.restored]

    @property
    def planned(self) -> set[Key]:
        """The rows that must be there, where the parameters of either run are known."""
        return self.uninterrupted.planned | self.restored.planned


def run_of(name: str, rows: Iterable[tuple[int, Row]]) -> Run:
    """A run over (train step, row) at hand, as if read from a dump of one row a line."""
    encode = msgspec.json.Encoder().encode
    chunks = [b'{"train_step":%d,"rows":[%b]}\n' % (step, encode(row)) for step, row in rows]
    run = Run(name, b"".join(chunks))
    index_dump(run, "memory")
    return run


def decode_chunk(line: bytes) -> Chunk:
    """One line of a dump. Raises one of BROKEN."""
    try:
        return _decode_chunk(line.removeprefix(BOM_UTF8))
    except msgspec.DecodeError:
        # NeMo RL writes bare NaN and Infinity: null here, which no column of numbers takes
        values = json.loads(line, parse_constant=lambda name: None)
        return _decode_chunk(json.dumps(values).encode())


def decode_row(raw: msgspec.Raw) -> Row:
    """One row of a chunk, its columns under their present names. Raises MsgspecError."""
    row = _decode_row(raw)
    if row.generation_top2 is None and row.prev_top2 is None:
        return row
    return replace(
        row,
        generation_top_logprobs=row.generation_top_logprobs or row.generation_top2,
        prev_top_logprobs=row.prev_top_logprobs or row.prev_top2,
        generation_top2=None,
        prev_top2=None,
    )


_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_row = msgspec.json.Decoder(SavedRow).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_identity = msgspec.json.Decoder(RowIdentity).decode


def index_dump(run: Run, file: str) -> None:
    """Index every row of a run's dump; damage goes into its problems, under the file's name."""
    with run.open() as stream:
        for line in progress(lines(stream), f"{run.name}: index", "line"):
            run.lines += 1
            if line.record:
                _index_line(run, file, line)


def _index_line(run: Run, file: str, line: Line) -> None:
    place = f"{file}, line {line.number}"
    try:
        chunk = decode_chunk(line.content)
    except BROKEN as error:
        got = f"torn last line: {error}" if line.torn else error
        fault = Fault("", "a trained chunk in JSON", got)
        run.damaged(_file_of(run), key="", where=place, fault=fault)
        return
    for nth, raw in enumerate(chunk.rows):
        _index_row(run, chunk.train_step, raw, f"{place}, row {nth}", (line.offset, nth))


def _index_row(
    run: Run, train_step: int, raw: msgspec.Raw, place: str, at: tuple[int, int]
) -> None:
    identity: Row | RowIdentity | None = None
    try:
        identity = row = decode_row(raw)
        faults = _faults(row)
    except msgspec.MsgspecError as error:
        wanted = "every field of a row, each of its type, its numbers finite"
        faults = [Fault("", wanted, str(error).replace("null`", "null`, NaN or Infinity"))]
        with suppress(msgspec.MsgspecError):  # most often enough stands to say whose row it is
            identity = _decode_identity(raw)
    with suppress(msgspec.MsgspecError):
        run.columns.update(_decode_fields(raw).keys())
    key = Key(train_step, identity.prompt_idx, identity.generation_index) if identity else ""
    for fault in faults:
        run.damaged(_file_of(run), key=key, where=place, fault=fault)
    if identity and isinstance(key, Key):
        offset, nth = at
        ref = RowRef(
            group_id=identity.group_id, sound=not faults, place=place, offset=offset, nth=nth
        )
        run.rows.setdefault(key, []).append(ref)


def _file_of(run: Run) -> Path | str:
    return run.dump if isinstance(run.dump, Path) else "the rows"


def _faults(row: Row) -> list[Fault]:
    """What is wrong in a row beyond what its types say."""
    wanted = f"{row.input_length} entries, as input_length says"
    faults = []
    for name in COLUMNS:
        column = getattr(row, name)
        if column is not None and len(column) != row.input_length:
            faults.append(Fault(f", {name}", wanted, len(column)))
    if not any(row.token_loss_mask):
        faults.append(Fault(", token_loss_mask", "at least one trained token", "none"))
    return faults
