"""The checks of two rows of one key: what is trained on, and the log-probabilities."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from ..records import CutResult, Row
from ..tokens import first_difference, window
from .captured import check_finished
from .judgement import Judgement, RowResult
from .parting import Parting, RowPair
from .row_shape import check_shape


class StepGaps(Struct):
    """The engine's against the trainer's log-probabilities in one train step, in nats."""

    tokens: int = 0
    baseline: float = 0.0  # sums
    restored: float = 0.0
    restored_tokens: int = 0


class Tally(Struct):
    """What is counted over all rows, for the checks that need all of them."""

    rewards: Counter[float] = field(default_factory=Counter)  # baseline's: rows trained on
    cut_groups: set[tuple[int, int]] = field(default_factory=set)  # that hold a cut inside a call
    first_set_aside_step: float = math.inf
    gaps: dict[int, StepGaps] = field(default_factory=lambda: defaultdict(StepGaps))
    uncut_rows: int = 0
    # the group at hand: its advantages are compared when all its rows have been seen
    group: tuple[int, int] | None = None
    group_set_aside: bool = False
    pending: list[Callable[[], object]] = field(default_factory=list)


def compare_rows(
    judgement: Judgement,
    tally: Tally,
    pair: RowPair,
    results: list[CutResult],
    parting: Parting | None,
) -> None:
    """The rows of one key: columns, shape, contents unless they part at a tie, log-probabilities.

    `results` are of its cuts.
    """
    key, baseline, restored = pair.key, pair.baseline, pair.restored
    check_columns(judgement, pair)
    check_shape(judgement, "uninterrupted", key, baseline)
    cut_calls = [result.call_index for result in results if result.segments]
    check_shape(judgement, "restored", key, restored, baseline=baseline, cut_calls=cut_calls)
    check_finished(judgement, key, restored, pair.calls)
    set_aside = any(result.status == "set_aside" for result in results)
    if not results:
        tally.uncut_rows += 1
        set_aside = check_uncut_row(judgement, pair, parting)
    if parting is None or not (results or set_aside):
        check_row_exact(judgement, pair)
    if set_aside:
        tally.first_set_aside_step = min(tally.first_set_aside_step, key.train_step)
    note_advantages(judgement, tally, pair, set_aside)
    end = min(baseline.input_length, restored.input_length)
    if parting:
        end = parting.at
    check_tail_logprobs(judgement, pair, end)
    note_gaps(tally, pair)
    if key.train_step <= tally.first_set_aside_step:
        check_policy_logprobs(judgement, pair, end)
    else:
        judgement.counts["rows_after_set_aside"] += 1  # its weights may rightly differ
    judgement.counts["rows"] += 1
    judgement.counts["identical_rows"] += int(parting is None)
    judgement.counts["tokens"] += restored.input_length
    judgement.counts["generated_tokens"] += int(sum(restored.token_loss_mask))


def check_columns(judgement: Judgement, pair: RowPair) -> None:
    """Both rows have the same optional columns."""
    for name in ("generation_top_logprobs", "prev_top_logprobs"):
        present = [getattr(row, name) is not None for row in (pair.baseline, pair.restored)]
        judgement.expect(
            "dump-complete",
            present[0] == present[1],
            "in both runs or in none",
            f"uninterrupted: {present[0]}, restored: {present[1]}",
            where=name,
            key=pair.key,
        )


def check_uncut_row(judgement: Judgement, pair: RowPair, parting: Parting | None) -> bool:
    """Whether a row that was not cut parts from the baseline at a shown near-tie.

    It may where the killed run's journal says which tokens are whose: the killed run parted, or the
    restored run generated it anew.
    """
    if parting is None or not judgement.has_journal or not parting.same_masks:
        return False
    if not parting.tie.is_near(judgement.params.near_tie_margin) or parting.tie.margins is None:
        return False
    judgement.rows.append(
        RowResult(
            key=str(pair.key),
            first_difference=parting.at,
            parted_in="killed" if parting.captured else "restored",
            tokens=parting.tokens,
            margin_uninterrupted=parting.tie.margins[0],
            margin_restored=parting.tie.margins[1],
            margin_trainer=parting.witness,
        )
    )
    return True


def check_row_exact(judgement: Judgement, pair: RowPair) -> None:
    """What a row trains on is the baseline's."""
    key, baseline, restored = pair.key, pair.baseline, pair.restored
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


