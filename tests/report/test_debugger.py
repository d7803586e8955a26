"""The debugger: over saved runs, whole or damaged, and with the real engine by its own command."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import nbformat
import pytest
from builders import at_place, change_records, change_row

from restore_parity.checker.cut_text import cut_text
from restore_parity.checker.loading import load_runs
from restore_parity.errors import UsageError
from restore_parity.experiment.rerun import RerunTask, read_rerun, run_again
from restore_parity.params import shipped
from restore_parity.report import debugger, debugger_views

NOTEBOOK = shipped("notebooks/debug_cut.ipynb")
TABLES = (
    debugger_views.window_table,
    debugger_views.trace_table,
    debugger_views.candidate_table,
)


class Executed(NamedTuple):
    """A notebook that papermill ran."""

    exit_code: int
    text: str  # of all its cells
    error: str  # papermill's standard error


def papermill(words, folder: Path) -> Executed:
    """Run papermill as on a command line, from a folder."""
    command = [sys.executable, "-m", *map(str, words), "--no-progress-bar"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    file = Path(words[2])
    cells = nbformat.read(file, as_version=4).cells if file.exists() else []
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    return Executed(done.returncode, text, done.stderr)


def case_of(runs: Path, name: str = "") -> debugger.Case:
    return debugger.pick(*debugger.judge_saved(str(runs)), name)


def drop_row(runs: Path) -> None:
    file = runs / "restored" / "training.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))


def change_columns(**columns):
    return lambda runs: change_row(runs, "1/0/0", lambda row: row.update(columns))


def one_call_alone(runs: Path) -> None:
    change_row(
        runs, "1/0/0", lambda row: row.update(token_loss_mask=[1.0] * len(row["token_loss_mask"]))
    )


DAMAGE = {
    "none": lambda runs: None,
    "a token": lambda runs: change_row(runs, "1/0/0", at_place(-2, token_ids=99)),
    "no row": drop_row,
    "no records": lambda runs: change_records(runs, lambda records: []),
    "no likeliest tokens": change_columns(generation_top_logprobs=None),
    "no call": one_call_alone,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_every_view_of_a_cut_can_be_made_of_damaged_runs(runs, damage, capsys):
    damage(runs)
    case = case_of(runs, "1/0/0#1")
    debugger.show_records(case)
    debugger.take_rerun(case, again=False)
    debugger_views.plot_trace(case)
    for table in TABLES:
        assert table(case).data.startswith(("<table", "<p>none"))
    debugger.show_finding(case)
    assert "1/0/0#1: undecided: " in capsys.readouterr().out


def test_failed_cuts_are_listed_first(runs):
    change_row(runs, "1/1/1", lambda row: row.update(reward=0.9))
    judgement, _ = debugger.judge_saved(str(runs))
    page = debugger.cut_list(judgement).data
    assert page.index("1/1/1#0") < page.index("1/0/0#1")
    assert "row-exact" in page


def test_without_a_name_the_first_failed_cut_is_taken(runs):
    change_row(runs, "1/1/1", lambda row: row.update(reward=0.9))
    assert case_of(runs).cut.name == "1/1/1#0"


def test_a_row_names_its_cut(pristine):
    assert case_of(pristine, "1/1/1").cut.name == "1/1/1#0"


def test_an_unknown_cut_is_the_users_mistake(pristine):
    known = r"'9/9/9#1' is not a cut of these runs\n  -> the cuts are 1/0/0#1"
    with pytest.raises(UsageError, match=known):
        case_of(pristine, "9/9/9#1")


def test_an_unknown_folder_is_the_users_mistake():
    with pytest.raises(UsageError, match="'runs/none' is not a folder"):
        debugger.judge_saved("runs/none")


@pytest.fixture
def windows(runs) -> dict[str, dict[str, str]]:
    """The marked lines of the window table of a row that parts from the baseline, by what they are.

    Each line maps a column's title to its cell.
    """
    change_row(runs, "1/0/0", at_place(-2, token_ids=99))
    page = debugger_views.window_table(case_of(runs, "1/0/0#1")).data
    titles, *lines = [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in page.split("<tr")[1:]]
    marked = [line for line in lines if line[1].endswith("&lt;-")]
    return {line[0]: dict(zip(titles, line, strict=True)) for line in marked}


def test_a_window_shows_both_rows_at_their_first_difference(windows, runs):
    line = windows["first difference"]
    length = case_of(runs, "1/0/0#1").rows["restored"].input_length
    assert line["place"] == f"{length - 2} &lt;-"
    assert line["restored: token"] == "99"
    assert line["uninterrupted: token"] != "99"


def test_a_window_shows_both_rows_at_the_seam(windows, runs):
    line = windows["seam"]
    assert line["place"] == f"{len(case_of(runs, '1/0/0#1').cut.prompt_ids) + 3} &lt;-"
    assert float(line["uninterrupted: nats"]) < 0
    assert line["uninterrupted: nats"] == line["restored: nats"]


def test_a_models_text_is_inert(runs):
    change_row(runs, "1/0/0", at_place(-2, token_ids=99))
    case = case_of(runs, "1/0/0#1")
    case.judgement.decode = lambda ids: "<script>\x1b[31m\u202e"
    page = "".join(table(case).data for table in TABLES)
    assert "&lt;script&gt;\\x1b[31m\\u202e" in page
    assert "<script>" not in page
    assert "\x1b" not in page


def test_the_notebook_ends_with_a_finding_where_the_call_cannot_run_again(runs):
    """The scripted runs do not say what engine they ran with: what was saved is shown anyway."""
    words = ["papermill", NOTEBOOK, runs / "out.ipynb", "-p", "runs", runs, "-p", "cut", "1/0/0#1"]
    executed = papermill(words, runs)
    assert executed.exit_code == 0
    assert "not run again: 1-0-0-1: the rerun ended with exit code 1" in executed.text
    assert "setup has no engine_args; the call cannot run as it did" in executed.text
    assert "Traceback" not in executed.text
    assert "1/0/0#1: undecided: the cut was not run again" in executed.text


def test_the_notebook_tells_a_mistake_without_a_traceback(tmp_path):
    words = ["papermill", NOTEBOOK, tmp_path / "out.ipynb", "-p", "runs", tmp_path / "none"]
    executed = papermill(words, tmp_path)
    assert executed.exit_code == 1
    assert "UsageError: runs: " in executed.error
    assert "debugger.py" not in executed.error


@pytest.fixture(scope="module")
def rerun_notebook(rerun) -> Executed:
    """The debugger of 1/0/0#1 with the real engine, by the command that `cut` prints."""
    lines = cut_text("1/0/0#1", rerun).splitlines()
    command = next(line for line in lines if line.startswith("  papermill"))
    return papermill(shlex.split(command), Path.cwd())


