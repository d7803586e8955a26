"""Worlds: all that one judgement reads, as plain data that a mutation can change.

Edits are pure: they return a changed copy.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..journal import Call, Journal
from ..params import Params
from ..records import Completed, Key, Restored, RestoreRecord, Row
from ..runs import RunInfo
from .checks import judge
from .dumps import COLUMNS, KilledRun, Run, Runs, run_of
from .judgement import Judgement

Rows = dict[Key, Row]


class World(Struct, frozen=True, kw_only=True):
    """What one judgement reads: both runs' rows, the capture, the restore records, the settings."""

    baseline: Rows
    rows: Rows  # the restored run's
    calls: dict[str, Call]  # captured by the killed run
    records: list[RestoreRecord]
    infos: dict[str, RunInfo]
    workload: Params | None = None  # of the runs: their limits
    thresholds: Params = Params()
    extra: tuple[tuple[int, Row], ...] = ()  # (train step, row) behind the restored run's rows

    @property
    def cuts(self) -> list[Call]:
        """The calls that were open at the kill."""
        return [call for call in self.calls.values() if call.is_open]

    @property
    def stop_ids(self) -> set[int]:
        """The ids that end a call."""
        return set(self.infos["restored"].setup.get("stop_token_ids", ()))


class Subject(Struct, frozen=True, kw_only=True):
    """A cut to break: its call is tokens [start, stop) of its row, its prefix [start, seam)."""

    key: Key
    call: Call
    start: int
    seam: int
    stop: int
    row: Row

    @property
    def prefix_tokens(self) -> int:
        """How many tokens were captured."""
        return self.seam - self.start

    @property
    def tail_tokens(self) -> int:
        """How many tokens were generated after the restore."""
        return self.stop - self.seam


def world_of(runs: Runs, thresholds: Params, keys: list[Key] | None = None) -> World:
    """The world of three runs, or of the rows of `keys` alone, as far as both dumps hold them.

    The killed run must be among them.
    """
    journal = journal_of(runs)
    if keys is None:
        keys = sorted(runs.uninterrupted.rows.keys() & runs.restored.rows.keys())
    baseline, rows = {}, {}
    for key in keys:
        pair = runs.uninterrupted.only(key), runs.restored.only(key)
        if pair[0] and pair[1]:
            baseline[key], rows[key] = pair[0], pair[1]
    calls = {
        call.call_id: call
        for call in journal.calls.values()
        if call.key in rows and call.call_index < len(rows[call.key].segments())
    }
    return World(
        baseline=baseline,
        rows=rows,
        calls=calls,
        records=[record for record in runs.restored.restores if record.source_call_id in calls],
        infos={run.name: run.info for run in runs.every if run.info},
        workload=runs.restored.params,
        thresholds=thresholds,
    )


def journal_of(runs: Runs) -> Journal:
    """The killed run's journal. Raises ValueError where the runs have none."""
    if runs.killed is None or runs.killed.journal is None:
        raise ValueError("mutations need the killed run's journal")
    return runs.killed.journal


def judge_world(world: World) -> Judgement:
    """Every check on a world, as the report applies them to the runs."""
    restored_rows = [*_dumped(world.rows), *world.extra]
    runs = Runs(
        uninterrupted=_run(world, "uninterrupted", _dumped(world.baseline)),
        restored=_run(world, "restored", restored_rows),
        killed=_killed(world),
    )
    runs.restored.restores = world.records
    return judge(runs, world.thresholds)


def _dumped(rows: Rows) -> list[tuple[int, Row]]:
    return [(key.train_step, row) for key, row in rows.items()]


def _run(world: World, name: str, rows: list[tuple[int, Row]]) -> Run:
    run = run_of(name, rows)
    run.info = world.infos[name]
    run.params = world.workload
    run.planned = set(world.baseline)
    return run


