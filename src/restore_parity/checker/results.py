"""What a judgement becomes: the contents of results.json, and the words of its verdict."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from ..errors import IncompleteError, ParityError
from ..params import Params
from ..records import CutResult
from ..runs import RunInfo
from .dumps import Run, Runs
from .judgement import CHECKS, Judgement, MutationResult, RowResult, Status, Verdict
from .problems import Problem, render

LIBRARIES = ("restore-parity", "torch", "transformers", "papermill", "nbconvert")
EXIT_CODES: dict[Verdict, int] = {"PASS": 0, "FAIL": 1, "INCOMPLETE": 3}


class CheckResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one check came out; `why` says why it could not run."""

    id: str
    status: Status
    seen: int  # comparisons
    why: str | None = None


class Results(Struct, kw_only=True):
    """results.json: all that JUnit, summary and page tell."""

    verdict: Verdict
    summary: str
    problems: list[Problem] = field(default_factory=list)
    checks: list[CheckResult]
    cuts: list[CutResult] = field(default_factory=list)
    rows: list[RowResult] = field(default_factory=list)  # set aside without a cut
    unread_columns: list[str] = field(default_factory=list)
    mutations: list[MutationResult] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)  # difference by check, in nats
    provenance: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """The exit code of the command that made them."""
        return EXIT_CODES[self.verdict]


def require(judgement: Judgement, check: str) -> None:
    """Print what a check compared. Raises ParityError with its problems."""
    judgement.reported.add(check)
    compared = judgement.seen[check]
    if problems := judgement.of(check):
        title = f"{check}: {len(problems)} of {compared} comparisons failed"
        raise ParityError(f"{title}\n\n{render(problems)}")
    reason = judgement.why(check)
    if judgement.status(check) == "not_run":
        print(f"{check}: not run, {reason}")
        return
    if not compared:
        print(f"{check}: nothing to judge in these runs")
        return
    line = f"{check}: holds, {reason or f'{compared} compared'}"
    if check in judgement.largest:
        line += f", largest difference {judgement.largest[check]:.4g} nats"
    print(line)


def verdict_line(judgement: Judgement) -> str:
    """The verdict in words with the counts that carry it."""
    counts = judgement.counts
    not_run = sum(judgement.status(check) == "not_run" for check in CHECKS)
    tokens = f"{counts['tokens']} tokens, {counts['generated_tokens']} generated"
    parts = [
        f"{counts['rows']} rows ({tokens})",
        f"{len(judgement.cuts)} cuts",
        f"{judgement.set_aside} set aside",
        f"{len(CHECKS) - not_run} checks run",
    ]
    tried = [result for result in judgement.mutations if result.caught_by is not None]
    if judgement.mutations:
        caught = sum(result.caught for result in tried)
        parts.append(f"{caught} of {len(tried)} mutations caught")
    if not_run:
        parts.append(f"{not_run} not run")
    if count := len(judgement.rows):
        parts.append(f"{count} more rows set aside without a cut")
    if count := counts["rows_after_set_aside"]:
        parts.append(f"{count} rows behind a set-aside one not compared by policy-logprobs")
    if count := len(judgement.problems):
        parts.append("1 problem" if count == 1 else f"{count} problems")
    return f"{judgement.verdict}: {', '.join(parts)}"


def results(judgement: Judgement, provenance: dict[str, Any]) -> Results:
    """What results.json holds of a judgement."""
    checks = [
        CheckResult(
            id=check,
            status=judgement.status(check),
            seen=judgement.seen[check],
            why=judgement.why(check),
        )
        for check in CHECKS
    ]
    counts = {"cuts": len(judgement.cuts), "set_aside": judgement.set_aside}
    return Results(
        verdict=judgement.verdict,
        summary=verdict_line(judgement),
        problems=judgement.problems,
        checks=checks,
        cuts=judgement.cuts,
        rows=judgement.rows,
        unread_columns=sorted(judgement.unread),
        mutations=judgement.mutations,
        counts=dict(judgement.counts) | counts,
        largest=judgement.largest,
        provenance=provenance,
    )


def incomplete(reason: str, provenance: dict[str, Any]) -> Results:
    """What results.json holds where the checks were never reached."""
    why = "the report did not get there"
    return Results(
        verdict="INCOMPLETE",
        summary=f"INCOMPLETE: {reason}",
        checks=[CheckResult(id=check, status="not_run", seen=0, why=why) for check in CHECKS],
        provenance=provenance,
    )


def provenance(params: Params, runs: Runs) -> dict[str, Any]:
    """What was judged, by what: parameters, versions, each run's settings and its dump's hash."""
    infos = {run.name: run.info for run in runs.every if run.info}
    found = provenance_of_infos(params, infos)
    for run in runs.trained:
        found.setdefault(run.name, {})["dump_sha256"] = _dump_sha256(run)
    journal = runs.killed.journal if runs.killed else None
    if journal and journal.torn:
        found.setdefault("killed", {})["torn"] = journal.torn
    return found


def provenance_of_infos(params: Params, infos: dict[str, RunInfo]) -> dict[str, Any]:
    """The same as far as the runs' run.json tell it."""
    found: dict[str, Any] = {
        "params": params.model_dump(),
        "params_sha256": params.sha256(),
        "versions": _versions(),
    }
    names = ("run_id", "setup", "device", "git_revision", "start", "random_weights")
    for run, info in infos.items():
        found[run] = {name: getattr(info, name) for name in names}
    return found


def _versions() -> dict[str, str]:
    """Of this package and of what it may run with, as far as it is installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _dump_sha256(run: Run) -> str:
    with run.open() as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def conclude(judgement: Judgement, params: Params, runs: Runs) -> None:
    """Write results.json and print the verdict.

    Raises ParityError or IncompleteError unless it is PASS. A check that no cell has reported (one
    was cut short, or taken out) leaves nothing to conclude: no results are written.
    """
    silent = [check for check in (*CHECKS, "mutations") if check not in judgement.reported]
    if silent:
        raise IncompleteError(f"no cell has reported {', '.join(silent)}")
    found = results(judgement, provenance(params, runs))
    write_results(params.folder / "results.json", found)
    if found.verdict == "PASS":
        print(found.summary)
        return
    kind = ParityError if found.verdict == "FAIL" else IncompleteError
    raise kind(f"{found.summary}\n\n{render(judgement.problems)}")


def write_results(file: Path, found: Results) -> None:
    """Write results.json. Raises OSError."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(found)))


def read_results(file: Path) -> Results | None:
    """The results that another process wrote; None where there are none."""
    if not file.is_file():
        return None
    return msgspec.json.decode(file.read_bytes(), type=Results)
