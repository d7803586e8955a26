"""Broken restores, made from a healthy one: what goes wrong in the field, as pure functions.

Each takes a world and a cut in it, and returns the broken world, or None where this data holds no
place for it. The parts that come in variants are made by a function that returns such a function.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ..journal import Call
from ..records import AlreadyTerminal, Completed, Key, Restored, RestoreRecord, Row, TopLogprobs
from ..tokens import ids_sha256
from .worlds import (
    Subject,
    World,
    subject_of,
    with_call,
    with_completed,
    with_records,
    with_restored,
    with_row,
    with_tokens,
    with_values,
    without_tokens,
)

Change = Callable[[World, Subject], World | None]
Place = Callable[[Subject], int]


def other_id(token: int) -> int:
    """A token id beside the given one."""
    return token + 1 if token % 2 == 0 else token - 1


def on_row(change: Callable[[Row, Subject], Row]) -> Change:
    """Change the cut's row."""
    return lambda world, subject: with_row(world, subject.key, change(subject.row, subject))


# --- tokens of the restored call ------------------------------------------------------------------

PLACES: dict[str, Place] = {
    "prefix-start": lambda subject: subject.start,
    "prefix-middle": lambda subject: (subject.start + subject.seam) // 2,
    "seam": lambda subject: subject.seam - 1,
    "tail": lambda subject: subject.stop - 1,
}


def token_dropped(place: Place) -> Change:
    """One token is lost."""
    return on_row(lambda row, subject: without_tokens(row, place(subject), place(subject) + 1))


def token_doubled(place: Place) -> Change:
    """One token stands twice."""

    def change(row: Row, subject: Subject) -> Row:
        at = place(subject)
        return with_tokens(row, at, row, at, at + 1)

    return on_row(change)


def token_swapped(place: Place) -> Change:
    """A token is exchanged with the next one; the call's last with the one before."""

    def change(row: Row, subject: Subject) -> Row:
        at = min(place(subject), subject.stop - 2)
        if row.token_ids[at] == row.token_ids[at + 1]:
            return row
        return with_tokens(without_tokens(row, at, at + 1), at + 1, row, at, at + 1)

    return on_row(change)


def token_changed(place: Place) -> Change:
    """One token is another."""

    def change(row: Row, subject: Subject) -> Row:
        at = place(subject)
        return with_values(row, at, token_ids=other_id(row.token_ids[at]))

    return on_row(change)


# --- prefixes that are not the captured one -------------------------------------------------------


def foreign_prefix(pick: Callable[[World, Subject], Call | None]) -> Change:
    """As many tokens of another call, restored and logged without a fault of its own."""

    def change(world: World, subject: Subject) -> World | None:
        other = pick(world, subject)
        size = subject.prefix_tokens
        if other is None or len(other.ids) < size or other.ids[:size] == subject.call.ids:
            return None
        row = subject.row
        for nth in range(size):
            row = with_values(
                row,
                subject.start + nth,
                token_ids=other.ids[nth],
                generation_logprobs=other.logprobs[nth],
            )
        world = with_row(world, subject.key, row)
        return with_restored(world, subject, prefix_ids_sha256=ids_sha256(other.ids[:size]))

    return change


def call_of_sibling(world: World, subject: Subject) -> Call | None:
    """The longest call captured of the same group."""
    calls = [
        call
        for call in world.cuts
        if call.key != subject.key and call.key.group == subject.key.group
    ]
    return max(calls, key=lambda call: len(call.ids), default=None)


def call_of_another_group(world: World, subject: Subject) -> Call | None:
    """The longest call captured of another group."""
    calls = [call for call in world.cuts if call.key.group != subject.key.group]
    return max(calls, key=lambda call: len(call.ids), default=None)


def older_attempt(world: World, subject: Subject) -> Call:
    """An older attempt at the same call, whose last token was another."""
    *first, last = subject.call.ids
    return replace(subject.call, ids=[*first, other_id(last)])


