"""Near-ties: where two runs part, how near their candidates were, and what counts as evidence.

Margins are differences of log-probabilities, in nats.
"""

import math

from msgspec import Struct

from ..records import Row, TopLogprobs, likely

LN_HALF = math.log(0.5)


class Choice(Struct, frozen=True, kw_only=True):
    """What one run chose where two runs part; log-probabilities in nats."""

    run: str
    token: int
    logprob: float
    candidates: dict[int, float] | None  # its likeliest tokens; None: the run recorded none
    is_greedy: bool = True  # it took its likeliest token all along, as recorded

    @property
    def least(self) -> float:
        """What the last of its candidates had: any other token had at most that."""
        return min((self.candidates or {}).values(), default=0.0)


class Tie(Struct, frozen=True, kw_only=True):
    """What is shown of a tie: both runs' margins, or why they are no evidence."""

    margins: tuple[float, float] | None = None  # in the baseline, in the restored run
    reason: str = ""

    def is_near(self, bound: float) -> bool:
        """Whether the two candidates are within `bound` nats in both runs."""
        return self.margins is not None and max(self.margins) <= bound

    def __str__(self) -> str:
        if self.margins is None:
            return self.reason
        return "margins {:.4g} and {:.4g} nats".format(*self.margins)


def choice_of(run: str, row: Row, at: int) -> Choice | None:
    """What a run's row shows of its choice at token `at`; None where no run chose a token there."""
    if at >= row.input_length or not row.token_loss_mask[at]:
        return None
    column = row.generation_top_logprobs
    return Choice(
        run=run,
        token=row.token_ids[at],
        logprob=row.generation_logprobs[at],
        candidates=None if column is None else likely(column[at]),
        is_greedy=column is None or is_greedy(row),
    )


def find_tie(
    baseline: Choice | None, restored: Choice | None, bound: float, vocabulary: int | None
) -> Tie:
    """How near the two chosen tokens were in both runs, or why nothing shows that they were.

    Evidence is both tokens among the likeliest of both runs, each run having taken its likeliest
    one with the log-probability its row records, there and at all its generated tokens. Where
    neither run recorded likeliest tokens (other trainers' dumps), the two chosen tokens'
    log-probabilities stand alone. Two tied tokens share a probability of at most 1, so neither is
    likelier than 0.5: its log-probability is at most ln 0.5, give or take `bound`. The likeliest of
    so many tokens as the model knows is not below -ln(vocabulary) either. An exact 0.0 is a
    certainty (a processed log-probability), not evidence.
    """
    if baseline is None or restored is None:
        return Tie(reason="no two generated tokens to be tied: one row has ended or is untrained")
    if baseline.candidates is None and restored.candidates is None:
        return _tie_of_chosen(baseline, restored, bound, vocabulary)
    for choice in (baseline, restored):
        if not choice.is_greedy:
            return Tie(reason=f"the {choice.run} run did not take its likeliest tokens as recorded")
    for chooser, other in ((baseline, restored), (restored, baseline)):
        if other.token not in (chooser.candidates or {}):
            return Tie(reason=_not_a_candidate(chooser, other))
    pairs = ((baseline, restored), (restored, baseline))
    first, second = (one.logprob - (one.candidates or {})[other.token] for one, other in pairs)
    return Tie(margins=(first, second))


def _not_a_candidate(chooser: Choice, other: Choice) -> str:
    if not chooser.candidates:
        return f"the {chooser.run} run recorded no likeliest tokens there"
    count = len(chooser.candidates)
    margin = chooser.logprob - chooser.least
    return (
        f"token {other.token} of the {other.run} run is not among the {chooser.run} run's {count} "
        f"likeliest, so at least {margin:.4g} nats below its choice"
    )


def _tie_of_chosen(baseline: Choice, restored: Choice, bound: float, vocabulary: int | None) -> Tie:
    for choice in (baseline, restored):
        said = f"the {choice.run} run's choice has log-probability {choice.logprob:.4g}"
        if choice.logprob == 0.0:
            return Tie(reason=f"{said}: a certainty, as processed log-probabilities are")
        if choice.logprob > LN_HALF + bound:
            return Tie(reason=f"{said}: likelier than one of two tied tokens can be")
        if vocabulary and choice.logprob < -math.log(vocabulary):
            return Tie(reason=f"{said}: less than the likeliest of {vocabulary} tokens can have")
    margin = abs(baseline.logprob - restored.logprob)
    return Tie(margins=(margin, margin))


def is_greedy(row: Row) -> bool:
    """Whether each generated token is its run's likeliest, with the log-probability of the row."""
    column = row.generation_top_logprobs
    if not column or not any(row.token_loss_mask):
        return False
    for at, trained in enumerate(row.token_loss_mask):
        if trained and not is_likeliest(row.token_ids[at], row.generation_logprobs[at], column[at]):
            return False
    return True


def is_likeliest(token: int, logprob: float, top_logprobs: TopLogprobs | None) -> bool:
    """Whether a token with this log-probability is the likeliest of these."""
    candidates = likely(top_logprobs)
    return candidates.get(token) == logprob and logprob == max(candidates.values())


def trainer_margin(
    baseline: Row, at: int, baseline_token: int, restored_token: int
) -> float | None:
    """The third witness: how much likelier the baseline's token is in the trainer's float32 pass.

    Under 0: less likely. The context before `at` is the same in both rows, and so is the trainer's
    view of the two candidates.
    """
    if baseline.prev_top_logprobs is None:
        return None
    candidates = likely(baseline.prev_top_logprobs[at])
    if baseline_token not in candidates or restored_token not in candidates:
        return None
    return candidates[baseline_token] - candidates[restored_token]
