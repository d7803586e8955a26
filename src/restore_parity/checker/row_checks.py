"""The checks of two rows of one key: what is trained on, and the log-probabilities."""

import math
from collections import Counter
from functools import partial
from typing import NamedTuple

from msgspec import Struct, field

from ..records import CutResult, Key, Row
from .judgement import Judgement


class RowPair(NamedTuple):
    """The rows of one key, each sound and the only one of its dump."""

    key: Key
    baseline: Row
    restored: Row


class Tally(Struct):
    """What is counted over all rows, for the checks that need all of them."""

    rewards: Counter[float] = field(default_factory=Counter)  # baseline's: rows trained on
    cut_groups: set[tuple[int, int]] = field(default_factory=set)  # that hold a cut inside a call
    first_set_aside_step: float = math.inf


def compare_rows(
    judgement: Judgement, tally: Tally, pair: RowPair, results: list[CutResult]
) -> None:
    """The rows of one key: columns, contents unless they part at a cut, log-probabilities."""
    columns = [row.generation_top2 is not None for row in (pair.baseline, pair.restored)]
    judgement.expect(
        "dump-complete",
        columns[0] == columns[1],
        "in both runs or in none",
        columns,
        where="generation_top2",
        key=pair.key,
    )
    step = pair.key.train_step
    if any(result.status == "set_aside" for result in results):
        tally.first_set_aside_step = min(tally.first_set_aside_step, step)
    differences = [
        result.first_difference for result in results if result.first_difference is not None
    ]
    if not differences:
        check_row_exact(judgement, pair)
    end = min([pair.baseline.input_length, pair.restored.input_length, *differences])
    places = [at for at in range(end) if pair.restored.token_loss_mask[at]]
    check_tail_logprobs(judgement, pair, places)
    if step <= tally.first_set_aside_step:
        check_policy_logprobs(judgement, pair, places)
    else:
        judgement.counts["rows_after_set_aside"] += 1  # its weights may rightly differ
    judgement.counts["rows"] += 1
    judgement.counts["tokens"] += pair.restored.input_length
    judgement.counts["generated_tokens"] += int(sum(pair.restored.token_loss_mask))


def check_row_exact(judgement: Judgement, pair: RowPair) -> None:
    """What a row trains on is the baseline's."""
    key, baseline, restored = pair
    same = partial(judgement.same, "row-exact", key=key)
    note = _note_of_equal_text(judgement, pair)
    if same(baseline.token_ids, restored.token_ids, where="token_ids", note=note):
        same(baseline.token_loss_mask, restored.token_loss_mask, where="token_loss_mask")
    for name in ("sample_loss_mask", "reward"):
        expected, got = getattr(baseline, name), getattr(restored, name)
        judgement.expect("row-exact", expected == got, expected, got, where=name, key=key)


def _note_of_equal_text(judgement: Judgement, pair: RowPair) -> str:
    decode = judgement.decode
    ids = pair.baseline.token_ids, pair.restored.token_ids
    if decode is None or ids[0] == ids[1] or decode(ids[0]) != decode(ids[1]):
        return ""
    return "; the decoded text of both rows is equal: re-tokenised"


def check_tail_logprobs(judgement: Judgement, pair: RowPair, places: list[int]) -> None:
    """The engine's log-probabilities of equal generated tokens, at these places."""
    bound = judgement.params.max_logprob_diff
    _compare_logprobs(judgement, "tail-logprobs", "generation_logprobs", bound, pair, places)


def check_policy_logprobs(judgement: Judgement, pair: RowPair, places: list[int]) -> None:
    """The trainer's own log-probabilities of equal generated tokens, at these places."""
    bound = judgement.params.max_policy_diff
    _compare_logprobs(judgement, "policy-logprobs", "prev_logprobs", bound, pair, places)


def _compare_logprobs(
    judgement: Judgement,
    check: str,
    column: str,
    bound: float,
    pair: RowPair,
    places: list[int],
) -> None:
    if not places:
        return
    expected, actual = getattr(pair.baseline, column), getattr(pair.restored, column)
    gaps = [abs(expected[at] - actual[at]) for at in places]
    largest = max(gaps)
    at = places[gaps.index(largest)]
    judgement.expect(
        check,
        largest <= bound,
        f"{expected[at]} within {bound} nats",
        f"{actual[at]}, {largest:.4g} away",
        where=f"{column}[{at}]",
        key=pair.key,
    )
    judgement.note_gaps(check, gaps)