def prefix_of_another_length(by: int) -> Change:
    """Restored from fewer or more tokens than captured, all records agreeing: the row is right."""

    def change(world: World, subject: Subject) -> World | None:
        size = subject.prefix_tokens + by
        tail_tokens = subject.tail_tokens - by
        if size < 1 or tail_tokens < 1:
            return None
        ids = subject.row.token_ids[subject.start : subject.start + size]
        world = with_restored(
            world,
            subject,
            prefix_tokens=size,
            prefix_ids_sha256=ids_sha256(ids),
            max_tokens=subject.call.max_tokens - size,
        )
        return with_completed(world, subject, prefix_tokens=size, tail_tokens=tail_tokens)

    return change


def with_captured_row(world: World, subject: Subject, row: Row) -> World:
    """The world in which capture, record and row agree on the row's prefix."""
    ids = row.token_ids[subject.start : subject.seam]
    world = with_call(with_row(world, subject.key, row), subject, ids=ids)
    return with_restored(world, subject, prefix_ids_sha256=ids_sha256(ids))


def wrong_capture(world: World, subject: Subject) -> World:
    """One captured token is wrong, and restore, record and row all agree with the capture."""
    at = (subject.start + subject.seam) // 2
    row = with_values(subject.row, at, token_ids=other_id(subject.row.token_ids[at]))
    return with_captured_row(world, subject, row)


# --- near-ties ------------------------------------------------------------------------------------

TIE_LOGPROB = -0.6  # about as sure as one of two tied candidates is


def with_tie(world: World, key: Key, at: int, margin: float) -> World | None:
    """The two runs part at token `at`, their likeliest two being the two tokens, `margin` apart."""
    baseline, row = world.baseline[key], world.rows[key]
    shown = baseline.generation_top_logprobs is not None and row.generation_top_logprobs is not None
    if not shown or at >= baseline.input_length or not row.token_loss_mask[at]:
        return None
    token = baseline.token_ids[at]
    other = other_id(token)
    if world.stop_ids & {token, other}:
        return None
    baseline = _choosing(baseline, at, token, other, margin)
    row = _choosing(row, at, other, token, margin)
    world = replace(world, baseline=world.baseline | {key: baseline})
    return with_row(world, key, row)


def _choosing(row: Row, at: int, token: int, other: int, margin: float) -> Row:
    """The row in which a token was chosen, another one being `margin` less likely."""
    return with_values(
        row,
        at,
        token_ids=token,
        generation_logprobs=TIE_LOGPROB,
        generation_top_logprobs=[(token, TIE_LOGPROB), (other, TIE_LOGPROB - margin)],
    )


def tie_in_tail(margin: float) -> Change:
    """A tie claimed at the tail's first token, its two candidates `margin` nats apart."""

    def change(world: World, subject: Subject) -> World | None:
        if not subject.tail_tokens:
            return None
        return with_tie(world, subject.key, subject.seam, margin)

    return change


def spoilt_tie(spoil: Callable[[int], dict[str, Any]]) -> Change:
    """A true tie in the tail, some values of which are then spoilt in the restored run.

    `spoil` gives columns and values, from the token chosen there.
    """
    true_tie = tie_in_tail(0.0)

    def change(world: World, subject: Subject) -> World | None:
        tied = true_tie(world, subject)
        if tied is None:
            return None
        row = tied.rows[subject.key]
        row = with_values(row, subject.seam, **spoil(row.token_ids[subject.seam]))
        return with_row(tied, subject.key, row)

    return change


def certain(token: int) -> dict[str, Any]:
    """What a processed log-probability looks like: the chosen token is certain."""
    top_logprobs: TopLogprobs = [(token, 0.0), (other_id(token), float("-inf"))]
    return {"generation_logprobs": 0.0, "generation_top_logprobs": top_logprobs}


def tie_before_the_call(world: World, subject: Subject) -> World | None:
    """A true tie in an earlier call, in the killed run already: its capture has it too."""
    earlier = [start for start, _ in subject.row.segments() if start < subject.start]
    tied = with_tie(world, subject.key, earlier[0], 0.0) if earlier else None
    if tied is None:
        return None
    prompt_ids = tied.rows[subject.key].token_ids[: subject.start]
    return with_call(tied, subject, prompt_ids=prompt_ids)


