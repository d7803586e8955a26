"""One cut whole, as text: for the terminal and the debugger."""

import re
import shlex
from pathlib import Path

import msgspec

from .checks import first_difference, likely
from ..errors import UsageError
from .dumps import Run
from ..journal import Call
from ..params import ROOT
from ..records import Key, Row
from .loading import load_runs

AROUND = 5
NOTEBOOK = ROOT / "notebooks" / "debug_cut.ipynb"


def cut_text(name: str, runs: Path) -> str:
    """Everything known of a cut (`1/3/0#1`) or a row (`1/3/0`) in the runs' folder. Raises UsageError, IncompleteError."""
    if not (match := re.fullmatch(r"(\d{1,9}/\d{1,9}/\d{1,9})(?:#(\d{1,9}))?", name)):
        raise UsageError(f"{name!r} is no cut", "write it as step/prompt/generation#call, as 1/3/0#1")
    key, call_index = Key.parse(match[1]), int(match[2]) if match[2] else None
    uninterrupted, killed, restored = load_runs(runs)
    rows = {run.name: run.only(key) for run in (uninterrupted, restored)}
    calls = [call for call in killed.journal.calls.values() if call.key == key]
    if call_index is not None:
        calls = [call for call in calls if call.call_index == call_index]
    if not calls and (call_index is not None or not any(rows.values())):
        known = ", ".join(call.name for call in killed.journal.open_calls())
        raise UsageError(f"no row and no call {name} in {runs}", f"the cuts are {known or 'none'}")
    lines = [f"cut {name}"]
    for call in calls:
        lines += record_lines(call, restored)
    for run, row in rows.items():
        told = "missing, doubled or unsound" if row is None else f"{row.input_length} tokens, reward {row.reward:.6g}"
        segments = "" if row is None else f", trained segments {row.segments()}"
        lines.append(f"row       {run}: {told}{segments}")
    baseline, row = rows["uninterrupted"], rows["restored"]
    if baseline and row:
        places = [(f"cut, after {len(call.ids)} tokens", _cut_place(row, call)) for call in calls if call.is_open]
        at = first_difference(baseline.token_ids, row.token_ids)
        places += [("first difference", at)] if at is not None else []
        for what, place in places:
            lines += ["", f"{what}, token {place}", *_window(baseline, row, place)]
        if at is None:
            lines += ["", "the token ids of both runs are equal"]
    lines += [line for call in calls if call.is_open for line in ("", *_debugger(call.name, runs))]
    return "\n".join(lines)


def record_lines(call: Call, restored: Run) -> list[str]:
    """A line for what the journal captured of a call, and one for each restore record of it."""
    ended = call.finish_reason or "open at the kill"
    mine = [record for record in restored.restores if record.source_call_id == call.call_id]
    lines = [f"killed    {call.call_id}: {len(call.ids)} tokens of {call.max_tokens}, {ended}"]
    return lines + [f"restored  {msgspec.json.encode(record).decode()}" for record in mine]


def _debugger(name: str, runs: Path) -> list[str]:
    """The command that runs the cut again; the notebook counts a relative folder from the project's."""
    folder, notebook = runs.resolve(), NOTEBOOK if Path.cwd() != ROOT else NOTEBOOK.relative_to(ROOT)
    given = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    words = ["papermill", notebook, runs / "debug.ipynb", "-p", "runs", given, "-p", "cut", name]
    lab = f"or jupyter lab {shlex.quote(str(notebook))}, with these runs and this cut in its first code cell"
    return ["run this cut again, by prefill and by decode:", f"  {shlex.join(map(str, words))}", f"  {lab}"]


def _cut_place(row: Row, call) -> int:
    segments = row.segments()
    return (segments[call.call_index][0] if call.call_index < len(segments) else row.input_length) + len(call.ids)


def _window(baseline: Row, row: Row, place: int) -> list[str]:
    """A line a token: place, mask, and for both runs id, log-probability and the two likeliest."""
    lines = [f"{'token':>7} {'mask':>4}  {'uninterrupted':<44}  restored"]
    for at in range(max(0, place - AROUND), min(max(baseline.input_length, row.input_length), place + AROUND + 1)):
        shown = [_token(r, at) for r in (baseline, row)]
        mask = f"{row.token_loss_mask[at]:.0f}" if at < row.input_length else "-"
        mark = "  <- differs" if shown[0].split(" ")[0] != shown[1].split(" ")[0] else ""
        lines.append(f"{at:>7} {mask:>4}  {shown[0]:<44}  {shown[1]}{mark}")
    return lines


def _token(row: Row, at: int) -> str:
    if at >= row.input_length:
        return "end"
    top2 = row.generation_top2[at] if row.generation_top2 else None
    told = " ".join(f"{token}:{logprob:.4f}" for token, logprob in likely(top2).items())
    return f"{row.token_ids[at]} {row.generation_logprobs[at]:.4f} [{told}]"