def note_advantages(judgement: Judgement, tally: Tally, pair: RowPair, set_aside: bool) -> None:
    """Advantages are equal in groups of which no row is set aside: known when a group is over."""
    if pair.key.group != tally.group:
        flush_advantages(tally)
        tally.group = pair.key.group
    tally.group_set_aside |= set_aside
    expected, got = pair.baseline.advantages, pair.restored.advantages
    where, key = "advantages", pair.key
    at = first_difference(expected, got)
    if at is None:
        check = partial(judgement.expect, "row-exact", True, "", "", where=where, key=key)
    else:
        check = partial(
            judgement.expect,
            "row-exact",
            False,
            window(expected, at),
            window(got, at),
            where=f"{where}[{at}]",
            key=key,
        )
    tally.pending.append(check)


def flush_advantages(tally: Tally) -> None:
    """Compare the advantages of the group that is over, unless one of its rows is set aside."""
    if not tally.group_set_aside:
        for check in tally.pending:
            check()
    tally.pending.clear()
    tally.group_set_aside = False


def check_tail_logprobs(judgement: Judgement, pair: RowPair, end: int) -> None:
    """The engine's log-probabilities of equal generated tokens before `end`, singly and by call."""
    params = judgement.params
    baseline, restored = pair.baseline.generation_logprobs, pair.restored.generation_logprobs
    places = [at for at in range(end) if pair.restored.token_loss_mask[at]]
    if places and not any(baseline[at] or restored[at] for at in places):
        judgement.lack("tail-logprobs", "rows with log-probabilities of 0.0 alone")
        return
    _compare_logprobs(
        judgement, "tail-logprobs", "generation_logprobs", params.max_logprob_diff, pair, places
    )
    for index, (start, stop) in enumerate(pair.restored.segments()):
        gaps = [abs(baseline[at] - restored[at]) for at in range(start, min(stop, end))]
        if gaps:
            mean = sum(gaps) / len(gaps)
            judgement.expect(
                "tail-logprobs",
                mean <= params.max_mean_logprob_diff,
                f"a mean difference within {params.max_mean_logprob_diff} nats",
                f"{mean:.4g} over {len(gaps)} tokens",
                where=f"generation_logprobs, call {index}",
                key=pair.key,
            )
            judgement.note_largest("tail-logprobs mean", mean)


def check_policy_logprobs(judgement: Judgement, pair: RowPair, end: int) -> None:
    """The trainer's own log-probabilities of equal generated tokens before `end`."""
    bound = judgement.params.max_policy_diff
    places = [at for at in range(end) if pair.restored.token_loss_mask[at]]
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


def note_gaps(tally: Tally, pair: RowPair) -> None:
    """Add a row's distances between the engine's and the trainer's log-probabilities."""
    step = tally.gaps[pair.key.train_step]
    step.baseline += _gap(pair.baseline)
    step.restored += _gap(pair.restored)
    step.tokens += int(sum(pair.baseline.token_loss_mask))
    step.restored_tokens += int(sum(pair.restored.token_loss_mask))


def _gap(row: Row) -> float:
    """The sum of |generation_logprobs - prev_logprobs| over trained tokens, in nats."""
    columns = zip(row.token_loss_mask, row.generation_logprobs, row.prev_logprobs, strict=True)
    return math.fsum(abs(one - other) for trained, one, other in columns if trained)


def check_gaps(judgement: Judgement, tally: Tally) -> None:
    """In each step engine and trainer are as far apart as in the baseline."""
    bound = judgement.params.max_gap_increase
    for step, gaps in sorted(tally.gaps.items()):
        baseline = gaps.baseline / max(gaps.tokens, 1)
        restored = gaps.restored / max(gaps.restored_tokens, 1)
        judgement.expect(
            "engine-trainer-gap",
            abs(restored - baseline) <= bound,
            f"a mean distance of {baseline:.4g} nats, within {bound}",
            f"{restored:.4g} nats",
            where=f"step {step}, |generation_logprobs - prev_logprobs|",
        )
        judgement.note_largest("engine-trainer-gap", abs(restored - baseline))
