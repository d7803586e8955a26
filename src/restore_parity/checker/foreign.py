"""NeMo RL's own files: what was cut, from its selection.json; what was restored, from its log."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import IncompleteError, UsageError
from ..records import AlreadyTerminal, Completed, Key, Restored, RestoreRecord
from .cuts import Cut
from .dumps import Run

ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"generation prefix (restored|completed|already terminal): (.*)")
FOLDED = re.compile(r"generation prefix .*\[repeated (\d+)x across cluster\]")
EVENTS: dict[str, type[RestoreRecord]] = {
    "restored": Restored,
    "completed": Completed,
    "already terminal": AlreadyTerminal,
}
FIELDS = {"model_call_id": "call_id", "source_model_call_id": "source_call_id"}


class SelectedCut(msgspec.Struct):
    """What selection.json tells of a cut; other fields are not read."""

    group_id: str
    generation_index: int
    model_call_id: str
    effective_output_limit: int | None = None


def read_selection(file: Path, restored: Run) -> list[Cut]:
    """The selected cuts, joined to the restored run's rows by group and generation index.

    The file holds one cut at its top level, or a list. Raises UsageError where it holds neither,
    IncompleteError where a cut has no row.
    """
    try:
        content = msgspec.json.decode(file.read_bytes())
        selected = msgspec.convert(_cuts_in(content), list[SelectedCut])
    except (msgspec.MsgspecError, OSError, RecursionError) as error:
        raise UsageError(f"{file}: not a selection of cuts: {error}") from None
    if len({cut.model_call_id for cut in selected}) < len(selected):
        raise UsageError(f"{file}: one model_call_id is cut twice")
    keys = _keys_by_place(restored)
    cuts = []
    for cut in selected:
        key = keys.get((cut.group_id, cut.generation_index))
        if key is None:
            place = f"group {cut.group_id}, generation {cut.generation_index}"
            raise IncompleteError(f"{file}: the cut of {place} has no row in {restored.dump!s}")
        cuts.append(
            Cut(
                call_id=cut.model_call_id,
                key=key,
                group_id=cut.group_id,
                limit_tokens=cut.effective_output_limit,
            )
        )
    return cuts


def _cuts_in(content: Any) -> Any:
    if isinstance(content, dict):
        return content.get("cuts", [content])
    return content


def cuts_of_records(restored: Run) -> list[Cut]:
    """The cuts as the restore records alone tell them, without a selection or the killed run."""
    keys = _keys_by_place(restored)
    cuts: dict[str, Cut] = {}
    for record in restored.restores:
        if not isinstance(record, Restored) or record.group_id is None:
            continue
        key = keys.get((record.group_id, record.generation_index))
        if key is not None:
            cut = Cut(
                call_id=record.source_call_id,
                key=key,
                group_id=record.group_id,
                call_index=record.call_index,
            )
            cuts.setdefault(cut.call_id, cut)
    return list(cuts.values())


def _keys_by_place(run: Run) -> dict[tuple[str, int | None], Key]:
    """The key of each row by its group and generation index."""
    return {
        (ref.group_id, key.generation_index): key for key, refs in run.rows.items() for ref in refs
    }


def read_log(file: Path) -> list[RestoreRecord]:
    """The restore records in a log, free text, colours and prefixes around them.

    Raises UsageError where a record is broken, IncompleteError where there are none, or where Ray
    folded lines away: records are missing then.
    """
    try:
        with file.open(errors="replace", encoding="utf-8") as stream:
            records = _records(file, stream)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    if not records:
        raise IncompleteError(
            f"{file}: no line of a restored, completed or already terminal prefix in it"
        )
    return records


def _records(file: Path, stream: Iterable[str]) -> list[RestoreRecord]:
    records = []
    sources: dict[str, str] = {}  # by new call: a terminal line names that one alone
    for number, raw in enumerate(stream, start=1):
        line = ANSI.sub("", raw)
        if FOLDED.search(line):
            raise IncompleteError(
                f"{file}, line {number}: Ray folded repeated lines, so records are missing; "
                "set RAY_DEDUP_LOGS=0"
            )
        if not (match := LINE.search(line)):
            continue
        fields = _fields(match[2])
        call_id = fields.get("call_id", "")
        fields.setdefault("source_call_id", sources.get(call_id, "unknown"))
        sources[call_id] = fields["source_call_id"]
        try:
            records.append(msgspec.convert(fields, EVENTS[match[1]], strict=False))
        except msgspec.ValidationError as error:
            raise UsageError(f"{file}, line {number}: a restore record {error}") from None
    return records


def _fields(text: str) -> dict[str, str]:
    """The `name=value` words of a log line, under this package's names."""
    pairs = [word.split("=", 1) for word in text.split() if "=" in word]
    return {FIELDS.get(name, name): value for name, value in pairs}
