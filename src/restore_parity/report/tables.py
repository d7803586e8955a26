"""What the report tells in tables."""

import html
import time
from typing import Any, NamedTuple

from IPython.display import HTML

from ..checker.dumps import Runs
from ..checker.judgement import CHECKS, Judgement
from ..records import CutResult
from .html_table import Markup, anchor, failed_first, table, words
from .ties import Parted, margins_in_words, parted_rows
from .timeline import MILESTONES, timelines

# why a check that could run compared nothing
IDLE = {
    "before-cut-call": "no row with a cut parts from the baseline",
    "near-tie": "no row with a cut parts from the baseline",
    "set-aside-share": "no cut has a tail, and no other row is set aside",
    "finished-captured": "no call had ended before the kill",
    "tail-generated": "no restored call went on",
}
NOTHING_THERE = "these runs hold nothing that it compares"


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
            "cut or row": row.name,
            "status": words(row.status),
            "parted in": row.parted_in,
            "token": row.found.first_difference,
            "uninterrupted or the other run": _tie(row, judgement),
            "margin uninterrupted": row.found.margin_uninterrupted,
            "margin in the other run": row.found.margin_restored,
            "margin trainer": row.found.margin_trainer,
        }
        for row in parted_rows(judgement)
    )


def _tie(row: Parted, judgement: Judgement) -> str | None:
    """The two tokens at which a row parts, with their text where it is known, and how near."""
    if row.found.tokens is None:
        return None
    names = [str(token) for token in row.found.tokens]
    if judgement.decode:
        names = [f"{token} {judgement.decode([token])!r}" for token in row.found.tokens]
    tokens = " or ".join(names)
    if row.margins is None:
        return tokens
    return f"{tokens}: {margins_in_words(row, judgement.params)}"


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
    """What these runs did not let be checked, in whole or in part, and why."""
    found = _unchecked_of_checks(judgement)
    if count := judgement.counts["rows_after_set_aside"]:
        why = f"{count} rows trained behind a set-aside one: not compared"
        found.append(Unchecked("policy-logprobs", why))
    if count := judgement.counts["started_again"]:
        why = f"{count} calls open at the kill without a token: started again, not cut"
        found.append(Unchecked("cuts", why))
    if judgement.unread:
        why = f"no check reads {', '.join(sorted(judgement.unread))}"
        found.append(Unchecked("columns of the dumps", why))
    if nowhere := [result.id for result in judgement.mutations if result.caught_by is None]:
        why = f"{len(nowhere)} without a place in these rows: {', '.join(nowhere)}"
        found.append(Unchecked("mutations", why))
    return table(one._asdict() for one in found)


def _unchecked_of_checks(judgement: Judgement) -> list[Unchecked]:
    found = []
    for check in CHECKS:
        why = judgement.why(check)
        if why is None and not judgement.seen[check]:
            why = f"nothing to judge: {IDLE.get(check, NOTHING_THERE)}"
        if why is not None:
            found.append(Unchecked(check, why))
    return found
