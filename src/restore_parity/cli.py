"""The commands. Exit codes: 0 PASS, 1 FAIL, 2 wrong usage or parameters, 3 INCOMPLETE."""

import io
import os
import shlex
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from .checker import foreign
from .checker.checks import judge
from .checker.cut_text import cut_text
from .checker.cuts import Cut
from .checker.dumps import Runs
from .checker.judgement import CHECKS, Judgement
from .checker.loading import load_killed, load_run
from .checker.problems import render
from .checker.results import (
    Results,
    incomplete,
    provenance,
    provenance_of_infos,
    results,
    write_results,
)
from .errors import ExpectedError, IncompleteError, UsageError
from .params import JUDGING, Params, profile_file, profiles, read_params, read_yaml, validate
from .tokens import decoder

# what the extra `report` brings
REPORT_LIBRARIES = (
    "IPython",
    "ipykernel",
    "junitparser",
    "matplotlib",
    "nbconvert",
    "nbformat",
    "pandas",
    "papermill",
    "platformdirs",
    "psutil",
    "tqdm",
)

# parameters that judge nothing, and may differ between runs
OF_PLACE = ("runs", "reuse", "overlap_starts", "timeout_s")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than a check of small runs
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"restore-parity {version('restore-parity')}")
        raise typer.Exit


@app.callback()
def options(
    wants_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Show that a run killed mid-generation and restored trains on the same rows."""


# --- report ---------------------------------------------------------------------------------------


@app.command()
def report(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE",
            help="a profile's name, or a YAML file of what differs from the defaults",
        ),
    ],
    runs: Annotated[
        Path | None, typer.Option(help="folder of the three runs, instead of the profile's own")
    ] = None,
    reuse: Annotated[
        bool, typer.Option(help="judge the saved runs, without engine or model")
    ] = False,
) -> None:
    """Run the three workloads, or take saved ones, and leave report.html.

    Beside it: results.json, junit.xml, summary.md, report.ipynb.
    """
    file = profile_file(profile)
    given = read_yaml(file)
    if runs:
        given["runs"] = str(runs)
    if reuse:
        given["reuse"] = True
    params = validate(given, str(file))
    refuse_missing_libraries()
    if not params.reuse:
        refuse_missing_engine()
        from .experiment.models import model_path

        model_path(params.model)  # a missing model is reported before anything is started
    from .report.report import make_report

    raise typer.Exit(make_report(params, given))


def refuse_missing_libraries() -> None:
    """Raises UsageError where the extra `report` is not installed."""
    missing = [name for name in REPORT_LIBRARIES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"report needs {', '.join(missing)}, not installed here",
            "pip install 'restore-parity[report]' for reports of saved runs (--reuse), "
            "'restore-parity[cpu]' or 'restore-parity[gpu]' for an engine as well",
        )


def refuse_missing_engine() -> None:
    """Raises UsageError where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise UsageError(
            "report needs vLLM to run the three workloads, not installed here",
            "pip install 'restore-parity[cpu]' or 'restore-parity[gpu]'; "
            "saved runs are judged without it (--reuse)",
        )


@app.command("profiles")
def list_profiles() -> None:
    """List the profiles that come with the package; runs nothing."""
    for name, file in profiles().items():
        first_line = file.read_text(encoding="utf-8").splitlines()[0]
        print(f"{name:<12}  {first_line.removeprefix('# ')}")


# --- check ----------------------------------------------------------------------------------------


class Inputs(NamedTuple):
    """The files and folders that `check` was given."""

    uninterrupted: Path
    restored: Path
    killed: Path | None
    selection: Path | None
    log: Path | None


@app.command()
def check(  # noqa: PLR0913 (an argument an option)
    uninterrupted: Annotated[Path, typer.Option(help="run folder or dump of the baseline")],
    restored: Annotated[Path, typer.Option(help="run folder or dump of the restored run")],
    killed: Annotated[Path | None, typer.Option(help="run folder of the killed run")] = None,
    selection: Annotated[
        Path | None, typer.Option(help="NeMo RL's selection.json: what was cut")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="NeMo RL's log of the restored run")] = None,
    params: Annotated[Path | None, typer.Option(help="YAML file with the thresholds")] = None,
    json: Annotated[Path | None, typer.Option(help="write results.json here")] = None,
) -> None:
    """Check saved runs, this package's or another trainer's, without engine, model or GPU."""
    inputs = Inputs(uninterrupted, restored, killed, selection, log)
    refuse_wrong_inputs(inputs)
    given = read_params(params) if params else None
    try:
        runs, cuts = read_inputs(inputs)
    except IncompleteError as error:
        if json:
            told = provenance_of_infos(given or Params(), {})
            save_results(json, incomplete(str(error), told))
        raise
    thresholds = given or runs.uninterrupted.params or Params()
    judgement = judge_inputs(inputs, runs, cuts, thresholds)
    found = results(judgement, provenance(thresholds, runs))
    if json:
        save_results(json, found)
    for line in findings(judgement, runs):
        print(line, end="\n\n")
    print(f"judged by {params or source_of_thresholds(inputs, runs)}")
    print(found.summary)
    raise typer.Exit(found.exit_code)


