"""The whole of it with the real engine and a tiny real model: three workloads, a SIGKILL, a trainer, the page."""

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
from builders import GIVEN, change_row, report
from junitparser import JUnitXml

from restore_parity.page import write_html
from restore_parity.params import NOTEBOOK, ROOT, Params, read_params
from restore_parity.report import make_report
from restore_parity.results import incomplete, provenance


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def told(reason: str) -> dict:
    return incomplete(reason, provenance(Params()))


def test_a_real_restore_is_bit_identical(tiny):
    told = results(tiny)
    assert (told["verdict"], told["problems"], told["counts"]["rows"], told["counts"]["set_aside"]) == ("PASS", [], 8, 0)


def test_the_run_says_what_its_engine_really_ran_with(tiny):
    setup = json.loads((tiny / "restored" / "run.json").read_text())["setup"]
    assert setup["strict"] and setup["effective"]["split_kv_on_cpu"] is False
    assert setup["effective"]["enable_prefix_caching"] is False and not setup["overlap_starts"]


def test_overlapped_starts_change_nothing_but_the_order_of_things(tiny, tmp_path):
    """The same rows to the last bit; the restored run's process began before the kill and read the capture after it."""
    assert report(tmp_path / "runs", overlap_starts=True) == 0

    def rows(folder):
        lines = [json.loads(line) for line in (folder / "restored" / "training.jsonl").read_text().splitlines()]
        kept = ("token_ids", "generation_logprobs", "prev_logprobs", "reward")
        return [[row[name] for name in kept] for line in lines for row in line["rows"]]

    runs = {name: json.loads((tmp_path / "runs" / name / "run.json").read_text()) for name in ("killed", "restored")}
    assert rows(tmp_path / "runs") == rows(tiny)
    assert runs["restored"]["start"] < runs["killed"]["exit"]["time"] < runs["restored"]["ready"]
    assert results(tmp_path / "runs")["provenance"]["restored"]["setup"]["overlap_starts"]


def test_the_planned_cuts_lie_where_they_were_planned(tiny):
    prefixes = {cut["key"]: cut["prefix_tokens"] for cut in results(tiny)["cuts"]}
    assert (
        prefixes.items()
        >= {"1/0/0#1": 1, "1/0/1#1": 15, "1/1/0#1": 19, "1/1/1#1": 20, "2/0/0#1": 16, "2/1/0#0": 17}.items()
    )


def test_the_kill_is_on_record(tiny):
    ended = json.loads((tiny / "killed" / "run.json").read_text())["exit"]
    assert ended["signal"] == 9 and ended["time"] < time.time() and len(ended["open_calls"]) >= 6 and ended["removed"] == []


def test_nothing_of_the_engines_is_left(tiny):
    assert not [
        child for child in psutil.Process().children(recursive=True) if "restore_parity.worker" in " ".join(child.cmdline())
    ]


def test_the_trainer_took_its_steps(tiny):
    """The second step's log-probabilities come from weights that the first has changed."""
    lines = [json.loads(line) for line in (tiny / "restored" / "training.jsonl").read_text().splitlines()]
    rows = [(line["train_step"], row) for line in lines for row in line["rows"]]
    gaps = {1: 0.0, 2: 0.0}
    for step, row in rows:
        both = zip(row["generation_logprobs"], row["prev_logprobs"], strict=True)
        gaps[step] = max(gaps[step], *(abs(there - here) for there, here in both))
    assert gaps[1] < 1e-4 < gaps[2]


def test_the_report_is_whole(tiny):
    page = (tiny / "report.html").read_text()
    assert "<b>PASS</b>: the restored run trained on the same rows" in page and "bit-identical" in page
    assert "PASS: 8 rows" in page.split('id="verdict"')[1]
    assert JUnitXml.fromfile(str(tiny / "junit.xml")).failures == 0
    assert (tiny / "summary.md").read_text().startswith("## PASS: 8 rows")


def test_the_first_line_says_that_the_weights_are_random_and_the_page_which_code_ran(tiny):
    page = (tiny / "report.html").read_text()
    revision = json.loads((tiny / "restored" / "run.json").read_text())["git_revision"]
    assert "a model of half a million seeded random weights" in page.split("<h1")[1].split("</h1>")[0]
    assert not revision or revision in page


def test_the_report_loads_nothing_from_elsewhere(tiny):
    page = (tiny / "report.html").read_text()
    assert 'src="http' not in page and '<link rel="style' not in page and "<script" not in page and "@import" not in page


