"""What the report tells in tables."""

import html
import time
from typing import Any, NamedTuple

from IPython.display import HTML

from ..checker.dumps import Runs
from ..checker.judgement import CHECKS, Judgement
from ..params import Params
from ..records import CutResult
from .html_table import Markup, anchor, failed_first, table, words
from .timeline import MILESTONES, timelines

# nats: the spacing of bfloat16 logits between 16 and 32, where these models' likeliest ones lie
BF16_STEP = 0.125


def runs(loaded: Runs) -> HTML:
    """One line a run: what it was and how it ended."""
    lines = []
    for run in loaded.every:
        info = run.info
        if info is None or info.exit is None:
            continue
        ended = f"exit code {info.exit.code}"
        if info.exit.signal:
            ended = f"signal {info.exit.signal}"
        line = {
            "run": run.name,
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start)),
            "engine": info.setup.get("engine"),
            "model": info.setup.get("model"),
            "dtype": info.setup.get("engine_args", {}).get("dtype"),
            "device": info.device,
            "ended by": ended,
            "calls open then": len(info.exit.open_calls),
            "git revision": info.git_revision or "none",
        }
        lines.append(line)
    return table(lines)


def timeline(loaded: Runs) -> HTML:
    """When each run did what, in seconds from the first start."""
    lines = []
    for run, times in timelines(loaded).items():
        line: dict[str, Any] = {"run": run}
        for milestone in MILESTONES:
            reached = times.get(milestone)
            line[f"{milestone}, s"] = None if reached is None else round(reached, 2)
        lines.append(line)
    return table(lines)


def rows(loaded: Runs) -> HTML:
    """The rows of both dumps as sets."""
    uninterrupted = set(loaded.uninterrupted.rows)
    restored = set(loaded.restored.rows)
    refs_of_rows = [refs for run in loaded.trained for refs in run.rows.values()]
    counts = {
        "planned by the parameters": len(loaded.planned),
        "in both dumps": len(uninterrupted & restored),
        "only in the uninterrupted run's": len(uninterrupted - restored),
        "only in the restored run's": len(restored - uninterrupted),
        "planned and in neither": len(loaded.planned - uninterrupted - restored),
        "more than once in a dump": sum(len(refs) > 1 for refs in refs_of_rows),
        "damaged": sum(not ref.sound for refs in refs_of_rows for ref in refs),
    }
    return table({"rows": name, "count": count} for name, count in counts.items())


def cuts(judgement: Judgement) -> HTML:
    """One line a cut, what failed first: its budget in tokens, how it ended and how it compared."""
    return table(_cut_line(cut) for cut in failed_first(judgement.cuts))


def _cut_line(cut: CutResult) -> dict[str, Any]:
    name = anchor(cut.key)
    prompt = None
    if cut.call_index < len(cut.segments):
        prompt = cut.segments[cut.call_index][0]
    remaining = None
    if cut.limit_tokens is not None:
        remaining = cut.limit_tokens - cut.prefix_tokens
    return {
        "cut": Markup(f'<a id="{name}" href="#{name}">{html.escape(cut.key)}</a>'),
        "status": words(cut.status),
        "prompt": prompt,
        "prefix": cut.prefix_tokens,
        "remaining": remaining,
        "tail": cut.tail_tokens,
        "limit": cut.limit_tokens,
        "ended by": cut.ended,
        "first difference": cut.first_difference,
    }


def ties(judgement: Judgement) -> HTML:
    """The rows that part from the baseline: between which tokens, how far apart these were."""
    return table(
        {
            "cut": cut.key,
            "status": words(cut.status),
            "token": cut.first_difference,
            "uninterrupted or restored": _tie(cut, judgement),
            "margin uninterrupted": cut.margin_uninterrupted,
            "margin restored": cut.margin_restored,
            "margin trainer": cut.margin_trainer,
        }
        for cut in failed_first(judgement.cuts)
        if cut.first_difference is not None
    )


def _tie(cut: CutResult, judgement: Judgement) -> str | None:
    """The two tokens at which a row parts, with their text where it is known, and how near."""
    if cut.tokens is None:
        return None
    names = [str(token) for token in cut.tokens]
    if judgement.decode:
        names = [f"{token} {judgement.decode([token])!r}" for token in cut.tokens]
    tokens = " or ".join(names)
    if cut.margin_uninterrupted is None:
        return tokens
    return f"{tokens}: {margins_in_words(cut, judgement.params)}"


def margins_in_words(cut: CutResult, params: Params) -> str:
    """The near-tie margins of both runs, for a cut that shows them."""
    pair = cut.margin_uninterrupted or 0.0, cut.margin_restored or 0.0
    if not any(pair):
        return "an exact tie"
    text = f"{pair[0]:.4g} and {pair[1]:.4g} nats"
    if params.dtype == "bfloat16":
        steps = [f"{margin / BF16_STEP:.3g}" for margin in pair]
        text = f"{text}, {steps[0]} and {steps[1]} bfloat16 steps"
    return text


def mutations(judgement: Judgement) -> HTML:
    """Which check reported which mutation, and the mutations these rows hold no place for."""
    lines = []
    for result in judgement.mutations:
        reported = "no place in these rows"
        if result.caught_by is not None:
            reported = ", ".join(result.caught_by) or "none"
        line = {
            "mutation": result.id,
            "must be reported by": result.check,
            "reported by": reported,
        }
        lines.append(line)
    return table(lines)


class Unchecked(NamedTuple):
    """Something that these runs did not let be checked."""

    what: str
    why: str


def unchecked(judgement: Judgement) -> HTML:
    """What these runs did not let be checked, and why."""
    found = [Unchecked(check, reason) for check, reason in judgement.not_run.items()]
    for check in CHECKS:
        if not judgement.seen[check] and check not in judgement.not_run:
            why = "nothing to judge: no row of these runs parts from the baseline"
            found.append(Unchecked(check, why))
    if count := judgement.counts["rows_after_set_aside"]:
        why = f"{count} rows trained behind a set-aside one: not compared"
        found.append(Unchecked("policy-logprobs", why))
    if count := judgement.counts["started_again"]:
        why = f"{count} calls open at the kill without a token: started again, not cut"
        found.append(Unchecked("cuts", why))
    if nowhere := [result.id for result in judgement.mutations if result.caught_by is None]:
        why = f"{len(nowhere)} without a place in these rows: {', '.join(nowhere)}"
        found.append(Unchecked("mutations", why))
    return table(one._asdict() for one in found)
