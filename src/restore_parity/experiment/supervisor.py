"""The supervisor: starts each workload, watches its journal, kills one, proves that it is gone."""

import signal
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from tqdm import tqdm

from ..errors import IncompleteError, UsageError
from ..journal import Journal
from ..params import Params
from ..runs import PHASES, Exit, Phase, check_saved, partial_of, read_info, write_info
from .device_memory import free_memory, wait_for_memory
from .engine.settings import check_engine
from .processes import POLL_S, Child
from .worker import WorkerTask

GATE = "gate"  # in a run's folder; its worker generates once the file is there
SHOW_S = 0.1  # between two looks at a workload to show
BAR_S = 2.0  # between two looks of a progress bar


class Experiment:
    """The three workloads of one set of parameters.

    Making it makes the folder of the runs. Earlier runs there are kept beside it under another
    name, which is printed; with `reuse` they stay where they are, and are taken as they are.
    Raises UsageError for settings that cannot work on the installed engine.
    """

    def __init__(self, params: Params):
        self.params = params
        self.begun: dict[Phase, Workload] = {}  # those that have not been waited for
        if not params.reuse:
            check_engine(params)
            _keep_aside(params.folder)
            params.folder.mkdir(parents=True, exist_ok=True)

    def run(self, phase: Phase) -> None:
        """Run one workload to its end (or its kill), or take the saved one when `reuse` is set.

        With overlapped starts the first phase begins all three. Raises UsageError when the saved
        run is of other parameters, IncompleteError when the run, or one beside it, did not come
        about.
        """
        if self.params.reuse:
            started = check_saved(self.params.folder / phase, self.params)
            print(f"{phase}: saved run of {started}")
            return
        self._check_order(phase)
        try:
            for each in self._phases_to_begin(phase):
                self.begin(each)
            self.begun[phase].show(self.begun.values())
            del self.begun[phase]
        except BaseException:  # an interrupt too: a worker that waits at its gate holds an engine
            self.end()
            raise

    def begin(self, phase: Phase) -> None:
        """Start one workload without waiting for it."""
        if phase == "killed":
            self.begun[phase] = KilledWorkload(phase, self.params)
            return
        killed = self.begun.get("killed") if phase == "restored" else None
        self.begun[phase] = Workload(phase, self.params, after=killed)

    def end(self) -> None:
        """Kill every workload that has begun and not been waited for."""
        with ExitStack() as stack:  # one that does not end keeps no other from its end
            while self.begun:
                stack.callback(self.begun.popitem()[1].end)

    def _phases_to_begin(self, phase: Phase) -> tuple[Phase, ...]:
        if not self.params.overlap_starts:
            return (phase,)
        return PHASES if phase == PHASES[0] else ()

    def _check_order(self, phase: Phase) -> None:
        """Raises UsageError where a cell runs a second time, or before the first phase's."""
        if phase in self.begun:
            return
        remedy = (
            "run the set-up cell again, which keeps runs aside, and then the cells in their "
            "order; or set reuse"
        )
        folder = self.params.folder / phase
        if folder.exists():
            raise UsageError(f"{folder} exists", remedy)
        if not self._phases_to_begin(phase):
            raise UsageError(f"{phase}: begins with the uninterrupted run", remedy)


def _keep_aside(folder: Path) -> None:
    if any((folder / phase).exists() for phase in PHASES):
        aside = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        folder.rename(aside)
        print(f"earlier runs kept as {aside}")