def test_saved_runs_are_judged_again_without_engine_or_model(saved, tmp_path, monkeypatch):
    """An import of either engine or trainer library would end the report, and so would a model asked for."""
    for name in ("vllm", "torch", "transformers"):
        (tmp_path / "blocked").mkdir(exist_ok=True)
        (tmp_path / "blocked" / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "blocked"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-models"))
    assert report(saved, reuse=True) == 0 and not (tmp_path / "no-models" / "restore-parity").exists()


def test_a_failed_restore_fails_with_a_whole_report(saved):
    change_row(saved, "1/0/0", lambda row: row["token_ids"].__setitem__(-2, 0))
    assert report(saved, reuse=True) == 1
    page = (saved / "report.html").read_text()
    assert "FAIL: 8 rows" in page and "reward-signal: holds" in page and page.count('alt="Token boundaries') == 1


def test_saved_runs_of_other_parameters_are_a_mistake_and_cost_no_earlier_report(saved, capfd):
    (saved / "results.json").write_text("earlier")
    assert report(saved, reuse=True, seed=1) == 2
    assert "seed: 0 there, 1 here" in capfd.readouterr().err and (saved / "results.json").read_text() == "earlier"


def test_an_earlier_report_of_saved_runs_is_kept_aside(saved):
    (saved / "results.json").write_text("earlier")
    assert report(saved, reuse=True) == 0
    assert [file.read_text() for file in saved.glob("report.*/results.json")] == ["earlier"]


def test_of_a_progress_bar_the_page_shows_what_it_came_to(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("run()")])
    for text in ("\rbar at 0", "\rbar at 50", "\rbar at 99", "\n"):
        notebook.cells[0].outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    nbformat.write(notebook, tmp_path / "n.ipynb")
    write_html(tmp_path / "n.ipynb", tmp_path / "n.html", told("stopped"))
    page = (tmp_path / "n.html").read_text()
    assert "bar at 99" in page and "bar at 50" not in page


def test_the_verdicts_text_is_inert(tmp_path):
    write_html(tmp_path / "none.ipynb", tmp_path / "n.html", told("<script>alert(1)</script>\n\n</pre><b>got</b>"))
    page = (tmp_path / "n.html").read_text()
    assert "<script>alert" not in page and "<b>got" not in page


def test_a_missing_phase_is_incomplete(saved):
    shutil.rmtree(saved / "killed")
    assert report(saved, reuse=True) == 3
    assert "run-killed" in results(saved)["summary"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "check-same-setup"),
        ("import sys; sys.exit(0)", "verdict"),
    ],
    ids=["killed", "exit 0"],
)
def test_a_kernel_that_ends_in_a_cell_is_incomplete_and_names_the_cell(saved, tmp_path, code, told):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    next(cell for cell in notebook.cells if cell.id == "check-same-setup").source = code
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    given = GIVEN | {"runs": str(saved), "reuse": True}
    (tmp_path / "given.yaml").write_text(yaml.safe_dump(given))
    assert make_report(read_params(tmp_path / "given.yaml"), given, tmp_path / "broken.ipynb") == 3
    assert f"cell {told}" in results(saved)["summary"] and "INCOMPLETE" in (saved / "report.html").read_text()


def test_a_notebook_saved_with_another_kernel_runs_with_this_one(saved, tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.metadata.kernelspec = {"name": "conda-env-x-py", "display_name": "x", "language": "python"}
    nbformat.write(notebook, tmp_path / "other.ipynb")
    given = GIVEN | {"runs": str(saved), "reuse": True}
    (tmp_path / "given.yaml").write_text(yaml.safe_dump(given))
    assert make_report(read_params(tmp_path / "given.yaml"), given, tmp_path / "other.ipynb") == 0


def test_plain_papermill_works_and_fails_with_the_verdict(saved, tmp_path):
    def papermill() -> int:
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(GIVEN | {"runs": str(saved), "reuse": True}))
        words = [
            "papermill",
            str(NOTEBOOK),
            str(tmp_path / "out.ipynb"),
            "-f",
            str(tmp_path / "p.yaml"),
            "--no-progress-bar",
        ]
        return subprocess.run([sys.executable, "-m", *words], capture_output=True).returncode

    first = papermill()
    change_row(saved, "1/0/1", lambda row: row.update(reward=0.9))
    assert (first, papermill()) == (0, 1)


def test_jupyter_execute_fails_when_the_verdict_does(saved, tmp_path):
    change_row(saved, "1/0/1", lambda row: row.update(reward=0.9))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == "parameters")
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in (GIVEN | {"runs": str(saved), "reuse": True}).items())
    nbformat.write(notebook, tmp_path / "run.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", str(tmp_path / "run.ipynb")], capture_output=True, text=True
    )
    assert done.returncode != 0 and "row-exact 1/0/1" in done.stderr


def test_a_misspelt_parameter_stops_plain_papermill(tmp_path):
    words = [
        "papermill",
        str(NOTEBOOK),
        str(tmp_path / "out.ipynb"),
        "-p",
        "near_tie_magrin",
        "0.1",
        "-p",
        "kill_after_tokens",
        "5",
    ]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    assert done.returncode == 1 and "did you mean 'near_tie_margin'" in done.stderr


def test_a_cut_that_is_never_reached_is_incomplete(tmp_path):
    """With the real engine: the call of 1/1/0#0 ends by its stop token long before its limit."""
    assert report(tmp_path / "runs", cut_tokens={"1/1/0#0": "limit"}) == 3
    assert "before its planned 24; plan it earlier in cut_tokens" in results(tmp_path / "runs")["summary"]
    assert "run-killed" in (tmp_path / "runs" / "report.html").read_text()


def test_a_journal_that_can_not_be_written_is_incomplete(tmp_path):
    """A limit on the size of the worker's files stands for the full disk: the kernel refuses the write all the same."""
    (tmp_path / "sitecustomize.py").write_text(
        "import resource, sys\n"
        "if 'restore_parity.worker' in sys.orig_argv:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(GIVEN | {"runs": str(tmp_path / "runs")}))
    words = [sys.executable, "-m", "restore_parity.cli", "report", str(tmp_path / "p.yaml")]
    assert subprocess.run(words, env=env, cwd=ROOT).returncode == 3
    assert "journal.jsonl: File too large: what was committed before is kept" in results(tmp_path / "runs")["summary"]
