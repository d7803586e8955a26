"""The supervisor: the order of the three runs, what ends them, and what their files say then."""

import os
import signal
from collections.abc import Callable

import msgspec
import psutil
import pytest
from builders import params

from restore_parity.errors import IncompleteError, UsageError
from restore_parity.experiment.supervisor import GATE, Experiment, start_worker, trained_chunks
from restore_parity.journal import Journal
from restore_parity.runs import PHASES, read_info

CUT = "1/0/0#1"

# A worker without an engine: behind its gate and a file `go-<phase>`, it acts out its run
WORKER = """
task = json.loads((folder / "task.json").read_text())
wait_for("gate")
wait_for(f"../go-{folder.name}")
info = {"phase": task["phase"], "run_id": task["phase"][0], "params": task["params"]}
info |= {"setup": {"model": "none", "stop_token_ids": []}, "device": "none", "git_revision": None}
(folder / "run.json").write_text(json.dumps(info | {"params_sha256": "", "start": 0, "ready": 0}))

def write(**record):
    record |= {"call_id": "k:1/0/0#1", "t": 0}
    with (folder / "journal.jsonl").open("a") as out:
        out.write(json.dumps(record) + "\\n")

def start():
    of = {"key": "1/0/0", "call_index": 1, "group_id": "g", "prompt_ids": [1], "max_tokens": 9}
    write(event="start", **of)

def answer(*ids):
    write(event="delta", ids=ids, logprobs=[0] * len(ids), top_logprobs=[[]] * len(ids))

if task["phase"] != "killed":
    sys.exit()
"""
CUT_AT_ONE_TOKEN = "start(); answer(5); time.sleep(600)"
TRAINER = """
wait_for("run.json")
"""


@pytest.fixture
def make(script, tmp_path):
    """Make an experiment whose children are scripts; the killed worker does as it is given."""
    made = []

    def experiment(killed: str = CUT_AT_ONE_TOKEN, **changes) -> Experiment:
        script("worker", f"{WORKER}\n{killed}")
        script("trainer", TRAINER)
        given = {"runs": str(tmp_path / "runs"), "cut_tokens": {CUT: 1}} | changes
        made.append(Experiment(params(**given)))
        return made[-1]

    yield experiment
    for each in made:
        each.end()


def go(experiment: Experiment, *phases: str) -> None:
    """Let the workers of these runs do their work once they are begun."""
    for phase in phases:
        (experiment.params.folder / f"go-{phase}").touch()


@pytest.fixture
def waiting(make) -> Experiment:
    """Overlapped runs of which the first has ended, the others wait."""
    experiment = make(overlap_starts=True)
    go(experiment, "uninterrupted")
    experiment.run("uninterrupted")
    return experiment


def pids(experiment: Experiment) -> list[int]:
    """Those of all children of the workloads that have begun."""
    return [child.pid for begun in experiment.begun.values() for child in begun.children]


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def still_there(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid)]


def run_all(experiment: Experiment) -> None:
    go(experiment, *PHASES)
    for phase in PHASES:
        experiment.run(phase)


def test_earlier_runs_are_kept_aside(tmp_path, capsys):
    given = params(runs=str(tmp_path / "runs"))
    (tmp_path / "runs" / "killed").mkdir(parents=True)
    (tmp_path / "runs" / "killed" / "journal.jsonl").write_text("old")
    Experiment(given)
    (aside,) = tmp_path.glob("runs.*")
    assert (aside / "killed" / "journal.jsonl").read_text() == "old"
    assert str(aside) in capsys.readouterr().out
    assert list((tmp_path / "runs").iterdir()) == []


def test_settings_that_cannot_work_are_refused_before_anything_is_moved(tmp_path):
    (tmp_path / "runs" / "killed").mkdir(parents=True)
    with pytest.raises(UsageError, match="wait forever"):
        Experiment(params(runs=str(tmp_path / "runs"), engine_args={"data_parallel_rank": 1}))
    assert (tmp_path / "runs" / "killed").exists()


def test_a_phase_is_not_run_over_its_saved_run(make):
    experiment = make()
    (experiment.params.folder / "killed").mkdir()
    with pytest.raises(UsageError, match="exists"):
        experiment.run("killed")


