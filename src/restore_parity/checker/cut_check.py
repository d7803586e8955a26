"""The one cut check: a captured prefix was restored once, in its place, unchanged, to its end."""

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ..records import (
    AlreadyTerminal,
    Completed,
    CutResult,
    EndRecord,
    Restored,
    RestoreRecord,
    Row,
)
from ..tokens import ids_sha256, window
from .cuts import Cut
from .judgement import Judgement
from .parting import KeyRows, Parting


class RestoredCall(Struct, frozen=True, kw_only=True):
    """A cut call as its records and its restored row have it: tokens [start, stop) of the row."""

    cut: Cut
    begun: Restored
    ended: EndRecord
    row: Row
    call_index: int
    segments: list[tuple[int, int]]  # all calls of the row
    start: int
    stop: int
    prefix_tokens: int  # as its records say; and so the tail's
    tail_tokens: int

    @property
    def where(self) -> str:
        """The place that messages name."""
        return f"row {self.cut.key}, tokens {self.start} to {self.stop}"

    @property
    def ids(self) -> list[int]:
        """The call's tokens in the row."""
        return self.row.token_ids[self.start : self.stop]

    @property
    def seam(self) -> int:
        """The first place behind the prefix."""
        return self.start + self.prefix_tokens

    @property
    def prefix_ids(self) -> list[int]:
        """The row's tokens in the place of the prefix."""
        return self.row.token_ids[self.start : self.seam]


def check_cut(
    judgement: Judgement,
    cut: Cut,
    records: list[RestoreRecord],
    rows: KeyRows,
    parting: Parting | None,
) -> CutResult:
    """Check one cut by its restore records and the rows of its key."""
    restored = rows.restored
    begun, ended = check_records(judgement, cut, records)
    if begun is None or ended is None or restored is None:
        return broken_cut(cut, begun.prefix_tokens if begun else 0)
    call = restored_call(cut, begun, ended, restored)
    check_place(judgement, call, rows.baseline)
    check_prefix(judgement, call)
    check_end(judgement, call)
    result = CutResult(
        key=cut.name,
        prefix_tokens=call.prefix_tokens,
        tail_tokens=call.tail_tokens,
        status="match",
        limit_tokens=cut.limit_tokens,
        ended=ended.finish_reason if isinstance(ended, Completed) else "already terminal",
        segments=call.segments,
        call_index=call.call_index,
    )
    if rows.baseline and parting:
        result = check_divergence(judgement, result, call, rows.baseline, parting)
    if rows.baseline is None or cut.name in judgement.failed_keys:
        result = replace(result, status="broken")
    return result


def broken_cut(cut: Cut, prefix_tokens: int) -> CutResult:
    """What is known of a cut that has no place to be checked at."""
    return CutResult(
        key=cut.name,
        prefix_tokens=prefix_tokens,
        tail_tokens=0,
        status="broken",
        limit_tokens=cut.limit_tokens,
    )


def check_records(
    judgement: Judgement, cut: Cut, records: list[RestoreRecord]
) -> tuple[Restored | None, EndRecord | None]:
    """The call was restored once and ended once; returns the first record of each kind."""
    expect = partial(judgement.expect, where="restore records", key=cut.name)
    begun = [record for record in records if isinstance(record, Restored)]
    ended = [record for record in records if isinstance(record, EndRecord)]
    begun_ids, ended_ids = ([record.call_id for record in kind] for kind in (begun, ended))
    expect("restored-once", len(begun) == 1, "one restored record", begun_ids)
    expect("completed-once", len(ended) == 1, "one completed or terminal record", ended_ids)
    return next(iter(begun), None), next(iter(ended), None)


def restored_call(cut: Cut, begun: Restored, ended: EndRecord, row: Row) -> RestoredCall:
    """The call in its row; at the row's end where the row has no such call."""
    segments = row.segments()
    call_index = len(segments) - 1 if cut.call_index is None else cut.call_index
    start = stop = row.input_length
    if call_index < len(segments):
        start, stop = segments[call_index]
    return RestoredCall(
        cut=cut,
        begun=begun,
        ended=ended,
        row=row,
        call_index=call_index,
        segments=segments,
        start=start,
        stop=stop,
        prefix_tokens=begun.prefix_tokens,
        tail_tokens=ended.tail_tokens if isinstance(ended, Completed) else 0,
    )


def check_place(judgement: Judgement, call: RestoredCall, baseline: Row | None) -> None:
    """Records, group and segment of the row name one place, and prefix and tail fill it."""
    cut, size, group = call.cut, len(call.ids), call.row.group_id
    expect = partial(judgement.expect, "call-position", where=call.where, key=cut.name)
    expected = {
        "call_id": call.begun.call_id,
        "prefix_tokens": call.prefix_tokens,
        "group_id": cut.group_id,
        "call_index": call.call_index,
        "generation_index": cut.generation_index,
    }
    for record in (call.begun, call.ended):
        actual = {name: getattr(record, name) for name in expected}
        if cut.captured is None:  # NeMo RL's log says less; a record of our own must say it all
            actual |= {name: expected[name] for name in actual if actual[name] is None}
        expect(actual == expected, expected, actual)
    counted = call.prefix_tokens + call.tail_tokens
    parts = f"{call.prefix_tokens} captured, {call.tail_tokens} generated"
    expect(size == counted, f"{counted} tokens: {parts}", f"{size} in the row")
    expect(group == cut.group_id, f"a row of group {cut.group_id}", group)
    if cut.captured and baseline:
        calls = len(call.segments)
        same_calls = calls == len(baseline.segments())
        expect(same_calls, "as many calls as the baseline's row has", f"{calls} calls")


