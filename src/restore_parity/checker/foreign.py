"""The origin's own artifacts: what was cut from its selection.json, what was restored from its log."""

import re
from pathlib import Path

import msgspec

from ..errors import IncompleteError, UsageError
from .dumps import Run
from ..journal import Call
from ..records import AlreadyTerminal, Completed, Key, Restored, RestoreRecord

ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"generation prefix (restored|completed|already terminal): (.*)")
FOLDED = re.compile(r"generation prefix .*\[repeated (\d+)x across cluster\]")
KINDS = {"restored": Restored, "completed": Completed, "already terminal": AlreadyTerminal}
FIELDS = {"model_call_id": "call_id", "source_model_call_id": "source_call_id"}


class SelectedCut(msgspec.Struct):
    """What selection.json tells of a cut; other fields are not read."""

    group_id: str
    generation_index: int
    model_call_id: str
    effective_output_limit: int | None = None


def read_selection(file: Path, restored: Run) -> list[Call]:
    """The cuts, one at the top level or a list, joined to the restored run's rows by group and generation index.

    Raises UsageError where the file is not one, IncompleteError where a cut has no row.
    """
    try:
        told = msgspec.json.decode(file.read_bytes())
        several = told.get("cuts", [told]) if isinstance(told, dict) else told
        selected = msgspec.convert(several, list[SelectedCut])
    except (msgspec.MsgspecError, OSError, RecursionError) as error:
        raise UsageError(f"{file}: no selection: {error}") from None
    if len({cut.model_call_id for cut in selected}) < len(selected):
        raise UsageError(f"{file}: one model_call_id is cut twice")
    keys, cuts = _places(restored), []
    for cut in selected:
        key = keys.get((cut.group_id, cut.generation_index))
        if key is None:
            place = f"group {cut.group_id}, generation {cut.generation_index}"
            raise IncompleteError(f"{file}: the cut of {place} has no row in {restored.dump}")
        cuts.append(Call(cut.model_call_id, key, None, cut.group_id, max_tokens=cut.effective_output_limit, ids=None))
    return cuts


def cuts_of_records(restored: Run) -> list[Call]:
    """The cuts as the restore records alone tell them, where neither a selection nor the killed run is at hand."""
    keys, cuts = _places(restored), {}
    for record in restored.restores:
        key = keys.get((record.group_id, record.generation_index))
        if isinstance(record, Restored) and key is not None:
            call = Call(record.source_call_id, key, record.call_index, record.group_id, ids=None)
            cuts.setdefault(call.call_id, call)
    return list(cuts.values())


def _places(run: Run) -> dict[tuple[str, int], Key]:
    return {(ref.group_id, key.generation_index): key for key, refs in run.rows.items() for ref in refs}


def read_log(file: Path) -> list[RestoreRecord]:
    """The restore records in a log, free text, colours and prefixes around them.

    Raises IncompleteError where Ray folded lines away, since records are missing then.
    """
    records: list[RestoreRecord] = []
    sources: dict[str | None, str] = {}  # a terminal line names the new call alone
    try:
        stream = file.open(errors="replace", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    with stream:
        for number, raw in enumerate(stream, start=1):
            line = ANSI.sub("", raw)
            if FOLDED.search(line):
                raise IncompleteError(
                    f"{file}, line {number}: Ray folded repeated lines, so records are missing; set RAY_DEDUP_LOGS=0"
                )
            if match := LINE.search(line):
                values = dict(word.split("=", 1) for word in match[2].split() if "=" in word)
                told = {FIELDS.get(name, name): value for name, value in values.items()}
                told.setdefault("source_call_id", sources.get(told.get("call_id"), "unknown"))
                sources[told.get("call_id")] = told["source_call_id"]
                try:
                    records.append(msgspec.convert(told, KINDS[match[1]], strict=False))
                except msgspec.ValidationError as error:
                    raise UsageError(f"{file}, line {number}: a restore record {error}") from None
    if not records:
        raise IncompleteError(f"{file}: no line of a restored, completed or already terminal prefix in it")
    return records