def all_set_aside(world: World, subject: Subject) -> World | None:
    """A true tie in the tail of every cut that has one; the others were never cut."""
    live = {}
    for call in world.cuts:
        other = subject_of(call, world.rows[call.key]) if call.ids else None
        tied = tie_in_tail(0.0)(world, other) if other else None
        if tied is not None:
            world = tied
            live[call.call_id] = call
    if not live:
        return None
    records = [record for record in world.records if record.source_call_id in live]
    kept = {name: call for name, call in world.calls.items() if not call.is_open or name in live}
    return replace(world, calls=kept, records=records)


def tied_and_stopped(world: World, subject: Subject) -> World | None:
    """A true tie in the tail, behind which the run stops short, all its records agreeing."""
    is_last_call = len(subject.row.segments()) == subject.call.call_index + 1
    if subject.tail_tokens < 3 or not is_last_call:
        return None
    tied = with_tie(world, subject.key, subject.seam, 0.0)
    if tied is None:
        return None
    short = without_tokens(tied.rows[subject.key], subject.stop - 1, subject.stop)
    if short.token_ids[-1] in world.stop_ids:
        return None
    tied = with_row(tied, subject.key, short)
    return with_completed(tied, subject, tail_tokens=subject.tail_tokens - 1)


# --- columns and rows -----------------------------------------------------------------------------


def prefix_logprobs(change: Callable[[list[float]], list[float]]) -> Change:
    """Change the prefix's log-probabilities in the row."""

    def change_row(row: Row, subject: Subject) -> Row:
        values = row.generation_logprobs
        prefix = change(values[subject.start : subject.seam])
        changed = [*values[: subject.start], *prefix, *values[subject.seam :]]
        return replace(row, generation_logprobs=changed)

    return on_row(change_row)


def zeroed(values: list[float]) -> list[float]:
    """As if they had never been recorded."""
    return [0.0] * len(values)


def shifted(values: list[float]) -> list[float]:
    """Each given to the place before."""
    return [*values[1:], *values[:1]]


def recomputed(values: list[float]) -> list[float]:
    """As a prefill would give them again: right but for the last digits."""
    return [value * (1 + 1e-6) for value in values]


def tail_logprobs(change: Callable[[list[float]], list[float]]) -> Change:
    """Change the tail's log-probabilities in the row, by more than the thresholds allow."""

    def apply(world: World, subject: Subject) -> World | None:
        values = subject.row.generation_logprobs
        tail = values[subject.seam : subject.stop]
        changed = change(tail)
        gaps = [abs(one - other) for one, other in zip(tail, changed, strict=True)]
        call_tokens = subject.stop - subject.start
        thresholds = world.thresholds
        small = max(gaps, default=0.0) <= thresholds.max_logprob_diff
        if small and sum(gaps) <= thresholds.max_mean_logprob_diff * call_tokens:
            return None  # so little is noise by these thresholds
        values = [*values[: subject.seam], *changed, *values[subject.stop :]]
        row = replace(subject.row, generation_logprobs=values)
        return with_row(world, subject.key, row)

    return apply


def lowered(values: list[float]) -> list[float]:
    """Each 1 nat lower, as another state would give them."""
    return [value - 1.0 for value in values]


def mask_not_extended(row: Row, subject: Subject) -> Row:
    """The tail is not trained on."""
    values = row.token_loss_mask
    tail = [0.0] * subject.tail_tokens
    changed = [*values[: subject.seam], *tail, *values[subject.stop :]]
    return replace(row, token_loss_mask=changed)


def on_finished_row(change: Callable[[Row], Row], with_sibling: bool = False) -> Change:
    """Change the first row that was not cut; `with_sibling`: one that shares its group."""

    def apply(world: World, subject: Subject) -> World | None:
        cut = {call.key for call in world.cuts}
        sizes = Counter(key.group for key in world.rows)
        for key, row in world.rows.items():
            if key not in cut and (sizes[key.group] > 1 or not with_sibling):
                return with_row(world, key, change(row))
        return None

    return apply


def last_token_changed(row: Row) -> Row:
    """The row with another last token."""
    last = len(row.token_ids) - 1
    return with_values(row, last, token_ids=other_id(row.token_ids[last]))


def rewards_permuted(world: World, subject: Subject) -> World:
    """The rewards of a step's rows, each given to the next."""
    keys = [key for key in world.rows if key.train_step == subject.key.train_step]
    rewards = [world.rows[key].reward for key in keys]
    turned = zip(keys, [rewards[-1], *rewards[:-1]], strict=True)
    rows = {key: replace(world.rows[key], reward=reward) for key, reward in turned}
    return replace(world, rows=world.rows | rows)


