"""The supervisor, over real processes: nothing of a killed group survives, and a death that was not planned is told."""

import os
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from builders import params

from restore_parity import supervisor
from restore_parity.errors import IncompleteError, UsageError
from restore_parity.journal import Journal
from restore_parity.supervisor import Child, prepare, run_phase

READY = 'open(folder / "ready", "w").close(); time.sleep(600)'


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Start a child whose module is the given code; it finds its folder as `folder`."""
    modules = tmp_path / "modules" / "restore_parity"
    modules.mkdir(parents=True)
    (modules / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(modules.parent))
    folder = tmp_path / "killed"
    folder.mkdir()

    def start(code: str) -> Child:
        head = "import os, pathlib, subprocess, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
        (modules / "worker.py").write_text(head + textwrap.dedent(code))
        return Child("worker", folder)

    return start


def ready(folder: Path):
    return lambda: (folder / "ready").exists()


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def test_the_kill_is_a_sigkill_and_says_so(child, tmp_path):
    ended = child(READY).watch(ready(tmp_path / "killed"))
    assert (ended.signal, ended.code) == (signal.SIGKILL, None) and abs(ended.time - time.time()) < 30


@pytest.mark.parametrize("session", [False, True], ids=["in the group", "in a session of its own"])
def test_a_grandchild_does_not_survive(child, tmp_path, session):
    code = f"""
    other = subprocess.Popen(["sleep", "600"], start_new_session={session})
    (folder / "pids").write_text(f"{{os.getpid()}} {{other.pid}}")
    {READY}
    """
    child(code).watch(ready(tmp_path / "killed"))
    assert not [pid for pid in pids(tmp_path / "killed") if psutil.pid_exists(pid)]


def test_an_orphan_of_the_session_does_not_survive(child, tmp_path):
    code = f"""
    fork = "import os, sys, time; os.fork() and os._exit(0); "
    script = fork + "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(99)"
    subprocess.run([sys.executable, "-c", script, str(folder / "pids")])
    while not (folder / "pids").exists() or not (folder / "pids").read_text(): time.sleep(0.01)
    {READY}
    """
    child(code).watch(ready(tmp_path / "killed"))
    assert not [pid for pid in pids(tmp_path / "killed") if psutil.pid_exists(pid)]


def test_shared_memory_the_group_had_mapped_is_removed_and_named(child, tmp_path):
    name = f"restore-parity-test-{os.getpid()}"
    code = f"""
    import mmap
    kept = open("/dev/shm/{name}", "w+b"); kept.truncate(4096); held = mmap.mmap(kept.fileno(), 4096)
    {READY}
    """
    ended = child(code).watch(ready(tmp_path / "killed"))
    assert ended.removed == [name] and not Path(f"/dev/shm/{name}").exists()


def test_temp_files_of_the_group_are_removed(child, tmp_path):
    code = f"""
    import tempfile
    tempfile.mkdtemp()
    (folder / "temp").write_text(tempfile.mkdtemp())
    {READY}
    """
    child(code).watch(ready(tmp_path / "killed"))
    left = Path((tmp_path / "killed" / "temp").read_text())
    assert not left.exists() and not left.parent.exists()


def test_a_worker_that_dies_by_itself_is_incomplete_with_its_last_lines(child):
    with pytest.raises(IncompleteError, match=r"(?s)killed: the worker ended with exit code 1.*ValueError: no memory"):
        child("raise ValueError('no memory')").watch(lambda: False)


def test_a_worker_killed_by_another_is_told_by_its_signal(child):
    with pytest.raises(IncompleteError, match="was killed by signal 9"):
        child("os.kill(os.getpid(), 9)").watch(lambda: False)


def test_an_interrupted_supervisor_leaves_no_worker_behind(child, tmp_path):
    def interrupt():
        if (tmp_path / "killed" / "ready").exists():
            raise KeyboardInterrupt

    code = f"(folder / 'pids').write_text(str(os.getpid()))\n{READY}"
    with pytest.raises(KeyboardInterrupt):
        child(code).watch(interrupt)
    assert not psutil.pid_exists(pids(tmp_path / "killed")[0])


def test_a_worker_that_takes_too_long_is_killed_and_incomplete(child):
    with pytest.raises(IncompleteError, match="timeout_s"):
        child(READY).watch(lambda: False, timeout_s=0.5)


def test_a_dump_that_is_not_there_yet_or_no_longer_is_no_progress(tmp_path):
    assert supervisor.trained_chunks(tmp_path) == 0


def test_earlier_runs_are_kept_aside(tmp_path, capsys):
    given = params(runs=str(tmp_path / "runs"))
    (tmp_path / "runs" / "killed").mkdir(parents=True)
    (tmp_path / "runs" / "killed" / "journal.jsonl").write_text("old")
    prepare(given)
    aside = next(path for path in tmp_path.iterdir() if path.name.startswith("runs."))
    assert (aside / "killed" / "journal.jsonl").read_text() == "old" and str(aside) in capsys.readouterr().out
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_phase_is_not_run_over_its_saved_run(tmp_path):
    (tmp_path / "killed").mkdir()
    with pytest.raises(UsageError, match="exists"):
        run_phase("killed", params(runs=str(tmp_path)))


def test_saved_runs_of_these_parameters_are_taken(runs):
    run_phase("killed", params(runs=str(runs), reuse=True, near_tie_margin=0.1))


def test_saved_runs_of_other_parameters_are_refused_by_name(runs):
    with pytest.raises(UsageError, match=r"other parameters \(seed: 0 there, 7 here\)"):
        run_phase("killed", params(runs=str(runs), reuse=True, seed=7))


@pytest.mark.parametrize("content", [None, b"{", b"{}"], ids=["missing", "torn", "empty"])
def test_a_missing_or_half_written_run_is_incomplete(runs, content):
    (runs / "killed" / "run.json").unlink()
    if content is not None:
        (runs / "killed" / "run.json").write_bytes(content)
    with pytest.raises(IncompleteError, match=r"run\.json"):
        run_phase("killed", params(runs=str(runs), reuse=True))


def test_a_run_that_never_ended_is_incomplete(runs):
    file = runs / "killed" / "run.json"
    info = supervisor.read_info(runs / "killed")
    file.write_bytes(supervisor.msgspec.json.encode(supervisor.msgspec.structs.replace(info, exit=None)))
    with pytest.raises(IncompleteError, match="half-written"):
        run_phase("killed", params(runs=str(runs), reuse=True))


def test_memory_that_comes_back_late_is_waited_for():
    told = iter([[100, 8000], [8000, 8000]])
    assert supervisor.wait_for_memory([8100, 8000], lambda: next(told)) < 30 and next(told, None) is None


def test_memory_that_stays_away_is_incomplete_with_both_readings():
    with pytest.raises(IncompleteError, match=r"not back after 0 s: \[100\] MiB free, \[8000\] before"):
        supervisor.wait_for_memory([8000], lambda: [100], timeout_s=0)


def test_the_cpu_build_has_no_device_to_wait_for():
    assert supervisor.free_memory() == []


@pytest.fixture
def waiting(tmp_path):
    """Two real workloads of overlapped runs, killed and restored, the second behind the first; (parameters, pids)."""
    given = params(model="tiny-qwen3", overlap_starts=True, runs=str(tmp_path / "runs"), cut_tokens={"1/0/0#1": 1})
    prepare(given)
    killed = supervisor._begun[given.folder / "killed"] = supervisor.Workload("killed", given)
    restored = supervisor._begun[given.folder / "restored"] = supervisor.Workload("restored", given, after=killed)
    yield given, {"killed": killed._worker._process.pid, "restored": restored._worker._process.pid}
    supervisor.end_begun()


def test_of_workers_side_by_side_the_kill_takes_its_own_group_only(waiting):
    given, pids = waiting
    run_phase("killed", given)
    assert not psutil.pid_exists(pids["killed"]) and psutil.Process(pids["restored"]).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("phase", ["killed", "restored"])
def test_an_overlapped_phase_before_the_first_is_a_mistake(tmp_path, phase):
    with pytest.raises(UsageError, match=f"{phase}: begins with the uninterrupted run"):
        run_phase(phase, params(runs=str(tmp_path), overlap_starts=True))


def test_a_cell_run_twice_is_a_mistake_and_stops_no_other(waiting):
    given, pids = waiting
    run_phase("killed", given)
    with pytest.raises(UsageError, match="exists"):
        run_phase("killed", given)
    assert psutil.Process(pids["restored"]).status() != psutil.STATUS_ZOMBIE


def test_a_trainer_that_dies_early_is_told_before_generation_ends(waiting):
    given, _ = waiting
    os.kill(supervisor._begun[given.folder / "restored"]._trainer._process.pid, signal.SIGKILL)
    with pytest.raises(IncompleteError, match="restored: the trainer was killed by signal 9"):
        run_phase("restored", given)


def test_a_journal_that_breaks_ends_all_and_says_so(waiting):
    given, pids = waiting
    (given.folder / "killed" / "journal.jsonl").write_text("{broken\n")
    trainer = supervisor._begun[given.folder / "restored"]._trainer._process.pid
    with pytest.raises(IncompleteError, match="journal"):
        run_phase("killed", given)
    assert not any(psutil.pid_exists(pid) for pid in [*pids.values(), trainer])


def test_a_worker_that_dies_at_its_gate_is_told_and_no_other_is_left(waiting):
    given, pids = waiting
    os.kill(pids["restored"], signal.SIGKILL)
    with pytest.raises(IncompleteError, match="restored: the worker was killed by signal 9"):
        run_phase("killed", given)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_a_killed_run_that_fails_ends_the_restored_one_with_its_reason(waiting):
    given, pids = waiting
    os.kill(pids["killed"], signal.SIGTERM)
    with pytest.raises(IncompleteError, match="killed: the worker was killed by signal 15"):
        run_phase("restored", given)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_the_set_up_cell_run_again_ends_what_has_begun(waiting):
    given, pids = waiting
    prepare(given)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_an_interrupted_cell_leaves_nothing_of_what_has_begun(waiting):
    given, pids = waiting

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_phase("killed", given)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


RANKS = {"data_parallel_size": "EngineCore", "tensor_parallel_size": "Worker"}  # and what their processes are called


@pytest.fixture
def spread(tmp_path):
    """Run two real ranks until tokens come, then do something to the ranks' processes; True kills the run."""
    ranks = []

    def run(name: str, act: Callable[[list[psutil.Process]], bool | None]) -> None:
        given = params(
            model="tiny-qwen3", runs=str(tmp_path / "runs"), engine_args={name: 2}, closing_limit_tokens=[400, 400]
        )
        prepare(given)
        worker, folder = supervisor.start_worker("uninterrupted", given), given.folder / "uninterrupted"
        (folder / supervisor.GATE).touch()
        journal = Journal(folder / "journal.jsonl")

        def due() -> bool:
            journal.poll()
            if ranks or not journal.tokens:
                return False
            others = psutil.Process(worker._process.pid).children(recursive=True)
            ranks.extend(other for other in others if RANKS[name] in " ".join(other.cmdline()))
            return act(ranks)

        worker.watch(due)

    return run, ranks


@pytest.mark.parametrize("name", RANKS)
def test_the_kill_takes_every_rank(spread, name):
    run, ranks = spread
    run(name, lambda ranks: True)
    assert len(ranks) == 2 and not any(rank.is_running() for rank in ranks)


def test_a_rank_that_dies_ends_its_run_and_is_told(spread):
    run, ranks = spread
    with pytest.raises(IncompleteError, match="uninterrupted: the worker ended with exit code 1"):
        run("data_parallel_size", lambda ranks: ranks[0].kill())
    assert len(ranks) == 2 and not any(rank.is_running() for rank in ranks)