def _killed(world: World) -> KilledRun:
    journal = Journal(Path("memory"))
    journal.calls = world.calls
    info = world.infos["killed"]
    if info.exit and info.exit.open_calls:  # the supervisor's count, of the calls of this world
        counted = {call.call_id: len(call.ids) for call in world.cuts}
        info = replace(info, exit=replace(info.exit, open_calls=counted))
    return KilledRun(folder=Path("memory"), info=info, journal=journal)


def subjects(world: World) -> list[Subject]:
    """The cuts to break, those first in which most mutations find a place.

    Such a cut has a prefix and a tail of two tokens or more, and its row equals the baseline.
    """
    found = []
    for call in world.cuts:
        row = world.rows[call.key]
        if call.ids and row.token_ids == world.baseline[call.key].token_ids:
            subject = subject_of(call, row)
            if subject:
                found.append(subject)
    whole = [one for one in found if min(one.prefix_tokens, one.tail_tokens) >= 2]
    return sorted(whole, key=_places) or found


def subject_of(call: Call, row: Row) -> Subject | None:
    """A cut in its row; None where the row has no such call."""
    segments = row.segments()
    if call.call_index >= len(segments):
        return None
    start, stop = segments[call.call_index]
    seam = start + len(call.ids)
    return Subject(key=call.key, call=call, start=start, seam=seam, stop=stop, row=row)


def _places(subject: Subject) -> tuple[int, int, Key]:
    """Sorts first what has an earlier call and none behind it, then the longest parts."""
    shorter_part = min(subject.prefix_tokens, subject.tail_tokens)
    return -subject.call.call_index, -shorter_part, subject.key


def with_tokens(row: Row, at: int, source: Row, start: int, stop: int) -> Row:
    """The row with every column's [start, stop) of another row inserted at a place."""
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values, others = getattr(row, name), getattr(source, name)
        if values is not None:
            columns[name] = [*values[:at], *(others or [])[start:stop], *values[at:]]
    return replace(row, input_length=len(columns["token_ids"]), **columns)


def without_tokens(row: Row, start: int, stop: int) -> Row:
    """The row without its tokens [start, stop), in every column."""
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        values = getattr(row, name)
        if values is not None:
            columns[name] = [*values[:start], *values[stop:]]
    return replace(row, input_length=len(columns["token_ids"]), **columns)


def with_values(row: Row, at: int, **columns: Any) -> Row:
    """The row with other values at one place of some columns.

    A place behind the end makes these columns longer and leaves input_length: an unsound row.
    """
    changed = {}
    for name, value in columns.items():
        values = list(getattr(row, name))
        values[at : at + 1] = [value]
        changed[name] = values
    return replace(row, **changed)


def with_row(world: World, key: Key, row: Row) -> World:
    """The world with another restored row."""
    return replace(world, rows=world.rows | {key: row})


def with_records(
    world: World, subject: Subject, change: Callable[[RestoreRecord], list[RestoreRecord]]
) -> World:
    """The world with the records of the subject's call replaced."""
    records: list[RestoreRecord] = []
    for record in world.records:
        is_subjects = record.source_call_id == subject.call.call_id
        records += change(record) if is_subjects else [record]
    return replace(world, records=records)


def with_restored(world: World, subject: Subject, **fields: Any) -> World:
    """The world with other fields in the subject's restored record."""
    return _with_fields(world, subject, Restored, fields)


def with_completed(world: World, subject: Subject, **fields: Any) -> World:
    """The world with other fields in the subject's completed record."""
    return _with_fields(world, subject, Completed, fields)


def _with_fields(
    world: World, subject: Subject, kind: type[RestoreRecord], fields: dict[str, Any]
) -> World:
    def change(record: RestoreRecord) -> list[RestoreRecord]:
        return [replace(record, **fields) if isinstance(record, kind) else record]

    return with_records(world, subject, change)


def with_call(world: World, subject: Subject, **fields: Any) -> World:
    """The world with another capture of the subject's call."""
    call = replace(subject.call, **fields)
    return replace(world, calls=world.calls | {call.call_id: call})
