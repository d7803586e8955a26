"""Near-ties: where two runs part, how near their two candidates were, and what counts as evidence.

Margins are differences of log-probabilities, in nats.
"""

import math

from ..records import Row, likely

LN_HALF = math.log(0.5)


def tie_margins(baseline: Row, restored: Row, at: int, bound: float) -> tuple[float, float] | None:
    """How far the two candidates are apart in the baseline and in the restored run; None: unshown.

    Both rows are equal before token `at`. Evidence is both tokens among the likeliest of both runs,
    each run having taken its likeliest one with the log-probability its row records, there and at
    all its generated tokens. Where neither run has such a column (other trainers' dumps), the two
    chosen tokens' log-probabilities stand alone. Two tied tokens share a probability of at most 1,
    so neither is likelier than 0.5: its log-probability is at most ln 0.5, give or take `bound`.
    An exact 0.0 is a certainty (a processed log-probability), not evidence.
    """
    if not (_is_generated(baseline, at) and _is_generated(restored, at)):
        return None  # a tool's token is nobody's candidate
    if baseline.generation_top2 is None and restored.generation_top2 is None:
        return _chosen_margins(baseline, restored, at, bound)
    if not (is_greedy(baseline) and is_greedy(restored)):
        return None
    margin_baseline = _margin(baseline, at, restored.token_ids[at])
    margin_restored = _margin(restored, at, baseline.token_ids[at])
    if margin_baseline is None or margin_restored is None:
        return None
    return margin_baseline, margin_restored


def _is_generated(row: Row, at: int) -> bool:
    return at < row.input_length and bool(row.token_loss_mask[at])


def _chosen_margins(
    baseline: Row, restored: Row, at: int, bound: float
) -> tuple[float, float] | None:
    logprobs = [row.generation_logprobs[at] for row in (baseline, restored)]
    if 0.0 in logprobs or max(logprobs) > LN_HALF + bound:
        return None
    margin = abs(logprobs[0] - logprobs[1])
    return margin, margin


def _margin(row: Row, at: int, other_token: int) -> float | None:
    """How much likelier the row's own token was than another; None where that one is not shown."""
    candidates = likely(row.generation_top2[at]) if row.generation_top2 else {}
    if other_token not in candidates:
        return None
    return row.generation_logprobs[at] - candidates[other_token]


def is_greedy(row: Row) -> bool:
    """Whether each generated token is its run's likeliest, with the log-probability of the row."""
    if not row.generation_top2 or not any(row.token_loss_mask):
        return False
    for at, trained in enumerate(row.token_loss_mask):
        if not trained:
            continue
        candidates = likely(row.generation_top2[at])
        logprob = candidates.get(row.token_ids[at])
        if logprob != row.generation_logprobs[at] or logprob != max(candidates.values()):
            return False
    return True


def trainer_margin(
    baseline: Row, at: int, baseline_token: int, restored_token: int
) -> float | None:
    """The third witness: how much likelier the baseline's token is in the trainer's float32 pass.

    Under 0: less likely. The context before `at` is the same in both rows, and so is the trainer's
    view of the two candidates.
    """
    if baseline.prev_top2 is None:
        return None
    candidates = likely(baseline.prev_top2[at])
    if baseline_token not in candidates or restored_token not in candidates:
        return None
    return candidates[baseline_token] - candidates[restored_token]
