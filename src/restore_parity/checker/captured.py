"""What the killed run captured of a row, held against the restored row and the baseline."""

from functools import partial

from ..journal import Call
from ..records import Key, Row, likely
from .judgement import Judgement
from .near_tie import Choice, is_likeliest


def check_finished(judgement: Judgement, key: Key, restored: Row, calls: list[Call]) -> None:
    """Calls that ended before the kill stand in the restored row as the journal has them."""
    segments = restored.segments()
    for call in calls:
        if call.is_open:
            continue
        expect = partial(judgement.expect, "finished-captured", key=key)
        same = partial(judgement.same, "finished-captured", key=key)
        where = f"call {call.call_index}"
        has_call = call.call_index < len(segments)
        expect(has_call, "in the restored row", f"{len(segments)} calls there", where=where)
        if not has_call:
            continue
        start, stop = segments[call.call_index]
        end = stop + len(call.tool_ids or [])
        if call.call_index + 1 < len(segments):
            end = segments[call.call_index + 1][0]
        prompt_and_ids = call.prompt_ids + call.ids
        same(prompt_and_ids, restored.token_ids[:stop], where=f"{where}, token_ids")
        logprobs = restored.generation_logprobs[start:stop]
        same(call.logprobs, logprobs, where=f"{where}, generation_logprobs")
        if call.tool_ids is not None:
            same(call.tool_ids, restored.token_ids[stop:end], where=f"{where}, tool result")


def captured_choice(calls: list[Call], restored: Row, at: int) -> Choice | None:
    """The killed run's choice at a token of the restored row, where it captured that very token."""
    segments = restored.segments()
    if at >= restored.input_length:
        return None
    for call in calls:
        if call.call_index >= len(segments):
            continue
        nth = at - segments[call.call_index][0]
        if 0 <= nth < len(call.ids) and call.ids[nth] == restored.token_ids[at]:
            column = call.top_logprobs
            return Choice(
                run="killed",
                token=call.ids[nth],
                logprob=call.logprobs[nth],
                candidates=likely(column[nth]) if column else None,
                is_greedy=not column
                or is_likeliest(call.ids[nth], call.logprobs[nth], column[nth]),
            )
    return None