def check_prefix(judgement: Judgement, call: RestoredCall) -> None:
    """The row's prefix is the restored one, and what the journal captured."""
    captured, digest = call.cut.captured, call.begun.prefix_ids_sha256
    expect = partial(judgement.expect, where=call.where, key=call.cut.name)
    same = partial(judgement.same, where=call.where, key=call.cut.name)
    if captured or digest is not None:
        actual = ids_sha256(call.prefix_ids)
        expect("prefix-hash", actual == digest, digest, actual)
    else:
        judgement.lack("prefix-hash", "cuts without a hash in their record")
    if captured is None:
        check_selected(judgement, call)
    else:
        size = min(len(captured.ids), call.prefix_tokens)  # prefix-captured tells unequal lengths
        logprobs = call.row.generation_logprobs[call.start : call.start + size]
        ids = captured.prompt_ids + captured.ids
        same("prefix-captured", ids, call.row.token_ids[: call.seam])
        same("prefix-logprobs", captured.logprobs[:size], logprobs)


def check_selected(judgement: Judgement, call: RestoredCall) -> None:
    """The restored prefix has the length and the digest that the selection says were captured."""
    expect = partial(judgement.expect, "prefix-captured", where=call.where, key=call.cut.name)
    tokens, digest = call.cut.prefix_tokens, call.cut.prefix_digest
    if tokens is None:
        judgement.lack("prefix-captured", "cuts of which no capture is known")
    else:
        restored = f"{call.prefix_tokens} restored"
        expect(call.prefix_tokens == tokens, f"{tokens} tokens, as captured", restored)
    if digest is not None and call.begun.prefix_digest is not None:
        expect(call.begun.prefix_digest == digest, digest, call.begun.prefix_digest)


def check_end(judgement: Judgement, call: RestoredCall) -> None:
    """The call keeps to its budget, goes on to its end, and not past it."""
    expect = partial(judgement.expect, where=call.where, key=call.cut.name)
    limit, size = call.cut.limit_tokens, len(call.ids)
    if limit is None:
        judgement.lack("token-budget", "cuts without a known limit")
    else:
        left = limit - call.prefix_tokens
        asked = call.begun.max_tokens if call.cut.captured else left
        in_budget = asked == left and call.tail_tokens <= left
        got = f"{asked} asked for, {call.tail_tokens} generated"
        expect("token-budget", in_budget, f"{left} of {limit} tokens left", got)
    if judgement.stop_ids:
        inside = judgement.stop_ids.intersection(call.ids[:-1])
        expect("already-terminal", not inside, "nothing behind a stop token", f"{inside} inside")
    if isinstance(call.ended, AlreadyTerminal):
        check_terminal(judgement, call)
        return
    expect("tail-generated", call.tail_tokens > 0, "a tail", "a completed call without one")
    if limit is None or not judgement.stop_ids:
        judgement.lack(
            "tail-generated", "tails whose end cannot be judged: no limit or stop token known"
        )
    else:
        at_end = size == limit or judgement.ends_by_stop(call.ids)
        expect("tail-generated", at_end, f"a stop token last, or {limit} tokens", size)


def check_terminal(judgement: Judgement, call: RestoredCall) -> None:
    """A call that is said to have been terminal was, and has no tail."""
    expect = partial(judgement.expect, "already-terminal", where=call.where, key=call.cut.name)
    limit, size, prefix_tokens = call.cut.limit_tokens, len(call.ids), call.prefix_tokens
    expect(size == prefix_tokens, "no tail", f"prefix {prefix_tokens}, call of {size}")
    stopped = judgement.ends_by_stop(call.prefix_ids)
    if stopped or (limit is not None and judgement.stop_ids) or prefix_tokens == limit:
        expected = "limit used up or stop token captured"
        got = f"prefix {prefix_tokens} of {limit}, stop token: {stopped}"
        expect(stopped or prefix_tokens == limit, expected, got)
    else:
        judgement.lack(
            "already-terminal", "calls said to be terminal without a known limit and stop token"
        )


def check_divergence(
    judgement: Judgement,
    result: CutResult,
    call: RestoredCall,
    baseline: Row,
    parting: Parting,
) -> CutResult:
    """A restored row parts from the baseline at a near-tie, behind its restored call's start.

    Before it only where the killed run parted already. Returns the result with what was found.
    """
    at, tie = parting.at, parting.tie
    expect = partial(judgement.expect, where=f"token {at}", key=result.key)
    expected = window(baseline.token_ids, at, judgement.decode)
    got = window(call.row.token_ids, at, judgement.decode)
    equal_before = f"tokens equal before {call.start}, masks up to {at}: {expected}"
    in_place = at >= call.start or parting.captured
    expect("before-cut-call", in_place and parting.same_masks, equal_before, got)
    bound = judgement.params.near_tie_margin
    near_expected = f"{expected}, or a near-tie within {bound} nats"
    expect("near-tie", tie.is_near(bound), near_expected, f"{got}, {tie}")
    result = replace(
        result,
        status="set_aside",
        first_difference=at,
        tokens=parting.tokens,
        margin_trainer=parting.witness,
    )
    if tie.margins:
        one, other = tie.margins
        result = replace(result, margin_uninterrupted=one, margin_restored=other)
    return result
