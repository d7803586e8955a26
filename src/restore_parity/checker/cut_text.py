"""One cut whole, as text: for the terminal and the debugger."""

import shlex
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..journal import Call
from ..params import shipped
from ..records import CutKey, Key, Row, likely
from ..tokens import first_difference
from .dumps import Run, Runs
from .loading import load_runs

WINDOW_TOKENS = 5  # shown on each side of a place


def cut_text(name: str, folder: Path) -> str:
    """All that is known of a cut (`1/3/0#1`) or a row (`1/3/0`) of the runs below a folder.

    Raises UsageError, IncompleteError.
    """
    key, call_index = _parse(name)
    runs = load_runs(folder)
    if runs.killed:
        runs.killed.whole()  # a cut is shown from the journal: a broken one must not look empty
    calls = _calls(runs, key, call_index)
    baseline, restored = runs.uninterrupted.only(key), runs.restored.only(key)
    if not calls and (call_index is not None or not (baseline or restored)):
        raise UsageError(f"no row and no call {name} in {folder}", f"the cuts are {_known(runs)}")
    lines = [f"cut {name}"]
    for call in calls:
        lines += record_lines(call, runs.restored)
    lines += [_row_line("uninterrupted", baseline), _row_line("restored", restored)]
    cuts = [call for call in calls if call.is_open]
    if baseline and restored:
        lines += _windows(cuts, baseline, restored)
    for call in cuts:
        lines += ["", *_debugger_lines(call.name, folder)]
    return "\n".join(lines)


def _parse(name: str) -> tuple[Key, int | None]:
    try:
        if "#" in name:
            return CutKey.parse(name)
        return Key.parse(name), None
    except ValueError:
        raise UsageError(
            f"{name!r} does not name a cut", "write it as step/prompt/generation#call, as 1/3/0#1"
        ) from None


def _calls(runs: Runs, key: Key, call_index: int | None) -> list[Call]:
    """The killed run's calls of a row, or the one of that index."""
    journal = runs.killed.journal if runs.killed else None
    if journal is None:
        return []
    calls = [call for call in journal.calls.values() if call.key == key]
    if call_index is None:
        return calls
    return [call for call in calls if call.call_index == call_index]


def _known(runs: Runs) -> str:
    journal = runs.killed.journal if runs.killed else None
    calls = journal.open_calls() if journal else []
    return ", ".join(call.name for call in calls) or "none"


def record_lines(call: Call, restored: Run) -> list[str]:
    """A line for what the journal captured of a call, and one for each restore record of it."""
    ended = call.finish_reason or "open at the kill"
    lines = [f"killed    {call.call_id}: {len(call.ids)} tokens of {call.max_tokens}, {ended}"]
    for record in restored.restores:
        if record.source_call_id == call.call_id:
            lines.append(f"restored  {msgspec.json.encode(record).decode()}")
    return lines


def _row_line(run: str, row: Row | None) -> str:
    if row is None:
        return f"row       {run}: missing, doubled or unsound"
    size = f"{row.input_length} tokens, reward {row.reward:.6g}"
    return f"row       {run}: {size}, trained segments {row.segments()}"


def _windows(cuts: list[Call], baseline: Row, restored: Row) -> list[str]:
    """The tokens around each cut and around the rows' first difference."""
    places = {f"cut, after {len(call.ids)} tokens": _seam(restored, call) for call in cuts}
    difference = first_difference(baseline.token_ids, restored.token_ids)
    if difference is not None:
        places["first difference"] = difference
    lines = []
    for what, place in places.items():
        lines += ["", f"{what}, token {place}", *_window_lines(baseline, restored, place)]
    if difference is None:
        lines += ["", "the token ids of both runs are equal"]
    return lines


def _seam(row: Row, call: Call) -> int:
    """The tail's first place in the row."""
    segments = row.segments()
    if call.call_index < len(segments):
        return segments[call.call_index][0] + len(call.ids)
    return row.input_length + len(call.ids)


def _window_lines(baseline: Row, restored: Row, place: int) -> list[str]:
    """A line a token: place, mask; for both runs id, log-probability and the likeliest tokens."""
    longest = max(baseline.input_length, restored.input_length)
    lines = [f"{'token':>7} {'mask':>4}  {'uninterrupted':<44}  restored"]
    for at in range(max(0, place - WINDOW_TOKENS), min(longest, place + WINDOW_TOKENS + 1)):
        mask = f"{restored.token_loss_mask[at]:.0f}" if at < restored.input_length else "-"
        mark = "" if _id_at(baseline, at) == _id_at(restored, at) else "  <- differs"
        shown = f"{_token(baseline, at):<44}  {_token(restored, at)}"
        lines.append(f"{at:>7} {mask:>4}  {shown}{mark}")
    return lines


def _id_at(row: Row, at: int) -> int | None:
    return row.token_ids[at] if at < row.input_length else None


def _token(row: Row, at: int) -> str:
    if at >= row.input_length:
        return "end"
    top_logprobs = row.generation_top_logprobs[at] if row.generation_top_logprobs else None
    candidates = [f"{token}:{logprob:.4f}" for token, logprob in likely(top_logprobs).items()]
    return f"{row.token_ids[at]} {row.generation_logprobs[at]:.4f} [{' '.join(candidates)}]"


def _debugger_lines(name: str, runs: Path) -> list[str]:
    """The commands that run the cut again."""
    notebook = shipped("notebooks/debug_cut.ipynb")
    if notebook.is_relative_to(Path.cwd()):
        notebook = notebook.relative_to(Path.cwd())
    words = ["papermill", notebook, runs / "debug.ipynb", "-p", "runs", runs, "-p", "cut", name]
    jupyter = f"jupyter lab {shlex.quote(str(notebook))}"
    return [
        "run this cut again, by prefill and by decode:",
        f"  {shlex.join(map(str, words))}",
        f"  or {jupyter}, with these runs and this cut in its first code cell",
    ]
