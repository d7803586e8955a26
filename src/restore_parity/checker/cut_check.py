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
from ..tokens import first_difference, ids_sha256, window
from .cuts import Cut
from .judgement import Judgement
from .near_tie import tie_margins, trainer_margin


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
    baseline: Row | None,
    restored: Row | None,
) -> CutResult:
    """Check one cut by its restore records and its rows; None: missing, doubled or unsound."""
    begun, ended = check_records(judgement, cut, records)
    if begun is None or ended is None or restored is None:
        return CutResult(
            key=cut.name,
            prefix_tokens=begun.prefix_tokens if begun else 0,
            tail_tokens=0,
            status="broken",
            limit_tokens=cut.limit_tokens,
        )
    call = restored_call(cut, begun, ended, restored)
    check_place(judgement, call, baseline)
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
    if baseline:
        result = check_divergence(judgement, result, call, baseline)
    if baseline is None or cut.name in judgement.failed_keys:
        result = replace(result, status="broken")
    return result


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
        "generation_index": cut.key.generation_index,
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
    if captured:
        size = min(len(captured.ids), call.prefix_tokens)  # prefix-captured tells unequal lengths
        logprobs = call.row.generation_logprobs[call.start : call.start + size]
        ids = captured.prompt_ids + captured.ids
        same("prefix-captured", ids, call.row.token_ids[: call.seam])
        same("prefix-logprobs", captured.logprobs[:size], logprobs)


def check_end(judgement: Judgement, call: RestoredCall) -> None:
    """The call keeps to its budget, goes on to its end, and not past it."""
    expect = partial(judgement.expect, where=call.where, key=call.cut.name)
    limit, prefix_tokens, size = call.cut.limit_tokens, call.prefix_tokens, len(call.ids)
    if limit is not None:
        left = limit - prefix_tokens
        asked = call.begun.max_tokens if call.cut.captured else left
        in_budget = asked == left and call.tail_tokens <= left
        got = f"{asked} asked for, {call.tail_tokens} generated"
        expect("token-budget", in_budget, f"{left} of {limit} tokens left", got)
    inside = judgement.stop_ids.intersection(call.ids[:-1])
    expect("already-terminal", not inside, "nothing behind a stop token", f"{inside} inside")
    if isinstance(call.ended, AlreadyTerminal):
        stopped = judgement.ends_by_stop(call.prefix_ids)
        was_terminal = stopped or limit is None or prefix_tokens == limit
        no_tail = size == prefix_tokens
        expected = "limit used up or stop token captured, no tail"
        got = f"prefix {prefix_tokens} of {limit}, stop token: {stopped}, call of {size}"
        expect("already-terminal", was_terminal and no_tail, expected, got)
    elif call.cut.captured:
        at_end = size == limit or judgement.ends_by_stop(call.ids)
        expect("tail-generated", at_end, f"a stop token last, or {limit} tokens", size)


def check_divergence(
    judgement: Judgement, result: CutResult, call: RestoredCall, baseline: Row
) -> CutResult:
    """A restored row parts from the baseline not at all, or at a near-tie behind its call's start.

    Returns the result with what it found at the first difference.
    """
    restored = call.row
    at = first_difference(baseline.token_ids, restored.token_ids)
    if at is None:
        return result
    expect = partial(judgement.expect, where=f"token {at}", key=result.key)
    expected = window(baseline.token_ids, at, judgement.decode)
    got = window(restored.token_ids, at, judgement.decode)
    same_masks = (
        baseline.sample_loss_mask == restored.sample_loss_mask
        and baseline.token_loss_mask[:at] == restored.token_loss_mask[:at]
    )
    equal_before = f"tokens equal before {call.start}, masks up to {at}: {expected}"
    expect("before-cut-call", at >= call.start and same_masks, equal_before, got)
    bound = judgement.params.near_tie_margin
    margins = tie_margins(baseline, restored, at, bound)
    near = margins is not None and max(margins) <= bound
    shown = "margins {:.4g} and {:.4g} nats".format(*margins) if margins else "no evidence of one"
    near_expected = f"{expected}, or a near-tie within {bound} nats"
    expect("near-tie", near, near_expected, f"{got}, {shown}")
    result = replace(result, status="set_aside", first_difference=at)
    if margins:
        result = replace(result, margin_uninterrupted=margins[0], margin_restored=margins[1])
    if at < min(baseline.input_length, restored.input_length):
        tokens = baseline.token_ids[at], restored.token_ids[at]
        witness = trainer_margin(baseline, at, *tokens)
        result = replace(result, tokens=tokens, margin_trainer=witness)
    return result