def mirrored_policy(world: World, subject: Subject) -> World:
    """The trainer's log-probabilities of every row, as far from the engine's on the other side."""
    rows = {}
    for key, row in world.rows.items():
        columns = zip(row.generation_logprobs, row.prev_logprobs, strict=True)
        mirrored = [2 * generated - own for generated, own in columns]
        rows[key] = replace(row, prev_logprobs=mirrored)
    return replace(world, rows=rows)


def other_weights(world: World, subject: Subject) -> World:
    """The trainer's log-probabilities of every restored row, each 1 nat lower."""
    rows = {}
    for key, row in world.rows.items():
        rows[key] = replace(row, prev_logprobs=[value - 1.0 for value in row.prev_logprobs])
    return replace(world, rows=rows)


def row_lost(world: World, subject: Subject) -> World:
    """The restored dump lacks the cut's row."""
    rows = {key: row for key, row in world.rows.items() if key != subject.key}
    return replace(world, rows=rows)


def row_doubled(world: World, subject: Subject) -> World:
    """The restored dump holds the cut's row twice."""
    return replace(world, extra=((subject.key.train_step, subject.row),))


def row_moved(world: World, subject: Subject) -> World:
    """The restored dump holds the cut's row in another step."""
    moved = ((subject.key.train_step + 1000, subject.row),)
    return replace(row_lost(world, subject), extra=moved)


def advantages(change: Callable[[float], float], of: Callable[[Key, Key], bool]) -> Change:
    """Change the advantages of the restored rows that stand in a relation to the cut's row."""

    def apply(world: World, subject: Subject) -> World:
        rows = dict(world.rows)
        for key, row in world.rows.items():
            if of(key, subject.key):
                rows[key] = replace(row, advantages=[change(value) for value in row.advantages])
        return replace(world, rows=rows)

    return apply


# --- what follows a tie, and what was finished before the kill ------------------------------------


def behind_tie(change: Callable[[World, Row, Subject], Row | None]) -> Change:
    """A true tie in the tail, behind which the row is broken while all records agree."""
    true_tie = tie_in_tail(0.0)

    def apply(world: World, subject: Subject) -> World | None:
        tied = true_tie(world, subject)
        row = change(world, tied.rows[subject.key], subject) if tied else None
        return with_row(tied, subject.key, row) if tied and row else None

    return apply


def glued_on(world: World, row: Row, subject: Subject) -> Row:
    """Another row's prompt follows the last call, untrained."""
    grown = with_tokens(row, row.input_length, row, 0, 5)
    masks = {name: [0.0] * 5 for name in ("token_loss_mask", "advantages")}
    return replace(grown, **{name: [*getattr(row, name), *zeros] for name, zeros in masks.items()})


def _last_call(row: Row, subject: Subject) -> tuple[int, int] | None:
    """The row's last call, where it is a later one than the cut's."""
    segments = row.segments()
    return segments[-1] if len(segments) > subject.call.call_index + 1 else None


def later_call_short(world: World, row: Row, subject: Subject) -> Row | None:
    """A later call lacks its last token."""
    call = _last_call(row, subject)
    if call is None or call[1] - call[0] < 2 or row.token_ids[call[1] - 2] in world.stop_ids:
        return None
    return without_tokens(row, call[1] - 1, call[1])


def later_call_untrained(world: World, row: Row, subject: Subject) -> Row | None:
    """A later call is trained on its last token alone."""
    call = _last_call(row, subject)
    if call is None or call[1] - call[0] < 2:
        return None
    start, stop = call
    values = row.token_loss_mask
    mask = [*values[:start], *[0.0] * (stop - 1 - start), *values[stop - 1 :]]
    return replace(row, token_loss_mask=mask)


def tool_result_cut_off(world: World, row: Row, subject: Subject) -> Row | None:
    """The tool result before a later call lacks its end."""
    call = _last_call(row, subject)
    return without_tokens(row, call[0] - 1, call[0]) if call else None


