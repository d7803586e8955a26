"""Tables of the notebooks: pandas lays them out, every cell is escaped."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

import pandas
from IPython.display import HTML

from ..checker.problems import printable
from ..records import CutResult, slug

FAILED_FIRST = {"broken": 0, "set_aside": 1, "match": 2}


class Markup(str):
    """HTML of our own making, the one thing that a cell does not escape."""


def table(rows: Iterable[Mapping[str, Any]]) -> HTML:
    """A table of rows that map a column's title to its value."""
    cells = [{title: _cell(value) for title, value in row.items()} for row in rows]
    if not cells:
        return HTML("<p>none</p>")
    frame = pandas.DataFrame(cells, dtype=object)
    return HTML(frame.to_html(index=False, escape=False, border=0, na_rep="none"))


def _cell(value: object) -> str:
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else html.escape(printable(str(value)))


def anchor(cut: str) -> str:
    """The stable name of a cut on the page: `1/3/0#1` is `cut-1-3-0-1`."""
    return f"cut-{slug(cut)}"


def words(status: str) -> str:
    """A status as a reader sees it: `set_aside` is `set aside`."""
    return status.replace("_", " ")


def failed_first(cuts: Iterable[CutResult]) -> list[CutResult]:
    """The cuts in the order in which they are shown."""
    return sorted(cuts, key=lambda cut: FAILED_FIRST[cut.status])
