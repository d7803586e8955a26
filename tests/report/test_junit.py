"""junit.xml: a case for each check, cut and mutation, that other tools can read."""

from collections.abc import Callable

import pytest
from builders import change_row, judged, params
from junitparser import Failure, JUnitXml, Skipped
from msgspec.structs import replace

from restore_parity.checker.judgement import CHECKS
from restore_parity.checker.loading import load_runs
from restore_parity.checker.proof import prove
from restore_parity.checker.results import Results, incomplete, results
from restore_parity.report.junit import write_junit

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m \x00 </pre> \u202e ]]>"


@pytest.fixture
def written(tmp_path) -> Callable[[Results], JUnitXml]:
    """Results as a file, read back."""

    def write(given: Results) -> JUnitXml:
        write_junit(tmp_path / "junit.xml", given)
        return JUnitXml.fromfile(str(tmp_path / "junit.xml"))

    return write


@pytest.fixture
def broken(runs) -> Results:
    """A row of a cut has another reward."""
    change_row(runs, "1/0/0", lambda row: row.update(reward=0.9))
    judgement = judged(runs)
    prove(judgement, load_runs(runs), params())
    return results(judgement, {})


def cases(suites: JUnitXml, name: str) -> list:
    return next(list(suite) for suite in suites if suite.name == name)


def failing(suites: JUnitXml, name: str) -> list[str]:
    return [
        case.name
        for case in cases(suites, name)
        if isinstance(next(iter(case.result), None), Failure)
    ]


def test_there_is_a_case_for_each_check(written, broken):
    assert [case.name for case in cases(written(broken), "checks")] == list(CHECKS)


def test_a_failed_check_fails_with_its_message(written, broken):
    suites = written(broken)
    assert failing(suites, "checks") == ["row-exact"]
    (failure,) = next(case for case in cases(suites, "checks") if case.name == "row-exact").result
    assert failure.message == "1 problem"
    assert failure.text.startswith("row-exact 1/0/0\n  where     reward\n")


def test_a_cut_fails_with_a_problem_of_its_row(written, broken):
    suites = written(broken)
    assert len(cases(suites, "cuts")) == 5
    assert failing(suites, "cuts") == ["1/0/0#1"]


def test_a_mutation_without_a_place_is_skipped(written, broken):
    impossible = [one for one in broken.mutations if one.caught_by is None]
    first = replace(broken.mutations[0], caught_by=None)
    broken.mutations = [first, *broken.mutations[1:]]
    mutations = cases(written(broken), "mutations")
    skipped = [
        case.name for case in mutations if isinstance(next(iter(case.result), None), Skipped)
    ]
    assert skipped == [first.id, *(one.id for one in impossible)]


def test_an_incomplete_report_is_not_a_success(written):
    assert written(incomplete("the kernel died", {})).errors == 1


def test_a_check_that_could_not_run_is_skipped_with_its_reason(written):
    suites = written(incomplete("the kernel died", {}))
    reasons = {case.result[0].message for case in cases(suites, "checks") if case.name in CHECKS}
    assert reasons == {"the report did not get there"}


def test_a_check_that_compared_only_a_part_is_not_skipped(written, pristine):
    judgement = judged(pristine)
    judgement.lack("token-budget", "cuts without a known limit")
    suites = written(results(judgement, {}))
    (case,) = [case for case in cases(suites, "checks") if case.name == "token-budget"]
    assert not case.result


def test_hostile_text_leaves_the_file_readable(written, broken):
    broken.problems[0] = replace(broken.problems[0], got=HOSTILE)
    (failure,) = next(
        case for case in cases(written(broken), "checks") if case.name == "row-exact"
    ).result
    assert "<script>alert(1)</script>" in failure.text
    assert "\\x1b[31m" in failure.text


def test_a_hostile_reason_leaves_the_file_readable(written):
    assert written(incomplete(HOSTILE, {})).errors == 1
