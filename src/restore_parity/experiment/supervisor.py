"""The supervisor: starts each workload in a session of its own, watches its journal, kills one, proves it is gone."""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import psutil
from tqdm import tqdm

from .engine.vllm_engine import CPU_BUILD, check_engine, engine_version
from ..errors import IncompleteError, UsageError
from ..journal import Journal, JournalError
from ..params import Params
from ..checker.loading import Exit, RunInfo, read_info, write_info

PHASES = ("uninterrupted", "killed", "restored")
GATE = "gate"  # in a run's folder; its worker generates once the file is there
POLL_S = 0.02
FILE_S = 0.01  # between a child's looks for a file
SHOW_S = 0.1  # between two looks at a workload to show
BAR_S = 2.0  # between two looks of a progress bar
GONE_S = 60.0  # how long a killed group may take to leave the process table
MEMORY_S = 60.0  # and how long a device may take to give its memory back
MEMORY_SLACK_MIB = 256
SHARED_MEMORY = Path("/dev/shm")

_begun: dict[Path, "Workload"] = {}  # by folder; those whose phase has not been waited for


def prepare(params: Params) -> None:
    """Make the folder of the runs. Earlier runs there are kept beside it under another name, and told of."""
    end_begun()  # of an earlier run of the cells that did not get to its end
    if params.reuse:
        return
    check_engine(params)
    if any((params.folder / phase).exists() for phase in PHASES):
        aside = params.folder.with_name(f"{params.folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        params.folder.rename(aside)
        print(f"earlier runs kept as {aside}")
    params.folder.mkdir(parents=True, exist_ok=True)


def run_phase(phase: str, params: Params) -> None:
    """Run one workload to its end (or its kill), or take the saved one when `reuse` is set.

    With overlapped starts the first phase begins all three. Raises UsageError when the saved run is of other parameters,
    IncompleteError when the run, or one beside it, did not come about.
    """
    folder = params.folder / phase
    if params.reuse:
        print(f"{phase}: saved run of {check_saved(folder, params)}")
        return
    begins = (phase,) if not params.overlap_starts else PHASES if phase == PHASES[0] else ()
    if folder not in _begun and (folder.exists() or not begins):
        todo = "run the set-up cell again, which keeps runs aside, and then the cells in their order; or set reuse"
        raise UsageError(f"{folder} exists" if folder.exists() else f"{phase}: begins with the uninterrupted run", todo)
    try:
        for each in begins:
            killed = _begun.get(params.folder / "killed") if each == "restored" else None
            _begun[params.folder / each] = Workload(each, params, after=killed)
        _begun[folder].show()
        del _begun[folder]
    except BaseException:  # an interrupt too: a worker that waits at its gate holds an engine
        end_begun()
        raise


class Workload:
    """A workload's worker and trainer, watched in a thread of their own; its gate opens when `after` has ended."""

    def __init__(self, phase: str, params: Params, after: "Workload | None" = None):
        self._phase, self._params, self._folder = phase, params, params.folder / phase
        self._free = free_memory() if phase == "killed" and not params.overlap_starts else []
        self._worker, self._trainer = start_worker(phase, params), None
        try:
            if params.overlap_starts and phase != "killed":
                self._trainer = Child("trainer", self._folder)  # its imports take as long as an engine's
        except OSError:
            self._worker.end()
            raise
        self._journal, self._generated = Journal(self._folder / "journal.jsonl"), threading.Event()
        self._after, self._done = after, Future()
        threading.Thread(target=self._settle, daemon=True).start()

    def show(self) -> None:
        """Show its progress until it has ended. Raises what ended it, or another one begun, too early."""
        start, unit = f"{self._phase}: starting the engine", " tokens"
        with tqdm(desc=start, unit=unit, file=sys.stdout, mininterval=BAR_S) as bar:
            while not self._generated.wait(SHOW_S) and not self._over():
                if self._journal.calls and not bar.n:
                    bar.set_description_str(f"{self._phase}: generate", refresh=False)
                bar.update(self._journal.tokens - bar.n)
            bar.update(self._journal.tokens - bar.n)
        if self._phase != "killed":
            params, name = self._params, f"{self._phase}: train"
            chunks = params.steps * -(-len(params.row_keys()) // params.steps // params.micro_batch_rows)
            with tqdm(desc=name, unit=" chunks", total=chunks, file=sys.stdout, mininterval=BAR_S) as bar:
                while not self._over():
                    bar.update(trained_chunks(self._folder) - bar.n)
                    wait([self._done], timeout=BAR_S / 2)
                bar.update(chunks - bar.n)
        self._done.result()

    def end(self) -> None:
        """Kill what it has started, whatever that does, until nothing more can start."""
        while not self._done.done():
            for child in filter(None, (self._worker, self._trainer)):
                child.end()
            wait([self._done], timeout=POLL_S)

    def _over(self) -> bool:
        for other in _begun.values():
            if other._done.done():
                other._done.result()
        return self._done.done()

    def _settle(self) -> None:
        try:
            self._done.set_result(self._run())
        except BaseException as error:
            self._done.set_exception(error)

    def _run(self) -> None:
        try:
            while self._after and not self._after._done.done():  # the capture is whole when the killed run is gone
                self._worker.check()
                time.sleep(POLL_S)
            if self._after:
                self._after._done.result()
            (self._folder / GATE).touch()
            ended = self._worker.watch(self._is_due, self._params.timeout_s)
            self._generated.set()
            info = read_info(self._folder)
            if self._phase == "killed":
                self._record_kill(info, ended)
                return
            self._trainer = self._trainer or Child("trainer", self._folder)
            self._trainer.watch(lambda: False, self._params.timeout_s)
            write_info(self._folder, msgspec.structs.replace(info, exit=ended, trained=time.time()))
        finally:
            with ExitStack() as both:  # one that does not end keeps no other from its end
                for child in filter(None, (self._worker, self._trainer)):
                    both.callback(child.end)

    def _record_kill(self, info: RunInfo, ended: Exit) -> None:
        if ended.signal != signal.SIGKILL or not ended.open_calls:
            raise IncompleteError(f"killed: the worker ended by itself, before {_plan(self._params)}")
        back = wait_for_memory(self._free) if self._free else None
        ended = msgspec.structs.replace(ended, memory_back_s=back)
        write_info(self._folder, msgspec.structs.replace(info, exit=ended))

    def _is_due(self) -> bool:
        """Take in the journal; True when the killed run is to be killed now."""
        self._journal.poll()
        if self._trainer:
            self._trainer.check()
        if self._phase != "killed":
            return False
        params = self._params
        if not params.cut_tokens:
            return self._journal.tokens >= params.kill_after_tokens
        calls = {call.name: call for call in self._journal.calls.values()}
        for name in params.cut_tokens:
            if name in calls and not calls[name].is_open:
                raise IncompleteError(
                    f"killed: the call of cut {name} ended ({calls[name].finish_reason}) after {len(calls[name].ids)} "
                    f"tokens, before its planned {params.planned_tokens(name)}; plan it earlier in cut_tokens"
                )
        return all(name in calls and len(calls[name].ids) == params.planned_tokens(name) for name in params.cut_tokens)


def start_worker(phase: str, params: Params) -> "Child":
    """Start a workload's process, which builds its engine and waits for its gate."""
    folder = params.folder / phase
    folder.mkdir()
    source = str(params.folder / "killed") if phase == "restored" else None
    task = {"phase": phase, "params": params.model_dump(), "source": source, "gate": str(folder / GATE)}
    (folder / "task.json").write_bytes(msgspec.json.encode(task))
    return Child("worker", folder)


def end_begun() -> None:
    """Kill every workload that has begun and not been waited for."""
    with ExitStack() as every:
        while _begun:
            every.callback(_begun.popitem()[1].end)


def wait_for(file: Path) -> None:
    """In a child: wait until another process has put the file there."""
    while not file.exists():
        time.sleep(FILE_S)


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


def trained_chunks(folder: Path) -> int:
    """Chunks in the dump of a trainer that is at work."""
    with suppress(FileNotFoundError):  # not begun, or just renamed: it may go between any two looks
        return (folder / "training.jsonl.partial").read_bytes().count(b"\n")
    return 0


class Child:
    """One `python -m restore_parity.<module> FOLDER` and everything it starts; stdout and stderr go to <module>.log."""

    def __init__(self, module: str, folder: Path):
        self._folder, self._log, self._name = folder, folder / f"{module}.log", f"{folder.name}: the {module}"
        # vLLM leaves files in its temp folder when killed; this one goes with it. Its sockets take no long path
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{module}-"))
        self._lock, self._ended = threading.Lock(), None
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
                    return self._with_open_calls(self.end())
                if time.monotonic() > late:
                    raise IncompleteError(
                        f"{self._name}: took longer than timeout_s = {timeout_s}; last lines:\n{self._tail()}"
                    )
                time.sleep(POLL_S)
            due()  # what was written between the last look and the end
        except JournalError as error:
            raise IncompleteError(str(error)) from None
        finally:
            self.end()
        self.check()
        return Exit(time=time.time(), code=self._process.returncode)

    def check(self) -> None:
        """Raises IncompleteError, with the log's last lines, where it has ended with an error."""
        if code := self._process.poll():
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise IncompleteError(f"{self._name} {how}; its last lines:\n{self._tail()}")

    def end(self) -> Exit:
        """Kill it whatever it does; nothing of it survives. Once: its pid may be another's later."""
        with self._lock:
            self._ended = self._ended or self._kill()
            return self._ended

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
        removed = [path.name for path in left]
        return Exit(killed, signal=-code if code < 0 else None, code=code if code >= 0 else None, removed=removed)

    def _with_open_calls(self, ended: Exit) -> Exit:
        """The same with what its journal holds now that nothing writes to it."""
        calls = Journal(self._folder / "journal.jsonl").poll().open_calls()
        return msgspec.structs.replace(ended, open_calls={call.call_id: len(call.ids) for call in calls})

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
