"""The finding over the saved calls and the call run again: each case, and what is none."""

import pytest

from restore_parity.journal import Call
from restore_parity.records import CallView, Key, Rerun
from restore_parity.report.diagnosis import CASES, Finding, diagnose

PROMPT, PREFIX = [9, 9], [1, 2]
ONE = [1, 2, 3, 4, 5]
OTHER = [1, 2, 3, 6, 7]  # parts from ONE behind the prefix, at a near-tie
THIRD = [1, 2, 3, 4, 7]  # parts from either at a near-tie
SECOND_CHOICE = {1: 8, 2: 8, 3: 8, 4: 6, 5: 7, 6: 4, 7: 5, 0: 8}  # by token


def view(ids=ONE, before=PROMPT, moved=0.0, start=0, margin=0.1) -> CallView:
    """An answer whose tokens have log-probability -0.5, from place `start` on less by `moved`.

    Second candidates are `margin` below.
    """
    logprobs = [-0.5 - moved * (place >= start) for place in range(len(ids))]
    top_logprobs = [
        [(token, logprob), (SECOND_CHOICE[token], logprob - margin)]
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    return CallView(before=before, ids=list(ids), logprobs=logprobs, top_logprobs=top_logprobs)


def cut(ids=PREFIX, prompt=PROMPT, moved=0.0) -> Call:
    captured = view(ids, moved=moved)
    return Call(
        call_id="k",
        key=Key(1, 0, 0),
        call_index=1,
        group_id="g",
        prompt_ids=prompt,
        max_tokens=5,
        ids=list(ids),
        logprobs=captured.logprobs,
        top_logprobs=captured.top_logprobs,
    )


def found(
    uninterrupted=ONE, restored=ONE, prefill=ONE, decode=ONE, captured=None, **rerun
) -> Finding:
    """The finding of four answers, each given as a view or as its ids."""
    given = (uninterrupted, restored, prefill, decode)
    views = [ids if isinstance(ids, CallView) else view(ids) for ids in given]
    again = Rerun(prefill=views[2], decode=views[3], **{"torch": view()} | rerun)
    return diagnose(captured or cut(), views[0], views[1], again)


@pytest.mark.parametrize(
    ("answers", "kind"),
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
    ids=[
        "all equal",
        "each as its way",
        "restored differs",
        "uninterrupted differs",
        "runs against reruns",
        "prefill differs",
        "decode differs",
        "crossed",
        "three answers",
        "restored goes on",
        "decode gives neither",
    ],
)
def test_which_of_the_four_answers_are_equal_decides(answers, kind):
    assert found(*answers).kind == kind


def test_each_case_can_be_reached():
    reached = {
        found(*answers).why
        for answers in [
            (ONE, ONE, ONE, ONE),
            (ONE, OTHER, OTHER, ONE),
            (ONE, OTHER, ONE, ONE),
            (ONE, OTHER, OTHER, OTHER),
            (ONE, OTHER, OTHER, THIRD),
            (ONE, ONE, OTHER, OTHER),
            (ONE, ONE, OTHER, ONE),
            (ONE, ONE, ONE, OTHER),
        ]
    }
    assert reached == {case.why for case in CASES.values()}


def test_a_moved_log_probability_of_the_restored_call_alone_is_a_restore_bug():
    assert found(restored=view(moved=1e-6, start=2)).kind == "restore bug"


def test_a_moved_log_probability_that_prefill_gives_too_is_numerics():
    moved = view(moved=1e-6, start=2)
    finding = found(restored=moved, prefill=moved)
    assert finding.kind == "numerics"
    assert "from token 2 of the call on, there by 1e-06 nats" in str(finding)


def test_equal_tokens_with_noise_all_four_ways_are_numerics():
    finding = found(*[view(moved=moved) for moved in (0.0, 0.01, 0.02, 0.03)])
    assert finding.kind == "numerics"
    assert "equal all four ways" in finding.why


def test_a_shift_beyond_noise_is_not_numerics():
    far = view(moved=0.5, start=2)
    assert found(restored=far, prefill=far).kind == "engine bug"


def test_a_baseline_that_nothing_gives_and_that_was_sure_is_undecided():
    assert found(ONE, OTHER, OTHER, THIRD, torch=view(margin=0.5)).kind == "undecided"


def test_a_baseline_that_nothing_gives_and_that_torch_did_not_score_is_undecided():
    unscored = CallView(before=PROMPT, ids=[], logprobs=[], top_logprobs=[])
    assert found(ONE, OTHER, OTHER, THIRD, torch=unscored).kind == "undecided"


@pytest.mark.parametrize("sure", ["prefill", "decode"])
def test_ways_that_part_where_one_was_sure_are_not_numerics(sure):
    ways = {"prefill": view(OTHER), "decode": view(ONE)}
    ways[sure] = view(ways[sure].ids, margin=0.4)
    baseline = view(ways["decode"].ids, margin=0.4)
    assert found(baseline, OTHER, **ways).kind == "engine bug"


def test_a_captured_token_that_decode_does_not_give_is_a_capture_bug():
    decode = view([1, 0, 3, 4, 5])
    decode.top_logprobs[1][:] = [(2, -0.5), (0, -1.5)]
    decode.logprobs[1] = -1.5
    finding = found(decode=decode, captured=cut([1, 0]))
    assert finding.kind == "capture bug"
    assert "token 1 of the call is 0, decode gives 2" in finding.why


def test_a_captured_token_at_a_near_tie_is_not_one():
    decode = view([1, 0, 3, 4, 5])
    decode.top_logprobs[1][:] = [(2, -0.5), (0, -0.5)]
    assert found(decode=decode, captured=cut([1, 0])).kind != "capture bug"


def test_a_captured_prefix_behind_the_end_that_decode_gives_is_a_capture_bug():
    assert "decode gives the call's end" in found(decode=[1], captured=cut([1, 2])).why


def test_captured_log_probabilities_that_only_the_capture_has_are_a_capture_bug():
    assert found(captured=cut(moved=1e-6)).kind == "capture bug"


def test_captured_log_probabilities_within_decodes_own_noise_are_not():
    finding = found(decode=view(moved=1e-5), captured=cut(moved=1e-6))
    assert finding.kind != "capture bug"


@pytest.mark.parametrize(
    ("uninterrupted", "restored", "kind"),
    [
        (PROMPT, [9, 8], "restore bug"),
        ([9, 8], PROMPT, "parted before"),
        ([9, 8], [9, 8], "capture bug"),
        ([9, 8], [9, 7], "undecided"),
    ],
    ids=["restored", "uninterrupted", "captured", "all differ"],
)
def test_a_difference_before_the_call_is_told_first(uninterrupted, restored, kind):
    assert found(view(before=uninterrupted), view(before=restored)).kind == kind


def test_without_a_saved_call_it_is_undecided():
    rerun = Rerun(prefill=view(), decode=view(), torch=view())
    finding = diagnose(cut(), view(), None, rerun)
    assert finding == Finding("undecided", "a run holds no sound row with this call")


def test_without_a_rerun_it_is_undecided():
    finding = diagnose(cut(), view(), view(), None)
    assert finding == Finding("undecided", "the cut was not run again")


@pytest.mark.parametrize(
    "fact",
    [
        "uninterrupted, restored: token 3 of the call is 4 against 6",
        "prefill again, decode again: equal bit for bit",
        "torch, float32, token 3: 4 -0.5, 6 -0.6, margin 0.1 nats",
        "not as then: engine: vllm==1 then, vllm==2 now",
    ],
    ids=["differ", "equal", "torch", "changed"],
)
def test_the_facts_stand_below_the_finding(fact):
    finding = found(restored=OTHER, changed=["engine: vllm==1 then, vllm==2 now"])
    assert f"\n  {fact}" in str(finding)
