"""The commands as a user types them: exit codes, one message for a mistake, no traceback."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
from builders import change_row, params

from restore_parity import cli
from restore_parity.params import CHECKOUT, shipped

# what a report needs and a check does without
OF_REPORTS = (
    "IPython",
    "junitparser",
    "matplotlib",
    "numpy",
    "pandas",
    "papermill",
    "platformdirs",
    "psutil",
    "restore_parity.experiment",
    "restore_parity.report",
    "torch",
    "tqdm",
    "vllm",
)


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., Done]:
    """Run a command."""

    def run(*words) -> Done:
        monkeypatch.setattr(sys, "argv", ["restore-parity", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return Done(caught.value.code or 0, out, err)

    return run


@pytest.fixture
def strict(tmp_path) -> Path:
    """The thresholds of the healthy runs, in YAML as well as they are in JSON."""
    (tmp_path / "strict.yaml").write_text(json.dumps(params().model_dump()))
    return tmp_path / "strict.yaml"


def check(runs: Path, *more) -> list:
    """The words of a check of an uninterrupted and a restored run."""
    given = ["--uninterrupted", runs / "uninterrupted", "--restored", runs / "restored"]
    return ["check", *given, *more]


def debugger_words(out: str) -> list[str]:
    """The words of the command that opens the debugger, with which `cut` ends."""
    return shlex.split(out.splitlines()[-2])


def test_check_passes_healthy_runs(command, pristine, strict):
    done = command(*check(pristine, "--killed", pristine / "killed", "--params", strict))
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("PASS: ")


def test_check_says_what_judged(command, pristine, strict):
    done = command(*check(pristine, "--killed", pristine / "killed", "--params", strict))
    assert done.out.splitlines()[-2] == f"judged by {strict}"


def test_check_without_a_file_judges_by_the_parameters_of_the_uninterrupted_run(command, pristine):
    done = command(*check(pristine, "--killed", pristine / "killed"))
    baseline = pristine / "uninterrupted"
    assert done.out.splitlines()[-2] == f"judged by the parameters in {baseline}/run.json"


def test_check_says_that_the_runs_have_other_thresholds(command, runs):
    file = runs / "restored" / "run.json"
    info = json.loads(file.read_text())
    info["params"]["max_policy_diff"] = 0.5
    file.write_text(json.dumps(info))
    done = command(*check(runs, "--killed", runs / "killed"))
    assert done.code == 0
    assert "the restored run's has another max_policy_diff" in done.out.splitlines()[-2]


def test_results_are_written_where_there_is_nothing_to_judge(command, runs, tmp_path):
    (runs / "restored" / "training.jsonl").unlink()
    done = command(*check(runs, "--killed", runs / "killed", "--json", tmp_path / "r.json"))
    assert done.code == 3
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "INCOMPLETE"


def test_check_writes_results_where_it_is_asked_to(command, pristine, tmp_path):
    file = tmp_path / "r.json"
    command(*check(pristine, "--killed", pristine / "killed", "--json", file))
    assert json.loads(file.read_text())["verdict"] == "PASS"


def test_results_that_cannot_be_written_are_one_message(command, pristine, tmp_path):
    done = command(*check(pristine, "--killed", pristine / "killed", "--json", tmp_path / "no/r"))
    assert done.code == 2
    assert done.err == f"restore-parity: --json {tmp_path}/no/r: No such file or directory\n"


def test_check_fails_broken_runs_with_four_lines(command, runs, strict):
    change_row(runs, "1/0/1", lambda row: row.update(reward=0.9))
    done = command(*check(runs, "--killed", runs / "killed", "--params", strict))
    assert done.code == 1
    assert "row-exact 1/0/1\n  where     reward\n  expected  " in done.out


def test_a_problem_of_a_cut_names_the_command_that_shows_it(command, runs):
    change_row(runs, "1/0/0", lambda row: row["token_ids"].__setitem__(-2, 99))
    done = command(*check(runs, "--killed", runs / "killed"))
    assert f"next      restore-parity cut 1/0/0#1 --runs {runs}\n" in done.out


def test_check_tells_of_a_torn_journal(command, runs):
    with (runs / "killed/journal.jsonl").open("ab") as journal:
        journal.write(b'{"event":"del')
    done = command(*check(runs, "--killed", runs / "killed"))
    assert "torn last record of 13 bytes dropped" in done.out


def test_check_takes_dumps_alone_and_says_what_it_could_not_check(command, pristine):
    dumps = [pristine / run / "training.jsonl" for run in ("uninterrupted", "restored")]
    done = command("check", "--uninterrupted", dumps[0], "--restored", dumps[1])
    assert done.code == 3
    assert "cut-coverage" in done.out
    assert "not run: same-setup, no run.json was given" in done.out
    assert done.out.splitlines()[-2] == "judged by the defaults"


def test_one_dump_given_as_both_runs_is_a_mistake(command, pristine):
    dump = pristine / "uninterrupted/training.jsonl"
    same = dump.parent / ".." / "uninterrupted" / dump.name
    done = command("check", "--uninterrupted", dump, "--restored", same)
    assert done.code == 2
    assert "--uninterrupted and --restored are both" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "none.yaml"), "none.yaml: No such file"),
        (("report", "none"), "none: no such file, and no profile of that name\n  -> give a file, "),
        (("check", "--uninterrupted", "none", "--restored", "none"), "none: no such file"),
        (("cut", "nonsense", "--runs", "."), "'nonsense' does not name a cut"),
        (("cut", "1/0/0#1", "--runs", "none"), "none: not a folder of runs"),
    ],
    ids=["report of no file", "report of no profile", "check", "cut", "cut of no runs"],
)
def test_a_mistake_is_one_message_and_exit_2(command, words, message):
    done = command(*words)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_run_that_is_missing_is_exit_3(command, tmp_path):
    done = command("cut", "1/0/0#1", "--runs", tmp_path)
    assert done.code == 3
    assert "no such dump" in done.err


@pytest.mark.parametrize("given", ["--log", "--selection"])
def test_selection_and_log_go_together(command, pristine, given):
    done = command(*check(pristine, given, pristine / "killed/run.json"))
    assert done.code == 2
    assert "--selection and --log go together" in done.err


def test_a_selection_and_a_killed_run_both_say_what_was_cut(command, pristine):
    file = pristine / "killed/run.json"
    done = command(*check(pristine, "--killed", file.parent, "--selection", file, "--log", file))
    assert done.code == 2
    assert "both say what was cut" in done.err


def test_a_killed_run_is_a_folder(command, pristine):
    done = command(*check(pristine, "--killed", pristine / "killed/run.json"))
    assert done.code == 2
    assert "run.json: not the folder of a run" in done.err


def test_a_missing_model_is_reported_before_anything_is_started(command, tmp_path):
    given = {"model": "smollm", "kill_after_tokens": 5, "runs": str(tmp_path / "runs")}
    (tmp_path / "p.yaml").write_text(json.dumps(given))
    done = command("report", tmp_path / "p.yaml")
    assert done.code == 2
    assert "one of smollm2-135m" in done.err
    assert not (tmp_path / "runs").exists()


def test_cut_shows_records_windows_and_rows(command, runs):
    change_row(runs, "1/0/0", lambda row: row["token_ids"].__setitem__(-2, 99))
    done = command("cut", "1/0/0#1", "--runs", runs)
    assert done.code == 0
    assert '"event":"restored"' in done.out
    assert "first difference, token" in done.out
    (differing,) = [line for line in done.out.splitlines() if line.endswith("<- differs")]
    assert " 99 " in differing


def test_cut_ends_with_the_command_that_opens_the_debugger(command, pristine, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    done = command("cut", "1/0/0#1", "--runs", pristine)
    words = debugger_words(done.out)
    assert words[:3] == ["papermill", "notebooks/debug_cut.ipynb", f"{pristine}/debug.ipynb"]
    assert words[3:] == ["-p", "runs", str(pristine), "-p", "cut", "1/0/0#1"]
    assert "jupyter lab notebooks/debug_cut.ipynb" in done.out.splitlines()[-1]


def test_a_relative_folder_counts_from_the_working_directory(command, pristine, monkeypatch):
    monkeypatch.chdir(pristine.parent)
    done = command("cut", "1/0/0", "--runs", pristine.name)
    notebook, executed, *given = debugger_words(done.out)[1:]
    assert notebook == str(shipped("notebooks/debug_cut.ipynb"))
    assert executed == f"{pristine.name}/debug.ipynb"
    assert given[:3] == ["-p", "runs", pristine.name]


def test_a_row_without_a_cut_has_nothing_to_debug(command, pristine):
    assert "papermill" not in command("cut", "1/0/1", "--runs", pristine).out


def test_cut_takes_a_row_too(command, pristine):
    done = command("cut", "1/0/1", "--runs", pristine)
    assert done.code == 0
    assert "the token ids of both runs are equal" in done.out


def test_an_unknown_cut_names_the_known_ones(command, pristine):
    done = command("cut", "9/9/9#1", "--runs", pristine)
    assert done.code == 2
    assert "1/0/0#1" in done.err


def test_profiles_lists_each_with_what_it_is(command):
    lines = command("profiles").out.splitlines()
    assert [line.split()[0] for line in lines] == ["gpu", "gpu_strict", "smoke", "smoke_bf16"]
    assert lines[2].startswith("smoke         SmolLM2-135M in float32 on two CPU cores, strict: ")


@pytest.mark.parametrize("file", sorted((CHECKOUT / "params").glob("*.yaml")), ids=lambda f: f.stem)
def test_the_first_line_of_a_profile_is_a_whole_sentence(file):
    first_line = file.read_text().splitlines()[0]
    assert first_line.startswith("# ")
    assert first_line.endswith(".")


def test_the_version_is_the_packages(command):
    assert command("--version") == (0, f"restore-parity {version('restore-parity')}\n", "")


def test_a_report_without_its_libraries_names_the_extras(command, monkeypatch):
    monkeypatch.setattr(cli, "REPORT_LIBRARIES", ("tqdm", "none_a", "none_b"))
    done = command("report", "smoke", "--reuse")
    assert done.code == 2
    assert "report needs none_a, none_b, not installed here\n" in done.err
    assert "'restore-parity[report]'" in done.err


def imported_by(words: list) -> set[str]:
    """The modules that a command imports in a process of its own."""
    code = (
        "import sys; from restore_parity.cli import app; "
        "code = app(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_check_imports_nothing_of_reports(pristine):
    imported = imported_by(check(pristine, "--killed", pristine / "killed"))
    assert "restore_parity.checker.checks" in imported
    assert imported.isdisjoint(OF_REPORTS)


def test_cut_imports_nothing_of_reports(pristine):
    imported = imported_by(["cut", "1/0/0#1", "--runs", pristine])
    assert "restore_parity.checker.cut_text" in imported
    assert imported.isdisjoint(OF_REPORTS)


def test_a_reader_that_has_enough_gets_no_traceback(pristine):
    pipe = f"{sys.executable} -m restore_parity.cli cut 1/0/0#1 --runs {pristine} | head -1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=True)
    assert done.stdout == "cut 1/0/0#1\n"
    assert "Traceback" not in done.stderr
