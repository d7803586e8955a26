"""What a judgement becomes: messages, results.json, junit.xml, summary.md. One renderer (Problem's own) makes them all."""

import hashlib
import html
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from .checks import CHECKS, Judgement
from ..errors import IncompleteError, ParityError
from .dumps import Run
from .problems import Problem, render
from ..params import Params

NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SUMMARY_BYTES = 900_000  # a step summary over 1 MiB is dropped whole
LIBRARIES = ("restore-parity", "torch", "transformers", "papermill", "nbconvert")


def require(judgement: Judgement, check: str) -> None:
    """Print what a check saw. Raises ParityError with its problems."""
    judgement.told.add(check)
    if problems := judgement.of(check):
        raise ParityError(f"{check}: {len(problems)} of {judgement.seen[check]} comparisons failed\n\n{render(problems)}")
    if reason := judgement.not_run.get(check):
        print(f"{check}: not run, {reason}")
        return
    largest = f", largest difference {judgement.largest[check]:.4g} nats" if check in judgement.largest else ""
    seen = (
        f"holds, {judgement.seen[check]} compared{largest}" if judgement.seen[check] else "nothing to judge in these runs"
    )
    print(f"{check}: {seen}")


def verdict_line(judgement: Judgement) -> str:
    """The verdict in words with the counts that carry it."""
    counts, cuts, aside = judgement.counts, judgement.cuts, judgement.set_aside
    told = (
        f"{judgement.verdict}: {counts['rows']} rows ({counts['tokens']} tokens, {counts['generated_tokens']} generated), "
        f"{len(cuts)} cuts, {aside} set aside, {len(CHECKS) - len(judgement.not_run)} checks run"
    )
    if judgement.mutations:
        tried = [result for result in judgement.mutations if result.caught_by is not None]
        told += f", {sum(r.check in r.caught_by for r in tried)} of {len(tried)} mutations caught"
    if judgement.not_run:
        told += f", {len(judgement.not_run)} not run"
    count = len(judgement.problems)
    return told + (f", {count} problem{'s' * (count > 1)}" if count else "")


def results(judgement: Judgement, provenance: dict[str, Any]) -> dict[str, Any]:
    """The contents of results.json."""
    checks = [
        {"id": check, "status": judgement.status(check), "seen": judgement.seen[check]}
        | ({"why": judgement.not_run[check]} if check in judgement.not_run else {})
        for check in CHECKS
    ]
    counts = dict(judgement.counts) | {
        "cuts": len(judgement.cuts),
        "set_aside": judgement.set_aside,
    }
    return {
        "verdict": judgement.verdict,
        "summary": verdict_line(judgement),
        "problems": judgement.problems,
        "checks": checks,
        "cuts": judgement.cuts,
        "mutations": judgement.mutations,
        "counts": counts,
        "largest": judgement.largest,
        "provenance": provenance,
    }


def incomplete(reason: str, provenance: dict[str, Any]) -> dict[str, Any]:
    """The contents of results.json where the checks were never reached."""
    checks = [{"id": check, "status": "not_run", "seen": 0, "why": "the report did not get there"} for check in CHECKS]
    empty = {"problems": [], "cuts": [], "mutations": [], "counts": {}}
    return {
        "verdict": "INCOMPLETE",
        "summary": f"INCOMPLETE: {reason}",
        "checks": checks,
        "provenance": provenance,
    } | empty


