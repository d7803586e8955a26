"""Child processes: nothing of a killed group survives, and an unplanned death is reported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from restore_parity.errors import IncompleteError
from restore_parity.experiment.processes import Child

READY = '(folder / "ready").touch(); time.sleep(600)'


@pytest.fixture
def child(script, killed):
    """Start a child whose module is the given code."""

    def start(code: str) -> Child:
        script("worker", code)
        return Child("worker", killed)

    return start


def ready(folder: Path):
    return lambda: (folder / "ready").exists()


def alive(folder: Path) -> list[int]:
    """Those of the processes that the child noted in `pids` that are still there."""
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_the_kill_is_a_sigkill_and_says_so(child, killed):
    before = time.time()
    ended = child(READY).watch(ready(killed))
    assert ended.signal == signal.SIGKILL
    assert ended.code is None
    assert before <= ended.time <= time.time()


@pytest.mark.parametrize("session", [False, True], ids=["in the group", "in a session of its own"])
def test_a_grandchild_does_not_survive(child, killed, session):
    code = f"""
    other = subprocess.Popen(["sleep", "600"], start_new_session={session})
    (folder / "pids").write_text(f"{{os.getpid()}} {{other.pid}}")
    {READY}
    """
    child(code).watch(ready(killed))
    assert not alive(killed)


def test_an_orphan_of_the_session_does_not_survive(child, killed):
    code = f"""
    fork = "import os, sys, time; os.fork() and os._exit(0); "
    note = "open(sys.argv[1], 'w').write(str(os.getpid())); os.rename(*sys.argv[1:]); "
    code = fork + note + "time.sleep(99)"
    subprocess.run([sys.executable, "-c", code, str(folder / "pids.new"), str(folder / "pids")])
    wait_for("pids")
    {READY}
    """
    child(code).watch(ready(killed))
    assert not alive(killed)


def test_shared_memory_the_group_had_mapped_is_removed_and_named(child, killed):
    name = f"restore-parity-test-{os.getpid()}"
    code = f"""
    import mmap
    kept = open("/dev/shm/{name}", "w+b"); kept.truncate(4096)
    held = mmap.mmap(kept.fileno(), 4096)
    {READY}
    """
    ended = child(code).watch(ready(killed))
    assert ended.removed == [name]
    assert not Path(f"/dev/shm/{name}").exists()


def test_temp_files_of_the_group_are_removed(child, killed):
    code = f"""
    import tempfile
    tempfile.mkdtemp()
    (folder / "temp").write_text(tempfile.mkdtemp())
    {READY}
    """
    child(code).watch(ready(killed))
    assert not Path((killed / "temp").read_text()).parent.exists()


def test_a_child_that_ends_well_says_so(child):
    ended = child("").wait()
    assert ended.code == 0
    assert ended.signal is None


def test_a_worker_that_dies_by_itself_is_incomplete_with_its_last_lines(child):
    last_lines = r"(?s)killed: the worker ended with exit code 1.*ValueError: no memory"
    with pytest.raises(IncompleteError, match=last_lines):
        child("raise ValueError('no memory')").wait()


def test_a_worker_killed_by_another_is_told_by_its_signal(child):
    with pytest.raises(IncompleteError, match="was killed by signal 9"):
        child("os.kill(os.getpid(), 9)").wait()


def test_an_interrupted_supervisor_leaves_no_worker_behind(child, killed):
    def interrupt():
        if (killed / "ready").exists():
            raise KeyboardInterrupt

    code = f"(folder / 'pids').write_text(str(os.getpid()))\n{READY}"
    with pytest.raises(KeyboardInterrupt):
        child(code).watch(interrupt)
    assert not alive(killed)


def test_a_worker_that_takes_too_long_is_killed_and_incomplete(child):
    with pytest.raises(IncompleteError, match=r"timeout_s = 0\.2"):
        child(READY).wait(timeout_s=0.2)


def test_a_kill_asked_for_twice_is_the_same_kill(child, killed):
    started = child(READY)
    assert started.watch(ready(killed)).time == started.end().time


RUN_AS_CHILD = """
from restore_parity.errors import UsageError
from restore_parity.experiment.processes import run_as_child

def main(folder):
    print("begun")
    {body}

run_as_child(main)
"""


def run_as_child(body: str) -> subprocess.CompletedProcess[str]:
    code = RUN_AS_CHILD.format(body=body)
    command = [sys.executable, "-c", code, "folder"]
    return subprocess.run(command, capture_output=True, text=True, start_new_session=True)


def test_a_childs_expected_error_is_its_message_alone():
    result = run_as_child("raise UsageError('no such model', 'name another')")
    assert result.returncode == 1
    assert result.stderr == "no such model\n  -> name another\n"


def test_a_child_ends_well_whatever_threads_it_has():
    result = run_as_child(
        "import threading; threading.Thread(target=threading.Event().wait).start()"
    )
    assert result.returncode == 0
    assert result.stdout == "begun\n"


SUPERVISOR = """
import os, pathlib, subprocess, sys, time
child, folder = sys.argv[1:]
subprocess.Popen([sys.executable, "-c", child, folder], start_new_session=True)
while not (pathlib.Path(folder) / "pids").exists():
    time.sleep(0.01)
os._exit(0)
"""


def test_a_child_whose_supervisor_is_gone_ends(tmp_path):
    note = "import os, time; (folder / 'new').write_text(str(os.getpid()))"
    body = f"{note}; (folder / 'new').rename(folder / 'pids'); time.sleep(600)"
    child = RUN_AS_CHILD.format(body=body)
    subprocess.run([sys.executable, "-c", SUPERVISOR, child, str(tmp_path)], check=True)
    orphans = [psutil.Process(pid) for pid in alive(tmp_path)]
    _, left = psutil.wait_procs(orphans, timeout=30)
    assert not left
