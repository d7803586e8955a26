"""A run's folder: what its run.json tells, and how dump, journal and restore records are read back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ..errors import IncompleteError, UsageError
from .dumps import BROKEN, Run, index_dump
from ..journal import Journal, JournalError
from ..params import validate
from ..records import AlreadyTerminal, Completed, Restored

_decode_record = msgspec.json.Decoder(Restored | Completed | AlreadyTerminal).decode


class Exit(Struct, frozen=True):
    """How a workload's process group ended, as its supervisor saw it."""

    time: float
    signal: int | None = None  # 9 for the killed run
    code: int | None = None
    open_calls: dict[str, int] = {}  # call_id to its tokens in the journal
    removed: list[str] = []  # shared-memory files the killed group had left behind
    memory_back_s: float | None = None  # until the device's memory was free again; None where nothing was waited for


class RunInfo(Struct, frozen=True):
    """run.json: what one run was. `setup` is what must be equal in the three runs for their rows to be comparable."""

    phase: str
    run_id: str
    params: dict[str, Any]
    params_sha256: str
    setup: dict[str, Any]
    device: str
    git_revision: str | None
    start: float
    ready: float  # the engine took its first request
    built: float | None = None  # the engine could have; later than this by what the gate of overlapped starts cost
    exit: Exit | None = None
    trained: float | None = None  # the dump was complete


class Setup(Struct):
    """What every run's setup tells at least; others may stand there too."""

    model: str
    stop_token_ids: list[int]
    engine: str = ""
    engine_args: dict[str, Any] = {}


def read_info(folder: Path) -> RunInfo:
    """Raises IncompleteError when the run never got as far as a ready engine, or its file is broken."""
    file = folder / "run.json"
    if not file.exists():
        raise IncompleteError(f"{file} is missing: this run never started its engine")
    with _incomplete(file):
        info = msgspec.json.decode(file.read_bytes(), type=RunInfo)
        msgspec.convert(info.setup, Setup)
        return info


def write_info(folder: Path, info: RunInfo) -> None:
    fresh = folder / "run.json.new"
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(info)))
    fresh.rename(folder / "run.json")


def load_runs(folder: Path) -> tuple[Run, Run, Run]:
    """The uninterrupted, the killed and the restored run below a folder. Raises IncompleteError where one is missing."""
    killed = load_killed(folder / "killed")
    return load_run(folder / "uninterrupted"), killed, load_run(folder / "restored")


def load_run(path: Path, name: str | None = None) -> Run:
    """Index the dump of a run's folder, or a dump file alone. Damage is collected in `problems`, nothing is dropped unsaid.

    Raises IncompleteError when there is no dump at all.
    """
    dump = path / "training.jsonl" if path.is_dir() else path
    if not dump.is_file():
        half = " (its trainer never came to an end)" if dump.with_suffix(".jsonl.partial").exists() else ""
        raise IncompleteError(f"{dump}: no such dump{half}")
    run = Run(name or path.name, dump)
    if path.is_dir() and (path / "run.json").exists():
        _load_info(run, path)
    if path.is_dir():
        _load_restores(run, path / "restores.jsonl")
    index_dump(run, dump.name)
    return run


def load_killed(folder: Path) -> Run:
    """The killed run: no dump, but its journal and how it ended. Raises IncompleteError where one is missing."""
    run, file = Run("killed"), folder / "journal.jsonl"
    _load_info(run, folder)
    if not file.exists():
        raise IncompleteError(f"{file} is missing")
    with _incomplete(file):
        run.journal = Journal(file).poll()
    return run


def _load_info(run: Run, folder: Path) -> None:
    run.folder, run.info = folder, read_info(folder)
    with _incomplete(folder / "run.json"):
        run.params = validate(run.info.params, "params")
    run.planned = set(run.params.row_keys())


def _load_restores(run: Run, file: Path) -> None:
    with _incomplete(file):
        lines = file.read_bytes().split(b"\n") if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            run.restores += [_decode_record(line)] if line.strip() else []
        except BROKEN as error:
            run.damaged("", f"{file.name}, line {number}", "a restore record", error, file)


@contextmanager
def _incomplete(file: Path) -> Iterator[None]:
    try:
        yield
    except (*BROKEN, OSError, JournalError, UsageError) as error:
        todo = "broken, or of another version of this package; run it again"
        raise IncompleteError(f"{file}: {error}\n  -> {todo}") from None
