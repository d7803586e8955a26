"""What the debugger shows of a case: its tokens, and how far its calls are apart."""

from typing import Any, NamedTuple

from IPython.display import HTML

from ..checker.cut_text import WINDOW_TOKENS
from ..records import CallView, Row, likely
from ..tokens import first_difference
from .debugger import TORCH, Case
from .diagnosis import DECODE, PREFILL, RESTORED
from .drawing import Look, canvas, show
from .html_table import table

LOOKS = {
    RESTORED: Look("#D55E00", marker="o"),
    PREFILL: Look("#0072B2", marker="s"),
    DECODE: Look("#009E73", marker="^"),
    TORCH: Look("#CC79A7", marker="x"),
}
MARKER_SIZES = {RESTORED: 10, PREFILL: 8, DECODE: 6, TORCH: 4}  # equal ones stay visible
FLOOR = 1e-6  # nats: a trace is drawn to scale below, in powers of ten above


def window_table(case: Case) -> HTML:
    """The tokens of both rows around the seam and around the rows' first difference.

    Places count from the row's start.
    """
    places = {"seam": len(case.cut.prompt_ids) + case.seam}
    ids_of_rows = [row.token_ids for row in case.rows.values() if row]
    end = max(map(len, ids_of_rows), default=0)
    difference = first_difference(*ids_of_rows) if len(ids_of_rows) == 2 else None
    if difference is not None:
        places["first difference"] = difference
    lines = []
    for what, place in places.items():
        first = max(0, place - WINDOW_TOKENS)
        for at in range(first, min(end, place + WINDOW_TOKENS + 1)):
            mark = " <-" if at == place else ""
            line = {"around": what, "place": f"{at}{mark}"}
            lines.append({**line, **_tokens_at(case, at)})
    return table(lines)


def _tokens_at(case: Case, at: int) -> dict[str, str | float]:
    """What each row has at a place, by the column's title."""
    cells = {}
    for run, row in case.rows.items():
        for title, value in _token_cells(case, row, at).items():
            cells[f"{run}: {title}"] = value
    return cells


def _token_cells(case: Case, row: Row | None, at: int) -> dict[str, str | float]:
    if row is None:
        return {"token": "no sound row"}
    if at >= row.input_length:
        return {"token": "end"}
    token = row.token_ids[at]
    cells: dict[str, str | float] = {"token": f"{token} {case.text(token)}".strip()}
    if row.token_loss_mask[at]:
        others = likely(row.generation_top_logprobs[at] if row.generation_top_logprobs else None)
        others.pop(token, None)
        texts = [f"{other} {case.text(other)} {nats:.6f}" for other, nats in others.items()]
        cells["nats"] = row.generation_logprobs[at]
        cells["other likely, nats"] = ", ".join(texts)
    return cells


class Trace(NamedTuple):
    """How far a view's log-probabilities are over the base's, while their tokens are equal."""

    name: str
    moves: list[float]  # nats, a token of the call each

    @property
    def largest(self) -> float:
        """The largest move up or down, in nats."""
        return max(map(abs, self.moves), default=0.0)


def _traces(case: Case) -> tuple[str, list[Trace]]:
    """The name of the view that all others are held against, and their traces."""
    views = list(case.views.items())
    if not views:
        return "", []
    (base_name, base), *others = views
    return base_name, [Trace(name, _moves(base, view)) for name, view in others]


def _moves(base: CallView, view: CallView) -> list[float]:
    end = first_difference(base.ids, view.ids)
    pairs = zip(base.logprobs[:end], view.logprobs[:end], strict=False)
    return [logprob - base_logprob for base_logprob, logprob in pairs]


def plot_trace(case: Case) -> None:
    """How far each view's log-probabilities are from the base's, token by token over the call."""
    base, traces = _traces(case)
    figure, axes = canvas(3.6)
    for name, moves in traces:
        look = LOOKS[name]
        style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "fillstyle": "none"}
        axes.plot(moves, markersize=MARKER_SIZES[name], lw=0.8, label=name, **style)
    axes.axvline(case.seam - 0.5, color="black", ls="--", label="seam: the prefix ends")
    if case.parting is not None:
        label = "first difference of the saved tokens"
        axes.axvline(case.parting, color="black", ls=":", label=label)
    most = max([FLOOR, *(trace.largest for trace in traces)])
    axes.set_yscale("symlog", linthresh=FLOOR)
    axes.set(ylim=(-3 * most, 3 * most), xlabel="token of the call")
    axes.set(ylabel=f"log-probability less the\n{base} one, nats")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    texts = [f"{one.name} {len(one.moves)} tokens within {one.largest:.3g}" for one in traces]
    parting = "nowhere" if case.parting is None else f"at token {case.parting}"
    show(
        figure,
        f"Log-probabilities less the {base} ones, nats: {'; '.join(texts)}. Seam after "
        f"{case.seam} tokens; the saved tokens part {parting}.",
    )


def trace_table(case: Case) -> HTML:
    """The same as a table: how long each view's tokens are the base's, and what moves."""
    base, traces = _traces(case)
    lines = []
    for trace in traces:
        moved = "none"
        at = next((at for at, move in enumerate(trace.moves) if move), None)
        if at is not None:
            moved = f"token {at}, by {trace.moves[at]:.3g} nats"
        line = {
            "call": trace.name,
            "tokens": len(case.views[trace.name].ids),
            f"equal to {base}": len(trace.moves),
            "first log-probability that differs": moved,
            "largest difference, nats": f"{trace.largest:.3g}",
        }
        lines.append(line)
    return table(lines)


def candidate_table(case: Case) -> HTML:
    """What each view gives the two candidates at the first difference, in nats.

    Without a difference, the tokens at the seam.
    """
    places = range(max(0, case.seam - WINDOW_TOKENS), case.seam + WINDOW_TOKENS)
    if case.parting is not None:
        places = range(case.parting, case.parting + 1)
    lines = []
    for at in places:
        views = {name: view for name, view in case.views.items() if at < len(view.ids)}
        saved = [views[name].ids[at] for name in case.rows if name in views]
        for token in dict.fromkeys(saved):
            line: dict[str, Any] = {
                "token of the call": at,
                "id": str(token),
                "text": case.text(token),
            }
            for name, view in views.items():
                line[f"{name}, nats"] = _logprob(view, at, token)
            lines.append(line)
    return table(lines)


def _logprob(view: CallView, at: int, token: int) -> float | None:
    """What a view gives a token at a place, in nats, where it tells."""
    if view.ids[at] == token:
        return view.logprobs[at]
    return likely(view.top_logprobs[at]).get(token)
