"""Tables and plots over the cut results; pandas and matplotlib come in here and nowhere else."""

import time

import pandas
from IPython.display import display
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pandas.io.formats.style import Styler

from .checks import CHECKS, Judgement
from .index import Run
from .params import Params
from .records import CutResult

# Okabe and Ito's colours, told apart by colour-blind readers; the hatch says the same without colour.
KINDS = {
    "prompt": ("#BBBBBB", ""),
    "earlier call": ("#56B4E9", "//"),
    "tool result": ("#DDDDDD", "xx"),
    "prefix": ("#0072B2", ""),
    "tail": ("#E69F00", "\\\\"),
    "later call": ("#CC79A7", "//"),
}
BF16_STEP = 0.125  # nats: the spacing of bfloat16 logits between 16 and 32, where these models' likeliest ones lie
STATUS_MARK = {"match": "o", "set_aside": "^", "broken": "X"}


def cut_table(judgement: Judgement, params: Params) -> Styler:
    """One line a cut: what was captured, what was generated, how it compared, and between which tokens it tied."""
    table = pandas.DataFrame(
        {
            "cut": cut.key,
            "status": cut.status,
            "prefix tokens": cut.prefix_tokens,
            "tail tokens": cut.tail_tokens,
            "limit tokens": cut.limit_tokens,
            "first difference": cut.first_difference,
            "margin uninterrupted, nats": cut.margin_uninterrupted,
            "margin restored, nats": cut.margin_restored,
            "margin trainer, nats": cut.margin_trainer,
            "uninterrupted or restored": _tie(cut, judgement, params),
        }
        for cut in judgement.cuts
    ).astype({"first difference": "Int64"} if judgement.cuts else {})
    return table.style.hide(axis="index").format(na_rep="none", precision=4, escape="html")


def run_table(loaded: tuple[Run, Run, Run]) -> Styler:
    """One line a run: what it was and how it ended."""
    infos = [(run.name, run.info) for run in loaded if run.info and run.info.exit]
    table = pandas.DataFrame(
        {
            "run": name,
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.start)),
            "seconds": info.exit.time - info.start,
            "engine": info.setup.get("engine"),
            "model": info.setup.get("model"),
            "dtype": info.setup.get("engine_args", {}).get("dtype"),
            "device": info.device,
            "ended by": f"signal {info.exit.signal}" if info.exit.signal else f"exit code {info.exit.code}",
            "calls open then": len(info.exit.open_calls),
            "git revision": (info.git_revision or "none")[:12],
        }
        for name, info in infos
    )
    return table.style.hide(axis="index").format(precision=1, escape="html")


def show(figure: Figure, alt: str) -> None:
    """Put a figure into the notebook with its alternative text."""
    display(figure, metadata={"image/png": {"alt": alt}})
    pyplot.close(figure)


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
    """The token boundaries of each cut's row, to scale."""
    cuts = judgement.cuts
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.32 * len(cuts)), layout="constrained")
    for height, cut in enumerate(cuts):
        for kind, start, stop in spans(cut):
            colour, hatch = KINDS[kind]
            axes.barh(height, stop - start, left=start, height=0.7, color=colour, hatch=hatch, edgecolor="white", lw=0)
        if cut.first_difference is not None:
            axes.plot(cut.first_difference, height, "kv", markersize=7)
    axes.set_yticks(range(len(cuts)), [f"{cut.key} ({cut.status})" for cut in cuts])
    axes.invert_yaxis()
    axes.set_xlabel("place in the row, tokens")
    axes.set_ylabel("cut")
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=kind) for kind, (colour, hatch) in KINDS.items()
    ]
    if any(cut.first_difference is not None for cut in cuts):
        handles.append(pyplot.Line2D([], [], color="k", marker="v", ls="", label="first difference"))
    axes.legend(handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False)
    show(figure, f"Token boundaries of {len(cuts)} cuts; {_boundaries(cuts)}")


