"""The shape of a row: prompt, then calls and tool results in turn, and nothing behind."""

from collections.abc import Collection
from functools import partial
from itertools import pairwise

from ..records import Key, Row
from .judgement import Judgement

FRAME_TOKENS = 2  # of a chat template around each tool result


def check_shape(
    judgement: Judgement,
    run: str,
    key: Key,
    row: Row,
    *,
    baseline: Row | None = None,
    cut_calls: Collection[int] = (),
) -> None:
    """Each call is trained whole, ends by a stop token or at its limit; nothing follows the last.

    Without stop tokens and limits an end cannot be judged. `baseline` is the row that a restored
    one is held against; the ends of its `cut_calls` are the cut check's matter.
    """
    workload = judgement.workload
    expect = partial(judgement.expect, "row-shape", key=key)
    segments = row.segments()
    where = f"{run} row"
    expect(segments[0][0] > 0, "a prompt before the first call", "none", where=where)
    behind = row.input_length - segments[-1][1]
    allowed = 0
    if workload is None and baseline is not None:  # another trainer's rows may end by a tool result
        allowed = baseline.input_length - baseline.segments()[-1][1]
    expect(
        behind == 0 or behind == allowed,
        "nothing behind the last call",
        f"{behind} untrained tokens",
        where=where,
    )
    for index, (start, stop) in enumerate(segments):
        if index in cut_calls:
            continue
        is_planned = workload is not None and key.prompt_idx < workload.prompts_per_step
        limit = workload.limit_tokens(key, index) if workload and is_planned else None
        _check_call(judgement, f"{where}, call {index}", key, row.token_ids[start:stop], limit)
    if baseline is not None:
        _check_tool_results(judgement, where, key, row, baseline)


def _check_call(
    judgement: Judgement, where: str, key: Key, ids: list[int], limit: int | None
) -> None:
    expect = partial(judgement.expect, "row-shape", where=where, key=key)
    if not judgement.stop_ids and limit is None:
        judgement.lack(
            "row-shape", "calls whose end cannot be judged: no limit or stop token known"
        )
        return
    inside = judgement.stop_ids.intersection(ids[:-1])
    expect(not inside, "no stop token before the call's end", f"{sorted(inside)} inside")
    if limit is None:
        return
    at_end = len(ids) == limit or (judgement.ends_by_stop(ids) and len(ids) < limit)
    expect(at_end, f"a stop token last, or {limit} tokens", f"{len(ids)} tokens, {ids[-1]} last")


def _check_tool_results(
    judgement: Judgement, where: str, key: Key, row: Row, baseline: Row
) -> None:
    """As many calls as the baseline, and between them tool results in the same frame."""
    expect = partial(judgement.expect, "row-shape", key=key)
    results, expected = tool_results(row), tool_results(baseline)
    calls = f"{len(results) + 1} calls"
    expect(len(results) == len(expected), f"{len(expected) + 1} calls", calls, where=where)
    for index, (one, other) in enumerate(zip(expected, results, strict=False)):
        place = f"{where}, tool result {index}"
        expect(frame(one) == frame(other), frame(one), frame(other), where=place)


def tool_results(row: Row) -> list[list[int]]:
    """The untrained tokens between calls."""
    segments = row.segments()
    return [row.token_ids[stop:start] for (_, stop), (start, _) in pairwise(segments)]


def frame(ids: list[int]) -> list[int]:
    """The last tokens of a tool result: the template's, whatever the tool said."""
    return ids[-FRAME_TOKENS:]
