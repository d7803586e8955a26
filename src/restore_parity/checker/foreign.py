"""NeMo RL's own files: what was cut, from its selection.json; what was restored, from its log."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import IncompleteError, UsageError
from ..records import AlreadyTerminal, Completed, Key, Restored, RestoreRecord
from .cuts import Cut
from .dumps import Run

ANSI = re.compile(r"\x1b\[[0-9;]*m")
MARK = "generation prefix "  # begins each record
FOLDED = "x across cluster]"  # ends a line that stands for several
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
    generation_token_count: int | None = None
    prefix_token_count: int | None = None  # the same, in later versions
    digest: str | None = None

    @property
    def prefix_tokens(self) -> int | None:
        """How many tokens were captured."""
        if self.prefix_token_count is None:
            return self.generation_token_count
        return self.prefix_token_count


def read_selection(file: Path, restored: Run) -> list[Cut]:
    """The selected cuts, joined to the restored run's rows by group and generation index.

    The file holds one cut at its top level, or a list. A cut whose row the restored dump lacks has
    no key. Raises UsageError where the file holds neither.
    """
    try:
        content = msgspec.json.decode(file.read_bytes().removeprefix(BOM_UTF8))
        selected = msgspec.convert(_cuts_in(content), list[SelectedCut])
    except (msgspec.MsgspecError, OSError, RecursionError) as error:
        raise UsageError(f"{file}: not a selection of cuts: {error}") from None
    if len({cut.model_call_id for cut in selected}) < len(selected):
        raise UsageError(f"{file}: one model_call_id is cut twice")
    keys = _keys_by_place(restored)
    return [
        Cut(
            call_id=cut.model_call_id,
            key=keys.get((cut.group_id, cut.generation_index)),
            group_id=cut.group_id,
            generation_index=cut.generation_index,
            limit_tokens=cut.effective_output_limit,
            prefix_tokens=cut.prefix_tokens,
            prefix_digest=cut.digest,
        )
        for cut in selected
    ]


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
                generation_index=key.generation_index,
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
    found: list[tuple[int, type[RestoreRecord], dict[str, str]]] = []
    sources: dict[str, str] = {}  # by new call: a terminal line names that one alone
    for number, raw in enumerate(stream, start=1):
        line = ANSI.sub("", raw)
        if FOLDED in line and MARK in line:
            raise IncompleteError(
                f"{file}, line {number}: Ray folded repeated lines, so records are missing; "
                "set RAY_DEDUP_LOGS=0"
            )
        for text in line.split(MARK)[1:]:  # interleaved writers leave several on one line
            event = next((event for event in EVENTS if text.startswith(f"{event}: ")), None)
            if event is None:
                continue
            fields = _fields(text)
            if "source_call_id" in fields:
                sources[fields.get("call_id", "")] = fields["source_call_id"]
            found.append((number, EVENTS[event], fields))
    records = []
    for number, kind, fields in found:
        fields.setdefault("source_call_id", sources.get(fields.get("call_id", ""), "unknown"))
        try:
            records.append(msgspec.convert(fields, kind, strict=False))
        except msgspec.ValidationError as error:
            raise UsageError(f"{file}, line {number}: a restore record {error}") from None
    return records


def _fields(text: str) -> dict[str, str]:
    """The `name=value` words of a log line, under this package's names.

    A value ends where another writer's line, as `(Worker pid=7) ...`, begins without a space.
    """
    pairs = [word.split("=", 1) for word in text.split() if "=" in word]
    return {FIELDS.get(name, name): value.partition("(")[0] for name, value in pairs}
