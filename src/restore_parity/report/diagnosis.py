"""What a cut's saved calls and the two ways of running it again say together: numerics, or a bug and whose."""

from itertools import combinations
from typing import NamedTuple

from ..experiment.rerun import Again, View
from ..checker.checks import first_difference, likely
from ..journal import Call

NUMERICS = 0.3  # nats; by up to so much the origin saw equal tokens move in bfloat16
NAMES = {"U": "uninterrupted", "R": "restored", "P": "prefill again", "D": "decode again"}
# Which of the four are equal, by their letters, and what that means. What is not here is undecided.
CASES = {
    "UR UP UD RP RD PD": ("as saved", "both ways give the saved call; what failed lies outside: records, masks, trainer"),
    "UD RP": ("numerics", "prefill and decode differ, and each run is what its way gives"),
    "RP": ("numerics", "the restored call is what prefill gives, and the runs part at a near-tie; decode gives neither"
           " call: it depends on what else runs along"),
    "UP UD PD": ("restore bug", "both ways give the uninterrupted call, neither the saved restored one: a bug of its state,"
                 " records or position, or a damaged dump"),
    "RP RD PD": ("baseline", "both ways give the restored call, neither the saved uninterrupted one: look at that run"),
    "UR PD": ("not repeated", "the runs agree, the engine now gives something else: it, or what runs along, is another"),
    "UR UD RD": ("not repeated", "only prefill gives something else now: it depends on what else runs along"),
    "UR UP RP": ("not repeated", "only decode gives something else now: it depends on what else runs along"),
}  # fmt: skip


class Finding(NamedTuple):
    kind: str
    told: str


def find(cut: Call, ours: View | None, theirs: View | None, again: Again | None) -> Finding:
    """Decide between numerics and bugs from the saved calls, uninterrupted and restored, and the call run again."""
    if ours is None or theirs is None or again is None:
        lacking = "the cut was not run again" if ours and theirs else "a run holds no sound row with this call"
        return Finding("undecided", lacking)
    if found := _before(cut, ours, theirs) or _capture(cut, ours, again.decode):
        return found
    views = dict(zip("URPD", (ours, theirs, again.prefill, again.decode), strict=True))
    pairs = list(combinations("URPD", 2))
    for bound in (0.0, NUMERICS):  # bit for bit, else but for noise
        equal = " ".join(a + b for a, b in pairs if not apart(views[a], views[b], bound))
        if equal in CASES:
            break
    kind, told = CASES.get(equal, ("undecided", "no known pattern"))
    if kind == "as saved" and bound:
        kind, told = "numerics", f"the tokens are equal all four ways, log-probabilities within {bound} nats"
    if kind == "numerics" and (moved := _moved(again)) > NUMERICS:
        kind, told = "engine bug", f"prefill and decode differ by {moved:.3g} nats, over {NUMERICS}: more than numerics"
    at = first_difference(ours.ids, theirs.ids)
    scored = again.torch.top2[at] if at is not None and at < len(again.torch.top2) else None
    if equal == "RP" and (scored is None or abs(scored[0][1] - scored[1][1]) > NUMERICS):
        kind, told = "undecided", "the restored call is what prefill gives, the uninterrupted one nothing gives now"
    facts = [f"{NAMES[a]}, {NAMES[b]}: {apart(views[a], views[b], 0.0) or 'equal bit for bit'}" for a, b in pairs]
    if scored:
        (one, its), (other, others) = scored
        facts.append(f"torch, float32, token {at}: {one} {its:.6g}, {other} {others:.6g}, margin {its - others:.3g} nats")
    return Finding(kind, "\n  ".join([told, *facts, *(f"not as then: {what}" for what in again.changed)]))


def apart(one: View, other: View, bound: float) -> str:
    """Where two answers part by more than `bound` nats, or by a token; empty where they do not."""
    gaps, at = _gaps(one, other), first_difference(one.ids, other.ids)
    over = next((place for place, gap in enumerate(gaps) if gap > bound), None)
    told = [] if over is None else [f"log-probabilities from token {over} of the call on, there by {gaps[over]:.3g} nats"]
    if at is not None:
        there, here = ([*ids[at : at + 1], "its end"][0] for ids in (one.ids, other.ids))
        told.append(f"token {at} of the call is {there} against {here}")
    return "; ".join(told)


def _gaps(one: View, other: View) -> list[float]:
    """How far log-probabilities are apart, in nats, up to the first token that differs."""
    at = first_difference(one.ids, other.ids)
    return [abs(there - here) for there, here in zip(one.logprobs[:at], other.logprobs[:at], strict=False)]


def _moved(again: Again) -> float:
    """By how much prefill and decode differ at equal tokens, and either's margin at their first difference; nats."""
    one, other = again.prefill, again.decode
    at = first_difference(one.ids, other.ids)
    margins = [
        mine.logprobs[at] - likely(mine.top2[at]).get(yours.ids[at], float("-inf"))
        for mine, yours in ((one, other), (other, one))
        if at is not None and at < min(len(one.ids), len(other.ids))
    ]
    return max(_gaps(one, other) + margins, default=0.0)


def _before(cut: Call, ours: View, theirs: View) -> Finding | None:
    """A difference before the call, of which running it again says nothing."""
    there, here = (first_difference(cut.prompt_ids, view.before) for view in (ours, theirs))
    if there is None and here is None:
        return None
    if there is None:
        return Finding("restore bug", f"the restored row's token {here}, before the call, is not the captured prompt's")
    if here is None:
        return Finding("parted before", f"uninterrupted and killed run part at the row's token {there}, before this call")
    if ours.before == theirs.before:
        return Finding("capture bug", f"the captured prompt is neither run's from token {here} on")
    return Finding("undecided", "the captured prompt and both rows differ before the call")


def _capture(cut: Call, ours: View, decode: View) -> Finding | None:
    """A captured prefix that decode does not give, by more than numerics."""
    size, own = len(cut.ids), [top2[0][0] for top2 in decode.top2[: len(cut.ids)]]
    at = first_difference(cut.ids, own)
    if at == len(own) or (at is not None and decode.top2[at][0][1] - decode.logprobs[at] > NUMERICS):
        given = own[at] if at < len(own) else "the call's end"
        return Finding("capture bug", f"captured token {at} of the call is {cut.ids[at]}, decode gives {given}")
    capture = View([], cut.ids, cut.logprobs, cut.top2)
    exact = ours.logprobs[:size] == decode.logprobs[:size]  # then numerics are no excuse
    if told := apart(capture, View([], decode.ids[:size], decode.logprobs, decode.top2), 0.0 if exact else NUMERICS):
        return Finding("capture bug", f"captured and decoded {told}")
    return None
