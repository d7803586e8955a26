"""The debugger of one cut: what its notebook shows, of saved runs that passed or failed."""

from pathlib import Path

from IPython.display import HTML
from matplotlib import pyplot
from msgspec import Struct

from ..experiment.rerun import Again, Order, View, read_again, run_again, view_of
from ..checker.checks import Judgement, first_difference, judge, likely
from ..checker.cut_text import AROUND, record_lines
from ..errors import IncompleteError, UsageError
from .figures import show
from .diagnosis import NAMES, find
from ..checker.dumps import Run
from ..journal import Call
from ..checker.problems import Problem, render
from ..experiment.models import text_of
from ..params import ROOT
from ..records import Row
from ..checker.loading import load_runs
from .tables import table

# Okabe and Ito's colours; the marker says the same without colour. The names are those of a case's views.
MARKS = {NAMES["R"]: "#D55E00 o", NAMES["P"]: "#0072B2 s", NAMES["D"]: "#009E73 ^", "torch": "#CC79A7 x"}
FLOOR = 1e-6  # nats: a trace is drawn to scale below, in powers of ten above


class Case(Struct):
    """One cut with all that is known of it; `views` are of its call, those that there are."""

    folder: Path  # of what run_again leaves
    cut: Call
    runs: tuple[Run, Run, Run]
    judgement: Judgement
    rows: dict[str, Row | None]
    views: dict[str, View]
    again: Again | None = None

    @property
    def calls(self) -> tuple[View | None, View | None]:
        """The saved calls, uninterrupted and restored."""
        return self.views.get(NAMES["U"]), self.views.get(NAMES["R"])

    @property
    def parting(self) -> int | None:
        """The first token of the call at which the saved calls differ."""
        ours, theirs = self.calls
        return first_difference(ours.ids, theirs.ids) if ours and theirs else None

    def text(self, token: int) -> str:
        """A decoded token, quoted and escaped; empty where no tokenizer is at hand."""
        return repr(self.judgement.text([token])) if self.judgement.text else ""


def judged(runs: str) -> tuple[Judgement, tuple[Run, Run, Run]]:
    """Judge saved runs; a relative folder counts from the project's. Raises UsageError, IncompleteError."""
    if not (ROOT / runs).is_dir():
        raise UsageError(f"runs: {runs!r} is no folder", "give the one that holds uninterrupted, killed and restored")
    uninterrupted, killed, restored = loaded = load_runs(ROOT / runs)
    text = text_of(killed.info.setup.get("model", ""))
    return judge(uninterrupted, restored, killed, killed.params, look=f"--runs {runs}", text=text), loaded


def _problems(judgement: Judgement, name: str) -> list[Problem]:
    return [problem for problem in judgement.problems if problem.key in (name, name.split("#")[0])]


def _failed_first(judgement: Judgement) -> list[str]:
    return sorted((cut.key for cut in judgement.cuts), key=lambda name: not _problems(judgement, name))


def cut_list(judgement: Judgement) -> HTML:
    """One line a cut, failed first, with the checks that have a problem with it or its row."""
    cuts = {cut.key: cut for cut in judgement.cuts}
    lines = [
        {"cut": name, "status": cuts[name].status, "prefix tokens": cuts[name].prefix_tokens}
        | {"checks with a problem": ", ".join({problem.check: 0 for problem in _problems(judgement, name)}) or "none"}
        for name in _failed_first(judgement)
    ]
    return table(lines)


def pick(judgement: Judgement, runs: tuple[Run, Run, Run], name: str) -> Case:
    """The cut `name`, or a row's; for "" the first of the list. Raises UsageError where there is none."""
    uninterrupted, killed, restored = runs
    names = _failed_first(judgement)
    found = next((cut for cut in names if name in ("", cut, cut.split("#")[0])), None)
    if found is None:
        raise UsageError(f"cut: {name!r} is no cut of these runs", f"the cuts are {', '.join(names) or 'none'}")
    cut = next(call for call in killed.journal.open_calls() if call.name == found)
    rows = {run.name: run.only(cut.key) for run in (uninterrupted, restored)}
    views = {name: view for name, row in rows.items() if (view := view_of(row, cut.call_index))}
    folder = killed.journal.path.parents[1] / "again" / found.replace("/", "-").replace("#", "-")
    return Case(folder, cut, runs, judgement, rows, views)


def tell(case: Case) -> None:
    """Say what the journal and the restore hold of the cut, then every problem with it or its row."""
    told = render(_problems(case.judgement, case.cut.name)) or "no check has a problem with it or its row"
    print(f"cut {case.cut.name}", *record_lines(case.cut, case.runs[2]), "", told, sep="\n")


def try_again(case: Case, wanted: bool) -> None:
    """Run the cut again both ways where `wanted`, else take what there is of the last time."""
    print(f"{case.cut.name}: {'running it again: one start of the engine' if wanted else 'not run'}", flush=True)
    killed = case.runs[1]
    try:
        if wanted:
            run_again(case.folder, Order(case.cut.name, killed.journal.open_calls(), killed.info, *case.calls))
    except (IncompleteError, OSError) as error:  # what was saved can be looked at all the same
        print(f"not run again: {error}")
    if again := read_again(case.folder):
        case.again = again
        case.views |= {NAMES["P"]: again.prefill, NAMES["D"]: again.decode, "torch": again.torch}
    print(f"{case.folder / 'again.json'}: {'here' if again else 'not there'}")


