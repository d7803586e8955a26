"""Child processes: each a session of its own, watched, killed with all that it started."""

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
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from ..errors import ExpectedError, IncompleteError
from ..journal import Journal, JournalError
from ..runs import Exit

POLL_S = 0.02
FILE_S = 0.01  # between a child's looks for a file
PARENT_S = 1.0  # between a child's looks for its supervisor
GONE_S = 60.0  # how long a killed group may take to leave the process table
TAIL_LINES = 12  # of a log that a message shows
SHARED_MEMORY = Path("/dev/shm")


class Child:
    """One `python -m restore_parity.experiment.<module> FOLDER` and everything it starts.

    Its stdout and stderr go to <module>.log in the folder.
    """

    def __init__(self, module: str, folder: Path):
        self._folder = folder
        self._log = folder / f"{module}.log"
        self._name = f"{folder.name}: the {module}"
        # vLLM leaves files in its temp folder when it is killed; this one goes with it. It lies
        # where a temp folder does because the sockets in it take no long path
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{module}-"))
        self._lock = threading.Lock()
        self._ended: Exit | None = None
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"restore_parity.experiment.{module}", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(self._scratch)},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id, which is its group's and its session's too."""
        return self._process.pid

    def wait(self, timeout_s: float = math.inf) -> Exit:
        """Wait until the child ends by itself. Raises IncompleteError as `watch` does."""
        return self.watch(lambda: False, timeout_s)

    def watch(self, due: Callable[[], bool], timeout_s: float = math.inf) -> Exit:
        """Wait until the child ends, or kill it as soon as `due()` is true; nothing survives.

        Raises IncompleteError, with the log's last lines, when it ends with an error or runs into
        `timeout_s`, and when the journal that `due` reads is broken.
        """
        try:
            ended = self._watch(due, timeout_s)
        except JournalError as error:
            raise IncompleteError(str(error)) from None
        finally:
            self.end()
        if ended:
            return ended
        self.check()
        return Exit(time=time.time(), code=self._process.returncode)

    def _watch(self, due: Callable[[], bool], timeout_s: float) -> Exit | None:
        """How the child was killed; None where it ended by itself."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if due():
                return self._with_open_calls(self.end())
            if time.monotonic() > deadline:
                raise IncompleteError(
                    f"{self._name}: took longer than timeout_s = {timeout_s}; "
                    f"last lines:\n{self._last_lines()}"
                )
            time.sleep(POLL_S)
        due()  # what was written between the last look and the end
        return None

    def check(self) -> None:
        """Raises IncompleteError, with the log's last lines, where it has ended with an error."""
        code = self._process.poll()
        if not code:
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise IncompleteError(f"{self._name} {how}; its last lines:\n{self._last_lines()}")

    def end(self) -> Exit:
        """Kill the child whatever it is doing; nothing of it survives.

        It is killed once, however often this is called: its pid may be another's later.
        Raises IncompleteError, with their pids, where processes of it are still there.
        """
        with self._lock:
            self._ended = self._ended or self._kill()
            return self._ended

    def _kill(self) -> Exit:
        """SIGKILL to the group and to whatever left it; returns when all are gone."""
        members = self._members()
        shared = {path for member in members for path in _shared_memory(member)}
        killed = time.time()
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(self.pid, signal.SIGKILL)
        for member in members:
            if member.pid != self.pid and member.is_running():
                member.kill()  # one that set up a group of its own
        self._process.wait()
        self._wait_until_gone(members)
        left = sorted(path for path in shared if path.exists())
        for path in left:
            path.unlink(missing_ok=True)
        shutil.rmtree(self._scratch, ignore_errors=True)
        code = self._process.returncode
        return Exit(
            time=killed,
            signal=-code if code < 0 else None,
            code=code if code >= 0 else None,
            removed=[path.name for path in left],
        )

    def _wait_until_gone(self, members: list[psutil.Process]) -> None:
        _, alive = psutil.wait_procs(members, timeout=GONE_S)
        alive = alive or self._members()  # those started since the first look
        if alive:
            pids = ", ".join(str(member.pid) for member in alive)
            raise IncompleteError(
                f"{self._folder.name}: processes {pids} of the killed group are still there"
            )

    def _with_open_calls(self, ended: Exit) -> Exit:
        """The same with what its journal holds now that nothing writes to it."""
        calls = Journal(self._folder / "journal.jsonl").poll().open_calls()
        tokens = {call.call_id: len(call.ids) for call in calls}
        return msgspec.structs.replace(ended, open_calls=tokens)

    def _members(self) -> list[psutil.Process]:
        """The child, its descendants, and orphans of its session."""
        found: dict[int, psutil.Process] = {}
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(self.pid)
            found = {member.pid: member for member in [child, *child.children(recursive=True)]}
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(process.pid) != self.pid:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
        return list(found.values())

    def _last_lines(self) -> str:
        text = self._log.read_text(errors="replace").replace("\r", "\n")
        lines = [line for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])


def _shared_memory(process: psutil.Process) -> set[Path]:
    """Files in shared memory that a process maps or holds open."""
    try:
        paths = [entry.path for entry in process.memory_maps()]
        paths += [file.path for file in process.open_files()]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
    return {Path(path) for path in paths if path.startswith(f"{SHARED_MEMORY}/")}


def run_as_child(main: Callable[[Path], None]) -> NoReturn:
    """In a child: run a module's `main` on the folder it was started with, and end the process.

    An expected error ends it with exit code 1 and its message alone.
    """
    _end_with_parent()
    try:
        main(Path(sys.argv[1]))
    except ExpectedError as error:
        sys.exit(str(error))
    sys.stdout.flush()
    os._exit(0)  # an engine's own threads may otherwise hold the process for seconds


def _end_with_parent() -> None:
    """Kill this process's own group when the supervisor is gone: no orphan goes on generating."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def wait_for(file: Path) -> None:
    """In a child: wait until another process has put the file there."""
    while not file.exists():
        time.sleep(FILE_S)
