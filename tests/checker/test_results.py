"""Results: what results.json holds of a judgement, and how the verdict is told."""

import json
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from builders import change_row, judged, params
from edits import FINISHED, TRAINED, change_every_row, judged_without_killed

from restore_parity.checker.dumps import Runs
from restore_parity.checker.judgement import CHECKS, MutationResult
from restore_parity.checker.loading import load_run, load_runs
from restore_parity.checker.results import (
    conclude,
    incomplete,
    provenance,
    read_results,
    require,
    results,
    verdict_line,
    write_results,
)
from restore_parity.errors import IncompleteError, ParityError


@pytest.fixture
def broken(runs) -> Path:
    """Runs of which a finished row has another reward."""
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9))
    return runs


class Concluded(NamedTuple):
    """How a conclusion ended: what it raised, and results.json."""

    error: Exception
    saved: dict


def concluded(folder: Path) -> Concluded:
    """Conclude runs that do not pass, every check reported."""
    judgement = judged(folder)
    judgement.reported.update((*CHECKS, "mutations"))
    with pytest.raises((ParityError, IncompleteError)) as caught:
        conclude(judgement, params(runs=str(folder)), load_runs(folder))
    return Concluded(caught.value, json.loads((folder / "results.json").read_text()))


# --- contents -------------------------------------------------------------------------------------


def test_results_hold_what_the_plan_of_the_format_names(pristine):
    assert set(msgspec.to_builtins(results(judged(pristine), {}))) == {
        "verdict",
        "summary",
        "problems",
        "checks",
        "cuts",
        "rows",
        "unread_columns",
        "mutations",
        "counts",
        "largest",
        "provenance",
    }


def test_results_hold_every_check(pristine):
    checks = results(judged(pristine), {}).checks
    assert [check.id for check in checks] == list(CHECKS)
    assert {check.status for check in checks} == {"pass"}


def test_a_check_is_told_with_how_much_it_compared(pristine):
    checks = msgspec.to_builtins(results(judged(pristine), {}))["checks"]
    assert checks[CHECKS.index("row-exact")] == {"id": "row-exact", "status": "pass", "seen": 40}


def test_a_check_that_could_not_run_is_told_with_its_reason(pristine):
    found = results(judged_without_killed(pristine), {})
    check = found.checks[CHECKS.index("prefix-logprobs")]
    assert check.status == "not_run"
    assert check.why == "no journal was given"


def test_cuts_hold_what_the_plan_of_the_format_names(pristine):
    cut = msgspec.to_builtins(results(judged(pristine), {}))["cuts"][0]
    assert cut.keys() >= {
        "key",
        "prefix_tokens",
        "tail_tokens",
        "status",
        "first_difference",
        "margin_uninterrupted",
        "margin_restored",
    }


def test_counts_tell_of_cuts_too(pristine):
    counts = results(judged(pristine), {}).counts
    assert counts.items() >= {"cuts": 5, "set_aside": 0, "rows": 8}.items()


def test_results_of_a_report_that_never_came_to_its_checks(pristine):
    found = incomplete("the kernel died", {"params": {}})
    assert (found.verdict, found.summary) == ("INCOMPLETE", "INCOMPLETE: the kernel died")
    assert [check.id for check in found.checks] == list(CHECKS)
    assert {check.status for check in found.checks} == {"not_run"}
    assert found.provenance == {"params": {}}


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 1), ("INCOMPLETE", 3)])
def test_a_verdict_has_an_exit_code(verdict, code):
    found = incomplete("x", {})
    found.verdict = verdict
    assert found.exit_code == code


def test_results_are_read_as_they_were_written(broken, tmp_path):
    found = results(judged(broken), provenance(params(), load_runs(broken)))
    write_results(tmp_path / "results.json", found)
    assert msgspec.to_builtins(read_results(tmp_path / "results.json")) == msgspec.to_builtins(
        found
    )


def test_results_that_are_not_there_are_none(tmp_path):
    assert read_results(tmp_path / "results.json") is None


# --- provenance -----------------------------------------------------------------------------------


def test_provenance_names_the_bytes_that_were_judged(broken):
    found = concluded(broken).saved["provenance"]
    hashes = {found[run]["dump_sha256"] for run in TRAINED}
    assert {len(digest) for digest in hashes} == {64}
    assert len(hashes) == 2


def test_provenance_holds_parameters_versions_and_each_run(pristine):
    found = provenance(params(), load_runs(pristine))
    assert found["params"] == params().model_dump()
    assert found["params_sha256"] == params().sha256()
    assert "restore-parity" in found["versions"]
    assert [found[run]["run_id"] for run in ("uninterrupted", "killed", "restored")] == [*"ukr"]


