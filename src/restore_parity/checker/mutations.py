"""Mutations: broken restores, each with the check that must report it.

The report applies them to the very rows it judges: a check that reports none of them cannot fail.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from ..records import Completed, Restored
from ..runs import Exit
from ..tokens import ids_sha256
from . import broken_restores as broken
from .broken_restores import PLACES, Change, Place
from .worlds import with_call, with_values


class Mutation(NamedTuple):
    """A broken restore, and the check that must report it; others may report it too."""

    id: str
    check: str
    change: Change


def _of_tokens(
    name: str, edit: Callable[[Place], Change], prefix_check: str, tail_check: str
) -> list[Mutation]:
    """One mutation a place, with the check that must report it in the prefix and in the tail."""
    found = []
    for where, place in PLACES.items():
        check = tail_check if where == "tail" else prefix_check
        found.append(Mutation(f"token-{name}-{where}", check, edit(place)))
    return found


OTHER_SETUP = {"model": "another", "stop_token_ids": []}
NOT_KILLED = Exit(time=0.0, code=0)

MUTATIONS: list[Mutation] = [
    *_of_tokens("dropped", broken.token_dropped, "call-position", "call-position"),
    *_of_tokens("doubled", broken.token_doubled, "call-position", "call-position"),
    *_of_tokens("swapped", broken.token_swapped, "prefix-captured", "near-tie"),
    *_of_tokens("changed", broken.token_changed, "prefix-captured", "near-tie"),
    Mutation(
        "prefix-of-the-sibling", "prefix-captured", broken.foreign_prefix(broken.call_of_sibling)
    ),
    Mutation(
        "prefix-of-another-group",
        "prefix-captured",
        broken.foreign_prefix(broken.call_of_another_group),
    ),
    Mutation(
        "prefix-of-an-older-attempt", "prefix-captured", broken.foreign_prefix(broken.older_attempt)
    ),
    Mutation("prefix-one-shorter", "prefix-captured", broken.prefix_of_another_length(-1)),
    Mutation("prefix-one-longer", "prefix-captured", broken.prefix_of_another_length(1)),
    Mutation(
        "prefix-hash-of-other-tokens",
        "prefix-hash",
        broken.restored_record(
            lambda subject: {"prefix_ids_sha256": ids_sha256([0, *subject.call.ids])}
        ),
    ),
    Mutation("capture-wrong-restore-agrees", "near-tie", broken.wrong_capture),
    Mutation(
        "mask-bit-off-in-prefix",
        "call-position",
        broken.on_row(lambda row, subject: with_values(row, subject.start, token_loss_mask=0.0)),
    ),
    Mutation(
        "mask-bit-off-in-tail",
        "call-position",
        broken.on_row(lambda row, subject: with_values(row, subject.stop - 1, token_loss_mask=0.0)),
    ),
    Mutation("mask-not-extended", "call-position", broken.on_row(broken.mask_not_extended)),
    Mutation(
        "mask-of-a-finished-row",
        "row-exact",
        broken.on_finished_row(lambda row: with_values(row, 0, token_loss_mask=1.0)),
    ),
    Mutation("restored-twice", "restored-once", broken.record_doubled(Restored)),
    Mutation("restored-never", "restored-once", broken.record_dropped(Restored)),
    Mutation("completed-twice", "completed-once", broken.record_doubled(Completed)),
    Mutation("completed-never", "completed-once", broken.record_dropped(Completed)),
    Mutation("record-of-no-cut", "restored-once", broken.record_of_no_cut),
    Mutation(
        "restored-into-another-call",
        "call-position",
        broken.restored_record(lambda subject: {"call_index": subject.call.call_index + 1}),
    ),
    Mutation(
        "restored-into-the-sibling",
        "call-position",
        broken.restored_record(
            lambda subject: {"generation_index": subject.key.generation_index + 1}
        ),
    ),
    Mutation(
        "restored-into-another-group",
        "call-position",
        broken.restored_record(lambda subject: {"group_id": f"not {subject.call.group_id}"}),
    ),
    Mutation("tail-miscounted", "call-position", broken.tail_miscounted),
    Mutation("tail-lost", "near-tie", broken.tail_lost),
    Mutation(
        "budget-given-again",
        "token-budget",
        broken.restored_record(lambda subject: {"max_tokens": subject.call.max_tokens}),
    ),
    Mutation("past-a-captured-stop-token", "already-terminal", broken.past_stop),
    Mutation("past-a-stop-token-in-both", "already-terminal", broken.past_stop_in_both),
    Mutation("past-a-stop-token-at-a-tie", "already-terminal", broken.tied_past_stop),
    Mutation("completed-without-a-tail", "tail-generated", broken.completed_without_tail),
    Mutation("tied-and-not-trained-on", "before-cut-call", broken.tied_and_masked),
    Mutation("said-to-be-terminal", "already-terminal", broken.said_to_be_terminal),
    Mutation(
        "reward-changed",
        "row-exact",
        broken.on_row(lambda row, subject: replace(row, reward=row.reward + 0.25)),
    ),
    Mutation("rewards-permuted", "row-exact", broken.rewards_permuted),
    Mutation(
        "sample-mask-changed",
        "row-exact",
        broken.on_row(lambda row, subject: replace(row, sample_loss_mask=1 - row.sample_loss_mask)),
    ),
    Mutation(
        "token-of-a-finished-row-changed",
        "row-exact",
        broken.on_finished_row(broken.last_token_changed),
    ),
    Mutation(
        "prompt-changed",
        "before-cut-call",
        broken.on_row(
            lambda row, subject: with_values(row, 0, token_ids=broken.other_id(row.token_ids[0]))
        ),
    ),
    Mutation(
        "length-changed",
        "dump-complete",
        broken.on_row(lambda row, subject: replace(row, input_length=row.input_length - 1)),
    ),
    Mutation(
        "group-changed",
        "group-membership",
        broken.on_finished_row(
            lambda row: replace(row, group_id=f"{row.group_id}-another"), with_sibling=True
        ),
    ),
    Mutation("row-lost", "row-membership", broken.row_lost),
    Mutation("row-doubled", "row-membership", broken.row_doubled),
    Mutation("row-moved-to-another-step", "row-membership", broken.row_moved),
    Mutation("prefix-logprobs-zeroed", "prefix-logprobs", broken.prefix_logprobs(broken.zeroed)),
    Mutation("prefix-logprobs-shifted", "prefix-logprobs", broken.prefix_logprobs(broken.shifted)),
    Mutation(
        "prefix-logprobs-recomputed", "prefix-logprobs", broken.prefix_logprobs(broken.recomputed)
    ),
    Mutation(
        "prefix-logprobs-not-the-captured",
        "prefix-logprobs",
        lambda world, subject: with_call(
            world, subject, logprobs=[value - 0.5 for value in subject.call.logprobs]
        ),
    ),
    Mutation(
        "tail-logprobs-of-another-state", "tail-logprobs", broken.tail_logprobs(broken.lowered)
    ),
    Mutation("tail-logprobs-zeroed", "tail-logprobs", broken.tail_logprobs(broken.zeroed)),
    Mutation("tail-logprobs-shifted", "tail-logprobs", broken.tail_logprobs(broken.shifted)),
    Mutation(
        "advantages-negated",
        "row-exact",
        broken.advantages(lambda value: -value, lambda key, cut: key == cut),
    ),
    Mutation(
        "advantages-of-a-step-scaled",
        "row-exact",
        broken.advantages(
            lambda value: 2 * value, lambda key, cut: key.train_step == cut.train_step
        ),
    ),
    Mutation("row-goes-on-behind-its-tie", "row-shape", broken.behind_tie(broken.glued_on)),
    Mutation("later-call-short", "row-shape", broken.behind_tie(broken.later_call_short)),
    Mutation("later-call-untrained", "row-shape", broken.behind_tie(broken.later_call_untrained)),
    Mutation("tool-result-cut-off", "row-shape", broken.behind_tie(broken.tool_result_cut_off)),
    Mutation(
        "finished-call-generated-again",
        "finished-captured",
        broken.finished_call(broken.another_token),
    ),
    Mutation(
        "finished-logprobs-recomputed",
        "finished-captured",
        broken.finished_call(broken.other_logprobs),
    ),
    Mutation(
        "tool-run-twice", "finished-captured", broken.finished_call(broken.another_tool_result)
    ),
    Mutation("stale-weights-behind-a-tie", "engine-trainer-gap", broken.stale_behind_tie),
    Mutation("dump-of-the-other-run", "same-setup", broken.dump_of_the_other_run),
    Mutation(
        "logprob-nan",
        "dump-complete",
        broken.on_row(
            lambda row, subject: with_values(row, subject.seam, generation_logprobs=float("nan"))
        ),
    ),
    Mutation(
        "logprob-null",
        "dump-complete",
        broken.on_row(
            lambda row, subject: with_values(row, subject.seam, generation_logprobs=None)
        ),
    ),
    Mutation(
        "advantage-infinite",
        "dump-complete",
        broken.on_row(lambda row, subject: with_values(row, subject.seam, advantages=float("inf"))),
    ),
    Mutation(
        "no-token-trained",
        "dump-complete",
        broken.on_row(
            lambda row, subject: replace(row, token_loss_mask=broken.zeroed(row.token_loss_mask))
        ),
    ),
    Mutation("policy-mirrored", "policy-logprobs", broken.mirrored_policy),
    Mutation("other-weights-in-the-trainer", "policy-logprobs", broken.other_weights),
    Mutation("tie-claimed-at-1-nat", "near-tie", broken.tie_in_tail(1.0)),
    Mutation("tie-claimed-at-2.5-nats", "near-tie", broken.tie_in_tail(2.5)),
    Mutation("tie-claimed-at-8-nats", "near-tie", broken.tie_in_tail(8.0)),
    Mutation(
        "tie-without-evidence",
        "near-tie",
        broken.spoilt_tie(lambda token: {"generation_top_logprobs": None}),
    ),
    Mutation("tie-with-processed-logprobs", "near-tie", broken.spoilt_tie(broken.certain)),
    Mutation(
        "tie-of-another-logprob",
        "near-tie",
        broken.spoilt_tie(lambda token: {"generation_logprobs": -0.9}),
    ),
    Mutation("tie-behind-which-the-tail-stops", "tail-generated", broken.tied_and_stopped),
    Mutation("tie-before-the-restored-call", "before-cut-call", broken.tie_before_the_call),
    Mutation("all-cuts-set-aside", "set-aside-share", broken.all_set_aside),
    Mutation("no-kill", "kill-happened", broken.run_info("killed", exit=NOT_KILLED)),
    Mutation("still-running", "kill-happened", broken.run_info("killed", exit=None)),
    Mutation("no-cut", "cut-coverage", broken.nothing_captured),
    Mutation("other-settings", "same-setup", broken.run_info("restored", setup=OTHER_SETUP)),
    Mutation("constant-rewards", "reward-signal", broken.all_rows(reward=0.5)),
    Mutation("nothing-trained-on", "reward-signal", broken.all_rows(sample_loss_mask=0.0)),
]
