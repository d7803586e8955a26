"""The debugger of one cut: what its notebook does, with saved runs that passed or failed."""

from pathlib import Path

from IPython.display import HTML
from msgspec import Struct

from ..checker.cut_text import record_lines
from ..checker.dumps import KilledRun, Run, Runs
from ..checker.judgement import Judgement
from ..checker.loading import load_runs
from ..checker.problems import concerning, render
from ..errors import IncompleteError, UsageError
from ..experiment.rerun import RerunTask, read_rerun, run_again
from ..journal import Call
from ..records import CallView, CutKey, CutResult, Rerun, Row
from ..runs import read_params_of
from ..tokens import first_difference
from .diagnosis import DECODE, PREFILL, RESTORED, UNINTERRUPTED, diagnose
from .html_table import table
from .notebook import enter_base_folder, judge

TORCH = "torch"


class Case(Struct, kw_only=True):
    """One cut with all that is known of it."""

    folder: Path  # of what run_again leaves
    cut: Call
    killed: KilledRun
    restored_run: Run
    judgement: Judgement
    rows: dict[str, Row | None]  # by the name of the run
    views: dict[str, CallView]  # of its call, by name, those that there are; the first is the base
    rerun: Rerun | None = None

    @property
    def uninterrupted(self) -> CallView | None:
        """The call as the uninterrupted run's row has it."""
        return self.views.get(UNINTERRUPTED)

    @property
    def restored(self) -> CallView | None:
        """The call as the restored run's row has it."""
        return self.views.get(RESTORED)

    @property
    def seam(self) -> int:
        """The tail's first token, counted in the call."""
        return len(self.cut.ids)

    @property
    def parting(self) -> int | None:
        """The first token of the call at which the saved calls differ."""
        if self.uninterrupted is None or self.restored is None:
            return None
        return first_difference(self.uninterrupted.ids, self.restored.ids)

    def text(self, token: int) -> str:
        """A decoded token, quoted and escaped; empty where no tokenizer is at hand."""
        return repr(self.judgement.decode([token])) if self.judgement.decode else ""


def judge_saved(runs: str) -> tuple[Judgement, Runs]:
    """Judge the runs below a folder, by the parameters they were made with.

    A relative folder counts as the report's does. Raises UsageError, IncompleteError.
    """
    enter_base_folder(runs)
    if not Path(runs).is_dir():
        raise UsageError(
            f"runs: {runs!r} is not a folder",
            "give the one that holds uninterrupted, killed and restored",
        )
    loaded = load_runs(Path(runs))
    killed = _killed(loaded)
    info, _ = killed.whole()
    params = read_params_of(info, killed.folder)
    return judge(loaded, params.model_copy(update={"runs": runs})), loaded


def _killed(loaded: Runs) -> KilledRun:
    assert loaded.killed  # load_runs gives all three
    return loaded.killed


def cut_list(judgement: Judgement) -> HTML:
    """One line a cut, failed ones first, with the checks that have a problem with it or its row."""
    lines = []
    for cut in _problems_first(judgement):
        problems = concerning(judgement.problems, cut.key)
        checks = dict.fromkeys(problem.check for problem in problems)
        line = {
            "cut": cut.key,
            "status": cut.status,
            "prefix tokens": cut.prefix_tokens,
            "checks with a problem": ", ".join(checks) or "none",
        }
        lines.append(line)
    return table(lines)


def _problems_first(judgement: Judgement) -> list[CutResult]:
    return sorted(judgement.cuts, key=lambda cut: not concerning(judgement.problems, cut.key))


def pick(judgement: Judgement, loaded: Runs, name: str) -> Case:
    """The cut `name`, or the first cut of the row `name`; for "" the first cut of the list.

    Raises UsageError where there is none.
    """
    killed = _killed(loaded)
    key = _cut_named(judgement, name)
    _, journal = killed.whole()
    cut = next(call for call in journal.open_calls() if call.name == str(key))
    rows = {run.name: run.only(cut.key) for run in loaded.trained}
    views = {}
    for run, row in rows.items():
        view = row.call(cut.call_index) if row else None
        if view:
            views[run] = view
    return Case(
        folder=killed.folder.parent / "again" / key.slug,
        cut=cut,
        killed=killed,
        restored_run=loaded.restored,
        judgement=judgement,
        rows=rows,
        views=views,
    )


def _cut_named(judgement: Judgement, name: str) -> CutKey:
    keys = [CutKey.parse(cut.key) for cut in _problems_first(judgement)]
    for key in keys:
        if name in ("", str(key), str(key.row)):
            return key
    known = ", ".join(map(str, keys)) or "none"
    raise UsageError(f"cut: {name!r} is not a cut of these runs", f"the cuts are {known}")


def show_records(case: Case) -> None:
    """Print what the journal and the restore hold of the cut, then every problem with it."""
    print(f"cut {case.cut.name}")
    print("\n".join(record_lines(case.cut, case.restored_run)))
    problems = concerning(case.judgement.problems, case.cut.name)
    print(f"\n{render(problems) or 'no check has a problem with it or its row'}")


def take_rerun(case: Case, again: bool) -> None:
    """Run the cut again both ways where `again` is set, then take what the last rerun left.

    A rerun that is not possible is reported: what was saved can be looked at all the same.
    """
    if again:
        print(f"{case.cut.name}: running it again: one start of the engine", flush=True)
        _run_again(case)
    else:
        print(f"{case.cut.name}: not run")
    case.rerun = read_rerun(case.folder)
    file = case.folder / "again.json"
    if case.rerun is None:
        print(f"{file}: not there")
        return
    case.views[PREFILL] = case.rerun.prefill
    case.views[DECODE] = case.rerun.decode
    case.views[TORCH] = case.rerun.torch
    print(f"{file}: here")


def _run_again(case: Case) -> None:
    info, journal = case.killed.whole()
    task = RerunTask(
        cut=case.cut.name,
        calls=journal.open_calls(),
        info=info,
        uninterrupted=case.uninterrupted,
        restored=case.restored,
    )
    try:
        run_again(case.folder, task)
    except (IncompleteError, OSError) as error:
        print(f"not run again: {error}")


def show_finding(case: Case) -> None:
    """Print what it all comes to."""
    finding = diagnose(case.cut, case.uninterrupted, case.restored, case.rerun)
    print(f"{case.cut.name}: {finding}")
