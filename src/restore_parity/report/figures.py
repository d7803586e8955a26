"""Plots over the results the checks read; each has an alternative text, and a table beside it says the same."""

from collections import Counter

from IPython.display import display
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ..checker.checks import CHECKS, Judgement
from ..checker.dumps import Run
from ..params import Params
from ..records import CutResult
from .tables import BF16_STEP, margins, ordered, times

# Okabe and Ito's colours, told apart by colour-blind readers; the hatch says the same without colour.
KINDS = {
    "earlier call": ("#56B4E9", "//"),
    "tool result": ("#DDDDDD", "xx"),
    "prefix": ("#0072B2", ""),
    "tail": ("#E69F00", "\\\\"),
    "later call": ("#CC79A7", "//"),
}
STAGES = {
    "start": ("engine starts", "#DDDDDD", "xx"),
    "engine ready": ("waits", "#F0F0F0", "..."),
    "gate open": ("first step", "#CC79A7", "//"),
    "first token": ("generates", "#0072B2", ""),
    "last token": ("trains", "#E69F00", "\\\\"),
}
STATUS = {"match": ("o", "#0072B2", ""), "set_aside": ("^", "#E69F00", "\\\\"), "broken": ("X", "#D55E00", "xx")}
MANY_CUTS = 40  # more are drawn together, but for those that do not match
BLOCK_TOKENS = 16  # the engine's cache block, unless engine_args say otherwise


def show(figure: Figure, alt: str) -> None:
    """Put a figure into the notebook with its alternative text."""
    display(figure, metadata={"image/png": {"alt": alt}})
    pyplot.close(figure)


def canvas(height: float, columns: int = 1):
    """A figure as wide as the page, `height` inches high."""
    return pyplot.subplots(1, columns, figsize=(10, height), dpi=110, layout="constrained")


def plot_timeline(loaded: tuple[Run, ...]) -> None:
    """What each run did when, in seconds from the first start."""
    told = times(loaded)
    first = min((steps["start"] for steps in told.values()), default=0.0)
    figure, axes = canvas(2.4)
    for height, steps in enumerate(told.values()):
        end = steps.get("killed", steps.get("trained", steps.get("last token", steps["gate open"])))
        begun = [stage for stage in STAGES if stage in steps and steps[stage] < end]
        for stage, stop in zip(begun, [*(steps[stage] for stage in begun), end][1:], strict=True):
            _, colour, hatch = STAGES[stage]
            axes.barh(
                height, stop - steps[stage], left=steps[stage] - first, color=colour, hatch=hatch, edgecolor="white", lw=0
            )
        for name, marker in (("killed", "kX"), ("restored", "k^")):
            if name in steps:
                axes.plot(steps[name] - first, height, marker, markersize=9, clip_on=False)
    axes.set_yticks(range(len(told)), list(told))
    axes.invert_yaxis()
    axes.set(xlabel="seconds from the first start", ylabel="run")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name) for name, colour, hatch in STAGES.values()
    ]
    handles += [pyplot.Line2D([], [], color="k", marker=m, ls="", label=n) for n, m in (("killed", "X"), ("restored", "^"))]
    axes.legend(handles=handles, ncols=7, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, columnspacing=1.2)
    spans = [
        f"{run}: " + ", ".join(f"{name} at {at - first:.1f}" for name, at in steps.items()) for run, steps in told.items()
    ]
    show(figure, f"Timeline of the runs in seconds; {'; '.join(spans)}")


def spans(cut: CutResult) -> list[tuple[str, int, int]]:
    """What the tokens of a restored row are, from its start to its end, as (kind, start, stop)."""
    parts, place = [], 0
    for number, (first, stop) in enumerate(cut.segments):
        parts.append(("tool result" if number else "prompt", place, first))
        if number == cut.call_index:
            seam = min(first + cut.prefix_tokens, stop)
            parts += [("prefix", first, seam), ("tail", seam, stop)]
        else:
            parts.append(("earlier call" if number < cut.call_index else "later call", first, stop))
        place = stop
    return [part for part in parts if part[1] < part[2]]


