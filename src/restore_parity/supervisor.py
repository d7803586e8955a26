"""The supervisor: starts each workload in a session of its own, watches its journal, kills one, proves it is gone."""

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
from tqdm import tqdm

from .engine import CPU_BUILD, check_engine, engine_version
from .errors import IncompleteError, UsageError
from .journal import Journal, JournalError
from .params import Params
from .saved import Exit, read_info, write_info

PHASES = ("uninterrupted", "killed", "restored")
GATE = "gate"  # in a run's folder; its worker generates once the file is there
POLL_S = 0.02
BAR_S = 2.0  # between two looks of a progress bar
GONE_S = 60.0  # how long a killed group may take to leave the process table
MEMORY_S = 60.0  # and how long a device may take to give its memory back
MEMORY_SLACK_MIB = 256
SHARED_MEMORY = Path("/dev/shm")

_waiting: dict[Path, "Child"] = {}  # by folder: workers whose engines start, or wait, while an earlier workload runs


def prepare(params: Params) -> None:
    """Make the folder of the runs. Earlier runs there are kept beside it under another name, and told of."""
    if params.reuse:
        return
    check_engine(params)
    end_waiting()  # of an earlier run of the cells that did not get to its end
    if any((params.folder / phase).exists() for phase in PHASES):
        aside = params.folder.with_name(f"{params.folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        params.folder.rename(aside)
        print(f"earlier runs kept as {aside}")
    params.folder.mkdir(parents=True, exist_ok=True)


def run_phase(phase: str, params: Params) -> None:
    """Run one workload to its end (or its kill), or take the saved one when `reuse` is set.

    Raises UsageError when the saved run is of other parameters, IncompleteError when the run did not come about.
    """
    folder = params.folder / phase
    if params.reuse:
        print(f"{phase}: saved run of {check_saved(folder, params)}")
        return
    try:
        _run(phase, params, folder)
    except BaseException:  # an interrupt too: a worker that waits at its gate holds an engine
        end_waiting()
        raise


def _run(phase: str, params: Params, folder: Path) -> None:
    """Start the workload's worker, all three with the first where starts overlap; open its gate, watch it, train."""
    free = free_memory() if phase == "killed" and not params.overlap_starts else []
    for each in PHASES if params.overlap_starts and phase == PHASES[0] else (phase,):
        if params.folder / each not in _waiting:
            _waiting[params.folder / each] = start_worker(each, params)
    (folder / GATE).touch()
    worker = _waiting.pop(folder)
    journal = Journal(folder / "journal.jsonl")
    with tqdm(desc=f"{phase}: starting the engine", unit=" tokens", file=sys.stdout, mininterval=BAR_S) as bar:
        ended = worker.watch(lambda: _progress(bar, journal, phase, params), params.timeout_s)
    info = read_info(folder)
    if phase == "killed":
        if ended.signal != signal.SIGKILL or not ended.open_calls:
            raise IncompleteError(f"killed: the worker ended by itself, before {_plan(params)}")
        back = wait_for_memory(free) if free else None
        ended = msgspec.structs.replace(ended, memory_back_s=back)
        write_info(folder, msgspec.structs.replace(info, exit=ended))
        return
    chunks = params.steps * -(-len(params.row_keys()) // params.steps // params.micro_batch_rows)
    with tqdm(desc=f"{phase}: train", unit=" chunks", total=chunks, file=sys.stdout, mininterval=BAR_S) as bar:
        Child("trainer", folder).watch(lambda: _trained(bar, folder), params.timeout_s)
        bar.update(chunks - bar.n)
    write_info(folder, msgspec.structs.replace(info, exit=ended, trained=time.time()))


def start_worker(phase: str, params: Params) -> "Child":
    """Start a workload's process, which builds its engine and waits for its gate. Raises UsageError where one has run."""
    folder = params.folder / phase
    try:
        folder.mkdir()
    except FileExistsError:
        raise UsageError(f"{folder} exists", "run the set-up cell again, which keeps it aside, or set reuse") from None
    source = str(params.folder / "killed") if phase == "restored" else None
    task = {"phase": phase, "params": params.model_dump(), "source": source, "gate": str(folder / GATE)}
    (folder / "task.json").write_bytes(msgspec.json.encode(task))
    return Child("worker", folder)


def end_waiting() -> None:
    """Kill every worker that still waits at its gate."""
    while _waiting:
        _waiting.popitem()[1].end()


def free_memory() -> list[int]:
    """Free MiB of each device an engine can see; empty where the engine runs on the CPU."""
    return _nvidia("--query-gpu=memory.free") if engine_version()[0] != CPU_BUILD else []


def wait_for_memory(before: list[int], read: Callable[[], list[int]] = free_memory, timeout_s: float = MEMORY_S) -> float:
    """Wait until each device has as much free memory as `before`; returns the seconds it took.

    A driver may give a killed process's memory back later than the process table gives up the process.
    Raises IncompleteError naming the processes that hold a device.
    """
    start = time.monotonic()
    while True:
        free, waited = read(), time.monotonic() - start
        if all(now >= then - MEMORY_SLACK_MIB for now, then in zip(free, before, strict=True)):
            return waited
        if waited > timeout_s:
            pids = ", ".join(map(str, _nvidia("--query-compute-apps=pid"))) or "unknown"
            raise IncompleteError(
                f"killed: the device's memory is not back after {timeout_s} s: {free} MiB free, {before} before the run; "
                f"processes on it: {pids}"
            )
        time.sleep(POLL_S)


def _nvidia(query: str) -> list[int]:
    """The numbers NVIDIA's own tool gives for the devices an engine can see; empty where there is no such tool."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", *(["-i", seen] if seen else [])]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in told.split()]


def check_saved(folder: Path, params: Params) -> str:
    """When a saved run was started. Raises UsageError where it is of other parameters, IncompleteError where half."""
    info = read_info(folder)
    if info.exit is None:
        raise IncompleteError(f"{folder}: half-written, its run never ended; run again without reuse")
    if info.params_sha256 != params.sha256():
        mine = params.workload()
        other = [f"{k}: {info.params.get(k)!r} there, {v!r} here" for k, v in mine.items() if info.params.get(k) != v]
        raise UsageError(f"{folder} is a run of other parameters ({'; '.join(other)})", "run again without reuse")
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start))


def _plan(params: Params) -> str:
    if params.cut_tokens:
        return "every planned cut was reached"
    return f"kill_after_tokens = {params.kill_after_tokens} was reached"


def _progress(bar: tqdm, journal: Journal, phase: str, params: Params) -> bool:
    """Take in the journal, show its tokens; True when the killed run is to be killed now."""
    journal.poll()
    if journal.calls and not bar.n:
        bar.set_description_str(f"{phase}: generate", refresh=False)
    bar.update(journal.tokens - bar.n)
    if phase != "killed":
        return False
    if not params.cut_tokens:
        return journal.tokens >= params.kill_after_tokens
    calls = {call.name: call for call in journal.calls.values()}
    for name in params.cut_tokens:
        if name in calls and not calls[name].is_open:
            raise IncompleteError(
                f"killed: the call of cut {name} ended ({calls[name].finish_reason}) after {len(calls[name].ids)} "
                f"tokens, before its planned {params.planned_tokens(name)}; plan it earlier in cut_tokens"
            )
    return all(name in calls and len(calls[name].ids) == params.planned_tokens(name) for name in params.cut_tokens)


def _trained(bar: tqdm, folder: Path) -> bool:
    with suppress(FileNotFoundError):  # not begun, or just renamed: it may go between any two looks
        bar.update((folder / "training.jsonl.partial").read_bytes().count(b"\n") - bar.n)
    return False


class Child:
    """One `python -m restore_parity.<module> FOLDER` and everything it starts; stdout and stderr go to <module>.log."""

    def __init__(self, module: str, folder: Path):
        self._folder, self._log, self._name = folder, folder / f"{module}.log", f"{folder.name}: the {module}"
        self._scratch = folder / "tmp"  # vLLM leaves files in its temp folder when killed; this one goes with it
        self._scratch.mkdir(exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"restore_parity.{module}", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(self._scratch)},
                start_new_session=True,
            )

    def watch(self, due: Callable[[], bool], timeout_s: float = math.inf) -> Exit:
        """Wait until the child ends, or kill its group as soon as `due()` is true; nothing of it survives.

        Raises IncompleteError, with the log's last lines, when it ends with an error or runs into `timeout_s`.
        """
        late = time.monotonic() + timeout_s
        try:
            while self._process.poll() is None:
                if due():
                    return self._kill()
                for other in _waiting.values():
                    other.check()
                if time.monotonic() > late:
                    raise IncompleteError(
                        f"{self._name}: took longer than timeout_s = {timeout_s}; last lines:\n{self._tail()}"
                    )
                time.sleep(POLL_S)
            due()  # what was written between the last look and the end
        except JournalError as error:
            raise IncompleteError(str(error)) from None
        finally:
            self._kill()
        self.check()
        return Exit(time=time.time(), code=self._process.returncode)

    def check(self) -> None:
        """Raises IncompleteError, with the log's last lines, where it has ended with an error."""
        if code := self._process.poll():
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise IncompleteError(f"{self._name} {how}; its last lines:\n{self._tail()}")

    def end(self) -> None:
        """Kill it whatever it does; nothing of it survives."""
        self._kill()

    def _kill(self) -> Exit:
        """SIGKILL to the group and to whatever left it; returns when all are gone. Raises IncompleteError with pids."""
        members = self._members()
        shared = {path for member in members for path in _shared_memory(member)}
        killed = time.time()
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        for member in members:
            if member.pid != self._process.pid and member.is_running():
                member.kill()  # one that set up a group of its own
        self._process.wait()
        _, alive = psutil.wait_procs(members, timeout=GONE_S)
        alive = alive or self._members()
        if alive:
            pids = ", ".join(str(member.pid) for member in alive)
            raise IncompleteError(f"{self._folder.name}: processes {pids} of the killed group are still there")
        left = sorted(path for path in shared if path.exists())
        for path in left:
            path.unlink(missing_ok=True)
        shutil.rmtree(self._scratch, ignore_errors=True)
        code = self._process.returncode
        calls = Journal(self._folder / "journal.jsonl").poll().open_calls()
        return Exit(
            time=killed,
            signal=-code if code < 0 else None,
            code=code if code >= 0 else None,
            open_calls={call.call_id: len(call.ids) for call in calls},
            removed=[path.name for path in left],
        )

    def _members(self) -> list[psutil.Process]:
        """The child, its descendants, and orphans of its session."""
        found = {}
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(self._process.pid)
            found = {member.pid: member for member in [child, *child.children(recursive=True)]}
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
        return list(found.values())

    def _tail(self, lines: int = 12) -> str:
        text = self._log.read_text(errors="replace").replace("\r", "\n")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def _shared_memory(process: psutil.Process) -> set[Path]:
    """Files in shared memory that a process maps or holds open."""
    try:
        paths = [entry.path for entry in process.memory_maps()] + [file.path for file in process.open_files()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
    return {Path(path) for path in paths if path.startswith(f"{SHARED_MEMORY}/")}


def end_with_parent() -> None:
    """In a child: kill the own group when the supervisor is gone, so that no orphan goes on generating."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