def test_both_ways_give_a_right_restore_bit_for_bit(rerun_notebook, rerun):
    case = case_of(rerun, "1/0/0#1")
    again = read_rerun(case.folder)
    assert rerun_notebook.exit_code == 0
    assert case.uninterrupted == case.restored
    assert again.prefill == case.uninterrupted
    assert again.decode == case.uninterrupted
    assert again.changed == []


def test_torch_scores_the_call_as_the_engine_did(rerun_notebook, rerun):
    case = case_of(rerun, "1/0/0#1")
    scores = read_rerun(case.folder).torch.logprobs
    assert scores == pytest.approx(case.uninterrupted.logprobs, abs=1e-4)


def test_a_right_restore_is_found_as_saved(rerun_notebook):
    assert "no check has a problem" in rerun_notebook.text
    assert "1/0/0#1: as saved: " in rerun_notebook.text


def test_a_changed_token_of_the_restored_row_is_found_to_be_a_restore_bug(
    rerun_notebook, rerun, saved
):
    """From the failure on by its own words; what the engine gives it gave a moment ago."""
    again = case_of(rerun, "1/0/0#1").folder
    change_row(saved, "1/0/0", at_place(-2, token_ids=7))
    judgement, _ = debugger.judge_saved(str(saved))
    problem = next(one for one in judgement.problems if one.check == "near-tie")
    _, _, cut, _, runs = shlex.split(problem.next)
    case = case_of(Path(runs), cut)
    case.folder.mkdir(parents=True)
    (case.folder / "again.json").write_bytes((again / "again.json").read_bytes())
    debugger.take_rerun(case, again=False)
    finding = debugger.diagnose(case.cut, case.uninterrupted, case.restored, case.rerun)
    assert finding.kind == "restore bug"
    assert any("token 38 of the call is" in fact for fact in finding.facts)


def test_forced_tokens_are_decoded_as_given_with_the_models_own_log_probabilities(rerun, tmp_path):
    """A captured token that the model finds unlikely is forced all the same, and shows."""
    killed = load_runs(rerun).killed
    calls = killed.journal.open_calls()
    place = next(at for at, call in enumerate(calls) if call.name == "2/0/0#1")
    right = calls[place]
    wrong = msgspec.structs.replace(right, ids=[*right.ids[:-1], 7])
    calls[place] = wrong
    task = RerunTask(
        cut=wrong.name, calls=calls, info=killed.info, uninterrupted=None, restored=None
    )
    run_again(tmp_path / "again", task)
    decode = read_rerun(tmp_path / "again").decode
    last = len(wrong.ids) - 1
    assert decode.ids[: last + 1] == wrong.ids
    assert decode.logprobs[:last] == right.logprobs[:-1]
    *likeliest, given = decode.top_logprobs[last]
    assert likeliest == right.top_logprobs[-1]
    assert given == (7, decode.logprobs[last])
    assert decode.logprobs[last] < right.top_logprobs[-1][1][1]