def window_table(case: Case) -> HTML:
    """The tokens of both rows round the seam and round the rows' first difference; places count from a row's start."""
    places = {"seam": len(case.cut.prompt_ids) + len(case.cut.ids)}
    ids = [row.token_ids for row in case.rows.values() if row]
    end = max(map(len, ids), default=0)
    if len(ids) == 2 and (at := first_difference(*ids)) is not None:
        places["first difference"] = at
    lines = []
    for what, place in places.items():
        for at in range(max(0, place - AROUND), min(end, place + AROUND) + 1):
            lines.append({"round": what, "place": f"{at}{' <-' * (at == place)}"})
            for name, row in case.rows.items():
                lines[-1] |= {f"{name}: {column}": value for column, value in _cells(case, row, at).items()}
    return table(lines)


def _cells(case: Case, row: Row | None, at: int) -> dict[str, str | float]:
    if row is None or at >= row.input_length:
        return {"token": "end" if row else "no sound row"}
    token, others = row.token_ids[at], likely(row.generation_top2[at] if row.generation_top2 else None)
    told = {"token": f"{token} {case.text(token)}".strip()}
    if not row.token_loss_mask[at]:
        return told
    rest = [f"{other} {case.text(other)} {logprob:.6f}" for other, logprob in others.items() if other != token]
    return told | {"nats": row.generation_logprobs[at], "other likely, nats": ", ".join(rest)}


def _gaps(case: Case) -> tuple[str, dict[str, list[float]]]:
    """The view all others are held against, and how far each is over it, in nats, as long as their tokens are equal."""
    (name, base), *others = case.views.items() or [("", View([], [], [], []))]
    ends = [first_difference(base.ids, view.ids) for _, view in others]
    return name, {
        other: [here - there for here, there in zip(view.logprobs[:end], base.logprobs[:end], strict=False)]
        for (other, view), end in zip(others, ends, strict=True)
    }


def plot_trace(case: Case) -> None:
    """How far each view's log-probabilities are from the uninterrupted run's, token by token over the call."""
    base, traces = _gaps(case)
    figure, axes = pyplot.subplots(figsize=(10, 3.6), layout="constrained")
    for size, (name, gaps) in zip((10, 8, 6, 4), traces.items(), strict=False):  # equal ones stay visible in each other
        colour, marker = MARKS[name].split()
        axes.plot(gaps, color=colour, marker=marker, fillstyle="none", markersize=size, lw=0.8, label=name)
    axes.axvline(len(case.cut.ids) - 0.5, color="black", ls="--", label="seam: the prefix ends")
    if case.parting is not None:
        axes.axvline(case.parting, color="black", ls=":", label="first difference of the saved tokens")
    most = max([FLOOR, *(abs(gap) for gaps in traces.values() for gap in gaps)])
    axes.set_yscale("symlog", linthresh=FLOOR)
    axes.set(ylim=(-3 * most, 3 * most), xlabel="token of the call", ylabel=f"log-probability less the\n{base} one, nats")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    told = [f"{name} {len(gaps)} tokens within {max(map(abs, gaps), default=0.0):.3g}" for name, gaps in traces.items()]
    seam, parting = len(case.cut.ids), "nowhere" if case.parting is None else f"at token {case.parting}"
    alt = f"Log-probabilities less the {base} ones, nats: {'; '.join(told)}. Seam after {seam} tokens"
    show(figure, f"{alt}; the saved tokens part {parting}.")


def trace_table(case: Case) -> HTML:
    """The same as a table: how long each view's tokens are the uninterrupted run's, and where log-probabilities move."""
    base, traces = _gaps(case)
    lines = []
    for name, gaps in traces.items():
        at = next((at for at, gap in enumerate(gaps) if gap), None)
        line = {"call": name, "tokens": len(case.views[name].ids), f"equal to {base}": len(gaps)}
        line["first log-probability that differs"] = "none" if at is None else f"token {at}, by {gaps[at]:.3g} nats"
        lines.append(line | {"largest difference, nats": f"{max(map(abs, gaps), default=0.0):.3g}"})
    return table(lines)


def candidate_table(case: Case) -> HTML:
    """What each view gives the two candidates at the first difference; without one, the tokens at the seam. In nats."""
    lines, seam = [], len(case.cut.ids)
    for at in range(max(0, seam - AROUND), seam + AROUND) if case.parting is None else [case.parting]:
        views = {name: view for name, view in case.views.items() if at < len(view.ids)}
        for token in {views[name].ids[at]: 0 for name in case.rows if name in views}:
            seen = {name: likely(view.top2[at]) | {view.ids[at]: view.logprobs[at]} for name, view in views.items()}
            told = {f"{name}, nats": seen[name].get(token) for name in seen}
            lines.append({"token of the call": at, "id": str(token), "text": case.text(token)} | told)
    return table(lines)


def conclude(case: Case) -> None:
    """Say what it all comes to."""
    print(f"{case.cut.name}: {': '.join(find(case.cut, *case.calls, case.again))}")
