"""junit.xml: what CI shows of a report, a case for each check, cut and mutation."""

from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from ..checker.problems import Problem, concerning, printable, render
from ..checker.results import Results


def write_junit(file: Path, results: Results) -> None:
    """Write a case for each check, cut and mutation, the problems' messages as failure text."""
    suites = JUnitXml("restore-parity")
    suites.add_testsuite(_checks(results))
    suites.add_testsuite(_cuts(results))
    suites.add_testsuite(_mutations(results))
    suites.write(str(file), pretty=True)


def _checks(results: Results) -> TestSuite:
    suite = TestSuite("checks")
    for check in results.checks:
        problems = [problem for problem in results.problems if problem.check == check.id]
        skipped = check.why if check.status == "not_run" else None
        suite.add_testcase(_case("check", check.id, problems, skipped))
    if results.verdict != "PASS" and not results.problems:
        case = TestCase("verdict", "report")
        case.result = [Error(printable(results.summary))]
        suite.add_testcase(case)
    return suite


def _cuts(results: Results) -> TestSuite:
    suite = TestSuite("cuts")
    for cut in results.cuts:
        suite.add_testcase(_case("cut", cut.key, concerning(results.problems, cut.key)))
    return suite


def _mutations(results: Results) -> TestSuite:
    suite = TestSuite("mutations")
    for mutation in results.mutations:
        where = f"mutation {mutation.id}"
        problems = [problem for problem in results.problems if problem.where == where]
        skipped = "these rows hold no place for it" if mutation.caught_by is None else None
        suite.add_testcase(_case("mutation", mutation.id, problems, skipped))
    return suite


def _case(kind: str, name: str, problems: list[Problem], skipped: str | None = None) -> TestCase:
    case = TestCase(name, kind)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        failure = Failure(count)
        failure.text = render(problems)  # printable: XML 1.0 cannot hold control characters
        case.result = [failure]
    elif skipped:
        case.result = [Skipped(skipped)]
    return case