def refuse_wrong_inputs(inputs: Inputs) -> None:
    """Raises UsageError for files that are missing or do not go together."""
    uninterrupted, restored, killed, selection, log = inputs
    if selection and killed:
        raise UsageError("--selection and --killed both say what was cut", "give one of them")
    if (selection is None) != (log is None):
        raise UsageError(
            "--selection and --log go together",
            "give both, or --killed DIR for this package's own runs",
        )
    for path in inputs:
        if path and not path.exists():
            raise UsageError(f"{path}: no such file or folder")
    # two equal run folders are found by the check same-setup
    if uninterrupted.is_file() and uninterrupted.samefile(restored):
        raise UsageError(
            f"--uninterrupted and --restored are both {restored}", "give each run its own dump"
        )
    if killed and not killed.is_dir():
        raise UsageError(f"{killed}: not the folder of a run")


def read_inputs(inputs: Inputs) -> tuple[Runs, list[Cut]]:
    """The runs, and what was cut as far as their records or NeMo RL's selection say.

    Raises UsageError, IncompleteError.
    """
    runs = Runs(
        uninterrupted=load_run(inputs.uninterrupted, "uninterrupted"),
        restored=load_run(inputs.restored, "restored"),
    )
    if inputs.killed:
        runs.killed = load_killed(inputs.killed)
    if inputs.log:
        runs.restored.restores = foreign.read_log(inputs.log)
    if inputs.selection:
        return runs, foreign.read_selection(inputs.selection, runs.restored)
    return runs, foreign.cuts_of_records(runs.restored)


def judge_inputs(inputs: Inputs, runs: Runs, cuts: list[Cut], thresholds: Params) -> Judgement:
    """Apply every check; messages show tokens as text where the model's tokenizer is here."""
    cut_options = ""
    if inputs.killed:
        cut_options = f"--runs {shlex.quote(str(inputs.restored.parent))}"
    info = runs.restored.info
    return judge(
        runs,
        thresholds,
        cuts=cuts,
        cut_options=cut_options,
        decode=decoder(info.model_folder) if info else None,
    )


def save_results(file: Path, found: Results) -> None:
    """Write results.json. Raises UsageError where that cannot be."""
    try:
        write_results(file, found)
    except OSError as error:
        raise UsageError(f"--json {file}: {error.strerror}") from None


def findings(judgement: Judgement, runs: Runs) -> list[str]:
    """What is to be read before the verdict: the problems, then what could not be checked."""
    notes = []
    journal = runs.killed.journal if runs.killed else None
    if journal and journal.torn:
        notes.append(journal.torn)
    for check in CHECKS:
        why = judgement.why(check)
        if why:
            notes.append(f"{judgement.status(check).replace('_', ' ')}: {check}, {why}")
    if judgement.unread:
        notes.append(f"not compared: columns {', '.join(sorted(judgement.unread))}")
    parts = [render(judgement.problems), "\n".join(notes)]
    return [part for part in parts if part]


def source_of_thresholds(inputs: Inputs, runs: Runs) -> str:
    """Where the thresholds come from when no file of them is given."""
    params = runs.uninterrupted.params
    if params is None:
        return "the defaults"
    source = f"the parameters in {inputs.uninterrupted}/run.json"
    others = runs.restored.params
    different = [
        name
        for name in sorted(JUDGING)
        if name not in OF_PLACE and others and getattr(others, name) != getattr(params, name)
    ]
    if different:
        source += f"; the restored run's has another {', another '.join(different)}"
    return source


# --- cut ------------------------------------------------------------------------------------------


@app.command()
def cut(
    key: Annotated[str, typer.Argument(help="a cut as 1/3/0#1, or a row as 1/3/0")],
    runs: Annotated[Path, typer.Option(help="folder of the three runs")],
) -> None:
    """Show one cut whole: its records, and the tokens of both runs around it."""
    if not runs.is_dir():
        raise UsageError(f"{runs}: not a folder of runs")
    print(cut_text(key, runs))


def main() -> None:
    """Run a command; a user's mistake ends in one message, not in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character gets its code
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except ExpectedError as error:
        print(f"restore-parity: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
