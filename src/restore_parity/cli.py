"""The commands: report, check, cut. Exit codes: 0 PASS, 1 FAIL, 2 wrong usage or parameters, 3 INCOMPLETE."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .checker import foreign
from .checker import results
from .checker.checks import judge
from .checker.cut_text import cut_text
from .errors import Told, UsageError
from .experiment.models import model_path, text_of
from .params import Params, read_params, read_yaml, validate
from .checker.loading import load_killed, load_run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def report(
    params: Annotated[Path, typer.Argument(help="YAML file of what differs from the defaults")],
    runs: Annotated[Path | None, typer.Option(help="folder of the three runs, instead of the parameters' own")] = None,
    reuse: Annotated[bool, typer.Option(help="judge the saved runs, without engine or model")] = False,
) -> None:
    """Run the three workloads (or take saved ones) and leave report.html, results.json, junit.xml, summary.md."""
    given = read_yaml(params)
    given |= ({"runs": str(runs.resolve())} if runs else {}) | ({"reuse": True} if reuse else {})
    validated = validate(given, str(params))
    if not validated.reuse:
        model_path(validated.model)  # a missing model is told before anything is started
    from .report.report import make_report

    raise typer.Exit(make_report(validated, given))


@app.command()
def check(
    uninterrupted: Annotated[Path, typer.Option(help="run folder or dump of the baseline")],
    restored: Annotated[Path, typer.Option(help="run folder or dump of the restored run")],
    killed: Annotated[Path | None, typer.Option(help="run folder of the killed run")] = None,
    selection: Annotated[Path | None, typer.Option(help="the origin's selection.json: what was cut")] = None,
    log: Annotated[Path | None, typer.Option(help="the origin's log of the restored run")] = None,
    params: Annotated[Path | None, typer.Option(help="YAML file with the thresholds")] = None,
    json: Annotated[Path | None, typer.Option(help="write results.json here")] = None,
) -> None:
    """Check saved runs, this package's or the origin's, without engine, model or GPU."""
    if selection and killed:
        raise UsageError("--selection and --killed both say what was cut", "give one of them")
    if (selection is None) != (log is None):
        raise UsageError("--selection and --log go together", "give both, or --killed DIR for this package's own runs")
    for path in filter(None, (uninterrupted, restored, killed, selection, log)):
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
    if uninterrupted.is_file() and uninterrupted.samefile(restored):  # of run folders same-setup tells it
        raise UsageError(f"--uninterrupted and --restored are both {restored}", "give the two runs' own")
    if killed and not killed.is_dir():
        raise UsageError(f"{killed}: no folder of a run")
    baseline, resumed = load_run(uninterrupted, "uninterrupted"), load_run(restored, "restored")
    dead = load_killed(killed) if killed else None
    thresholds = read_params(params) if params else resumed.params or Params()
    if log:
        resumed.restores = foreign.read_log(log)
    cuts = foreign.read_selection(selection, resumed) if selection else foreign.cuts_of_records(resumed)
    look = f"--runs {restored.parent}" if killed else ""
    text = text_of(resumed.info.setup.get("model", "")) if resumed.info else None
    found = judge(baseline, resumed, dead, thresholds, cuts, look=look, text=text)
    told = results.results(found, results.provenance(thresholds, filter(None, (baseline, dead, resumed))))
    if json:
        try:
            results.write_json(json, told)
        except OSError as error:
            raise UsageError(f"--json {json}: {error.strerror}") from None
    judged_by = params or (f"the parameters in {restored}/run.json" if resumed.info else "the defaults")
    not_run = [f"not run: {name}, {reason}" for name, reason in found.not_run.items()]
    torn = [run.journal.torn for run in (baseline, dead, resumed) if run and run.journal and run.journal.torn]
    shown = (results.render(found.problems), "\n".join(torn + not_run), f"judged by {judged_by}\n{told['summary']}")
    print("\n\n".join(filter(None, shown)))
    raise typer.Exit(results.exit_code(found.verdict))


@app.command()
def cut(
    key: Annotated[str, typer.Argument(help="a cut as 1/3/0#1, or a row as 1/3/0")],
    runs: Annotated[Path, typer.Option(help="folder of the three runs")],
) -> None:
    """Show one cut whole: its records, the tokens of both runs round its places, their log-probabilities."""
    if not runs.is_dir():
        raise UsageError(f"{runs}: no folder of runs")
    print(cut_text(key, runs))


def main() -> None:
    """Run a command; a user's mistake ends in one message, not in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character gets its code
    try:
        app()
    except Told as error:
        print(f"restore-parity: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
