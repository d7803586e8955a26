"""The report: papermill runs the notebook, nbconvert makes the HTML of it, the verdict is ours."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import papermill  # type: ignore[import-untyped]

from ..checker.results import (
    Results,
    incomplete,
    provenance_of_infos,
    read_results,
    write_results,
)
from ..errors import IncompleteError, UsageError
from ..experiment.supervisor import Experiment
from ..params import Params
from ..runs import PHASES, RunInfo, check_saved, read_info
from .junit import write_junit
from .notebook import REPORT_NOTEBOOK
from .page import write_html
from .summary import write_summary

FILES = ("report.ipynb", "report.html", "results.json", "junit.xml", "summary.md")


def make_report(params: Params, given: dict[str, Any], notebook: Path = REPORT_NOTEBOOK) -> int:
    """Run the notebook into the runs' folder; leave all of FILES there whatever happens to it.

    `given` are the parameters that differ from the defaults. Returns the exit code of the verdict.
    Raises UsageError for parameters that no report can be made of.
    """
    folder = params.folder
    executed = folder / "report.ipynb"
    refuse_other_runs(params)
    make_room(params)
    stopped_by = execute(notebook, executed, given)
    results = read_results(folder / "results.json")
    if results is None:
        results = stopped(params, executed, stopped_by)
        write_results(folder / "results.json", results)
    write_junit(folder / "junit.xml", results)
    write_summary(folder / "summary.md", results)
    write_html(executed, folder / "report.html", results)
    print(f"{results.verdict}: {folder / 'report.html'}", flush=True)
    return results.exit_code


def refuse_other_runs(params: Params) -> None:
    """Raises UsageError where saved runs are of other parameters, before anything is touched."""
    if not params.reuse:
        return
    for phase in PHASES:
        with suppress(IncompleteError):  # a run that is missing is the report's to tell
            check_saved(params.folder / phase, params)


def make_room(params: Params) -> None:
    """Make the folder, and keep earlier runs and reports aside.

    So no results of an earlier run are taken for this one's. Raises UsageError.
    """
    try:
        Experiment(params)  # making one keeps earlier runs aside
        params.folder.mkdir(parents=True, exist_ok=True)
        keep_reports_aside(params.folder)
    except OSError as error:
        wrong = f"runs: {params.folder}: {error.strerror}"
        raise UsageError(wrong, "give a folder that can be made") from None


def keep_reports_aside(folder: Path) -> None:
    """Move a report of saved runs into a folder of its own, named by when it was made."""
    files = [folder / name for name in FILES if (folder / name).exists()]
    if not files:
        return
    made = time.localtime(max(file.stat().st_mtime for file in files))
    aside = folder / time.strftime("report.%Y%m%d-%H%M%S", made)
    aside.mkdir(exist_ok=True)
    for file in files:
        file.rename(aside / file.name)
    print(f"earlier report kept as {aside}")


def execute(notebook: Path, executed: Path, given: dict[str, Any]) -> str:
    """Run the notebook in this interpreter's environment; what stopped it, empty if nothing did."""
    try:
        papermill.execute_notebook(
            notebook,
            executed,
            given,
            kernel_name="python3",
            progress_bar=False,
            stdout_file=sys.stdout,
        )
    except papermill.PapermillExecutionError as error:
        return f"{error.ename}: {error.evalue}"
    except Exception as error:  # a dead kernel, a time-out: there is a report all the same
        return f"{type(error).__name__}: {error}"
    return ""


def stopped(params: Params, executed: Path, stopped_by: str) -> Results:
    """The results of a notebook that came to no verdict."""
    reason = f"stopped in cell {stopped_at(executed)}"
    if stopped_by:
        reason = f"{reason}: {stopped_by}"
    return incomplete(reason, provenance_of_infos(params, saved_infos(params.folder)))


def stopped_at(executed: Path) -> str:
    """The id of the last code cell that was begun.

    Whether it was completed does not show: of a dead kernel, papermill marks every cell completed.
    """
    begun = ["none"]
    if executed.exists():
        for cell in nbformat.read(executed, as_version=4).cells:
            if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time"):
                begun.append(cell.id)
    return begun[-1]


def saved_infos(folder: Path) -> dict[str, RunInfo]:
    """The run.json of each run that has one, by the run's name."""
    infos: dict[str, RunInfo] = {}
    for phase in PHASES:
        with suppress(IncompleteError):
            infos[phase] = read_info(folder / phase)
    return infos