def plot_margins(judgement: Judgement, params: Params) -> None:
    """Near-tie margins in both runs against the declared bound, and beside them the noise of equal tokens."""
    shown = [cut for cut in judgement.cuts if cut.margin_uninterrupted is not None]
    figure, (axes, floor) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    bound = params.near_tie_margin
    corner = f"within near_tie_margin = {bound} nats in both"
    axes.add_patch(Rectangle((0, 0), bound, bound, facecolor="#0072B222", edgecolor="#0072B2", ls="--", label=corner))
    for cut in shown:
        place = (cut.margin_uninterrupted, cut.margin_restored)
        axes.plot(*place, STATUS_MARK[cut.status], color="#D55E00", markersize=8)
        axes.annotate(cut.key, place, xytext=(6, 4), textcoords="offset points")
    most = max([bound, *(margin for cut in shown for margin in (cut.margin_uninterrupted, cut.margin_restored))]) or 1
    axes.set(xlim=(-0.05 * most, 1.2 * most), ylim=(-0.05 * most, 1.2 * most))
    axes.set(xlabel="margin in the uninterrupted run, nats", ylabel="margin in the restored run, nats")
    if params.dtype == "bfloat16":  # the candidates' logits lie on this grid where they are between 16 and 32
        axes.set_xticks([BF16_STEP * step for step in range(int(1.2 * most / BF16_STEP) + 1)])
        axes.set_yticks([BF16_STEP * step for step in range(int(1.2 * most / BF16_STEP) + 1)])
        axes.grid(color="#DDDDDD")
    if not shown:
        axes.text(0.5, 0.4, "no row parts from the baseline", transform=axes.transAxes, ha="center")
    axes.legend(loc="upper right", frameon=False)
    equal = judgement.noise[None]
    moved = sorted(step for step in judgement.noise if step is not None)
    names = ["0", *(f"$2^{{{step}}}$" for step in moved)]
    floor.bar(names, [equal, *(judgement.noise[step] for step in moved)], color="#56B4E9", edgecolor="black")
    floor.set_yscale("symlog", linthresh=1)
    floor.tick_params(axis="x", labelsize=7)
    floor.set(xlabel="moved by, nats (from this power of two up)", ylabel="equal generated tokens")
    steps = [f"{cut.key}: {_margins(cut, params)}" for cut in shown[:20]]
    told = "; ".join(steps) or "no row parts from the baseline"
    largest = judgement.largest.get("tail-logprobs", 0.0)
    alt = f"Near-tie margins, bound {bound} nats: {told}. Equal tokens: {equal} bit-identical, largest move {largest:.4g}."
    show(figure, alt)


def _tie(cut: CutResult, judgement: Judgement, params: Params) -> str | None:
    """The two tokens a row parted at, as text where a tokenizer is at hand, and how near they were."""
    if cut.tokens is None:
        return None
    names = [f"{token} {judgement.text([token])!r}" if judgement.text else str(token) for token in cut.tokens]
    near = "" if cut.margin_uninterrupted is None else f": {_margins(cut, params)}"
    return f"{names[0]} or {names[1]}{near}"


def _margins(cut: CutResult, params: Params) -> str:
    if cut.margin_uninterrupted == cut.margin_restored == 0:
        return "an exact tie"
    told = f"{cut.margin_uninterrupted:.4g} and {cut.margin_restored:.4g} nats"
    if params.dtype == "bfloat16":
        told += f", {cut.margin_uninterrupted / BF16_STEP:.3g} and {cut.margin_restored / BF16_STEP:.3g} bfloat16 steps"
    return told


def plot_mutations(judgement: Judgement) -> None:
    """Which check reported which mutation: full where it must, hollow where it followed."""
    shown = [result for result in judgement.mutations if result.caught_by is not None]
    figure, axes = pyplot.subplots(figsize=(10, 2.2 + 0.17 * len(shown)), layout="constrained")
    for height, result in enumerate(shown):
        axes.axhline(height, color="#EEEEEE", lw=0.6, zorder=0)
        for check in {*result.caught_by, result.check}:
            must, did = check == result.check, check in result.caught_by
            style = {"marker": "s" if did else "X", "color": "#0072B2" if did else "#D55E00"}
            axes.plot(CHECKS.index(check), height, **style, fillstyle="full" if must else "none", ls="", markersize=5)
    axes.set_yticks(range(len(shown)), [result.id for result in shown], fontsize=7)
    axes.set_xticks(range(len(CHECKS)), CHECKS, rotation=90, fontsize=8)
    axes.xaxis.tick_top()
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("check (full: must report the mutation; hollow: reported it too; cross: did not)")
    axes.set_ylabel("mutation of these rows")
    caught = sum(result.check in result.caught_by for result in shown)
    show(
        figure,
        f"Mutations by checks: {caught} of {len(shown)} mutations reported by the check that must; the table lists them.",
    )


def mutation_table(judgement: Judgement) -> Styler:
    """The same as a table, with the mutations these rows hold no place for."""
    table = pandas.DataFrame(
        {
            "mutation": result.id,
            "must be reported by": result.check,
            "reported by": "no place in these rows" if result.caught_by is None else ", ".join(result.caught_by) or "none",
        }
        for result in judgement.mutations
    )
    return table.style.hide(axis="index").format(escape="html")


def _boundaries(cuts: list[CutResult]) -> str:
    return "; ".join(f"{cut.key}: prefix {cut.prefix_tokens}, tail {cut.tail_tokens}, {cut.status}" for cut in cuts[:20])