def finished_call(change: Callable[[Call], Call | None]) -> Change:
    """The capture of a call that ended before the kill is another than what the row has."""

    def apply(world: World, subject: Subject) -> World | None:
        for call in world.calls.values():
            changed = None if call.is_open else change(call)
            if changed is not None:
                return replace(world, calls=world.calls | {call.call_id: changed})
        return None

    return apply


def another_token(call: Call) -> Call:
    """The capture holds another last token."""
    return replace(call, ids=[*call.ids[:-1], other_id(call.ids[-1])])


def other_logprobs(call: Call) -> Call:
    """The capture holds log-probabilities that differ in the last digits."""
    return replace(call, logprobs=recomputed(call.logprobs))


def another_tool_result(call: Call) -> Call | None:
    """The capture holds another tool result: the row's tool ran again."""
    if not call.tool_ids:
        return None
    return replace(call, tool_ids=[*call.tool_ids[:-1], other_id(call.tool_ids[-1])])


def stale_behind_tie(world: World, subject: Subject) -> World | None:
    """A true tie in the first step, behind which a later step trains with stale weights."""
    tied = tie_in_tail(0.0)(world, subject)
    later = [key for key in world.rows if key.train_step > subject.key.train_step]
    if tied is None or not later:
        return None
    rows = dict(tied.rows)
    for key in later:
        rows[key] = replace(rows[key], prev_logprobs=lowered(rows[key].prev_logprobs))
    return replace(tied, rows=rows)


# --- records --------------------------------------------------------------------------------------


def record_dropped(kind: type[RestoreRecord]) -> Change:
    """The cut lacks its record of a kind."""
    return lambda world, subject: with_records(
        world, subject, lambda record: [] if isinstance(record, kind) else [record]
    )


def record_doubled(kind: type[RestoreRecord]) -> Change:
    """The cut has its record of a kind twice."""
    return lambda world, subject: with_records(
        world, subject, lambda record: [record, record] if isinstance(record, kind) else [record]
    )


def record_of_no_cut(world: World, subject: Subject) -> World:
    """A record of a call that was never cut."""
    stray = Restored(call_id="stray", source_call_id="no-such-call", prefix_tokens=1)
    return replace(world, records=[*world.records, stray])


def restored_record(fields: Callable[[Subject], dict[str, Any]]) -> Change:
    """Other fields in the cut's restored record."""
    return lambda world, subject: with_restored(world, subject, **fields(subject))


def tail_miscounted(world: World, subject: Subject) -> World:
    """The completed record counts a token too many."""
    return with_completed(world, subject, tail_tokens=subject.tail_tokens + 1)


def without_tail(world: World, subject: Subject) -> World:
    """The row ends its call at the seam."""
    row = without_tokens(subject.row, subject.seam, subject.stop)
    return with_row(world, subject.key, row)


def tail_lost(world: World, subject: Subject) -> World:
    """The tail is lost, and its record says so."""
    return with_completed(without_tail(world, subject), subject, tail_tokens=0)


def said_to_be_terminal(world: World, subject: Subject) -> World:
    """A call with budget left is said to have been terminal, and its tail is not generated."""

    def change(record: RestoreRecord) -> list[RestoreRecord]:
        if not isinstance(record, Completed):
            return [record]
        terminal = AlreadyTerminal(
            call_id=record.call_id,
            source_call_id=subject.call.call_id,
            prefix_tokens=record.prefix_tokens,
        )
        return [terminal]

    return with_records(without_tail(world, subject), subject, change)


def past_stop(world: World, subject: Subject) -> World | None:
    """The prefix ends by a stop token, and the restored run generates on."""
    last = subject.seam - 1
    stopped = subject.row.token_ids[last] in world.stop_ids
    if stopped or not world.stop_ids or not subject.tail_tokens:
        return None
    row = with_values(subject.row, last, token_ids=min(world.stop_ids))
    return with_captured_row(world, subject, row)


