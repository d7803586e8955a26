"""What the page tells in tables: pandas lays them out, every cell is escaped."""

import html
import shlex
import time
from collections.abc import Iterable
from typing import Any

import pandas
import papermill
from IPython.display import HTML

from ..checker import results
from ..checker.checks import CHECKS, Judgement
from ..checker.dumps import Run
from ..journal import moments
from ..checker.problems import printable
from ..params import NOTEBOOK, Params
from ..records import CutResult

BF16_STEP = 0.125  # nats: the spacing of bfloat16 logits between 16 and 32, where these models' likeliest ones lie
ORDER = {"broken": 0, "set_aside": 1, "match": 2}  # what failed comes first


class Markup(str):
    """HTML of our own making, the one thing that a cell does not escape."""


def table(rows: Iterable[dict[str, Any]]) -> HTML:
    frame = pandas.DataFrame([{name: _cell(value) for name, value in row.items()} for row in rows], dtype=object)
    return HTML(frame.to_html(index=False, escape=False, border=0, na_rep="none") if len(frame) else "<p>none</p>")


def _cell(value: Any) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else html.escape(printable(str(value)))


def anchor(cut: str) -> str:
    """The stable name of a cut on the page: `1/3/0#1` is `cut-1-3-0-1`."""
    return "cut-" + cut.replace("/", "-").replace("#", "-")


def ordered(cuts: Iterable[CutResult]) -> list[CutResult]:
    return sorted(cuts, key=lambda cut: ORDER[cut.status])


def runs(loaded: tuple[Run, ...]) -> HTML:
    """One line a run: what it was and how it ended."""
    infos = [(run.name, run.info) for run in loaded if run.info and run.info.exit]
    return table(
        {
            "run": name,
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start)),
            "engine": info.setup.get("engine"),
            "model": info.setup.get("model"),
            "dtype": info.setup.get("engine_args", {}).get("dtype"),
            "device": info.device,
            "ended by": f"signal {info.exit.signal}" if info.exit.signal else f"exit code {info.exit.code}",
            "calls open then": len(info.exit.open_calls),
            "git revision": info.git_revision or "none",
        }
        for name, info in infos
    )


def times(loaded: tuple[Run, ...]) -> dict[str, dict[str, float]]:
    """When each run started, had its engine ready, its gate open, its first and last token, was killed or trained.

    Epoch seconds.
    """
    told = {}
    for run in loaded:
        if run.info is None or run.info.exit is None:
            continue
        steps = {"start": run.info.start, "engine ready": run.info.built or run.info.ready, "gate open": run.info.ready}
        steps |= moments(run.folder / "journal.jsonl")
        if run.info.exit.signal:
            steps["killed"] = run.info.exit.time
        told[run.name] = steps | ({"trained": run.info.trained} if run.info.trained else {})
    return told


def timeline(loaded: tuple[Run, ...]) -> HTML:
    """The same in seconds from the first start."""
    told = times(loaded)
    first = min((steps["start"] for steps in told.values()), default=0.0)
    names = ("start", "engine ready", "gate open", "restored", "first token", "last token", "killed", "trained")
    return table(
        {"run": run} | {f"{name}, s": round(steps[name] - first, 2) if name in steps else None for name in names}
        for run, steps in told.items()
    )


def rows(loaded: tuple[Run, Run, Run]) -> HTML:
    """The rows of both dumps as sets."""
    uninterrupted, _, restored = loaded
    sides = (uninterrupted, restored)
    here, there = (set(run.rows) for run in sides)
    planned = uninterrupted.planned | restored.planned
    counts = {
        "planned by the parameters": len(planned),
        "in both dumps": len(here & there),
        "only in the uninterrupted run's": len(here - there),
        "only in the restored run's": len(there - here),
        "planned and in neither": len(planned - here - there),
        "more than once in a dump": sum(len(refs) > 1 for run in sides for refs in run.rows.values()),
        "damaged": sum(not ref.sound for run in sides for refs in run.rows.values() for ref in refs),
    }
    return table({"rows": name, "count": count} for name, count in counts.items())


def cuts(judgement: Judgement) -> HTML:
    """One line a cut, what failed first: its budget in tokens, how it ended and how it compared."""
    return table(
        {
            "cut": Markup(f'<a id="{anchor(cut.key)}" href="#{anchor(cut.key)}">{html.escape(cut.key)}</a>'),
            "status": cut.status.replace("_", " "),
            "prompt": cut.segments[cut.call_index][0] if cut.call_index < len(cut.segments) else None,
            "prefix": cut.prefix_tokens,
            "remaining": None if cut.limit_tokens is None else cut.limit_tokens - cut.prefix_tokens,
            "tail": cut.tail_tokens,
            "limit": cut.limit_tokens,
            "ended by": cut.ended,
            "first difference": cut.first_difference,
        }
        for cut in ordered(judgement.cuts)
    )


