"""Numerics, or a bug and whose: what a cut's saved calls and its two reruns say together."""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from ..journal import Call
from ..records import CallView, Rerun, likely
from ..tokens import first_difference

NUMERICS = 0.3  # nats; by up to so much NeMo RL saw equal tokens move in bfloat16

UNINTERRUPTED = "uninterrupted"
RESTORED = "restored"
PREFILL = "prefill again"
DECODE = "decode again"
VIEWS = (UNINTERRUPTED, RESTORED, PREFILL, DECODE)  # the four answers to one call

EqualPairs = frozenset[tuple[str, str]]  # names of views, in the order of VIEWS


class Finding(NamedTuple):
    """What a cut's failure comes to: its kind, why, and the facts below it."""

    kind: str
    why: str
    facts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: " + "\n  ".join([self.why, *self.facts])


def _equal(*groups: set[str]) -> EqualPairs:
    """The pairs of which both views are in one of the groups."""
    return frozenset(
        pair for pair in combinations(VIEWS, 2) if any(group.issuperset(pair) for group in groups)
    )


ALL_FOUR = _equal(set(VIEWS))
RESTORED_AS_PREFILL = _equal({RESTORED, PREFILL})
# Which views are equal, and what that means. What is not here is undecided.
CASES = {
    ALL_FOUR: Finding(
        "as saved",
        "both ways give the saved call; what failed lies outside: records, masks, trainer",
    ),
    _equal({UNINTERRUPTED, DECODE}, {RESTORED, PREFILL}): Finding(
        "numerics", "prefill and decode differ, and each run is what its way gives"
    ),
    RESTORED_AS_PREFILL: Finding(
        "numerics",
        "the restored call is what prefill gives, and the runs part at a near-tie; decode gives "
        "neither call: it depends on what else runs along",
    ),
    _equal({UNINTERRUPTED, PREFILL, DECODE}): Finding(
        "restore bug",
        "both ways give the uninterrupted call, neither the saved restored one: a bug of its "
        "state, records or position, or a damaged dump",
    ),
    _equal({RESTORED, PREFILL, DECODE}): Finding(
        "baseline",
        "both ways give the restored call, neither the saved uninterrupted one: look at that run",
    ),
    _equal({UNINTERRUPTED, RESTORED}, {PREFILL, DECODE}): Finding(
        "not repeated",
        "the runs agree, but the engine now gives something else: it has changed, or what runs "
        "along has",
    ),
    _equal({UNINTERRUPTED, RESTORED, DECODE}): Finding(
        "not repeated",
        "only prefill gives something else now: it depends on what else runs along",
    ),
    _equal({UNINTERRUPTED, RESTORED, PREFILL}): Finding(
        "not repeated",
        "only decode gives something else now: it depends on what else runs along",
    ),
}
UNKNOWN = Finding("undecided", "no known pattern")
NOISE = Finding(
    "numerics", f"the tokens are equal all four ways, log-probabilities within {NUMERICS} nats"
)


class Candidates(NamedTuple):
    """The two tokens at which the runs part, as torch's float32 forward pass scores them."""

    place: int
    uninterrupted: tuple[int, float]  # token, its log-probability in nats
    restored: tuple[int, float]

    @property
    def margin(self) -> float:
        """How much likelier the uninterrupted run's token is, in nats."""
        return self.uninterrupted[1] - self.restored[1]

    def __str__(self) -> str:
        (token, logprob), (other, other_logprob) = self.uninterrupted, self.restored
        return (
            f"torch, float32, token {self.place}: {token} {logprob:.6g}, {other} "
            f"{other_logprob:.6g}, margin {self.margin:.3g} nats"
        )


def diagnose(
    cut: Call, uninterrupted: CallView | None, restored: CallView | None, rerun: Rerun | None
) -> Finding:
    """Decide between numerics and bugs, from the saved calls of both runs and the call run again.

    What is needed and missing leaves it undecided.
    """
    if uninterrupted is None or restored is None:
        return Finding("undecided", "a run holds no sound row with this call")
    if rerun is None:
        return Finding("undecided", "the cut was not run again")
    earlier = _difference_before(cut, uninterrupted, restored)
    if earlier is None:
        earlier = _wrong_capture(cut, uninterrupted, rerun.decode)
    if earlier:
        return earlier
    views = {
        UNINTERRUPTED: uninterrupted,
        RESTORED: restored,
        PREFILL: rerun.prefill,
        DECODE: rerun.decode,
    }
    return _diagnose_views(views, rerun)


def _diagnose_views(views: Mapping[str, CallView], rerun: Rerun) -> Finding:
    candidates = _scored_by_torch(views, rerun)
    finding = _by_equality(views)
    gap = _prefill_decode_gap(rerun)
    if finding.kind == "numerics" and gap > NUMERICS:
        why = f"prefill and decode differ by {gap:.3g} nats, over {NUMERICS}: more than numerics"
        finding = Finding("engine bug", why)
    near_tie = candidates is not None and abs(candidates.margin) <= NUMERICS
    if _pattern(views) == RESTORED_AS_PREFILL and not near_tie:
        why = "the restored call is what prefill gives, the uninterrupted one nothing gives now"
        finding = Finding("undecided", why)
    facts = [
        f"{one}, {other}: {difference(views[one], views[other]) or 'equal bit for bit'}"
        for one, other in combinations(VIEWS, 2)
    ]
    if candidates:
        facts.append(str(candidates))
    facts += [f"not as then: {change}" for change in rerun.changed]
    return finding._replace(facts=tuple(facts))


