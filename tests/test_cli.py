"""The commands as a user types them: exit codes, one message for a mistake, no traceback."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from builders import change_row, params

from restore_parity.cli import main
from restore_parity.cuts import NOTEBOOK
from restore_parity.params import ROOT


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command; returns exit code, standard output, standard error."""

    def run(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["restore-parity", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def strict(tmp_path) -> Path:
    """The thresholds of the healthy runs, in YAML as well as they are in JSON."""
    (tmp_path / "strict.yaml").write_text(json.dumps(params().model_dump()))
    return tmp_path / "strict.yaml"


def check(runs, *more):
    return "check", "--uninterrupted", runs / "uninterrupted", "--restored", runs / "restored", *more


def test_check_passes_healthy_runs(command, pristine, strict, tmp_path):
    code, out, _ = command(
        *check(pristine, "--killed", pristine / "killed", "--params", strict, "--json", tmp_path / "r.json")
    )
    assert (code, out.splitlines()[-1].split(":")[0]) == (0, "PASS")
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "PASS"


def test_check_fails_broken_runs_with_four_lines(command, runs, strict):
    change_row(runs, "1/0/1", lambda row: row.update(reward=0.9))
    code, out, _ = command(*check(runs, "--killed", runs / "killed", "--params", strict))
    assert code == 1 and "row-exact 1/0/1\n  where     reward\n  expected  " in out


def test_check_takes_dumps_alone_and_says_what_it_could_not_check(command, pristine):
    dumps = (
        "--uninterrupted",
        pristine / "uninterrupted/training.jsonl",
        "--restored",
        pristine / "restored/training.jsonl",
    )
    code, out, _ = command("check", *dumps)
    assert code == 3 and "cut-coverage" in out and "not run: same-setup, no run.json was given" in out


def test_one_dump_given_as_both_runs_is_a_mistake(command, pristine):
    dump = pristine / "uninterrupted/training.jsonl"
    code, _, err = command("check", "--uninterrupted", dump, "--restored", dump.parent / ".." / "uninterrupted" / dump.name)
    assert code == 2 and "--uninterrupted and --restored are both" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report", "none.yaml"), "none.yaml: No such file"),
        (("check", "--uninterrupted", "none", "--restored", "none"), "none: no such file"),
        (("cut", "nonsense", "--runs", "."), "no cut"),
    ],
    ids=["report", "check", "cut"],
)
def test_a_mistake_is_one_message_and_exit_2(command, words, told):
    code, out, err = command(*words)
    assert code == 2 and told in err and "Traceback" not in err and not out


def test_a_run_that_is_missing_is_exit_3(command, tmp_path):
    code, _, err = command("cut", "1/0/0#1", "--runs", tmp_path)
    assert code == 3 and "killed/run.json is missing" in err


def test_selection_and_log_go_together(command, pristine):
    assert command(*check(pristine, "--log", pristine / "killed" / "run.json"))[0] == 2


def test_a_missing_model_is_told_before_anything_is_started(command, tmp_path):
    (tmp_path / "p.yaml").write_text(f"{{model: smollm, kill_after_tokens: 5, runs: {tmp_path / 'runs'}}}")
    code, _, err = command("report", tmp_path / "p.yaml")
    assert code == 2 and "one of smollm2-135m" in err and not (tmp_path / "runs").exists()


def test_cut_shows_records_windows_and_rows(command, runs):
    change_row(runs, "1/0/0", lambda row: row["token_ids"].__setitem__(-2, 99))
    code, out, _ = command("cut", "1/0/0#1", "--runs", runs)
    assert (
        code == 0
        and '"event":"restored"' in out
        and "first difference, token" in out
        and "99 " in out
        and "<- differs" in out
    )


def test_cut_ends_with_the_command_that_opens_the_debugger(command, pristine, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, out, _ = command("cut", "1/0/0#1", "--runs", pristine)
    words = shlex.split(out.splitlines()[-2])
    assert words[:3] == ["papermill", "notebooks/debug_cut.ipynb", f"{pristine}/debug.ipynb"]
    assert words[3:] == ["-p", "runs", str(pristine), "-p", "cut", "1/0/0#1"] and "jupyter lab" in out.splitlines()[-1]


def test_of_a_relative_folder_the_debugger_gets_a_name_that_holds_for_it(command, pristine, monkeypatch):
    """The notebook counts from the project's folder, the command from where it was typed."""
    monkeypatch.chdir(pristine.parent)
    _, out, _ = command("cut", "1/0/0", "--runs", pristine.name)
    words = shlex.split(out.splitlines()[-2])
    assert words[1:6] == [str(NOTEBOOK), f"{pristine.name}/debug.ipynb", "-p", "runs", str(pristine)]


def test_a_row_without_a_cut_has_nothing_to_debug(command, pristine):
    assert "papermill" not in command("cut", "1/0/1", "--runs", pristine)[1]


def test_cut_takes_a_row_too(command, pristine):
    code, out, _ = command("cut", "1/0/1", "--runs", pristine)
    assert code == 0 and "the token ids of both runs are equal" in out


def test_an_unknown_cut_names_the_known_ones(command, pristine):
    code, _, err = command("cut", "9/9/9#1", "--runs", pristine)
    assert code == 2 and "1/0/0#1" in err


def test_a_reader_that_has_enough_gets_no_traceback(pristine):
    pipe = f"{sys.executable} -m restore_parity.cli cut 1/0/0#1 --runs {pristine} | head -1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=True)
    assert done.stdout == "cut 1/0/0#1\n" and "Traceback" not in done.stderr