def provenance(params: Params, runs: Iterable[Run] = ()) -> dict[str, Any]:
    told: dict[str, Any] = {"params": params.model_dump(), "params_sha256": params.sha256()}
    told["versions"] = {name: version(name) for name in LIBRARIES}
    for run in runs:
        entry = {}
        if run.info is not None:
            entry = {name: getattr(run.info, name) for name in ("run_id", "setup", "device", "git_revision", "start")}
        if run.dump is not None:
            with run.open() as stream:
                entry["dump_sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
        if run.journal is not None and run.journal.torn:
            entry["torn"] = run.journal.torn
        told[run.name] = entry
    return told


def conclude(judgement: Judgement, params: Params, runs: Iterable[Run]) -> None:
    """Write results.json and say the verdict. Raises ParityError or IncompleteError unless it is PASS.

    A check that no cell has told of (one was cut short, or taken out) leaves nothing to conclude: no results are written.
    """
    if silent := [check for check in (*CHECKS, "mutations") if check not in judgement.told]:
        raise IncompleteError(f"no cell has told of {', '.join(silent)}")
    write_json(params.folder / "results.json", results(judgement, provenance(params, runs)))
    if judgement.verdict == "PASS":
        print(verdict_line(judgement))
        return
    kind = ParityError if judgement.verdict == "FAIL" else IncompleteError
    raise kind(f"{verdict_line(judgement)}\n\n{render(judgement.problems)}")


def write_json(file: Path, told: dict[str, Any]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(told)))


def read_results(file: Path) -> dict[str, Any] | None:
    """The results another process wrote; None where there are none."""
    return msgspec.json.decode(file.read_bytes()) if file.is_file() else None


def problems_of(told: dict[str, Any]) -> list[Problem]:
    return [msgspec.convert(problem, Problem) for problem in msgspec.to_builtins(told["problems"])]


def write_junit(file: Path, told: dict[str, Any]) -> None:
    """A case for each check and each cut, the four-line message as failure text."""
    suites = JUnitXml("restore-parity")
    problems = problems_of(told)
    suite = TestSuite("checks")
    for check in told["checks"]:
        mine = [problem for problem in problems if problem.check == check["id"]]
        suite.add_testcase(_case("check", check["id"], mine, check.get("why") if check["status"] == "not_run" else None))
    if not problems and told["verdict"] != "PASS":
        case = TestCase("verdict", "report")
        case.result = [Error(_xml(told["summary"]))]
        suite.add_testcase(case)
    suites.add_testsuite(suite)
    cuts = TestSuite("cuts")
    for cut in msgspec.to_builtins(told["cuts"]):
        mine = [problem for problem in problems if problem.key == cut["key"]]
        cuts.add_testcase(_case("cut", cut["key"], mine, None))
    suites.add_testsuite(cuts)
    broken = TestSuite("mutations")
    for result in msgspec.to_builtins(told["mutations"]):
        mine = [problem for problem in problems if problem.where == f"mutation {result['id']}"]
        skipped = None if result["caught_by"] is not None else "these rows hold no place for it"
        broken.add_testcase(_case("mutation", result["id"], mine, skipped))
    suites.add_testsuite(broken)
    suites.write(str(file), pretty=True)


def _case(kind: str, name: str, problems: list[Problem], skipped: str | None) -> TestCase:
    case = TestCase(name, kind)
    if problems:
        failure = Failure(f"{len(problems)} problem{'s' * (len(problems) > 1)}")
        failure.text = _xml(render(problems))
        case.result = [failure]
    elif skipped:
        case.result = [Skipped(skipped)]
    return case


def _xml(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold, escaped or not."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def write_summary(file: Path, told: dict[str, Any]) -> None:
    """Markdown for a CI step's summary page: verdict, checks, first problems; escaped and bounded."""
    lines = [f"## {_inert(told['summary'].splitlines()[0])}", "", "| check | status | compared |", "| -- | -- | --: |"]
    lines += [f"| `{check['id']}` | {check['status']} | {check['seen']} |" for check in told["checks"]]
    if told["problems"]:
        shown = _inert(render(problems_of(told))).encode()[:SUMMARY_BYTES].decode(errors="ignore")
        lines += ["", f"<pre>{shown}</pre>"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _inert(text: str) -> str:
    return html.escape(_xml(text)).replace("`", "&#96;").replace("|", "&#124;")


def exit_code(verdict: str) -> int:
    return {"PASS": 0, "FAIL": 1, "INCOMPLETE": 3}[verdict]
