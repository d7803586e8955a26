"""Plots over what the checks read; a table beside each says the same."""

from itertools import pairwise
from typing import NamedTuple

from matplotlib.axes import Axes

from ..checker.dumps import Runs
from ..checker.judgement import CHECKS, Judgement, MutationResult
from ..records import CutResult
from .drawing import (
    Look,
    bar,
    canvas,
    canvas_of_two,
    legend_above,
    line_names,
    show,
    stacked_histogram,
)
from .html_table import failed_first, words
from .timeline import Timeline, timelines

# What a run does from a milestone on, and how that is drawn
STAGES = {
    "start": ("engine starts", Look("#DDDDDD", "xx")),
    "engine ready": ("waits", Look("#F0F0F0", "...")),
    "gate open": ("first step", Look("#CC79A7", "//")),
    "first token": ("generates", Look("#0072B2")),
    "last token": ("trains", Look("#E69F00", "\\\\")),
}
ENDS = ("killed", "trained", "last token", "gate open")  # the first one that a run has is its end
EVENTS = {"killed": "X", "restored": "^"}  # milestones that are marked
PARTS = {  # of a row
    "earlier call": Look("#56B4E9", "//"),
    "tool result": Look("#DDDDDD", "xx"),
    "prefix": Look("#0072B2"),
    "tail": Look("#E69F00", "\\\\"),
    "later call": Look("#CC79A7", "//"),
}
STATUS = {
    "match": Look("#0072B2", marker="o"),
    "set_aside": Look("#E69F00", "\\\\", marker="^"),
    "broken": Look("#D55E00", "xx", marker="X"),
}
REPORTED = Look("#0072B2", marker="s")
UNREPORTED = Look("#D55E00", marker="X")
MANY_CUTS = 40  # more are drawn together, but for those that do not match
BLOCK_TOKENS = 16  # the engine's cache block, unless engine_args say otherwise
BINS = 30  # of a histogram of prefix lengths, at most
NAMED = 20  # cuts that an alternative text names


class Span(NamedTuple):
    """A stretch [start, stop) of tokens or seconds, and what it is."""

    what: str
    start: float
    stop: float


def plot_timeline(loaded: Runs) -> None:
    """What each run did when, in seconds from the first start."""
    times_of_runs = timelines(loaded)
    figure, axes = canvas(2.4)
    for row, times in enumerate(times_of_runs.values()):
        for span in stages(times):
            bar(axes, STAGES[span.what][1], row, span.start, span.stop)
        for event, marker in EVENTS.items():
            if event in times:
                axes.plot(times[event], row, f"k{marker}", markersize=9, clip_on=False)
    line_names(axes, list(times_of_runs))
    axes.set(xlabel="seconds from the first start", ylabel="run")
    legend_above(axes, dict(STAGES.values()), EVENTS)
    texts = [f"{run}: {_in_words(times)}" for run, times in times_of_runs.items()]
    show(figure, f"Timeline of the runs in seconds; {'; '.join(texts)}")


def _in_words(times: Timeline) -> str:
    return ", ".join(f"{milestone} at {at:.1f}" for milestone, at in times.items())


def stages(times: Timeline) -> list[Span]:
    """What a run did from its start to its end, in the order of time; `what` is a milestone."""
    end = next(times[milestone] for milestone in ENDS if milestone in times)
    begun = [milestone for milestone in STAGES if milestone in times and times[milestone] < end]
    places = [*(times[milestone] for milestone in begun), end]
    return [
        Span(milestone, start, stop)
        for milestone, (start, stop) in zip(begun, pairwise(places), strict=True)
    ]


def row_parts(cut: CutResult) -> list[Span]:
    """What the tokens of a restored row are, from its start to its end; none for an empty part."""
    parts = []
    place = 0
    for number, (first, stop) in enumerate(cut.segments):
        parts.append(Span("tool result" if number else "prompt", place, first))
        if number == cut.call_index:
            seam = min(first + cut.prefix_tokens, stop)
            parts += [Span("prefix", first, seam), Span("tail", seam, stop)]
        else:
            what = "earlier call" if number < cut.call_index else "later call"
            parts.append(Span(what, first, stop))
        place = stop
    return [part for part in parts if part.start < part.stop]


def plot_boundaries(judgement: Judgement) -> None:
    """The token boundaries of each cut's row to scale, what failed first.

    Of many cuts, the matching ones are counted.
    """
    cuts = failed_first(judgement.cuts)
    drawn = cuts
    if len(cuts) > MANY_CUTS:
        drawn = [cut for cut in cuts if cut.status != "match"]
    for first in range(0, len(drawn), MANY_CUTS):
        _plot_rows(drawn[first : first + MANY_CUTS])
    if len(cuts) > MANY_CUTS:
        _plot_prefixes(cuts)