def test_provenance_of_dumps_alone_has_their_hashes(pristine):
    runs = {name: load_run(pristine / name / "training.jsonl", name) for name in TRAINED}
    found = provenance(params(), Runs(**runs))
    assert [*found["restored"]] == ["dump_sha256"]
    assert "killed" not in found


def test_provenance_tells_of_a_torn_journal(runs):
    with (runs / "killed" / "journal.jsonl").open("ab") as stream:
        stream.write(b'{"event":"del')
    assert "torn last record of 13 bytes" in provenance(params(), load_runs(runs))["killed"]["torn"]


# --- the verdict in words -------------------------------------------------------------------------


def test_the_verdict_is_told_with_the_counts_that_carry_it(pristine):
    assert verdict_line(judged(pristine)) == (
        "PASS: 8 rows (917 tokens, 150 generated), 5 cuts, 0 set aside, 25 checks run"
    )


def test_the_verdict_tells_of_problems_and_of_what_did_not_run(runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9))
    line = verdict_line(judged_without_killed(runs))
    assert line.startswith("FAIL: ")
    assert line.endswith("20 checks run, 5 not run, 1 problem")


def test_the_verdict_counts_problems(runs):
    change_row(runs, FINISHED, lambda row: row.update(reward=0.9, sample_loss_mask=0.0))
    assert verdict_line(judged(runs)).endswith(", 2 problems")


def test_the_verdict_counts_mutations_that_had_a_place(pristine):
    judgement = judged(pristine)
    for name, caught_by in {"a": ["row-exact"], "b": [], "c": None}.items():
        result = MutationResult(id=name, check="row-exact", caught_by=caught_by)
        judgement.mutations.append(result)
    assert verdict_line(judgement).endswith(", 1 of 2 mutations caught")


# --- what a check's cell says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "line"),
    [
        ("row-exact", "row-exact: holds, 40 compared"),
        ("tail-logprobs", "tail-logprobs: holds, 24 compared, largest difference 0 nats"),
        ("near-tie", "near-tie: nothing to judge in these runs"),
    ],
    ids=["compared", "with a difference", "nothing to judge"],
)
def test_a_check_that_holds_says_how_much_it_compared(pristine, capsys, check, line):
    require(judged(pristine), check)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_check_that_could_not_run_says_why(pristine, capsys):
    require(judged_without_killed(pristine), "prefix-logprobs")
    assert capsys.readouterr().out == "prefix-logprobs: not run, no journal was given\n"


def test_a_check_raises_its_problems(broken):
    with pytest.raises(ParityError) as caught:
        require(judged(broken), "row-exact")
    title, blank, *problem = str(caught.value).splitlines()
    assert (title, blank) == ("row-exact: 1 of 40 comparisons failed", "")
    assert [line.split()[0] for line in problem[1:]] == ["where", "expected", "got", "next"]


def test_a_check_raises_no_problems_of_another(broken, capsys):
    require(judged(broken), "row-membership")
    assert capsys.readouterr().out == "row-membership: holds, 16 compared\n"


# --- the conclusion -------------------------------------------------------------------------------


def test_a_failed_verdict_is_written_and_raised(broken):
    error, saved = concluded(broken)
    assert type(error) is ParityError
    assert saved["verdict"] == "FAIL"
    assert [problem["check"] for problem in saved["problems"]] == ["row-exact"]
    assert str(error).splitlines()[2] == f"row-exact {FINISHED}"


def test_an_incomplete_verdict_is_written_and_raised(runs):
    change_every_row(runs, lambda row: row.update(reward=0.25))
    error, saved = concluded(runs)
    assert type(error) is IncompleteError
    assert saved["verdict"] == "INCOMPLETE"


def test_a_passing_verdict_is_written_and_said(runs, capsys):
    judgement = judged(runs)
    judgement.reported.update((*CHECKS, "mutations"))
    conclude(judgement, params(runs=str(runs)), load_runs(runs))
    assert capsys.readouterr().out.startswith("PASS: 8 rows")
    assert read_results(runs / "results.json").verdict == "PASS"


@pytest.mark.parametrize("silent", ["kill-happened", "mutations"])
def test_a_check_that_no_cell_has_reported_leaves_no_results(pristine, tmp_path, silent):
    judgement = judged(pristine)
    judgement.reported.update({*CHECKS, "mutations"} - {silent})
    with pytest.raises(IncompleteError, match=rf"^no cell has reported {silent}$"):
        conclude(judgement, params(runs=str(tmp_path)), load_runs(pristine))
    assert not (tmp_path / "results.json").exists()
