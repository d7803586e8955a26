"""The page: an executed notebook, its verdict above it, as one HTML file that loads nothing."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import nbformat
from msgspec import Struct
from nbconvert import HTMLExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from ..checker.judgement import Verdict
from ..checker.problems import Problem, concerning, printable
from ..checker.results import Results
from .facts import facts
from .html_table import anchor, words
from .provenance import run_provenance

TEMPLATE = Path(__file__).with_name("page.html.j2")
OUTPUT_CHARACTERS = 200_000  # of one cell's text; results.json holds all


class FirstProblem(Struct, frozen=True, kw_only=True):
    """What the first screen says of what failed first."""

    problem: Problem
    cut: str | None  # that it concerns, where the page has one

    @property
    def text(self) -> str:
        """The problem as it prints."""
        return str(self.problem)


def write_html(executed: Path, page: Path, results: Results) -> None:
    """Convert an executed notebook under the first screen of its results.

    Where the notebook never came to be, that screen is all.
    """
    exporter = HTMLExporter(
        raw_template=TEMPLATE.read_text(encoding="utf-8"), exclude_anchor_links=True
    )
    # of a progress bar, what it came to
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    exporter.register_filter("printable", partial(printable, longest=OUTPUT_CHARACTERS))
    exporter.register_filter("anchor", anchor)
    exporter.register_filter("words", words)
    resources = {
        "metadata": {"name": page.stem},
        "results": results,
        "claim": claim(results),
        "facts": facts(results),
        "first": first_problem(results),
    }
    body, _ = exporter.from_notebook_node(_cells_of(executed), resources=resources)
    page.write_text(body, encoding="utf-8")


def _cells_of(executed: Path) -> NotebookNode:
    if not executed.exists():
        return NotebookNode(nbformat.v4.new_notebook())
    notebook: NotebookNode = nbformat.read(executed, as_version=4)
    # without papermill's own banners: the first screen says it better
    notebook.cells = [
        cell
        for cell in notebook.cells
        if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])
    ]
    return notebook


def first_problem(results: Results) -> FirstProblem | None:
    """The first problem, where there is one, with the cut it concerns."""
    if not results.problems:
        return None
    problem = results.problems[0]
    cuts = [cut.key for cut in results.cuts if concerning([problem], cut.key)]
    return FirstProblem(problem=problem, cut=cuts[0] if cuts else None)


def claim(results: Results) -> str:
    """What the verdict says, in words, and where the model's weights are no trained ones."""
    weights = run_provenance(results.provenance, "uninterrupted").random_weights
    text = CLAIMS[results.verdict](results)
    return f"{text}; of a model of {weights}" if weights else text


def _claim_of_pass(results: Results) -> str:
    claim = "the restored run trained on the same rows as the uninterrupted one"
    set_aside = results.counts["set_aside"] + len(results.rows)
    if set_aside:
        rows = results.counts["rows"]
        claim = f"{claim}, but for {set_aside} of {rows} that differ at a shown near-tie"
    not_run = [check.id for check in results.checks if check.status == "not_run"]
    if not_run:
        claim = f"{claim}; {len(not_run)} checks could not run: {', '.join(not_run)}"
    return claim


def _claim_of_fail(results: Results) -> str:
    failed = [check.id for check in results.checks if check.status == "fail"]
    return (
        "the restored run's rows are not the uninterrupted run's, or not shown to be; what "
        f"failed: {', '.join(failed) or 'mutations'}"
    )


def _claim_of_incomplete(_: Results) -> str:
    return "the experiment did not come about, so nothing is said of parity"


CLAIMS: dict[Verdict, Callable[[Results], str]] = {
    "PASS": _claim_of_pass,
    "FAIL": _claim_of_fail,
    "INCOMPLETE": _claim_of_incomplete,
}
