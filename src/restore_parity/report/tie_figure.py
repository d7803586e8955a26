"""The plot of near-ties: how near they are, and beside them the noise of equal tokens."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..checker.judgement import Judgement
from .drawing import canvas_of_two, show
from .figures import MANY_CUTS, NAMED, STATUS
from .ties import BF16_STEP, Parted, margins_in_words, parted_rows, with_margins

BAR = "#56B4E9"
MOST_STEPS = 40  # of bfloat16 logits that an axis marks


def plot_margins(judgement: Judgement) -> None:
    """Near-tie margins in both runs against the declared bound, and the noise of equal tokens."""
    shown = with_margins(parted_rows(judgement))
    moved = [size for size in judgement.noise if size is not None]
    if not shown and not moved:
        print(f"No plot: {_nothing_to_plot(judgement)}")
        return
    figure, ties, noise = canvas_of_two(4.2)
    _plot_ties(ties, judgement, shown)
    _plot_noise(noise, judgement, sorted(moved))
    texts = [f"{row.name}: {margins_in_words(row, judgement.params)}" for row in shown[:NAMED]]
    ties_in_words = "; ".join(texts) or "no row parts from the baseline"
    show(
        figure,
        f"Near-tie margins, bound {judgement.params.near_tie_margin} nats: {ties_in_words}. Equal "
        f"tokens: {judgement.noise[None]} bit-identical, largest move {_noise(judgement):.4g}.",
    )


def _nothing_to_plot(judgement: Judgement) -> str:
    parted = sum(cut.first_difference is not None for cut in judgement.cuts)
    rows = "no cut's row differs from the baseline"
    if parted:
        rows = f"none of the {parted} cuts whose rows differ shows a margin"
    equal = judgement.noise[None]
    return f"{rows}, and {equal} equal tokens have bit-identical log-probabilities."


def _noise(judgement: Judgement) -> float:
    """By how much log-probabilities of equal tokens moved at most, in nats."""
    return judgement.largest.get("tail-logprobs", 0.0)


def _plot_ties(axes: Axes, judgement: Judgement, rows: list[Parted]) -> None:
    """A mark a row, at its margins in both runs; within the dashed corner it is set aside.

    Rows without a cut are hollow.
    """
    bound = judgement.params.near_tie_margin
    noise = _noise(judgement)
    within = f"within near_tie_margin = {bound} nats in both"
    axes.add_patch(
        Rectangle((0, 0), bound, bound, facecolor="#0072B222", ec="#0072B2", ls="--", label=within)
    )
    moved = f"equal tokens moved by up to {noise:.3g}"
    axes.add_patch(Rectangle((0, 0), noise, noise, facecolor="#00000022", label=moved))
    largest = [bound, noise]
    for row in rows:
        place = row.margins or (0.0, 0.0)
        largest += place
        look = STATUS[row.status]
        fill = "full" if row.has_cut else "none"
        axes.plot(*place, look.marker, color=look.colour, markersize=8, fillstyle=fill)
        if len(rows) <= MANY_CUTS:
            axes.annotate(row.name, place, xytext=(6, 4), textcoords="offset points", fontsize=8)
    most = max(largest) or 1.0
    axes.set(xlim=(-0.05 * most, 1.2 * most), ylim=(-0.05 * most, 1.2 * most))
    xlabel = "margin in the uninterrupted run, nats"
    axes.set(xlabel=xlabel, ylabel="margin in the run that parted, nats")
    if judgement.params.dtype == "bfloat16" and most < MOST_STEPS * BF16_STEP:
        _bfloat16_grid(axes, 1.2 * most)
    if not rows:
        text = "no row parts from the baseline"
        axes.text(0.5, 0.4, text, transform=axes.transAxes, ha="center")
    axes.legend(loc="upper right", frameon=False, fontsize=8)


def _bfloat16_grid(axes: Axes, most: float) -> None:
    """The grid that the candidates' logits lie on between 16 and 32."""
    steps = [BF16_STEP * step for step in range(int(most / BF16_STEP) + 1)]
    axes.set_xticks(steps)
    axes.set_yticks(steps)
    axes.tick_params(axis="x", rotation=90)
    axes.grid(color="#DDDDDD")


def _plot_noise(axes: Axes, judgement: Judgement, moved: list[int]) -> None:
    """How many equal tokens' log-probabilities moved how far, by powers of two."""
    names = ["0", *(f"$2^{{{power}}}$" for power in moved)]
    counts = [judgement.noise[None], *(judgement.noise[power] for power in moved)]
    axes.bar(names, counts, color=BAR, edgecolor="black")
    axes.set_yscale("symlog", linthresh=1)
    axes.tick_params(axis="x", labelsize=7)
    xlabel = "moved by, nats (from this power of two up)"
    axes.set(xlabel=xlabel, ylabel="equal generated tokens")