def test_saved_runs_of_these_parameters_are_taken(runs, capsys):
    before = (runs / "killed" / "run.json").read_bytes()
    Experiment(params(runs=str(runs), reuse=True, near_tie_margin=0.1)).run("killed")
    assert capsys.readouterr().out.startswith("killed: saved run of 20")
    assert (runs / "killed" / "run.json").read_bytes() == before


def test_saved_runs_of_other_parameters_are_refused_by_name(runs):
    experiment = Experiment(params(runs=str(runs), reuse=True, seed=7))
    with pytest.raises(UsageError, match=r"other parameters \(seed: 0 in the saved run, 7 now\)"):
        experiment.run("killed")


@pytest.mark.parametrize("content", [None, b"{", b"{}"], ids=["missing", "torn", "empty"])
def test_a_missing_or_half_written_run_is_incomplete(runs, content):
    (runs / "killed" / "run.json").unlink()
    if content is not None:
        (runs / "killed" / "run.json").write_bytes(content)
    with pytest.raises(IncompleteError, match=r"run\.json"):
        Experiment(params(runs=str(runs), reuse=True)).run("killed")


def test_a_run_that_never_ended_is_incomplete(runs):
    info = msgspec.structs.replace(read_info(runs / "killed"), exit=None)
    (runs / "killed" / "run.json").write_bytes(msgspec.json.encode(info))
    with pytest.raises(IncompleteError, match="half-written"):
        Experiment(params(runs=str(runs), reuse=True)).run("killed")


def test_a_dump_that_is_not_there_yet_or_no_longer_is_no_progress(tmp_path):
    assert trained_chunks(tmp_path) == 0


def test_progress_is_counted_in_the_dump_that_is_not_whole_yet(tmp_path):
    (tmp_path / "training.jsonl.partial").write_bytes(b"{}\n{}\n{")
    assert trained_chunks(tmp_path) == 2


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "side by side"])
def test_the_kill_is_recorded_with_its_signal_and_its_open_calls(make, overlap):
    experiment = make(overlap_starts=overlap)
    run_all(experiment)
    info = read_info(experiment.params.folder / "killed")
    assert info.exit.signal == signal.SIGKILL
    assert info.exit.open_calls == {f"k:{CUT}": 1}
    assert info.trained is None


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "side by side"])
def test_a_run_that_trained_says_when(make, overlap):
    experiment = make(overlap_starts=overlap)
    run_all(experiment)
    info = read_info(experiment.params.folder / "restored")
    assert info.exit.code == 0
    assert info.trained >= info.exit.time


def test_without_planned_cuts_the_kill_comes_after_so_many_tokens(make):
    experiment = make(
        "start(); answer(5, 6, 7); time.sleep(600)", cut_tokens={}, kill_after_tokens=3
    )
    go(experiment, "killed")
    experiment.run("killed")
    assert read_info(experiment.params.folder / "killed").exit.open_calls == {f"k:{CUT}": 3}


def test_a_killed_run_that_ends_by_itself_is_incomplete(make):
    experiment = make("start()")
    go(experiment, "killed")
    with pytest.raises(IncompleteError, match="ended by itself, before every planned cut"):
        experiment.run("killed")


def test_a_call_that_ends_before_its_planned_cut_is_incomplete_with_the_remedy(make):
    experiment = make("start(); write(event='end', finish_reason='stop'); time.sleep(600)")
    go(experiment, "killed")
    ended = rf"cut {CUT} ended \(stop\) after 0 tokens, before its planned 1; plan it earlier"
    with pytest.raises(IncompleteError, match=ended):
        experiment.run("killed")


def test_with_overlapped_starts_the_first_phase_begins_all(waiting):
    assert list(waiting.begun) == ["killed", "restored"]


def test_the_restored_run_waits_at_its_gate_for_the_kill(waiting):
    assert not (waiting.params.folder / "restored" / GATE).exists()
    go(waiting, "killed", "restored")
    waiting.run("killed")
    waiting.run("restored")
    assert (waiting.params.folder / "restored" / GATE).exists()


@pytest.mark.parametrize("phase", ["killed", "restored"])
def test_an_overlapped_phase_before_the_first_is_a_mistake(make, phase):
    with pytest.raises(UsageError, match=f"{phase}: begins with the uninterrupted run"):
        make(overlap_starts=True).run(phase)


