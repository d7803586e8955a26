"""Results: one renderer of problems, and files that other tools read."""

import json

import pytest
from builders import change_row, judged, params
from junitparser import JUnitXml

from restore_parity import results
from restore_parity.checks import CHECKS
from restore_parity.errors import IncompleteError, ParityError
from restore_parity.saved import load_runs

HOSTILE = "<script>alert(1)</script> | `x` \x1b[31m \x00 </pre> \u202e ]]>"


@pytest.fixture
def broken(runs):
    change_row(runs, "1/0/1", lambda row: row.update(reward=0.9))
    return runs


def concluded(folder):
    judgement = judged(folder)
    judgement.told.update((*CHECKS, "mutations"))
    with pytest.raises((ParityError, IncompleteError)) as caught:
        results.conclude(judgement, params(runs=str(folder)), load_runs(folder))
    return caught, json.loads((folder / "results.json").read_text())


def test_results_hold_every_planned_check(pristine, tmp_path):
    told = json.loads(json.dumps(results.msgspec.to_builtins(results.results(judged(pristine), {}))))
    assert [check["id"] for check in told["checks"]] == list(CHECKS)
    assert set(told) == {"verdict", "summary", "problems", "checks", "cuts", "mutations", "counts", "largest", "provenance"}


def test_cuts_hold_what_the_plan_of_the_format_names(pristine):
    cut = results.msgspec.to_builtins(results.results(judged(pristine), {}))["cuts"][0]
    named = {"key", "prefix_tokens", "tail_tokens", "status", "first_difference", "margin_uninterrupted", "margin_restored"}
    assert named <= set(cut)


def test_a_failed_verdict_is_written_and_raised(broken):
    caught, told = concluded(broken)
    assert caught.type is ParityError and told["verdict"] == "FAIL" and told["problems"][0]["check"] == "row-exact"


def test_provenance_names_the_bytes_that_were_judged(broken):
    _, told = concluded(broken)
    hashes = [told["provenance"][run]["dump_sha256"] for run in ("uninterrupted", "restored")]
    assert hashes[0] != hashes[1] and all(len(digest) == 64 for digest in hashes)


def test_a_check_that_no_cell_told_of_leaves_no_results(pristine, tmp_path):
    with pytest.raises(IncompleteError, match="no cell has told of kill-happened"):
        results.conclude(judged(pristine), params(runs=str(tmp_path)), [])
    assert not (tmp_path / "results.json").exists()


def test_a_check_cell_raises_its_problems_and_only_its_own(broken):
    judgement = judged(broken)
    results.require(judgement, "row-membership")
    with pytest.raises(ParityError, match=r"(?s)row-exact: 1 of 32 comparisons failed.*expected.*got.*next"):
        results.require(judgement, "row-exact")


def test_a_long_list_of_problems_is_cut_short_and_says_so(broken):
    problem = judged(broken).problems[0]
    assert results.render([problem] * 25).count("row-exact") == 20 and "5 more" in results.render([problem] * 25)


def test_junit_has_a_case_for_each_check_and_each_cut(broken, tmp_path):
    _, told = concluded(broken)
    results.write_junit(tmp_path / "junit.xml", told)
    suites = {suite.name: list(suite) for suite in JUnitXml.fromfile(str(tmp_path / "junit.xml"))}
    failing = [case.name for case in suites["checks"] if case.result]
    assert (len(suites["checks"]), len(suites["cuts"]), failing) == (len(CHECKS), 5, ["row-exact"])


def test_junit_of_an_incomplete_report_is_no_success(tmp_path):
    results.write_junit(tmp_path / "junit.xml", results.incomplete("the kernel died", {}))
    assert JUnitXml.fromfile(str(tmp_path / "junit.xml")).errors == 1


def test_hostile_text_is_inert_in_junit_and_summary(broken, tmp_path):
    _, told = concluded(broken)
    told["problems"][0]["got"] = told["summary"] = HOSTILE
    results.write_junit(tmp_path / "junit.xml", told)
    results.write_summary(tmp_path / "summary.md", told)
    assert JUnitXml.fromfile(str(tmp_path / "junit.xml")).failures == 1
    assert not set("\x1b\x00") & set(text := (tmp_path / "summary.md").read_text()) and "<script>" not in text
    assert text.count("</pre>") == 1


def test_the_summary_stays_under_what_a_step_summary_may_hold(broken, tmp_path):
    _, told = concluded(broken)
    told["problems"][0]["got"] = "ä" * 2_000_000
    results.write_summary(tmp_path / "summary.md", told)
    assert (tmp_path / "summary.md").stat().st_size < 1024 * 1024


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 1), ("INCOMPLETE", 3)])
def test_exit_codes(verdict, code):
    assert results.exit_code(verdict) == code
