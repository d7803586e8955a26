"""The whole of it: three workloads of a tiny real model, a SIGKILL, a trainer, the report."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml
from builders import GIVEN, change_row, params, report
from junitparser import JUnitXml
from sample_reports import make, notebook_with

from restore_parity.checker.results import incomplete, provenance_of_infos
from restore_parity.params import Params
from restore_parity.report.notebook import REPORT_NOTEBOOK
from restore_parity.report.page import write_html


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def run_info(folder: Path, run: str) -> dict:
    return json.loads((folder / run / "run.json").read_text())


def restored_rows(folder: Path) -> list[tuple[int, dict]]:
    """Train step and row."""
    lines = (folder / "restored" / "training.jsonl").read_text().splitlines()
    chunks = [json.loads(line) for line in lines]
    return [(chunk["train_step"], row) for chunk in chunks for row in chunk["rows"]]


def processes_of(folder: Path) -> list[int]:
    """The processes whose command names a folder, or what is below it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word == str(folder) or word.startswith(f"{folder}/") for word in words):
            found.append(process.pid)
    return found


# The real report


def test_a_real_restore_is_bit_identical(tiny):
    found = results(tiny)
    assert found["problems"] == []
    assert found["verdict"] == "PASS"
    assert found["counts"]["rows"] == 8
    assert found["counts"]["set_aside"] == 0


def test_the_run_says_what_its_engine_really_ran_with(tiny):
    setup = run_info(tiny, "restored")["setup"]
    assert setup["strict"]
    assert not setup["overlap_starts"]
    assert setup["effective"]["split_kv_on_cpu"] is False
    assert setup["effective"]["enable_prefix_caching"] is False


def test_the_planned_cuts_lie_where_they_were_planned(tiny):
    prefixes = {cut["key"]: cut["prefix_tokens"] for cut in results(tiny)["cuts"]}
    planned = {
        "1/0/0#1": 1,
        "1/0/1#1": 15,
        "1/1/0#1": 19,
        "1/1/1#1": 20,
        "2/0/0#1": 16,
        "2/1/0#0": 17,
    }
    assert {cut: prefixes.get(cut) for cut in planned} == planned


def test_the_kill_is_on_record(tiny):
    ended = run_info(tiny, "killed")["exit"]
    assert ended["signal"] == 9
    assert ended["time"] < time.time()
    assert len(ended["open_calls"]) >= 6
    assert ended["removed"] == []


def test_nothing_of_the_runs_is_left(tiny):
    assert processes_of(tiny) == []


def test_a_process_of_the_runs_would_be_found_whoever_its_parent_is(tmp_path):
    """The test before this one could fail: the orphan's parent is init, not pytest."""
    orphan = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    shell = f'exec 3<&0; "$0" -c "$1" "{tmp_path}" <&3 &'  # not the null file of a background job
    process = subprocess.Popen(
        ["sh", "-c", shell, sys.executable, orphan],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert int(process.stdout.readline()) in processes_of(tmp_path)
    finally:
        process.communicate()  # closes its standard input: it ends


def test_the_trainer_took_its_steps(tiny):
    """The second step's log-probabilities come from weights that the first has changed."""
    gaps = {1: 0.0, 2: 0.0}
    for step, row in restored_rows(tiny):
        pairs = zip(row["generation_logprobs"], row["prev_logprobs"], strict=True)
        gaps[step] = max(gaps[step], *(abs(engine - trainer) for engine, trainer in pairs))
    assert gaps[1] < 1e-4
    assert gaps[2] > 1e-4


@pytest.mark.parametrize("column", ["generation_top_logprobs", "prev_top_logprobs"])
def test_engine_and_trainer_record_four_likeliest_tokens_at_each_generated_one(tiny, column):
    counts = set()
    for _, row in restored_rows(tiny):
        pairs = zip(row["token_loss_mask"], row[column], strict=True)
        counts.update(len(top) for trained, top in pairs if trained)
    assert counts == {4}


def test_the_page_says_the_verdict_at_its_top_and_at_its_end(tiny):
    page = (tiny / "report.html").read_text()
    assert "<b>PASS</b>: the restored run trained on the same rows" in page
    assert "PASS: 8 rows" in page.split('id="verdict"')[1]


def test_the_page_says_that_nothing_moved(tiny):
    assert "bit-identical" in (tiny / "report.html").read_text()


def test_the_first_line_says_that_the_weights_are_random(tiny):
    title = (tiny / "report.html").read_text().split("<h1")[1].split("</h1>")[0]
    assert "a model of half a million seeded random weights" in title


def test_the_page_says_which_code_ran(tiny):
    revision = run_info(tiny, "restored")["git_revision"]
    assert revision is None or revision in (tiny / "report.html").read_text()


@pytest.mark.parametrize("loads", ['src="http', '<link rel="style', "<script", "@import"])
def test_the_page_loads_nothing_from_elsewhere(tiny, loads):
    assert loads not in (tiny / "report.html").read_text()


def test_junit_and_summary_stand_beside_it(tiny):
    assert JUnitXml.fromfile(str(tiny / "junit.xml")).failures == 0
    assert (tiny / "summary.md").read_text().startswith("## PASS: 8 rows")


# Real reports of other parameters


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory) -> Path:
    """The same report with overlapped starts."""
    folder = tmp_path_factory.mktemp("overlapped") / "runs"
    assert report(folder, overlap_starts=True) == 0
    return folder


