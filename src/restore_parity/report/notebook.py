"""What the notebooks' cells call to begin, and to judge."""

import os
import shlex
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from .. import tokens
from ..checker import checks
from ..checker.dumps import Runs
from ..checker.judgement import Judgement
from ..experiment.supervisor import Experiment
from ..params import Params, shipped, validate

REPORT_NOTEBOOK = shipped("notebooks/restore_parity.ipynb")
PLAIN = (str, int, float, bool, list, dict)  # the types of parameters
OF_JUPYTER = ("In", "Out")


def begin(shell: InteractiveShell) -> Experiment:
    """The experiment of a running notebook's parameters.

    One that an earlier run of the cells began is ended. Raises UsageError.
    """
    params = params_of(shell)
    earlier = shell.user_ns.get("experiment")
    if isinstance(earlier, Experiment):
        earlier.end()
    enter_base_folder(params.runs)
    return Experiment(params)


def params_of(shell: InteractiveShell) -> Params:
    """The parameters of a running notebook: all plain values that it holds at its set-up cell.

    Reading all of them, not only the known names, is what finds a misspelt override: papermill
    only warns. Raises UsageError.
    """
    values = {
        name: value
        for name, value in shell.user_ns.items()
        if isinstance(value, PLAIN) and not _is_jupyters(name, shell)
    }
    return validate(values, "parameters")


def _is_jupyters(name: str, shell: InteractiveShell) -> bool:
    return name.startswith("_") or name in OF_JUPYTER or name in shell.user_ns_hidden


def enter_base_folder(runs: str) -> None:
    """Change to the folder that relative paths count from.

    It is the working directory, or the nearest parent in which the folder `runs` is. Jupyter starts
    a kernel in its notebook's folder: where there are no runs yet, the parent of `notebooks`.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / runs).is_dir():
            os.chdir(folder)
            return
    if here.name == "notebooks" and (here / REPORT_NOTEBOOK.name).is_file():
        os.chdir(here.parent)


def judge(runs: Runs, params: Params) -> Judgement:
    """Apply every check to the runs below `params.runs`.

    Messages show token ids as text too, where the model's tokenizer is on this machine.
    """
    info = runs.uninterrupted.info
    return checks.judge(
        runs,
        params,
        cut_options=f"--runs {shlex.quote(params.runs)}",
        decode=tokens.decoder(info.model_folder if info else None),
    )