def tied_past_stop(world: World, subject: Subject) -> World | None:
    """The killed run took a stop token at a true tie, and the restored run generates on."""
    last = subject.seam - 1
    token = subject.row.token_ids[last]
    if not world.stop_ids or not subject.tail_tokens or token in world.stop_ids:
        return None
    stop_id = min(world.stop_ids)
    baseline, row = world.baseline[subject.key], subject.row
    if baseline.generation_top_logprobs is None or row.generation_top_logprobs is None:
        return None
    baseline = _choosing(baseline, last, token, stop_id, 0.0)
    row = _choosing(row, last, stop_id, token, 0.0)
    world = replace(world, baseline=world.baseline | {subject.key: baseline})
    nth = subject.prefix_tokens - 1
    call = subject.call
    captured = {
        "logprobs": [*call.logprobs[:nth], TIE_LOGPROB],
        "top_logprobs": [*call.top_logprobs[:nth], [(stop_id, TIE_LOGPROB), (token, TIE_LOGPROB)]],
    }
    ids = row.token_ids[subject.start : subject.seam]
    world = with_call(with_row(world, subject.key, row), subject, ids=ids, **captured)
    return with_restored(world, subject, prefix_ids_sha256=ids_sha256(ids))


def completed_without_tail(world: World, subject: Subject) -> World | None:
    """A call that was already terminal is said to have been completed, without a token."""

    def change(record: RestoreRecord) -> RestoreRecord:
        if not isinstance(record, AlreadyTerminal):
            return record
        return Completed(
            call_id=record.call_id,
            source_call_id=record.source_call_id,
            prefix_tokens=record.prefix_tokens,
            group_id=record.group_id,
            generation_index=record.generation_index,
            call_index=record.call_index,
            tail_tokens=0,
        )

    return replace(world, records=[change(record) for record in world.records])


def tied_and_masked(world: World, subject: Subject) -> World | None:
    """A true tie in the tail of a row that the restored run does not train on."""
    tied = tie_in_tail(0.0)(world, subject)
    if tied is None:
        return None
    row = tied.rows[subject.key]
    row = replace(row, sample_loss_mask=1 - row.sample_loss_mask)
    return with_row(tied, subject.key, row)


def past_stop_in_both(world: World, subject: Subject) -> World | None:
    """Both runs generate on behind the same stop token, as an engine does that does not know it."""
    broken = past_stop(world, subject)
    if broken is None:
        return None
    key, last = subject.key, subject.seam - 1
    stop_id = broken.rows[key].token_ids[last]
    baseline = with_values(world.baseline[key], last, token_ids=stop_id)
    return replace(broken, baseline=world.baseline | {key: baseline})


# --- experiments that did not take place ----------------------------------------------------------


def run_info(run: str, **fields: Any) -> Change:
    """Other fields in a run's run.json."""

    def change(world: World, subject: Subject) -> World:
        info = replace(world.infos[run], **fields)
        return replace(world, infos=world.infos | {run: info})

    return change


def nothing_captured(world: World, subject: Subject) -> World | None:
    """Every call open at the kill had no token yet, and was restored from the empty prefix."""
    completed = [record for record in world.records if isinstance(record, Completed)]
    if not any(record.prefix_tokens and record.tail_tokens for record in completed):
        return None
    calls, records = dict(world.calls), list[RestoreRecord]()
    for call in world.cuts:
        calls[call.call_id] = replace(call, ids=[], logprobs=[], top_logprobs=[])
        start, stop = world.rows[call.key].segments()[call.call_index]
        begun = Restored(
            call_id=f"new {call.call_id}",
            source_call_id=call.call_id,
            prefix_tokens=0,
            group_id=call.group_id,
            generation_index=call.key.generation_index,
            call_index=call.call_index,
            prefix_ids_sha256=ids_sha256([]),
            max_tokens=call.max_tokens,
        )
        ended = Completed(
            call_id=begun.call_id,
            source_call_id=call.call_id,
            prefix_tokens=0,
            group_id=call.group_id,
            generation_index=call.key.generation_index,
            call_index=call.call_index,
            tail_tokens=stop - start,
        )
        records += [begun, ended]
    return replace(world, calls=calls, records=records)


def dump_of_the_other_run(world: World, subject: Subject) -> World:
    """The uninterrupted run's dump is a copy of the restored one's."""
    return replace(world, baseline=world.rows)


def all_rows(**fields: Any) -> Change:
    """The same fields in every row of both runs."""

    def change(world: World, subject: Subject) -> World:
        baseline = {key: replace(row, **fields) for key, row in world.baseline.items()}
        rows = {key: replace(row, **fields) for key, row in world.rows.items()}
        return replace(world, baseline=baseline, rows=rows)

    return change
