"""The finding over the saved calls and the call run again: every case of the table, and what is no case."""

import pytest

from restore_parity.again import Again, View
from restore_parity.finding import CASES, find
from restore_parity.journal import Call
from restore_parity.records import Key

PROMPT, PREFIX = [9, 9], [1, 2]
ONE, OTHER = [1, 2, 3, 4, 5], [1, 2, 3, 6, 7]  # two answers to one call; they part behind the prefix, at a near-tie
THIRD = [1, 2, 3, 4, 7]  # parts from either at a near-tie
OTHERS = {1: 8, 2: 8, 3: 8, 4: 6, 5: 7, 6: 4, 7: 5, 0: 8}  # the second candidate beside each token


def view(ids=ONE, before=PROMPT, moved=0.0, margin=0.1, **at) -> View:
    """An answer whose tokens have log-probability -0.5, from place `start` on moved; second candidates `margin` below."""
    logprobs = [-0.5 - moved * (place >= at.get("start", 0)) for place in range(len(ids))]
    top2 = [[(token, lp), (OTHERS[token], lp - margin)] for token, lp in zip(ids, logprobs, strict=True)]
    return View(before, list(ids), logprobs, top2)


def cut(ids=PREFIX, prompt=PROMPT, moved=0.0) -> Call:
    captured = view(ids, moved=moved)
    return Call("k", Key(1, 0, 0), 1, "g", prompt, 5, ids=list(ids), logprobs=captured.logprobs, top2=captured.top2)


def found(ours=ONE, theirs=ONE, prefill=ONE, decode=ONE, captured=None, **again):
    calls = [ids if isinstance(ids, View | None) else view(ids) for ids in (ours, theirs, prefill, decode)]
    return find(captured or cut(), *calls[:2], Again(*calls[2:], **{"torch": view()} | again))


@pytest.mark.parametrize(
    ("ways", "kind"),
    [
        ((ONE, ONE, ONE, ONE), "as saved"),
        ((ONE, OTHER, OTHER, ONE), "numerics"),
        ((ONE, OTHER, ONE, ONE), "restore bug"),
        ((ONE, OTHER, OTHER, OTHER), "baseline"),
        ((ONE, ONE, OTHER, OTHER), "not repeated"),
        ((ONE, ONE, OTHER, ONE), "not repeated"),
        ((ONE, ONE, ONE, OTHER), "not repeated"),
        ((ONE, OTHER, ONE, OTHER), "undecided"),
        ((ONE, OTHER, [1, 2, 0], ONE), "undecided"),
        ((ONE, [*ONE, 3], ONE, ONE), "restore bug"),
        ((ONE, OTHER, OTHER, THIRD), "numerics"),
    ],
    ids=["all", "U=D R=P", "R", "U", "P=D", "P", "D", "crossed", "three ways", "R goes on", "R=P"],
)
def test_which_of_the_four_calls_are_equal_decides(ways, kind):
    assert found(*ways).kind == kind


def test_each_case_of_the_table_can_be_reached():
    reached = {found(*ways).told.split("\n")[0] for ways in [(ONE,) * 4, (ONE, OTHER, OTHER, ONE), (ONE, OTHER, ONE, ONE)]}
    reached |= {found(ONE, OTHER, OTHER, ways).told.split("\n")[0] for ways in (OTHER, THIRD)}
    reached |= {found(ONE, ONE, *ways).told.split("\n")[0] for ways in [(OTHER, OTHER), (OTHER, ONE), (ONE, OTHER)]}
    assert reached == {told for _, told in CASES.values()}


def test_log_probabilities_alone_are_told_apart_bit_for_bit():
    assert found(theirs=view(moved=1e-6, start=2)).kind == "restore bug"
    numerics = found(theirs=view(moved=1e-6, start=2), prefill=view(moved=1e-6, start=2))
    assert numerics.kind == "numerics" and "from token 2 of the call on, there by 1e-06 nats" in numerics.told


def test_equal_tokens_with_noise_all_four_ways_are_numerics():
    ways = [view(moved=moved) for moved in (0.0, 0.01, 0.02, 0.03)]
    assert found(*ways).kind == "numerics" and "equal all four ways" in found(*ways).told


def test_a_shift_beyond_noise_is_no_numerics():
    far = view(moved=0.5, start=2)
    assert found(theirs=far, prefill=far).kind == "engine bug"


def test_a_baseline_that_nothing_gives_and_that_was_sure_is_undecided():
    assert found(ONE, OTHER, OTHER, THIRD, torch=view(margin=0.5)).kind == "undecided"


@pytest.mark.parametrize("side", [0, 1], ids=["prefill", "decode"])
def test_ways_that_part_where_one_was_sure_are_no_numerics(side):
    ways = [view(OTHER), view(ONE)]
    ways[side] = view(ways[side].ids, margin=0.4)
    assert found(view(ways[1].ids, margin=0.4), OTHER, *ways).kind == "engine bug"


def test_a_captured_token_that_decode_does_not_give_is_a_capture_bug():
    decode = view([1, 0, 3, 4, 5])
    decode.top2[1][:], decode.logprobs[1] = [(2, -0.5), (0, -1.5)], -1.5
    wrong = found(decode=decode, captured=cut([1, 0]))
    assert wrong.kind == "capture bug" and "token 1 of the call is 0, decode gives 2" in wrong.told


def test_a_captured_token_at_a_near_tie_is_none():
    decode = view([1, 0, 3, 4, 5])
    decode.top2[1][:] = [(2, -0.5), (0, -0.5)]
    assert found(decode=decode, captured=cut([1, 0])).kind != "capture bug"


def test_a_captured_prefix_behind_the_end_that_decode_gives_is_a_capture_bug():
    assert "decode gives the call's end" in found(decode=[1], captured=cut([1, 2])).told


def test_captured_log_probabilities_that_neither_decode_nor_the_baseline_has_are_a_capture_bug():
    assert found(captured=cut(moved=1e-6)).kind == "capture bug"
    assert found(decode=view(moved=1e-5), captured=cut(moved=1e-6)).kind != "capture bug"  # noise, as decode's is


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        (PROMPT, [9, 8], "restore bug"),
        ([9, 8], PROMPT, "parted before"),
        ([9, 8], [9, 8], "capture bug"),
        ([9, 8], [9, 7], "undecided"),
    ],
    ids=["restored", "uninterrupted", "captured", "all differ"],
)
def test_a_difference_before_the_call_is_told_first(ours, theirs, kind):
    assert found(view(before=ours), view(before=theirs)).kind == kind


def test_what_is_missing_is_undecided_and_said():
    assert found(theirs=None) == ("undecided", "a run holds no sound row with this call")
    assert find(cut(), view(), view(), None) == ("undecided", "the cut was not run again")


def test_the_facts_stand_below_the_finding():
    told = found(theirs=OTHER, changed=["engine: vllm==1 then, vllm==2 now"]).told
    assert "uninterrupted, restored: token 3 of the call is 4 against 6" in told
    assert "prefill again, decode again: equal bit for bit" in told and "not as then: engine: vllm==1" in told
    assert "torch, float32, token 3: 4 -0.5, 6 -0.6, margin 0.1 nats" in told
