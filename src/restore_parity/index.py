"""A run's dump as one row index: built once in one streaming pass, rows read again from their places in the file."""

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from .errors import IncompleteError, UsageError
from .journal import Journal, JournalError
from .params import validate
from .records import Key, Problem, RestoreRecord, Row, RunInfo

LISTS = ("token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs")


class Place(msgspec.Struct, frozen=True):
    """Where a row stands: byte `offset` and `size` of its line, and which row of that line it is."""

    file: str
    line: int
    offset: int
    size: int
    nth: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}, row {self.nth}"


class RowRef(msgspec.Struct, frozen=True):
    """What the index keeps of a row; its tokens stay in the file."""

    key: Key
    group_id: str
    input_length: int
    reward: float
    sample_loss_mask: float
    sound: bool  # nothing is wrong in the row by itself
    place: Place


class Line(msgspec.Struct):
    """One trained chunk; its rows are decoded one by one, so that a broken one does not hide the others."""

    train_step: int
    rows: list[msgspec.Raw]
    chunk_index: int = 0


class Run:
    """One run as the checks read it. `rows` maps a key to all rows that carry it: one, unless rows were doubled."""

    def __init__(self, name: str, dump: Path | None, info: RunInfo | None = None):
        self.name, self.dump, self.info = name, dump, info
        self.kept: list[Row] = []  # the rows themselves, only where there is no dump to read them from
        self.planned: set[Key] = set()  # the rows that must be there, where the parameters are known
        self.rows: dict[Key, list[RowRef]] = {}
        self.problems: list[Problem] = []
        self.lines = 0
        self.journal: Journal | None = None
        self.restores: list[RestoreRecord] | None = None
        self._line = lru_cache(maxsize=1)(self._decode)  # the rows of one line are asked for one after another

    def read(self, ref: RowRef) -> Row:
        if self.dump is None:
            return self.kept[ref.place.nth]
        return self._line(ref.place.offset, ref.place.size)[ref.place.nth]

    def only(self, key: Key) -> Row | None:
        """The row of a key, or None where it is missing, doubled or unsound (told by other checks)."""
        refs = self.rows.get(key, [])
        return self.read(refs[0]) if len(refs) == 1 and refs[0].sound else None

    def _decode(self, offset: int, size: int) -> list[Row | None]:
        with self.dump.open("rb") as stream:
            stream.seek(offset)
            _, decoded = decode_line(stream.read(size))
        return [row if isinstance(row, Row) else None for row in decoded]


def load_run(path: Path, name: str | None = None) -> Run:
    """Index the dump of a run's folder, or a dump file alone. Damage is collected in `problems`, nothing is dropped unsaid.

    Raises IncompleteError when there is no dump at all.
    """
    folder = path if path.is_dir() else None
    dump = path / "training.jsonl" if folder else path
    if not dump.is_file():
        half = " (its trainer never came to an end)" if dump.with_suffix(".jsonl.partial").exists() else ""
        raise IncompleteError(f"{dump}: no such dump{half}")
    run = Run(name or path.name, dump, _info(folder) if folder else None)
    run.planned = _planned(run.info, folder)
    offset = 0
    with dump.open("rb") as stream:
        for number, line in enumerate(stream, start=1):  # a binary file's lines end at b"\n" only
            if line.strip():
                _index_line(run, line, Place(dump.name, number, offset, len(line), 0))
            offset += len(line)
            run.lines = number
    if folder:
        run.journal, run.restores = _journal(folder), _restores(folder / "restores.jsonl", run)
    return run


def run_of(name: str, rows: Iterable[tuple[int, Row]], info: RunInfo | None = None) -> Run:
    """A run over rows at hand, each with its train step, as if it had been read from a dump of one row a line."""
    run = Run(name, None, info)
    for nth, (step, row) in enumerate(rows):
        run.kept.append(row)
        run.lines = nth + 1
        _index_row(run, step, row, Place("memory", nth + 1, 0, 0, nth))
    return run


def load_runs(folder: Path) -> tuple[Run, Run, Run]:
    """The uninterrupted, the killed and the restored run below a folder. Raises IncompleteError where one is missing."""
    killed = load_killed(folder / "killed")
    return load_run(folder / "uninterrupted"), killed, load_run(folder / "restored")


def load_killed(folder: Path) -> Run:
    """The killed run: no dump, but its journal and how it ended. Raises IncompleteError where one is missing."""
    run = Run("killed", None, _info(folder))
    run.planned = _planned(run.info, folder)
    run.journal = _journal(folder)
    if run.info is None or run.journal is None:
        raise IncompleteError(f"{folder}: {'run.json' if run.info is None else 'journal.jsonl'} is missing")
    return run


def _journal(folder: Path) -> Journal | None:
    """A run's journal, None where it has none. Raises IncompleteError when it is broken before its last record."""
    file = folder / "journal.jsonl"
    try:
        return Journal(file).poll() if file.exists() else None
    except (JournalError, OSError) as error:
        raise IncompleteError(str(error)) from None


