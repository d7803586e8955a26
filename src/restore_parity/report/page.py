"""The page: an executed notebook, its verdict above it, as one HTML file that loads nothing from elsewhere."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from ..checker.problems import printable
from ..experiment.models import RANDOM_WEIGHTS
from ..checker.results import problems_of
from .tables import anchor

TEMPLATE = Path(__file__).with_name("page.html.j2")
OUTPUT_CHARACTERS = 200_000  # of one cell's text; results.json holds all


def write_html(executed: Path, page: Path, told: dict[str, Any]) -> None:
    """Convert an executed notebook (or none, if it never came to one) under the first screen of its results."""
    notebook = nbformat.read(executed, as_version=4) if executed.exists() else nbformat.v4.new_notebook()
    # papermill's own banners: the first screen says it better
    notebook.cells = [cell for cell in notebook.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    exporter = HTMLExporter(raw_template=TEMPLATE.read_text(), exclude_anchor_links=True)
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)  # of a progress bar, what it came to
    exporter.register_filter("printable", partial(printable, longest=OUTPUT_CHARACTERS))
    first = str(next(iter(problems_of(told)), ""))
    resources = {"told": told, "claim": claim(told), "facts": facts(told), "first": first, "anchor": anchor}
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": page.stem}} | resources)
    page.write_text(body, encoding="utf-8")


def claim(told: dict[str, Any]) -> str:
    """What the verdict says, in words, and where the model's weights are no trained ones."""
    weights = RANDOM_WEIGHTS.get(told["provenance"]["params"]["model"])
    return parity(told) + (f"; of a model of {weights}" if weights else "")


def parity(told: dict[str, Any]) -> str:
    if told["verdict"] == "INCOMPLETE":
        return "the experiment did not come about, so nothing is said of parity"
    if told["verdict"] == "FAIL":
        broken = [check["id"] for check in told["checks"] if check["status"] == "fail"]
        checks = ", ".join(broken) or "mutations"
        return f"the restored run's rows are not the uninterrupted run's, or not shown to be; what failed: {checks}"
    aside, rows = told["counts"]["set_aside"], told["counts"].get("rows", 0)
    tied = f", but for {aside} of {rows} that differ at a shown near-tie" if aside else ""
    idle = [check["id"] for check in told["checks"] if check["status"] == "not_run"]
    silent = f"; {len(idle)} checks could not run: {', '.join(idle)}" if idle else ""
    return f"the restored run trained on the same rows as the uninterrupted one{tied}{silent}"


def facts(told: dict[str, Any]) -> list[tuple[str, str]]:
    """The counts that carry the verdict, then what ran where and when."""
    shown = []
    counts, checks, cuts = told["counts"], told["checks"], told["cuts"]
    if counts:
        status = {name: sum(cut["status"] == name for cut in cuts) for name in ("match", "set_aside", "broken")}
        shown += [
            ("rows compared", f"{counts.get('rows', 0):,}"),
            ("tokens compared", f"{counts.get('tokens', 0):,}, {counts.get('generated_tokens', 0):,} of them generated"),
            ("cuts", f"{len(cuts)}: {status['match']} match, {status['set_aside']} set aside, {status['broken']} broken"),
        ]
    run = {name: sum(check["status"] == name for check in checks) for name in ("pass", "fail", "not_run")}
    idle = sum(check["status"] == "pass" and not check["seen"] for check in checks)
    told_idle = f"{run['pass'] - idle} hold, {idle} had nothing to judge"
    shown.append(("checks", f"{told_idle}, {run['fail']} fail, {run['not_run']} not run"))
    tried = [result for result in told["mutations"] if result["caught_by"] is not None]
    if tried:
        caught = sum(result["check"] in result["caught_by"] for result in tried)
        nowhere = len(told["mutations"]) - len(tried)
        more = f" ({nowhere} could not be made of these rows)" if nowhere else ""
        shown.append(("broken copies of these rows caught", f"{caught} of {len(tried)} mutations{more}"))
    for check, what in (("tail-logprobs", "engine"), ("policy-logprobs", "trainer")):
        if told.get("largest", {}).get(check) is not None:
            left = counts.get("rows_after_set_aside", 0) if what == "trainer" else 0
            of = f", {left} of {counts['rows']} rows not compared" if left else ""
            shown.append((f"largest difference, {what}'s log-probabilities", f"{told['largest'][check]:.4g} nats{of}"))
    provenance = told["provenance"]
    baseline = provenance.get("uninterrupted", {})
    setup = baseline.get("setup", {})
    shown += [("model", f"{setup.get('model', provenance['params']['model'])}, {provenance['params']['dtype']}")]
    ran = ("engine", setup.get("engine")), ("device", baseline.get("device"))
    shown += [(name, value) for name, value in ran if value]
    shown += [("judged with", ", ".join(f"{name} {number}" for name, number in provenance["versions"].items()))]
    if baseline:
        shown += [("git revision", baseline.get("git_revision") or "none")]
        made = "saved ones, judged again" if provenance["params"]["reuse"] else "made for this report"
        shown += [("runs", made), ("runs started", time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(baseline["start"])))]
    return shown