def _plot_rows(cuts: list[CutResult]) -> None:
    """One line a cut, from the end of its prompt, the longest part and the same in both runs."""
    figure, axes = canvas(1.2 + 0.32 * len(cuts))
    for row, cut in enumerate(cuts):
        prompt = cut.segments[0][0] if cut.segments else 0
        for part in row_parts(cut):
            if part.what != "prompt":
                bar(axes, PARTS[part.what], row, part.start - prompt, part.stop - prompt)
        axes.annotate(
            f"{prompt} ", (0, row), ha="right", va="center", fontsize=8, annotation_clip=False
        )
        if cut.first_difference is not None:
            axes.plot(cut.first_difference - prompt, row, "kv", markersize=7)
    line_names(axes, [f"{cut.key} ({words(cut.status)})      " for cut in cuts])
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    xlabel = "tokens after the row's prompt (whose length stands at the left)"
    axes.set(xlabel=xlabel, ylabel="cut")
    apart = any(cut.first_difference is not None for cut in cuts)
    legend_above(axes, PARTS, {"first difference": "v"} if apart else {})
    texts = [
        f"{cut.key}: prefix {cut.prefix_tokens}, tail {cut.tail_tokens}, {cut.status}"
        for cut in cuts[:NAMED]
    ]
    show(figure, f"Token boundaries of {len(cuts)} cuts; {'; '.join(texts)}")


def _plot_prefixes(cuts: list[CutResult]) -> None:
    """How many cuts lie where: by prefix length, and by its offset in the engine's cache block."""
    figure, by_length, by_offset = canvas_of_two(3.6)
    lengths: dict[str, list[int]] = {}
    for status in STATUS:
        of_status = [cut.prefix_tokens for cut in cuts if cut.status == status]
        if of_status:
            lengths[status] = of_status
    looks = [STATUS[status] for status in lengths]
    longest = max(cut.prefix_tokens for cut in cuts)
    width = -(-(longest + 1) // BINS)
    bins = list(range(0, longest + 1 + width, width))
    stacked_histogram(by_length, looks, list(lengths.values()), bins)
    by_length.set(xlabel="prefix, tokens", ylabel="cuts")
    offsets = [[length % BLOCK_TOKENS for length in of_status] for of_status in lengths.values()]
    centred = [place - 0.5 for place in range(BLOCK_TOKENS + 1)]
    stacked_histogram(by_offset, looks, offsets, centred)
    xlabel = f"prefix tokens modulo {BLOCK_TOKENS}, the cache block"
    by_offset.set(xlabel=xlabel, ylabel="cuts")
    legend_above(by_length, {words(status): STATUS[status] for status in lengths})
    texts = [f"{len(of_status)} {words(status)}" for status, of_status in lengths.items()]
    show(
        figure,
        f"Prefix lengths of {len(cuts)} cuts up to {longest} tokens, and their offsets in a cache "
        f"block: {', '.join(texts)}",
    )


def plot_mutations(judgement: Judgement) -> None:
    """Which check reported which mutation: full where it must, hollow where it followed."""
    tried = [result for result in judgement.mutations if result.caught_by is not None]
    figure, axes = canvas(2.8 + 0.17 * len(tried))
    for row, result in enumerate(tried):
        axes.axhline(row, color="#EEEEEE", lw=0.6, zorder=0)
        for check in {*(result.caught_by or []), result.check}:
            _mark_mutation(axes, result, check, row)
    axes.set_yticks(range(len(tried)), [result.id for result in tried], fontsize=7)
    axes.set_xticks(range(len(CHECKS)), CHECKS, rotation=90, fontsize=8)
    axes.tick_params(axis="x", top=True, labeltop=True)
    axes.set_ylim(len(tried) - 0.5, -0.5)
    axes.set_xlabel(
        "check (full: must report the mutation; hollow: reported it too; cross: did not)"
    )
    axes.set_ylabel("mutation of these rows")
    caught = sum(result.caught for result in tried)
    show(
        figure,
        f"Mutations by checks: {caught} of {len(tried)} reported by the check that must; the table "
        "lists them.",
    )


def _mark_mutation(axes: Axes, result: MutationResult, check: str, row: int) -> None:
    look = REPORTED if check in (result.caught_by or []) else UNREPORTED
    axes.plot(
        CHECKS.index(check),
        row,
        ls="",
        marker=look.marker,
        color=look.colour,
        fillstyle="full" if check == result.check else "none",
        markersize=5,
    )