class Workload:
    """A workload's worker and trainer, watched in a thread of their own.

    Its gate opens when the workload `after` has ended.
    """

    trains = True

    def __init__(self, phase: Phase, params: Params, after: "Workload | None" = None):
        self._phase = phase
        self._params = params
        self._folder = params.folder / phase
        self._after = after
        self._worker = start_worker(phase, params)
        self._trainer: Child | None = None
        if params.overlap_starts and self.trains:
            self._start_trainer_early()
        self._journal = Journal(self._folder / "journal.jsonl")
        self._generated = threading.Event()
        self._done: Future[None] = Future()
        threading.Thread(target=self._settle, daemon=True).start()

    @property
    def children(self) -> list[Child]:
        """The processes it has started so far: the worker, then the trainer."""
        return [child for child in (self._worker, self._trainer) if child]

    def show(self, beside: Collection["Workload"] = ()) -> None:
        """Show its progress until it has ended.

        Raises what ended it, or one of those `beside` it, too early.
        """
        self._show_generation(beside)
        if self.trains:
            self._show_training(beside)
        self._done.result()

    def end(self) -> None:
        """Kill what it has started, whatever that does, until nothing more can start."""
        while not self._done.done():
            for child in self.children:
                child.end()
            wait([self._done], timeout=POLL_S)

    def _show_generation(self, beside: Collection["Workload"]) -> None:
        start = f"{self._phase}: starting the engine"
        with tqdm(desc=start, unit=" tokens", file=sys.stdout, mininterval=BAR_S) as bar:
            while not self._generated.wait(SHOW_S) and not self._is_over(beside):
                if self._journal.calls and not bar.n:
                    bar.set_description_str(f"{self._phase}: generate", refresh=False)
                bar.update(self._journal.tokens - bar.n)
            bar.update(self._journal.tokens - bar.n)

    def _show_training(self, beside: Collection["Workload"]) -> None:
        params = self._params
        rows_per_step = params.prompts_per_step * params.generations_per_prompt
        chunks = params.steps * -(-rows_per_step // params.micro_batch_rows)
        name = f"{self._phase}: train"
        with tqdm(
            desc=name, unit=" chunks", total=chunks, file=sys.stdout, mininterval=BAR_S
        ) as bar:
            while not self._is_over(beside):
                bar.update(trained_chunks(self._folder) - bar.n)
                wait([self._done], timeout=BAR_S / 2)
            bar.update(chunks - bar.n)

    def _is_over(self, beside: Collection["Workload"]) -> bool:
        """Whether it has ended. Raises what ended one of those beside it."""
        for other in beside:
            if other._done.done():
                other._done.result()
        return self._done.done()

    def _settle(self) -> None:
        try:
            self._run()
            self._done.set_result(None)
        except BaseException as error:
            self._done.set_exception(error)

    def _run(self) -> None:
        try:
            self._open_gate()
            ended = self._worker.watch(self._is_due, self._params.timeout_s)
            self._generated.set()
            self._finish(ended)
        finally:
            with ExitStack() as stack:  # one that does not end keeps no other from its end
                for child in self.children:
                    stack.callback(child.end)

    def _open_gate(self) -> None:
        """Let the worker generate; the capture to restore is whole when the killed run is gone."""
        if self._after:
            while not self._after._done.done():
                self._worker.check()
                time.sleep(POLL_S)
            self._after._done.result()
        (self._folder / GATE).touch()

    def _is_due(self) -> bool:
        """Take in the journal; True when the worker is to be killed now."""
        self._journal.poll()
        if self._trainer:
            self._trainer.check()
        return False

    def _finish(self, ended: Exit) -> None:
        """Train, and record how the run ended."""
        info = read_info(self._folder)
        self._trainer = self._trainer or Child("trainer", self._folder)
        self._trainer.wait(self._params.timeout_s)
        write_info(self._folder, msgspec.structs.replace(info, exit=ended, trained=time.time()))

    def _start_trainer_early(self) -> None:
        """Start the trainer beside the worker: its imports take as long as an engine's start."""
        try:
            self._trainer = Child("trainer", self._folder)
        except OSError:
            self._worker.end()
            raise


class KilledWorkload(Workload):
    """The workload that is killed when its journal holds what was planned; it trains nothing."""

    trains = False

    def __init__(self, phase: Phase, params: Params):
        # Beside others, what is free says nothing of this run alone
        self._free = [] if params.overlap_starts else free_memory()
        super().__init__(phase, params)

    def _is_due(self) -> bool:
        super()._is_due()
        params = self._params
        if not params.cut_tokens:
            return self._journal.tokens >= params.kill_after_tokens
        calls = {call.name: call for call in self._journal.calls.values()}
        reached = True
        for name in params.cut_tokens:
            planned = params.planned_tokens(name)
            call = calls.get(name)
            if call and not call.is_open:
                raise IncompleteError(
                    f"killed: the call of cut {name} ended ({call.finish_reason}) after "
                    f"{len(call.ids)} tokens, before its planned {planned}; plan it earlier in "
                    "cut_tokens"
                )
            if not call or len(call.ids) != planned:
                reached = False
        return reached

    def _finish(self, ended: Exit) -> None:
        """Record the kill. Raises IncompleteError where there was none."""
        info = read_info(self._folder)
        if ended.signal != signal.SIGKILL or not ended.open_calls:
            plan = f"kill_after_tokens = {self._params.kill_after_tokens} was reached"
            if self._params.cut_tokens:
                plan = "every planned cut was reached"
            raise IncompleteError(f"killed: the worker ended by itself, before {plan}")
        if self._free:
            wait_for_memory(self._free)
        write_info(self._folder, msgspec.structs.replace(info, exit=ended))


def start_worker(phase: Phase, params: Params) -> Child:
    """Start a workload's process, which builds its engine and waits for its gate."""
    folder = params.folder / phase
    folder.mkdir()
    source = str(params.folder / "killed") if phase == "restored" else None
    task = WorkerTask(
        phase=phase, params=params.model_dump(), source=source, gate=str(folder / GATE)
    )
    (folder / "task.json").write_bytes(msgspec.json.encode(task))
    return Child("worker", folder)


def trained_chunks(folder: Path) -> int:
    """Chunks in the dump of a trainer that is at work."""
    # it has not begun, or was just renamed: the file may go between any two looks
    with suppress(FileNotFoundError):
        return partial_of(folder / "training.jsonl").read_bytes().count(b"\n")
    return 0
