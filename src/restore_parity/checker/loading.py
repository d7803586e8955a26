"""Saved runs read back: dumps, restore records, the killed run's journal."""

from pathlib import Path

import msgspec

from ..errors import IncompleteError
from ..journal import Journal, lines
from ..records import AlreadyTerminal, Completed, Restored
from ..runs import BROKEN, incomplete_if_broken, partial_of, read_info, read_params_of
from .dumps import Fault, KilledRun, Run, Runs, index_dump
from .problems import Problem

_decode_record = msgspec.json.Decoder(Restored | Completed | AlreadyTerminal).decode


def load_runs(folder: Path) -> Runs:
    """The three runs below a folder. Raises IncompleteError where a dump is missing.

    What else is missing or broken is a problem of its run.
    """
    killed = load_killed(folder / "killed")
    return Runs(
        uninterrupted=load_run(folder / "uninterrupted"),
        killed=killed,
        restored=load_run(folder / "restored"),
    )


def load_run(path: Path, name: str | None = None) -> Run:
    """Index the dump of a run's folder, or a dump file alone.

    Damage is collected in the run's `problems`, nothing is dropped unsaid. Raises IncompleteError
    when there is no dump at all.
    """
    dump = path / "training.jsonl" if path.is_dir() else path
    if not dump.is_file():
        half = " (its trainer never came to an end)" if partial_of(dump).exists() else ""
        raise IncompleteError(f"{dump}: no such dump{half}")
    run = Run(name or path.name, dump)
    if path.is_dir():
        _load_info(run, path)
        _load_restores(run, path / "restores.jsonl")
    index_dump(run, dump.name)
    return run


def load_killed(folder: Path) -> KilledRun:
    """The killed run: its journal and how it ended; missing or broken files are problems of it."""
    run = KilledRun(folder=folder)
    try:
        run.info = read_info(folder)
    except IncompleteError as error:
        run.problems.append(_unreadable("same-setup", folder / "run.json", error))
    file = folder / "journal.jsonl"
    try:
        if not file.exists():
            raise IncompleteError(f"{file} is missing")
        with incomplete_if_broken(file):
            run.journal = Journal(file).poll()
    except IncompleteError as error:
        run.problems.append(_unreadable("kill-happened", file, error))
    return run


def _unreadable(check: str, file: Path, error: IncompleteError) -> Problem:
    return Problem(
        check=check,
        key="",
        where=str(file),
        expected="a whole file",
        got=str(error),
        next=f"look at {file}",
    )


def _load_info(run: Run, folder: Path) -> None:
    if not (folder / "run.json").exists():
        return
    run.folder = folder
    try:
        run.info = read_info(folder)
        run.params = read_params_of(run.info, folder)
        run.planned = set(run.params.row_keys())
    except IncompleteError as error:
        run.problems.append(_unreadable("same-setup", folder / "run.json", error))


def _load_restores(run: Run, file: Path) -> None:
    if not file.exists():
        return
    with incomplete_if_broken(file), file.open("rb") as stream:
        for line in lines(stream):
            if not line.record:
                continue
            try:
                run.restores.append(_decode_record(line.record))
            except BROKEN as error:
                fault = Fault("", "a restore record", error)
                run.damaged(file, key="", where=f"{file.name}, line {line.number}", fault=fault)
