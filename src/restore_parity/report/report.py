"""The report: papermill runs the notebook, nbconvert makes the HTML of whatever came of it, the verdict is ours."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import papermill

from ..checker import results
from ..errors import IncompleteError, UsageError
from ..checker.dumps import Run
from .page import write_html
from ..params import NOTEBOOK, ROOT, Params
from ..checker.loading import read_info
from ..experiment.supervisor import PHASES, check_saved, prepare

FILES = ("report.ipynb", "report.html", "results.json", "junit.xml", "summary.md")


def make_report(params: Params, given: dict[str, Any], notebook: Path = NOTEBOOK) -> int:
    """Execute the notebook into the runs' folder; leave HTML, results.json, junit.xml and summary.md in every case.

    `given` are the parameters that differ from the defaults. Returns the exit code of the verdict.
    """
    folder, executed = params.folder, params.folder / "report.ipynb"
    for phase in PHASES if params.reuse else ():
        with suppress(IncompleteError):  # the report is to say so; other parameters are a mistake, told before it starts
            check_saved(folder / phase, params)
    try:
        prepare(params)  # here too, so that no results of an earlier run are taken for this one's
        folder.mkdir(parents=True, exist_ok=True)
        keep_aside(folder)
    except OSError as error:
        raise UsageError(f"runs: {folder}: {error.strerror}", "give a folder that can be made") from None
    ended = ""
    try:
        papermill.execute_notebook(
            notebook, executed, given, kernel_name="python3", progress_bar=False, stdout_file=sys.stdout, cwd=ROOT
        )
    except papermill.PapermillExecutionError as error:
        ended = f": {error.ename}: {error.evalue}"
    except Exception as error:  # a dead kernel, a time-out: whatever it was, there is a report and it is INCOMPLETE
        ended = f": {type(error).__name__}: {error}"
    told = results.read_results(folder / "results.json")
    if told is None:
        made = results.provenance(params, saved_runs(folder))
        told = results.incomplete(f"stopped in cell {stopped_at(executed)}{ended}", made)
        results.write_json(folder / "results.json", told)
    results.write_junit(folder / "junit.xml", told)
    results.write_summary(folder / "summary.md", told)
    write_html(executed, folder / "report.html", told)
    print(f"{told['verdict']}: {folder / 'report.html'}", flush=True)
    return results.exit_code(told["verdict"])


def keep_aside(folder: Path) -> None:
    """Move an earlier report of saved runs into a folder of its own, named by when it was made."""
    made = [folder / name for name in FILES if (folder / name).exists()]
    if made:
        aside = folder / time.strftime("report.%Y%m%d-%H%M%S", time.localtime(max(file.stat().st_mtime for file in made)))
        aside.mkdir(exist_ok=True)
        for file in made:
            file.rename(aside / file.name)
        print(f"earlier report kept as {aside}")


def saved_runs(folder: Path) -> list[Run]:
    """As much of each run as its run.json tells."""
    runs = []
    for phase in PHASES:
        with suppress(IncompleteError):
            run = Run(phase)
            run.info = read_info(folder / phase)
            runs.append(run)
    return runs


def stopped_at(executed: Path) -> str:
    """The id of the last code cell that was begun: of a dead kernel, papermill marks every cell completed."""
    cells = nbformat.read(executed, as_version=4).cells if executed.exists() else []
    begun = [cell.id for cell in cells if cell.cell_type == "code" and cell.metadata.get("papermill", {}).get("start_time")]
    return begun[-1] if begun else "none"