def plot_boundaries(judgement: Judgement) -> None:
    """The token boundaries of each cut's row to scale, what failed first; of many cuts, the matching ones counted."""
    cuts = ordered(judgement.cuts)
    apart = [cut for cut in cuts if cut.status != "match"] if len(cuts) > MANY_CUTS else cuts
    for page in range(0, len(apart), MANY_CUTS):
        _boundaries(apart[page : page + MANY_CUTS])
    if len(cuts) > MANY_CUTS:
        _prefixes(cuts)


def _boundaries(cuts: list[CutResult]) -> None:
    """One bar a cut, from the end of its prompt: that is the longest part and the same in both runs."""
    figure, axes = canvas(1.2 + 0.32 * len(cuts))
    for height, cut in enumerate(cuts):
        prompt = cut.segments[0][0] if cut.segments else 0
        for kind, start, stop in spans(cut):
            if kind != "prompt":
                colour, hatch = KINDS[kind]
                axes.barh(
                    height,
                    stop - start,
                    left=start - prompt,
                    height=0.7,
                    color=colour,
                    hatch=hatch,
                    edgecolor="white",
                    lw=0,
                )
        axes.annotate(f"{prompt} ", (0, height), ha="right", va="center", fontsize=8, annotation_clip=False)
        if cut.first_difference is not None:
            axes.plot(cut.first_difference - prompt, height, "kv", markersize=7)
    axes.set_yticks(range(len(cuts)), [f"{cut.key} ({cut.status.replace('_', ' ')})      " for cut in cuts])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set(xlabel="tokens after the row's prompt (whose length stands at the left)", ylabel="cut")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=kind) for kind, (colour, hatch) in KINDS.items()
    ]
    if any(cut.first_difference is not None for cut in cuts):
        handles.append(pyplot.Line2D([], [], color="k", marker="v", ls="", label="first difference"))
    axes.legend(handles=handles, ncols=6, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False)
    told = "; ".join(f"{cut.key}: prefix {cut.prefix_tokens}, tail {cut.tail_tokens}, {cut.status}" for cut in cuts[:20])
    show(figure, f"Token boundaries of {len(cuts)} cuts; {told}")


def _prefixes(cuts: list[CutResult]) -> None:
    """How many cuts lie where: by the length of their prefix, and by its offset in the engine's cache block."""
    figure, (by_length, by_offset) = canvas(3.6, 2)
    longest = max(cut.prefix_tokens for cut in cuts) + 1
    width = -(-longest // 30)
    bins = range(0, longest + width, width)
    names = [status for status in STATUS if any(cut.status == status for cut in cuts)]
    looks = {"color": [STATUS[name][1] for name in names], "label": [name.replace("_", " ") for name in names]}
    lengths = [[cut.prefix_tokens for cut in cuts if cut.status == name] for name in names]
    by_length.hist(
        lengths, bins=list(bins), stacked=True, hatch=[STATUS[name][2] for name in names], edgecolor="white", **looks
    )
    by_length.set(xlabel="prefix, tokens", ylabel="cuts")
    below = Counter()
    for name in names:
        counts = Counter(cut.prefix_tokens % BLOCK_TOKENS for cut in cuts if cut.status == name)
        heights, bottoms = [counts[at] for at in range(BLOCK_TOKENS)], [below[at] for at in range(BLOCK_TOKENS)]
        _, colour, hatch = STATUS[name]
        by_offset.bar(range(BLOCK_TOKENS), heights, bottom=bottoms, color=colour, hatch=hatch, edgecolor="white")
        below.update(counts)
    by_offset.set(xlabel=f"prefix tokens modulo {BLOCK_TOKENS}, the cache block", ylabel="cuts")
    for axes in (by_length, by_offset):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    by_length.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False)
    told = ", ".join(f"{len(values)} {name.replace('_', ' ')}" for name, values in zip(names, lengths, strict=True))
    show(
        figure, f"Prefix lengths of {len(cuts)} cuts up to {longest - 1} tokens, and their offsets in a cache block: {told}"
    )


