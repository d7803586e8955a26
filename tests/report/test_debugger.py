"""The debugger: over saved runs that are whole or damaged, and whole with the real engine, as its command is printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import nbformat
import pytest
from builders import at_place, change_records, change_row

from restore_parity import again, debug
from restore_parity.cuts import NOTEBOOK, cut_text
from restore_parity.errors import UsageError
from restore_parity.params import ROOT
from restore_parity.saved import load_runs


def papermill(words) -> tuple[int, str, str]:
    """Run papermill as on a command line, from the project's folder: exit code, the notebook's texts, standard error."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words), "--no-progress-bar"], cwd=ROOT, capture_output=True, text=True
    )
    cells = nbformat.read(words[2], as_version=4).cells if Path(words[2]).exists() else []
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    return done.returncode, "".join(output.get("text", "") for output in outputs), done.stderr


def case(runs: Path, name: str = "") -> debug.Case:
    return debug.pick(*debug.judged(str(runs)), name)


def drop_row(runs: Path) -> None:
    file = runs / "restored" / "training.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))


DAMAGE = {
    "none": lambda runs: None,
    "a token": lambda runs: change_row(runs, "1/0/0", at_place(-2, token_ids=99)),
    "no row": drop_row,
    "no records": lambda runs: change_records(runs, lambda records: []),
    "no top-2": lambda runs: change_row(runs, "1/0/0", lambda row: row.update(generation_top2=None)),
    "no call": lambda runs: change_row(
        runs, "1/0/0", lambda row: row.update(token_loss_mask=[1.0] * len(row["token_loss_mask"]))
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_every_view_of_a_cut_can_be_made_of_damaged_runs(runs, damage, capsys):
    damage(runs)
    mine = case(runs, "1/0/0#1")
    debug.tell(mine)
    debug.try_again(mine, wanted=False)
    debug.plot_trace(mine)
    for table in (debug.window_table, debug.trace_table, debug.candidate_table):
        assert table(mine).data.startswith(("<table", "<p>none"))
    debug.conclude(mine)
    assert "1/0/0#1: undecided: " in capsys.readouterr().out


def test_failed_cuts_are_listed_first_and_the_first_is_taken(runs):
    change_row(runs, "1/1/1", lambda row: row.update(reward=0.9))
    judgement, _ = debug.judged(str(runs))
    page = debug.cut_list(judgement).data
    assert page.index("1/1/1#0") < page.index("1/0/0#1") and "row-exact" in page and case(runs).cut.name == "1/1/1#0"


def test_a_row_names_its_cut(pristine):
    assert case(pristine, "1/1/1").cut.name == "1/1/1#0"


def test_an_unknown_cut_or_folder_is_the_users_mistake(pristine):
    with pytest.raises(UsageError, match=r"'9/9/9#1' is no cut of these runs\n  -> the cuts are 1/0/0#1"):
        case(pristine, "9/9/9#1")
    with pytest.raises(UsageError, match="'runs/none' is no folder"):
        debug.judged("runs/none")


def test_windows_show_both_rows_at_the_seam_and_at_the_first_difference(runs):
    change_row(runs, "1/0/0", at_place(-2, token_ids=99))
    mine = case(runs, "1/0/0#1")
    names, *lines = [re.findall(r"<t[dh]>(.*?)</t[dh]>", line) for line in debug.window_table(mine).data.split("<tr")[1:]]
    told = {line[1]: dict(zip(names, line, strict=True)) for line in lines}
    there = told[f"{mine.rows['restored'].input_length - 2} &lt;-"]
    assert there["round"] == "first difference" and there["restored: token"] == "99" != there["uninterrupted: token"]
    seam = told[f"{len(mine.cut.prompt_ids) + 3} &lt;-"]
    assert seam["round"] == "seam" and float(seam["uninterrupted: nats"]) == float(seam["restored: nats"]) < 0


def test_a_models_text_is_inert(runs):
    change_row(runs, "1/0/0", at_place(-2, token_ids=99))
    mine = case(runs, "1/0/0#1")
    mine.judgement.text = lambda ids: "<script>\x1b[31m\u202e"
    page = "".join(table(mine).data for table in (debug.window_table, debug.candidate_table))
    assert "&lt;script&gt;\\x1b[31m\\u202e" in page and "<script>" not in page and "\x1b" not in page


def test_the_notebook_ends_with_a_finding_where_no_engine_is(runs):
    """The scripted runs are of no real model: what was saved is shown all the same."""
    words = ["papermill", NOTEBOOK, runs / "debug.ipynb", "-p", "runs", runs, "-p", "cut", "1/0/0#1"]
    code, told, _ = papermill(words)
    assert code == 0 and "not run again: 1-0-0-1: the again ended with exit code 1" in told
    assert "1/0/0#1: undecided: the cut was not run again" in told


def test_the_notebook_tells_a_mistake_without_a_traceback(tmp_path):
    code, _, error = papermill(["papermill", NOTEBOOK, tmp_path / "out.ipynb", "-p", "runs", tmp_path / "none"])
    assert code == 1 and "UsageError: runs: " in error and "debug.py" not in error


def test_with_the_real_engine_both_ways_give_a_right_restore_bit_for_bit(saved):
    words = ["papermill", NOTEBOOK, saved / "debug.ipynb", "-p", "runs", saved, "-p", "cut", "1/0/1#1"]
    code, told, _ = papermill(words)
    assert code == 0 and "1/0/1#1: as saved: " in told and "no check has a problem" in told
    (ours, theirs), ran = case(saved, "1/0/1#1").calls, again.read_again(saved / "again" / "1-0-1-1")
    assert ours == theirs == ran.prefill == ran.decode and ran.changed == []
    assert ran.torch.logprobs == pytest.approx(ours.logprobs, abs=1e-4)


def test_from_the_failure_to_a_restore_bug_by_the_printed_commands(saved, capfd):
    change_row(saved, "1/0/0", at_place(-2, token_ids=7))
    problem = next(p for p in debug.judged(str(saved))[0].problems if p.check == "near-tie")
    _, _, key, _, runs = shlex.split(problem.next)
    command = next(line for line in cut_text(key, Path(runs)).splitlines() if line.startswith("  papermill"))
    code, told, _ = papermill(shlex.split(command))
    assert code == 0 and "1/0/0#1: restore bug: " in told and "token 38 of the call is" in told


def test_forced_tokens_are_decoded_as_given_with_the_models_own_log_probabilities(saved):
    """A captured token changed to one the model finds unlikely: forced all the same, and told from what decode gives."""
    _, killed, _ = load_runs(saved)
    calls = killed.journal.open_calls()
    place = next(at for at, call in enumerate(calls) if call.name == "2/0/0#1")
    right = calls[place]
    calls[place] = wrong = msgspec.structs.replace(right, ids=[*right.ids[:-1], 7])
    again.run_again(saved / "again" / "x", again.Order(wrong.name, calls, killed.info, None, None))
    ran = again.read_again(saved / "again" / "x")
    size = len(wrong.ids)
    assert ran.decode.ids[:size] == wrong.ids and ran.decode.logprobs[: size - 1] == right.logprobs[:-1]
    assert ran.decode.top2[size - 1] == right.top2[-1] and ran.decode.logprobs[size - 1] < right.top2[-1][1][1]
