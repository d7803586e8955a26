"""Where restored rows part from the baseline: of cuts, and of rows set aside without one."""

from collections.abc import Iterable
from typing import NamedTuple

from ..checker.judgement import Judgement, RowResult
from ..params import Params
from ..records import CutResult
from .html_table import failed_first

# nats: the spacing of bfloat16 logits between 16 and 32, where these models' likeliest ones lie
BF16_STEP = 0.125


class Parted(NamedTuple):
    """A row that parts from the baseline, and what is shown of a tie there."""

    found: CutResult | RowResult
    status: str
    parted_in: str  # in words

    @property
    def name(self) -> str:
        """The cut, or the row that has none."""
        return self.found.key

    @property
    def has_cut(self) -> bool:
        """Whether a call of the row was cut."""
        return isinstance(self.found, CutResult)

    @property
    def margins(self) -> tuple[float, float] | None:
        """In nats, of the baseline and of the run that parted; None where none is shown."""
        one, other = self.found.margin_uninterrupted, self.found.margin_restored
        return None if one is None or other is None else (one, other)


def parted_rows(judgement: Judgement) -> list[Parted]:
    """The cuts whose rows part from the baseline, failed ones first, then the other rows."""
    parted = []
    for cut in failed_first(judgement.cuts):
        if cut.first_difference is not None:
            parted.append(Parted(cut, cut.status, _part_of(cut, cut.first_difference)))
    for row in judgement.rows:
        status = "broken" if row.key in judgement.failed_keys else "set_aside"
        parted.append(Parted(row, status, f"{row.parted_in} run"))
    return parted


def _part_of(cut: CutResult, at: int) -> str:
    """What of a cut's row a token belongs to."""
    if cut.call_index >= len(cut.segments):
        return "no such call"
    start, stop = cut.segments[cut.call_index]
    if at < start:
        return "before the call"
    if at < start + cut.prefix_tokens:
        return "prefix"
    return "tail" if at < stop else "behind the call"


def with_margins(rows: Iterable[Parted]) -> list[Parted]:
    """Those that show their margins."""
    return [row for row in rows if row.margins is not None]


def margins_in_words(row: Parted, params: Params) -> str:
    """The near-tie margins of both runs, of a row that shows them."""
    margins = row.margins or (0.0, 0.0)
    if not any(margins):
        return "an exact tie"
    text = f"{margins[0]:.4g} and {margins[1]:.4g} nats"
    if params.dtype == "bfloat16":
        steps = [f"{margin / BF16_STEP:.3g}" for margin in margins]
        text = f"{text}, {steps[0]} and {steps[1]} bfloat16 steps"
    return text