@pytest.mark.parametrize("column", ["token_ids", "generation_logprobs", "prev_logprobs", "reward"])
def test_overlapped_starts_change_no_bit(tiny, overlapped, column):
    rows = [row[column] for _, row in restored_rows(overlapped)]
    assert rows == [row[column] for _, row in restored_rows(tiny)]


def test_an_overlapped_restore_starts_before_the_kill_and_generates_after_it(overlapped):
    restored, killed = run_info(overlapped, "restored"), run_info(overlapped, "killed")
    assert restored["start"] < killed["exit"]["time"]
    assert killed["exit"]["time"] < restored["ready"]
    assert results(overlapped)["provenance"]["restored"]["setup"]["overlap_starts"]


@pytest.mark.engine
def test_a_journal_that_can_not_be_written_is_incomplete(tmp_path, monkeypatch):
    """A limit on the size of the worker's files stands for the full disk.

    The kernel refuses the write all the same.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import resource, sys\n"
        "if 'restore_parity.experiment.worker' in sys.orig_argv:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
    )
    runs = tmp_path / "runs"
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(GIVEN | {"runs": str(runs)}))
    words = [sys.executable, "-m", "restore_parity.cli", "report", str(tmp_path / "p.yaml")]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert subprocess.run(words, cwd=tmp_path).returncode == 3
    told = "journal.jsonl: File too large: what was committed before is kept"
    assert told in results(runs)["summary"]


# Saved runs


def copy_of(tiny: Path, folder: Path) -> Path:
    """The runs alone, nothing reported yet."""
    written = ("report*", "results.json", "*.md", "*.xml")
    return Path(shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns(*written)))


@pytest.fixture(scope="module")
def judged_again(tiny, tmp_path_factory) -> Path:
    """The report of saved runs beside an earlier one, where no engine, trainer or model is.

    An import of a library of theirs would end the report.
    """
    folder = tmp_path_factory.mktemp("again")
    for name in ("vllm", "torch", "transformers"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')")
    runs = copy_of(tiny, folder / "runs")
    (runs / "results.json").write_text("earlier")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("XDG_CACHE_HOME", str(folder / "no-models"))
        assert report(runs, reuse=True) == 0
    return runs


def test_saved_runs_are_judged_again_without_engine_or_model(judged_again):
    assert results(judged_again)["verdict"] == "PASS"
    assert not (judged_again.parent / "no-models" / "restore-parity").exists()


def test_the_page_says_that_the_runs_were_saved_ones(judged_again):
    assert "saved ones, judged again" in (judged_again / "report.html").read_text()


def test_an_earlier_report_of_saved_runs_is_kept_aside(judged_again):
    kept = [file.read_text() for file in judged_again.glob("report.*/results.json")]
    assert kept == ["earlier"]


def test_saved_runs_of_other_parameters_are_a_mistake_and_cost_no_earlier_report(saved, capfd):
    (saved / "results.json").write_text("earlier")
    assert report(saved, reuse=True, seed=1) == 2
    assert "seed: 0 in the saved run, 1 now" in capfd.readouterr().err
    assert (saved / "results.json").read_text() == "earlier"


def test_a_missing_phase_is_incomplete(runs):
    shutil.rmtree(runs / "killed")
    assert make(runs, params()).exit_code == 3
    assert "run-killed" in results(runs)["summary"]


# Reports that fail or stop


def test_a_failed_restore_ends_with_1(report_of):
    assert report_of("failing").exit_code == 1


def test_a_notebook_saved_with_another_kernel_runs_with_this_one(report_of):
    folder = report_of("failing").folder
    notebook = nbformat.read(folder / "report.ipynb", as_version=4)
    assert notebook.metadata.kernelspec.name == "conda-env-x-py"
    assert results(folder)["verdict"] == "FAIL"


@pytest.mark.parametrize(
    "part",
    ["FAIL: 8 rows", "reward-signal: holds", 'alt="Token boundaries', 'id="verdict"'],
    ids=["verdict line", "a check that holds", "figure", "last cell"],
)
def test_the_report_of_a_failed_restore_is_whole(report_of, part):
    assert report_of("failing").page.read_text().count(part) == 1


@pytest.mark.parametrize(
    ("name", "cell"),
    [("killed", "check-same-setup"), ("left", "verdict")],
)
def test_a_kernel_that_ends_in_a_cell_is_incomplete_and_names_the_cell(report_of, name, cell):
    made = report_of(name)
    assert made.exit_code == 3
    assert f"stopped in cell {cell}" in results(made.folder)["summary"]
    assert "INCOMPLETE" in made.page.read_text()


def test_results_are_whole_beside_a_stopped_page(report_of):
    found = results(report_of("left").folder)
    assert found["verdict"] == "INCOMPLETE"
    assert {check["status"] for check in found["checks"]} == {"not_run"}


def test_a_row_set_aside_without_a_cut_is_drawn_and_leaves_the_verdict_pass(report_of):
    made = report_of("aside")
    assert made.exit_code == 0
    alternative = 'alt="Near-tie margins, bound 0.3 nats: 2/1/0: 0.125 and 0.25 nats.'
    assert alternative in made.page.read_text()


# The notebook without the command


@pytest.fixture
def failed_parameters(runs) -> dict:
    """Parameters of saved runs of which a row has another reward."""
    change_row(runs, "1/0/1", lambda row: row.update(reward=0.9))
    return params(runs=str(runs), reuse=True).model_dump(exclude_defaults=True)


def test_plain_papermill_fails_with_the_verdict(failed_parameters, tmp_path):
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(failed_parameters))
    done = papermill(tmp_path, "-f", str(tmp_path / "p.yaml"))
    assert done.returncode == 1
    assert "row-exact 1/0/1" in done.stderr


def test_jupyter_execute_fails_with_the_verdict(failed_parameters, tmp_path):
    lines = [f"{name} = {value!r}" for name, value in failed_parameters.items()]
    file = notebook_with(tmp_path / "run.ipynb", "parameters", "\n".join(lines))
    words = [sys.executable, "-m", "jupyter", "execute", str(file)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0
    assert "row-exact 1/0/1" in done.stderr


def test_a_misspelt_parameter_stops_plain_papermill(tmp_path):
    done = papermill(tmp_path, "-p", "near_tie_magrin", "0.1", "-p", "kill_after_tokens", "5")
    assert done.returncode == 1
    assert "did you mean 'near_tie_margin'" in done.stderr


def papermill(folder: Path, *options: str) -> subprocess.CompletedProcess:
    words = ["papermill", str(REPORT_NOTEBOOK), str(folder / "out.ipynb"), *options]
    command = [sys.executable, "-m", *words, "--no-progress-bar"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


# The page of a notebook at hand


def stopped_by(reason: str):
    return incomplete(reason, provenance_of_infos(Params(), {}))


def test_of_a_progress_bar_the_page_shows_what_it_came_to(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("run()")])
    for text in ("\rbar at 0", "\rbar at 50", "\rbar at 99", "\n"):
        output = nbformat.v4.new_output("stream", name="stdout", text=text)
        notebook.cells[0].outputs.append(output)
    nbformat.write(notebook, tmp_path / "n.ipynb")
    write_html(tmp_path / "n.ipynb", tmp_path / "n.html", stopped_by("stopped"))
    page = (tmp_path / "n.html").read_text()
    assert "bar at 99" in page
    assert "bar at 50" not in page


@pytest.mark.parametrize("markup", ["<script>alert", "<b>got"])
def test_the_verdicts_text_is_inert(tmp_path, markup):
    hostile = "<script>alert(1)</script>\n\n</pre><b>got</b>"
    write_html(tmp_path / "none.ipynb", tmp_path / "n.html", stopped_by(hostile))
    assert markup not in (tmp_path / "n.html").read_text()