def decode_line(line: bytes) -> tuple[int, list[Row | Exception]]:
    """Train step and rows of one line; a row that does not decode is its error. Raises msgspec.MsgspecError, ValueError.

    Strict JSON is tried first; the origin writes bare NaN and Infinity, which only the standard library reads.
    """
    try:
        chunk = _decode_chunk(line)
        return chunk.train_step, [_row(raw, _decode_row) for raw in chunk.rows]
    except msgspec.DecodeError as error:
        if isinstance(error, msgspec.ValidationError):
            raise
        chunk = json.loads(line.decode())  # a lone surrogate is no text: it could not be shown nor written
        json.dumps(chunk, ensure_ascii=False).encode()
        rows = chunk.pop("rows")
        return msgspec.convert(chunk, Head).train_step, [_row(raw, _convert_row) for raw in rows]


class Head(msgspec.Struct):
    train_step: int


_decode_chunk = msgspec.json.Decoder(Line).decode
_decode_row = msgspec.json.Decoder(Row).decode


def _convert_row(raw) -> Row:
    return msgspec.convert(raw, Row)


def _row(raw, decode) -> Row | Exception:
    try:
        return decode(raw)
    except msgspec.MsgspecError as error:
        return error


def _index_line(run: Run, line: bytes, place: Place) -> None:
    try:
        step, rows = decode_line(line)
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        torn = "" if line.endswith(b"\n") else "torn last line: "
        told = error if isinstance(error, msgspec.MsgspecError) else f"{type(error).__name__}: {error}"
        _damaged(run, "", f"{place.file}, line {place.line}", "a trained chunk in JSON", f"{torn}{told}")
        return
    for nth, row in enumerate(rows):
        at = msgspec.structs.replace(place, nth=nth)
        if not isinstance(row, Row):
            _damaged(run, "", str(at), "every field of a row, each of its type", str(row))
            continue
        _index_row(run, step, row, at)


def _index_row(run: Run, step: int, row: Row, place: Place) -> None:
    key = Key(step, row.prompt_idx, row.generation_index)
    faults = row_faults(row)
    for what, expected, got in faults:
        _damaged(run, str(key), f"{place}, {what}", expected, got)
    ref = RowRef(
        key=key,
        group_id=row.group_id,
        input_length=row.input_length,
        reward=row.reward,
        sample_loss_mask=row.sample_loss_mask,
        sound=not faults,
        place=place,
    )
    run.rows.setdefault(key, []).append(ref)


def row_faults(row: Row) -> list[tuple[str, str, str]]:
    """(field, expected, got) of all that is wrong in a row by itself."""
    top2 = {"generation_top2": row.generation_top2} if row.generation_top2 is not None else {}
    lists = {name: getattr(row, name) for name in LISTS} | top2
    faults = [
        (name, f"{row.input_length} entries, as input_length says", str(len(values)))
        for name, values in lists.items()
        if len(values) != row.input_length
    ]
    for name in LISTS[2:]:
        wrong = next((place for place, value in enumerate(lists[name]) if not _finite(value)), None)
        if wrong is not None:
            faults.append((f"{name}[{wrong}]", "a finite number", str(lists[name][wrong])))
    for name in ("reward", "sample_loss_mask"):
        if not _finite(value := getattr(row, name)):
            faults.append((name, "a finite number", str(value)))
    if min(row.token_ids, default=0) < 0:
        faults.append(("token_ids", "no negative id", str(min(row.token_ids))))
    above = [value for value in row.generation_logprobs if _finite(value) and value > 0]
    if above:
        faults.append(("generation_logprobs", "no log-probability above 0", str(max(above))))
    if not set(row.token_loss_mask) <= {0, 1}:
        faults.append(("token_loss_mask", "0 or 1 at every token", str(sorted(set(row.token_loss_mask)))))
    if not any(row.token_loss_mask):
        faults.append(("token_loss_mask", "at least one trained token", "none"))
    return faults


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _damaged(run: Run, key: str, where: str, expected: str, got: str, file: Path | None = None) -> None:
    following = f"look at that line of {file or run.dump or 'the rows'}"
    run.problems.append(Problem("dump-complete", key, f"{run.name}: {where}", expected, got, following))


def _info(folder: Path) -> RunInfo | None:
    file = folder / "run.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=RunInfo) if file.exists() else None
    except (msgspec.MsgspecError, OSError, RecursionError) as error:
        raise IncompleteError(f"{file}: {error}") from None


def _planned(info: RunInfo | None, folder: Path | None) -> set[Key]:
    try:
        return set(validate(info.params, f"{folder}/run.json, params").row_keys()) if info else set()
    except UsageError as error:
        raise IncompleteError(f"{error}\n  -> a run of another version of this package; run it again") from None


def _restores(file: Path, run: Run) -> list[RestoreRecord] | None:
    if not file.exists():
        return None
    records = []
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise IncompleteError(str(error)) from None
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                records.append(msgspec.json.decode(line, type=RestoreRecord))
        except (msgspec.MsgspecError, RecursionError) as error:
            _damaged(run, "", f"{file.name}, line {number}", "a restore record", str(error), file)
    return records
