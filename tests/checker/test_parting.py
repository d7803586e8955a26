"""Where a restored row parts from the baseline: in the killed run already, or after the restore.

Case 50. The runs are healthy: two tokens tie, and one run took the other of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from builders import Ties, change_row, failed, healthy_runs, judged, params
from edits import LOOSE, change_journal, cut_of, judged_without_killed


class Parted(NamedTuple):
    """A row and the place at which one run parts from the others; the call that holds it."""

    row: str
    at: int
    run: str
    call: str


# rows without a cut
FINISHED_CALL = Parted("1/0/1", 60, "killed", "1/0/1#0")  # both calls ended before the kill
LAST_FINISHED_CALL = Parted("1/0/1", 110, "killed", "1/0/1#1")
CALL_BEGUN_LATER = Parted("1/0/0", 110, "restored", "1/0/0#1")  # the kill came before it
UNCUT = [FINISHED_CALL, LAST_FINISHED_CALL, CALL_BEGUN_LATER]
# rows with the cut 1/0/0#1
BEFORE_THE_CUT_CALL = Parted("1/0/0", 60, "killed", "1/0/0#0")
CAPTURED_PREFIX = Parted("1/0/0", 109, "killed", "1/0/0#1")
FIRST_CAPTURED_TOKEN = Parted("1/0/0", 108, "killed", "1/0/0#1")
CUT_ROWS = [BEFORE_THE_CUT_CALL, FIRST_CAPTURED_TOKEN, CAPTURED_PREFIX]
IN_THE_PREFIX = [FIRST_CAPTURED_TOKEN, CAPTURED_PREFIX]
IN_THE_KILLED_RUN = [FINISHED_CALL, LAST_FINISHED_CALL, *CUT_ROWS]

NAMES = {
    FINISHED_CALL: "in a finished call",
    LAST_FINISHED_CALL: "in the last of two finished calls",
    CALL_BEGUN_LATER: "in a call begun after the kill",
    BEFORE_THE_CUT_CALL: "in a finished call of a cut row",
    FIRST_CAPTURED_TOKEN: "at the cut call's first token",
    CAPTURED_PREFIX: "in the captured prefix",
}


@pytest.fixture
def parted_runs(tmp_path) -> Callable[..., Path]:
    """Make healthy runs of which one takes the other token of a tie."""

    def make(parted: Parted, margin: float = 0.1) -> Path:
        ties = Ties({parted.row: parted.at}, parted.run, margin)
        if parted is CALL_BEGUN_LATER:
            given = params(cut_tokens={})
            return healthy_runs(tmp_path / "runs", given, steps=13, width=4, ties=ties)
        return healthy_runs(tmp_path / "runs", ties=ties)

    return make


# --- with evidence --------------------------------------------------------------------------------


@pytest.mark.parametrize("parted", [*UNCUT, *CUT_ROWS], ids=NAMES.get)
def test_a_run_that_took_the_other_of_two_tied_tokens_passes(parted_runs, parted):
    judgement = judged(parted_runs(parted), **LOOSE)
    assert judgement.problems == []
    assert judgement.verdict == "PASS"


@pytest.mark.parametrize("parted", UNCUT, ids=NAMES.get)
def test_a_row_without_a_cut_is_set_aside_with_the_run_it_parted_in(parted_runs, parted):
    (row,) = judged(parted_runs(parted), **LOOSE).rows
    assert (row.key, row.first_difference) == (parted.row, parted.at)
    assert row.parted_in == parted.run
    assert row.margin_uninterrupted == pytest.approx(0.1)
    assert row.margin_restored == pytest.approx(0.1)


@pytest.mark.parametrize("parted", CUT_ROWS, ids=NAMES.get)
def test_a_cut_is_set_aside_where_the_killed_run_parted(parted_runs, parted):
    judgement = judged(parted_runs(parted), **LOOSE)
    cut = cut_of(judgement)
    assert cut.status == "set_aside"
    assert cut.first_difference == parted.at
    assert judgement.rows == []


# --- without --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parted", [*UNCUT, *CUT_ROWS], ids=NAMES.get)
def test_tokens_further_apart_than_the_bound_are_no_tie(parted_runs, parted):
    judgement = judged(parted_runs(parted, margin=0.31), **LOOSE)
    assert failed(judgement) & {"row-exact", "near-tie"}
    assert judgement.rows == []
    assert judgement.set_aside == 0


def without_the_other(delta: dict) -> None:
    """Only the chosen token is among the likeliest."""
    delta["top_logprobs"] = [top[:1] for top in delta["top_logprobs"]]


def of_another_logprob(delta: dict) -> None:
    """The chosen token's log-probability is not what the candidates say."""
    delta["logprobs"] = [value - 1.0 for value in delta["logprobs"]]