def _by_equality(views: Mapping[str, CallView]) -> Finding:
    if _pattern(views) == ALL_FOUR and _equal_pairs(views) != ALL_FOUR:
        return NOISE
    return CASES.get(_pattern(views), UNKNOWN)


def _pattern(views: Mapping[str, CallView]) -> EqualPairs:
    """Which views are equal: bit for bit where that is a known case, else but for noise."""
    exact = _equal_pairs(views)
    return exact if exact in CASES else _equal_pairs(views, NUMERICS)


def _equal_pairs(views: Mapping[str, CallView], bound: float = 0.0) -> EqualPairs:
    return frozenset(
        (one, other)
        for one, other in combinations(VIEWS, 2)
        if not difference(views[one], views[other], bound)
    )


def difference(one: CallView, other: CallView, bound: float = 0.0) -> str:
    """Where two answers differ by more than `bound` nats, or by a token; empty: nowhere."""
    gaps = _logprob_gaps(one, other)
    over = next((place for place, gap in enumerate(gaps) if gap > bound), None)
    texts = []
    if over is not None:
        texts.append(
            f"log-probabilities from token {over} of the call on, there by {gaps[over]:.3g} nats"
        )
    at = first_difference(one.ids, other.ids)
    if at is not None:
        tokens = f"{_token(one.ids, at)} against {_token(other.ids, at)}"
        texts.append(f"token {at} of the call is {tokens}")
    return "; ".join(texts)


def _token(ids: list[int], at: int) -> int | str:
    return ids[at] if at < len(ids) else "its end"


def _logprob_gaps(one: CallView, other: CallView) -> list[float]:
    """How far log-probabilities are apart, in nats, up to the first token that differs."""
    end = first_difference(one.ids, other.ids)
    pairs = zip(one.logprobs[:end], other.logprobs[:end], strict=False)
    return [abs(logprob - other_logprob) for logprob, other_logprob in pairs]


def _prefill_decode_gap(rerun: Rerun) -> float:
    """By how much prefill and decode differ, in nats.

    In the log-probabilities of equal tokens, and at their first different token: by how much each
    prefers its own.
    """
    prefill, decode = rerun.prefill, rerun.decode
    gaps = _logprob_gaps(prefill, decode)
    at = first_difference(prefill.ids, decode.ids)
    if at is not None and at < min(len(prefill.ids), len(decode.ids)):
        gaps.append(_preference(prefill, at, decode.ids[at]))
        gaps.append(_preference(decode, at, prefill.ids[at]))
    return max(gaps, default=0.0)


def _preference(view: CallView, at: int, other: int) -> float:
    """How much likelier a view's token is than another, in nats; infinite: that is not likely."""
    return view.logprobs[at] - likely(view.top_logprobs[at]).get(other, float("-inf"))


def _scored_by_torch(views: Mapping[str, CallView], rerun: Rerun) -> Candidates | None:
    at = first_difference(views[UNINTERRUPTED].ids, views[RESTORED].ids)
    if at is None or at >= len(rerun.torch.top_logprobs):
        return None
    scored = [
        (token, logprob)
        for token, logprob in rerun.torch.top_logprobs[at] or ()
        if logprob is not None
    ]
    return Candidates(at, *scored) if len(scored) == 2 else None


def _difference_before(cut: Call, uninterrupted: CallView, restored: CallView) -> Finding | None:
    """A difference before the call, about which running it again says nothing."""
    at_baseline = first_difference(cut.prompt_ids, uninterrupted.before)
    at_restored = first_difference(cut.prompt_ids, restored.before)
    if at_baseline is None and at_restored is None:
        return None
    if at_baseline is None:
        why = (
            f"the restored row's token {at_restored}, before the call, is not the captured prompt's"
        )
        return Finding("restore bug", why)
    if at_restored is None:
        why = (
            f"uninterrupted and killed run part at the row's token {at_baseline}, before this call"
        )
        return Finding("parted before", why)
    if uninterrupted.before == restored.before:
        why = f"the captured prompt is neither run's from token {at_restored} on"
        return Finding("capture bug", why)
    return Finding("undecided", "the captured prompt and both rows differ before the call")


def _wrong_capture(cut: Call, uninterrupted: CallView, decode: CallView) -> Finding | None:
    """A captured prefix that decode does not give, by more than numerics."""
    size = len(cut.ids)
    choices = [_first_choice(decode, at) for at in range(min(size, len(decode.ids)))]
    at = first_difference(cut.ids, [token for token, _ in choices])
    if at is not None and at == len(choices):
        return _not_decoded(cut, at, "the call's end")
    if at is not None and choices[at][1] - decode.logprobs[at] > NUMERICS:
        return _not_decoded(cut, at, choices[at][0])
    captured = CallView(before=[], ids=cut.ids, logprobs=cut.logprobs, top_logprobs=[])
    decoded = CallView(
        before=[], ids=decode.ids[:size], logprobs=decode.logprobs[:size], top_logprobs=[]
    )
    # where decode gives the baseline's log-probabilities exactly, numerics are no excuse
    exact = uninterrupted.logprobs[:size] == decoded.logprobs
    text = difference(captured, decoded, 0.0 if exact else NUMERICS)
    if not text:
        return None
    return Finding("capture bug", f"captured and decoded {text}")


def _not_decoded(cut: Call, at: int, given: int | str) -> Finding:
    why = f"captured token {at} of the call is {cut.ids[at]}, decode gives {given}"
    return Finding("capture bug", why)


def _first_choice(view: CallView, at: int) -> tuple[int, float]:
    """The token that a view finds likeliest at a place, and its log-probability in nats."""
    return next(iter(likely(view.top_logprobs[at]).items()))
