"""A run's folder: what its run.json tells, and how files come into it whole."""

import os
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct

from .errors import IncompleteError, UsageError
from .params import Params, validate

Phase = Literal["uninterrupted", "killed", "restored"]
PHASES: tuple[Phase, ...] = ("uninterrupted", "killed", "restored")


class Exit(Struct, frozen=True, kw_only=True):
    """How a workload's process group ended, as its supervisor saw it."""

    time: float
    signal: int | None = None  # 9 for the killed run
    code: int | None = None
    open_calls: dict[str, int] = {}  # call_id to its tokens in the journal
    removed: list[str] = []  # shared-memory files the killed group had left behind


class RunInfo(Struct, frozen=True, kw_only=True):
    """run.json: what one run was. `setup` must be equal in the three runs of one comparison."""

    phase: str
    run_id: str
    params: dict[str, Any]
    params_sha256: str
    setup: dict[str, Any]
    device: str
    git_revision: str | None
    start: float
    ready: float  # the engine took its first request
    built: float | None = None  # the engine could have; earlier where the run waited at its gate
    exit: Exit | None = None
    trained: float | None = None  # the dump was complete
    model_folder: str | None = None  # where the checkpoint lay, tokenizer included
    vocabulary_tokens: int | None = None
    random_weights: str | None = None  # in words, where the weights are no trained ones

    @property
    def model(self) -> str:
        """The model's name, as the parameters gave it."""
        return str(self.setup["model"])

    @property
    def stop_token_ids(self) -> set[int]:
        """The ids that end a call."""
        return set(self.setup["stop_token_ids"])


class Setup(Struct):
    """What every run's setup tells at least; others may stand there too."""

    model: str
    stop_token_ids: list[int]
    engine: str = ""
    engine_args: dict[str, Any] = {}


# what a file raises that is not what it should be
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)


@contextmanager
def incomplete_if_broken(file: Path) -> Iterator[None]:
    """Turn what reading a broken file raises into an IncompleteError that names the file."""
    try:
        yield
    except (*BROKEN, OSError, UsageError) as error:
        remedy = "broken, or of another version of this package; run it again"
        raise IncompleteError(f"{file}: {error}\n  -> {remedy}") from None


@contextmanager
def written_whole(file: Path) -> Iterator[BinaryIO]:
    """Write a file under another name and rename it when its bytes are on disk.

    Whoever finds the file finds all of it, whenever its writer is killed. Raises OSError.
    """
    partial = partial_of(file)
    with partial.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(file)


def partial_of(file: Path) -> Path:
    """Where `written_whole` keeps a file that is not whole yet."""
    return file.with_name(f"{file.name}.partial")


def read_info(folder: Path) -> RunInfo:
    """Raises IncompleteError when the run never had a ready engine, or its file is broken."""
    file = folder / "run.json"
    if not file.exists():
        raise IncompleteError(f"{file} is missing: this run never started its engine")
    with incomplete_if_broken(file):
        info = msgspec.json.decode(file.read_bytes().removeprefix(BOM_UTF8), type=RunInfo)
        msgspec.convert(info.setup, Setup)
        return info


def read_params_of(info: RunInfo, folder: Path) -> Params:
    """The parameters a run was made with. Raises IncompleteError where this version has others."""
    with incomplete_if_broken(folder / "run.json"):
        return validate(info.params, "params")


def write_info(folder: Path, info: RunInfo) -> None:
    """Write run.json, whole. Raises OSError."""
    with written_whole(folder / "run.json") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(info)))


def check_saved(folder: Path, params: Params) -> str:
    """When a saved run was started.

    Raises UsageError where it is of other parameters, IncompleteError where it never ended.
    """
    info = read_info(folder)
    if info.exit is None:
        raise IncompleteError(
            f"{folder}: half-written, its run never ended; run again without reuse"
        )
    if info.params_sha256 != params.sha256():
        different = [
            f"{name}: {info.params.get(name)!r} in the saved run, {value!r} now"
            for name, value in params.workload().items()
            if info.params.get(name) != value
        ]
        raise UsageError(
            f"{folder} is a run of other parameters ({'; '.join(different)})",
            "run again without reuse",
        )
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start))