def ties(judgement: Judgement, params: Params) -> HTML:
    """The rows that part from the baseline: between which tokens, and how far apart these were, in nats."""
    return table(
        {
            "cut": cut.key,
            "status": cut.status.replace("_", " "),
            "token": cut.first_difference,
            "uninterrupted or restored": _tie(cut, judgement, params),
            "margin uninterrupted": cut.margin_uninterrupted,
            "margin restored": cut.margin_restored,
            "margin trainer": cut.margin_trainer,
        }
        for cut in ordered(judgement.cuts)
        if cut.first_difference is not None
    )


def _tie(cut: CutResult, judgement: Judgement, params: Params) -> str | None:
    """The two tokens a row parted at, as text where a tokenizer is at hand, and how near they were."""
    if cut.tokens is None:
        return None
    names = [f"{token} {judgement.text([token])!r}" if judgement.text else str(token) for token in cut.tokens]
    near = "" if cut.margin_uninterrupted is None else f": {margins(cut, params)}"
    return f"{names[0]} or {names[1]}{near}"


def margins(cut: CutResult, params: Params) -> str:
    if cut.margin_uninterrupted == cut.margin_restored == 0:
        return "an exact tie"
    told = f"{cut.margin_uninterrupted:.4g} and {cut.margin_restored:.4g} nats"
    if params.dtype == "bfloat16":
        told += f", {cut.margin_uninterrupted / BF16_STEP:.3g} and {cut.margin_restored / BF16_STEP:.3g} bfloat16 steps"
    return told


def mutations(judgement: Judgement) -> HTML:
    """Which check reported which mutation, and the mutations these rows hold no place for."""
    return table(
        {
            "mutation": result.id,
            "must be reported by": result.check,
            "reported by": "no place in these rows" if result.caught_by is None else ", ".join(result.caught_by) or "none",
        }
        for result in judgement.mutations
    )


def unchecked(judgement: Judgement) -> HTML:
    """What these runs did not let be checked, and why."""
    nowhere = [result.id for result in judgement.mutations if result.caught_by is None]
    idle = [check for check in CHECKS if not judgement.seen[check] and check not in judgement.not_run]
    told = [
        *judgement.not_run.items(),
        *((check, "nothing to judge: no row of these runs parts from the baseline") for check in idle),
        ("policy-logprobs", judgement.counts["rows_after_set_aside"], "rows trained behind a set-aside one: not compared"),
        ("cuts", judgement.counts["started_again"], "calls open at the kill without a token: started again, no cut"),
        ("mutations", len(nowhere), f"without a place in these rows: {', '.join(nowhere)}"),
    ]
    counted = [{"what": what[0], "why": what[1] if len(what) == 2 else f"{what[1]} {what[2]}"} for what in told if what[1]]
    return table(counted)


def parameters(params: Params) -> HTML:
    """Every parameter, the changed ones marked; what each is stands in the notebook's own parameters cell."""
    helps = papermill.inspect_notebook(str(NOTEBOOK))
    defaults = Params()
    return table(
        {
            "parameter": name,
            "value": _plain(value),
            "changed from": "" if value == getattr(defaults, name) else _plain(getattr(defaults, name)),
            "what it is": helps.get(name, {}).get("help", ""),
        }
        for name, value in params
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value else repr(value)


def provenance(params: Params, loaded: tuple[Run, ...]) -> HTML:
    """Versions, and what was hashed."""
    told = results.provenance(params, loaded)
    lines = [("parameters, SHA-256 of what decides the rows", told["params_sha256"])]
    lines += [(f"version of {name}", number) for name, number in told["versions"].items()]
    for run in loaded:
        entry = told[run.name]
        setup = entry.get("setup", {})
        lines += [(f"{run.name}: {name}", setup[name]) for name in ("engine", "weights_sha256") if name in setup]
        lines += [(f"{run.name}: {name}", entry[name]) for name in ("run_id", "dump_sha256", "torn") if name in entry]
    return table({"what": what, "value": value} for what, value in lines)


def commands(params: Params, judgement: Judgement) -> HTML:
    """How to make this report again, to check it without engine, model or GPU, and to open one cut."""
    folder = shlex.quote(params.runs)
    cut = next((cut.key for cut in ordered(judgement.cuts)), "1/0/0#1")
    sides = " ".join(f"--{name} {folder}/{name}" for name in ("uninterrupted", "restored", "killed"))
    lines = {
        "make it again": "restore-parity report PARAMS.yaml, with the parameters above",
        "judge the saved runs again": "restore-parity report PARAMS.yaml --reuse",
        "check them in the terminal": f"restore-parity check {sides}",
        "open one cut": f"restore-parity cut {cut} --runs {folder}",
    }
    return table({"to": what, "command": command} for what, command in lines.items())