def plot_margins(judgement: Judgement, params: Params) -> None:
    """Near-tie margins in both runs against the declared bound, and beside them the noise of equal tokens."""
    shown = [cut for cut in judgement.cuts if cut.margin_uninterrupted is not None]
    if not shown and not judgement.noise.keys() - {None}:
        apart = sum(cut.first_difference is not None for cut in judgement.cuts)
        rows = (
            f"of {apart} cuts whose rows differ none shows a margin" if apart else "no cut's row differs from the baseline"
        )
        print(f"No plot: {rows}, and {judgement.noise[None]} equal tokens have bit-identical log-probabilities.")
        return
    figure, (axes, floor) = canvas(4.2, 2)
    bound = params.near_tie_margin
    corner = f"within near_tie_margin = {bound} nats in both"
    axes.add_patch(Rectangle((0, 0), bound, bound, facecolor="#0072B222", edgecolor="#0072B2", ls="--", label=corner))
    largest = judgement.largest.get("tail-logprobs", 0.0)
    axes.add_patch(
        Rectangle((0, 0), largest, largest, facecolor="#00000022", label=f"equal tokens moved by up to {largest:.3g}")
    )
    for cut in shown:
        place = (cut.margin_uninterrupted, cut.margin_restored)
        axes.plot(*place, STATUS[cut.status][0], color=STATUS[cut.status][1], markersize=8)
        if len(shown) <= MANY_CUTS:
            axes.annotate(cut.key, place, xytext=(6, 4), textcoords="offset points", fontsize=8)
    most = (
        max([bound, largest, *(margin for cut in shown for margin in (cut.margin_uninterrupted, cut.margin_restored))]) or 1
    )
    axes.set(xlim=(-0.05 * most, 1.2 * most), ylim=(-0.05 * most, 1.2 * most))
    axes.set(xlabel="margin in the uninterrupted run, nats", ylabel="margin in the restored run, nats")
    if params.dtype == "bfloat16" and most < 40 * BF16_STEP:  # the grid the candidates' logits lie on between 16 and 32
        axes.set_xticks([BF16_STEP * step for step in range(int(1.2 * most / BF16_STEP) + 1)])
        axes.set_yticks([BF16_STEP * step for step in range(int(1.2 * most / BF16_STEP) + 1)])
        axes.tick_params(axis="x", rotation=90)
        axes.grid(color="#DDDDDD")
    if not shown:
        axes.text(0.5, 0.4, "no row parts from the baseline", transform=axes.transAxes, ha="center")
    axes.legend(loc="upper right", frameon=False, fontsize=8)
    equal = judgement.noise[None]
    moved = sorted(step for step in judgement.noise if step is not None)
    names = ["0", *(f"$2^{{{step}}}$" for step in moved)]
    floor.bar(names, [equal, *(judgement.noise[step] for step in moved)], color="#56B4E9", edgecolor="black")
    floor.set_yscale("symlog", linthresh=1)
    floor.tick_params(axis="x", labelsize=7)
    floor.set(xlabel="moved by, nats (from this power of two up)", ylabel="equal generated tokens")
    steps = [f"{cut.key}: {margins(cut, params)}" for cut in shown[:20]]
    told = "; ".join(steps) or "no row parts from the baseline"
    show(
        figure,
        f"Near-tie margins, bound {bound} nats: {told}. Equal tokens: {equal} bit-identical, largest move {largest:.4g}.",
    )


def plot_mutations(judgement: Judgement) -> None:
    """Which check reported which mutation: full where it must, hollow where it followed."""
    shown = [result for result in judgement.mutations if result.caught_by is not None]
    figure, axes = canvas(2.8 + 0.17 * len(shown))
    for height, result in enumerate(shown):
        axes.axhline(height, color="#EEEEEE", lw=0.6, zorder=0)
        for check in {*result.caught_by, result.check}:
            must, did = check == result.check, check in result.caught_by
            style = {"marker": "s" if did else "X", "color": "#0072B2" if did else "#D55E00"}
            axes.plot(CHECKS.index(check), height, **style, fillstyle="full" if must else "none", ls="", markersize=5)
    axes.set_yticks(range(len(shown)), [result.id for result in shown], fontsize=7)
    axes.set_xticks(range(len(CHECKS)), CHECKS, rotation=90, fontsize=8)
    axes.tick_params(axis="x", top=True, labeltop=True)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("check (full: must report the mutation; hollow: reported it too; cross: did not)")
    axes.set_ylabel("mutation of these rows")
    caught = sum(result.check in result.caught_by for result in shown)
    show(figure, f"Mutations by checks: {caught} of {len(shown)} reported by the check that must; the table lists them.")