def test_a_cell_run_twice_is_a_mistake_and_stops_no_other(waiting):
    go(waiting, "killed")
    waiting.run("killed")
    with pytest.raises(UsageError, match="exists"):
        waiting.run("killed")
    assert all(is_running(pid) for pid in pids(waiting))


def test_a_trainer_that_dies_early_is_told_before_generation_ends(waiting):
    _, trainer = waiting.begun["restored"].children
    os.kill(trainer.pid, signal.SIGKILL)
    go(waiting, "killed")
    with pytest.raises(IncompleteError, match="restored: the trainer was killed by signal 9"):
        waiting.run("restored")


def test_a_journal_that_breaks_ends_all_and_says_so(waiting):
    begun = pids(waiting)
    (waiting.params.folder / "killed" / "journal.jsonl").write_text("{broken\n")
    with pytest.raises(IncompleteError, match="journal"):
        waiting.run("killed")
    assert not still_there(begun)


def test_a_worker_that_dies_at_its_gate_is_told_and_no_other_is_left(waiting):
    begun = pids(waiting)
    worker, _ = waiting.begun["restored"].children
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(IncompleteError, match="restored: the worker was killed by signal 9"):
        waiting.run("killed")
    assert not still_there(begun)


def test_a_killed_run_that_fails_ends_the_restored_one_with_its_reason(waiting):
    begun = pids(waiting)
    (worker,) = waiting.begun["killed"].children
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(IncompleteError, match="killed: the worker was killed by signal 15"):
        waiting.run("restored")
    assert not still_there(begun)


def test_an_experiment_that_is_ended_leaves_nothing_of_what_has_begun(waiting):
    begun = pids(waiting)
    waiting.end()
    assert len(begun) == 3
    assert not still_there(begun)


def test_an_interrupted_cell_leaves_nothing_of_what_has_begun(waiting):
    def interrupt(*_):
        raise KeyboardInterrupt

    begun = pids(waiting)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            waiting.run("killed")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not still_there(begun)


SMALL = {
    "model": "tiny-qwen3",
    "steps": 1,
    "prompts_per_step": 1,
    "list_lengths": [16],
    "closing_limit_tokens": [400],
}


def test_of_workers_side_by_side_the_kill_takes_its_own_group_only(make):
    experiment = make(overlap_starts=True)
    go(experiment, "killed")
    experiment.begin("killed")
    experiment.begin("restored")
    (killed,) = experiment.begun["killed"].children
    restored, _ = experiment.begun["restored"].children
    experiment.run("killed")
    assert not psutil.pid_exists(killed.pid)
    assert is_running(restored.pid)


RANKS = {  # and what their processes are called
    "data_parallel_size": "EngineCore",
    "tensor_parallel_size": "Worker",
}


@pytest.fixture
def spread(tmp_path):
    """Run two real ranks until tokens come, then do something to the ranks' processes.

    What is done says whether the run is to be killed.
    """
    ranks = []

    def run(name: str, act: Callable[[list[psutil.Process]], bool | None]) -> None:
        given = params(runs=str(tmp_path), engine_args={name: 2}, cut_tokens={}, **SMALL)
        worker = start_worker("uninterrupted", given)
        folder = given.folder / "uninterrupted"
        (folder / GATE).touch()
        journal = Journal(folder / "journal.jsonl")

        def due() -> bool:
            journal.poll()
            if ranks or not journal.tokens:
                return False
            for process in psutil.Process(worker.pid).children(recursive=True):
                if RANKS[name] in " ".join(process.cmdline()):
                    ranks.append(process)
            return act(ranks)

        worker.watch(due)

    return run, ranks


@pytest.mark.engine
@pytest.mark.parametrize("name", RANKS)
def test_the_kill_takes_every_rank(spread, name):
    run, ranks = spread
    run(name, lambda ranks: True)
    assert len(ranks) == 2
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.engine
def test_a_rank_that_dies_ends_its_run_and_is_told(spread):
    run, ranks = spread
    with pytest.raises(IncompleteError, match="uninterrupted: the worker ended with exit code 1"):
        run("data_parallel_size", lambda ranks: ranks[0].kill())
    assert len(ranks) == 2
    assert not any(rank.is_running() for rank in ranks)
