"""Where a report comes from: its parameters, versions, hashes, and the commands that make it."""

import shlex
from typing import Any

import msgspec
import papermill  # type: ignore[import-untyped]
from IPython.display import HTML
from msgspec import Struct

from ..checker import results
from ..checker.dumps import Runs
from ..checker.judgement import Judgement
from ..params import Params
from .html_table import failed_first, table
from .notebook import REPORT_NOTEBOOK


class RunProvenance(Struct, frozen=True, kw_only=True):
    """What is known of one run; other trainers' runs, and one that never started, tell little."""

    run_id: str | None = None
    setup: dict[str, Any] = {}
    device: str | None = None
    git_revision: str | None = None
    start: float | None = None  # epoch seconds
    random_weights: str | None = None  # in words, where the weights are no trained ones
    dump_sha256: str | None = None
    torn: str | None = None  # the journal's last record, where a kill cut it short


def run_provenance(provenance: dict[str, Any], run: str) -> RunProvenance:
    """What the provenance of a report tells of one of its runs."""
    return msgspec.convert(provenance.get(run, {}), RunProvenance)


def parameters(params: Params) -> HTML:
    """Every parameter, the changed ones marked; the notebook's own cell says what each is."""
    known = papermill.inspect_notebook(str(REPORT_NOTEBOOK))
    lines = []
    for name, value in params:
        default = getattr(Params(), name)
        line = {
            "parameter": name,
            "value": _plain(value),
            "changed from": "" if value == default else _plain(default),
            "what it is": known[name]["help"],
        }
        lines.append(line)
    return table(lines)


def _plain(value: object) -> str:
    return value if isinstance(value, str) and value else repr(value)


def hashes(params: Params, loaded: Runs) -> HTML:
    """Versions, and what was hashed."""
    found = results.provenance(params, loaded)
    lines = {"parameters, SHA-256 of what decides the rows": found["params_sha256"]}
    for library, number in found["versions"].items():
        lines[f"version of {library}"] = number
    for run in loaded.every:
        lines |= _run_lines(run.name, run_provenance(found, run.name))
    return table({"what": what, "value": value} for what, value in lines.items())


def _run_lines(name: str, run: RunProvenance) -> dict[str, Any]:
    values = {
        "engine": run.setup.get("engine"),
        "weights_sha256": run.setup.get("weights_sha256"),
        "run_id": run.run_id,
        "dump_sha256": run.dump_sha256,
        "torn": run.torn,
    }
    return {f"{name}: {what}": value for what, value in values.items() if value is not None}


def commands(judgement: Judgement) -> HTML:
    """How to make this report again, to check it without engine or GPU, and to open one cut."""
    folder = shlex.quote(judgement.params.runs)
    first_cuts = [cut.key for cut in failed_first(judgement.cuts)[:1]] or ["1/0/0#1"]
    names = ("uninterrupted", "restored", "killed")
    given = " ".join(f"--{name} {folder}/{name}" for name in names)
    lines = {
        "make it again": "restore-parity report PARAMS.yaml, with the parameters above",
        "judge the saved runs again": "restore-parity report PARAMS.yaml --reuse",
        "check them in the terminal": f"restore-parity check {given}",
        "open one cut": f"restore-parity cut {first_cuts[0]} --runs {folder}",
    }
    return table({"to": what, "command": command} for what, command in lines.items())