def of_a_likelier_other(delta: dict) -> None:
    """The other token was the likelier one."""
    delta["top_logprobs"] = [[[token, -0.1] for token, _ in top] for top in delta["top_logprobs"]]


@pytest.mark.parametrize(
    "change",
    [without_the_other, of_another_logprob, of_a_likelier_other],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("parted", IN_THE_KILLED_RUN, ids=NAMES.get)
def test_without_the_killed_runs_evidence_nothing_is_excused(parted_runs, parted, change):
    runs = parted_runs(parted)
    change_journal(runs, "delta", change, cut=parted.call)
    assert judged(runs, **LOOSE).verdict == "FAIL"


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_a_call_begun_later_needs_the_evidence_of_both_rows(parted_runs, run):
    runs = parted_runs(CALL_BEGUN_LATER)

    def change(row):
        row["generation_top_logprobs"][110] = row["generation_top_logprobs"][110][:1]

    change_row(runs, "1/0/0", change, run)
    assert failed(judged(runs, **LOOSE)) == {"row-exact"}


@pytest.mark.parametrize("parted", IN_THE_KILLED_RUN, ids=NAMES.get)
def test_without_a_journal_nothing_says_that_the_killed_run_parted(parted_runs, parted):
    judgement = judged_without_killed(parted_runs(parted), **LOOSE)
    assert judgement.verdict == ("PASS" if parted in IN_THE_PREFIX else "FAIL")


def baselines_token(delta: dict) -> None:
    """The killed run took the token that the baseline took, by what its journal says."""
    for nth, top in enumerate(delta["top_logprobs"]):
        if top[0][1] == pytest.approx(-0.6):
            delta["ids"][nth] = top[1][0]


@pytest.mark.parametrize("parted", IN_THE_KILLED_RUN, ids=NAMES.get)
def test_a_restored_row_that_does_not_hold_what_was_captured_is_no_tie(parted_runs, parted):
    """A finished call generated again, and otherwise, at a true tie of both dumps."""
    runs = parted_runs(parted)
    change_journal(runs, "delta", baselines_token, cut=parted.call)
    wanted = "prefix-captured" if parted in IN_THE_PREFIX else "finished-captured"
    assert wanted in failed(judged(runs, **LOOSE))


@pytest.mark.parametrize("parted", UNCUT, ids=NAMES.get)
def test_a_row_that_its_masks_part_earlier_is_not_set_aside(parted_runs, parted):
    runs = parted_runs(parted)
    change_row(runs, parted.row, lambda row: row.update(sample_loss_mask=0.0))
    judgement = judged(runs, **LOOSE)
    assert "row-exact" in failed(judgement)
    assert judgement.rows == []


@pytest.mark.parametrize("parted", UNCUT, ids=NAMES.get)
def test_strict_thresholds_set_no_row_aside(parted_runs, parted):
    assert judged(parted_runs(parted)).verdict == "FAIL"


@pytest.mark.parametrize(
    ("share", "checks"), [(1.0, set()), (0.5, {"set-aside-share"})], ids=["all", "half"]
)
def test_rows_set_aside_without_a_cut_have_a_share_of_their_own(tmp_path, share, checks):
    """Two of the three rows that were not cut."""
    ties = Ties({"1/0/1": 60, "2/0/0": 97}, "killed")
    judgement = judged(
        healthy_runs(tmp_path / "runs", ties=ties), **LOOSE | {"max_set_aside": share}
    )
    assert failed(judgement) == checks
    assert [row.key for row in judgement.rows] == ["1/0/1", "2/0/0"]
