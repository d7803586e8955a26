"""Tables and plots over the cut results; pandas and matplotlib come in here and nowhere else."""

import pandas
from IPython.display import display
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from pandas.io.formats.style import Styler

from .checks import Judgement
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
STATUS_MARK = {"match": "o", "set_aside": "^", "broken": "X"}


def cut_table(judgement: Judgement) -> Styler:
    """One line a cut: what was captured, what was generated, how it compared."""
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
        }
        for cut in judgement.cuts
    ).astype({"first difference": "Int64"} if judgement.cuts else {})
    return table.style.hide(axis="index").format(na_rep="none", precision=4, escape="html")


def show(figure: Figure, alt: str) -> None:
    """Put a figure into the notebook with its alternative text."""
    display(figure, metadata={"image/png": {"alt": alt}})
    pyplot.close(figure)


def plot_boundaries(judgement: Judgement) -> None:
    """The token boundaries of each cut's row, to scale."""
    cuts = judgement.cuts
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.32 * len(cuts)), layout="constrained")
    for height, cut in enumerate(cuts):
        for kind, start, stop in cut.spans:
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
    """Near-tie margins of the rows that part from the baseline, in both runs, against the declared bound."""
    parted = [cut for cut in judgement.cuts if cut.first_difference is not None]
    shown = [cut for cut in parted if cut.margin_uninterrupted is not None]
    figure, axes = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    bound = params.near_tie_margin
    corner = f"within near_tie_margin = {bound} nats in both"
    axes.add_patch(Rectangle((0, 0), bound, bound, facecolor="#0072B222", edgecolor="#0072B2", ls="--", label=corner))
    for cut in shown:
        axes.plot(cut.margin_uninterrupted, cut.margin_restored, STATUS_MARK[cut.status], color="#D55E00", markersize=8)
        axes.annotate(cut.key, (cut.margin_uninterrupted, cut.margin_restored), xytext=(6, 4), textcoords="offset points")
    most = max([bound, *(margin for cut in shown for margin in (cut.margin_uninterrupted, cut.margin_restored))])
    axes.set_xlim(-0.05 * (most or 1), 1.2 * (most or 1))
    axes.set_ylim(-0.05 * (most or 1), 1.2 * (most or 1))
    axes.set_xlabel("margin in the uninterrupted run, nats")
    axes.set_ylabel("margin in the restored run, nats")
    if not parted:
        axes.text(0.5, 0.5, "no row parts from the baseline", transform=axes.transAxes, ha="center")
    axes.legend(loc="upper right", frameon=False)
    told = "; ".join(f"{c.key}: {c.margin_uninterrupted:.4g} and {c.margin_restored:.4g}" for c in shown[:20])
    show(
        figure,
        f"Near-tie margins of {len(shown)} cuts in nats, bound {bound}. {told or 'No row parts from the baseline.'}",
    )


def _boundaries(cuts: list[CutResult]) -> str:
    return "; ".join(f"{cut.key}: prefix {cut.prefix_tokens}, tail {cut.tail_tokens}, {cut.status}" for cut in cuts[:20])
