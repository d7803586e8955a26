"""The facts below a page's verdict: the counts that carry it, then what ran where and when."""

import time
from collections import Counter
from typing import NamedTuple

from ..checker.results import Results
from .provenance import run_provenance


class Fact(NamedTuple):
    """One fact: what it is, and its value in words."""

    name: str
    value: str


def facts(results: Results) -> list[Fact]:
    """All facts of a report, in the order in which they are shown."""
    return [
        *_compared(results),
        _checks(results),
        *_mutations(results),
        *_largest_differences(results),
        *_setup(results),
        _judged_with(results),
        *_started(results),
    ]


def _compared(results: Results) -> list[Fact]:
    """How much was compared; nothing where the checks were never reached."""
    counts = results.counts
    if not counts:
        return []
    tokens = f"{counts.get('tokens', 0):,}, {counts.get('generated_tokens', 0):,} of them generated"
    cuts = Counter(cut.status for cut in results.cuts)
    cuts_in_words = (
        f"{len(results.cuts)}: {cuts['match']} match, {cuts['set_aside']} set aside, "
        f"{cuts['broken']} broken"
    )
    return [
        Fact("rows compared", f"{counts.get('rows', 0):,}"),
        Fact("tokens compared", tokens),
        Fact("cuts", cuts_in_words),
        Fact("rows set aside", _set_aside(cuts["set_aside"], len(results.rows))),
    ]


def _set_aside(with_cut: int, without: int) -> str:
    if not with_cut + without:
        return "0"
    return f"{with_cut + without}: {with_cut} with a cut, {without} without"


def _checks(results: Results) -> Fact:
    status = Counter(check.status for check in results.checks)
    idle = sum(check.status == "pass" and not check.seen for check in results.checks)
    value = (
        f"{status['pass'] - idle} hold, {idle} had nothing to judge, {status['fail']} fail, "
        f"{status['not_run']} not run"
    )
    partly = sum(check.status != "not_run" and check.why is not None for check in results.checks)
    if partly:
        value = f"{value}; {partly} could compare only a part"
    return Fact("checks", value)


def _mutations(results: Results) -> list[Fact]:
    tried = [mutation for mutation in results.mutations if mutation.caught_by is not None]
    if not tried:
        return []
    value = f"{sum(mutation.caught for mutation in tried)} of {len(tried)} mutations"
    impossible = len(results.mutations) - len(tried)
    if impossible:
        value = f"{value} ({impossible} could not be made of these rows)"
    return [Fact("broken copies of these rows caught", value)]


def _largest_differences(results: Results) -> list[Fact]:
    found = []
    if (engine := results.largest.get("tail-logprobs")) is not None:
        mean = results.largest.get("tail-logprobs mean", 0.0)
        value = f"{engine:.4g} nats; mean of a call {mean:.4g}"
        found.append(Fact("largest difference, engine's log-probabilities", value))
    if (trainer := results.largest.get("policy-logprobs")) is not None:
        value = f"{trainer:.4g} nats"
        left_out = results.counts.get("rows_after_set_aside", 0)
        if left_out:
            value = f"{value}, {left_out} of {results.counts['rows']} rows not compared"
        found.append(Fact("largest difference, trainer's log-probabilities", value))
    if (gap := results.largest.get("engine-trainer-gap")) is not None:
        value = f"{gap:.4g} nats in the mean of a step"
        found.append(Fact("largest change, engine-trainer gap", value))
    return found


def _setup(results: Results) -> list[Fact]:
    baseline = run_provenance(results.provenance, "uninterrupted")
    params = results.provenance["params"]
    model = baseline.setup.get("model", params["model"])
    found = [Fact("model", f"{model}, {params['dtype']}")]
    if engine := baseline.setup.get("engine"):
        found.append(Fact("engine", engine))
    if baseline.device:
        found.append(Fact("device", baseline.device))
    return found


def _judged_with(results: Results) -> Fact:
    versions = results.provenance["versions"].items()
    return Fact("judged with", ", ".join(f"{name} {number}" for name, number in versions))


def _started(results: Results) -> list[Fact]:
    """Which code ran and when, where a run began."""
    baseline = run_provenance(results.provenance, "uninterrupted")
    if baseline.start is None:
        return []
    runs = "made for this report"
    if results.provenance["params"]["reuse"]:
        runs = "saved ones, judged again"
    started = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(baseline.start))
    return [
        Fact("git revision", baseline.git_revision or "none"),
        Fact("runs", runs),
        Fact("runs started", started),
    ]
