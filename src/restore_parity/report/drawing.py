"""How the figures draw: colours that colour-blind readers tell apart, hatches, legends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from IPython.display import display
from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

EDGE = "white"  # of hatched bars; its colour is the hatch's too


class Look(NamedTuple):
    """One of Okabe and Ito's colours; hatch or marker say the same without colour."""

    colour: str
    hatch: str = ""
    marker: str = ""


def canvas(height: float) -> tuple[Figure, Axes]:
    """A figure as wide as the page, `height` inches high."""
    figure = _figure(height)
    return figure, figure.subplots()


def canvas_of_two(height: float) -> tuple[Figure, Axes, Axes]:
    """The same with two plots side by side."""
    figure = _figure(height)
    left, right = figure.subplots(1, 2)
    return figure, left, right


def _figure(height: float) -> Figure:
    return pyplot.figure(figsize=(10, height), dpi=110, layout="constrained")


def show(figure: Figure, alternative_text: str) -> None:
    """Put a figure into the notebook with the text that stands for it."""
    display(figure, metadata={"image/png": {"alt": alternative_text}})
    pyplot.close(figure)


def bar(axes: Axes, look: Look, row: int, start: float, stop: float) -> None:
    """A horizontal bar from `start` to `stop`, on line `row`."""
    width = stop - start
    axes.barh(
        row,
        width,
        left=start,
        height=0.7,
        color=look.colour,
        hatch=look.hatch,
        edgecolor=EDGE,
        lw=0,
    )


def stacked_histogram(
    axes: Axes, looks: Sequence[Look], values: Sequence[Sequence[int]], bins: Any
) -> None:
    """How often the values of each look lie in each bin, one look above the other."""
    axes.hist(
        values,
        bins=bins,
        stacked=True,
        color=[look.colour for look in looks],
        hatch=[look.hatch for look in looks],
        edgecolor=EDGE,
    )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def line_names(axes: Axes, names: Sequence[str]) -> None:
    """Name the lines of horizontal bars, the first one at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def legend_above(axes: Axes, looks: dict[str, Look], markers: dict[str, str] | None = None) -> None:
    """A legend of bars, and of black markers, above the axes."""
    handles: list[Artist] = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor=EDGE, label=name)
        for name, look in looks.items()
    ]
    for name, marker in (markers or {}).items():
        handles.append(Line2D([], [], color="k", marker=marker, ls="", label=name))
    axes.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
        columnspacing=1.2,
    )
