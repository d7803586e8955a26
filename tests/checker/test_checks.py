"""Every check applied: what healthy runs give, what a whole comparison needs, what cannot run.

The checks of one thing have files of their own: whole runs (test_run_checks), two rows
(test_row_checks), a cut (test_cut_check), a near-tie (test_near_tie). The cases that users of such
systems met, by their numbers, and the tests that stand for them:

 1  a tail beyond its limit            test_cut_check: a_tail_beyond_the_limit_...
 2  ragged columns                     test_dumps: a_ragged_list_...; test_run_checks:
                                       a_damaged_row_is_compared_with_nothing
 3  restored twice                     test_cut_check: two_restored_records_are_both_shown
 4  nothing captured                   here: calls_open_without_a_token_...; test_cut_check:
                                       a_restore_from_an_empty_prefix_is_legal
 5  calls of a token or two            here: calls_of_a_token_or_two_are_compared
 6  text differs, ids are equal        here: ids_are_the_truth_...
 7  one token longer                   test_cut_check: a_longer_row_...; test_row_checks:
                                       a_row_longer_than_the_baselines_...
 8  a near-tie                         test_near_tie: a_shown_near_tie_is_set_aside
 9  an exact tie                       report/test_tables: a_margin_of_nothing_...
10  2.5 nats apart                     test_near_tie: a_margin_beyond_the_bound_is_told
11  no restore record at all           here: equal_rows_without_a_restore_record_...
12  parameters as YAML reads them      test_params
13  sampling                           test_params: sampling_that_is_not_greedy_...
14  nothing but NaN                    test_run_checks: rows_that_are_equal_and_nothing_but_nan_...
15  re-tokenised                       test_row_checks: other_ids_of_equal_text_...
16  a lost and a doubled row           test_run_checks: a_missing_and_a_doubled_row_...
17  rewards permuted                   test_row_checks: rewards_permuted_within_a_step_...
18  bare NaN and Infinity              test_dumps: a_value_that_is_no_such_number_...
19  a grandchild left behind           experiment/test_processes
20 to 24  kernel, page and network     report/test_report, report/test_page
25  the seam's token                   test_mutations: token-doubled-seam, token-dropped-seam
26  shifted log-probabilities          test_mutations: prefix-logprobs-shifted
27  a wrong capture, restored          test_mutations: capture-wrong-restore-agrees
28  other weights behind a tie         test_row_checks: wrong_weights_behind_a_set_aside_row_...
29  an engine that missed an update    test_row_checks: an_engine_that_missed_an_update_...
30  captured and restored counts       test_foreign: another_count_than_was_captured_...
31  a cut's row is not there           test_foreign: a_cut_whose_row_is_not_there_...
32  advantages negated                 test_row_checks: advantages_are_the_baselines
33  a dump copied from the other run   test_run_checks: a_dump_that_is_a_copy_of_the_other_...
34  broken behind a tie                test_row_shape
35  finished calls                     test_captured
36  a tail zeroed or shifted           test_row_checks: a_tail_of_other_log_probabilities_...
37  some cuts lack evidence            test_foreign: a_record_without_a_hash_among_others_...;
                                       test_row_checks: log_probabilities_of_nothing_but_zero_...
38  too unlikely for a tie             test_near_tie: a_choice_less_likely_than_the_likeliest_...
39  three tokens tie                   test_near_tie: three_tied_tokens_...
40  columns that no check reads        test_run_checks: a_column_that_no_check_reads_...
41  two records on one line            test_foreign: two_records_on_one_line_...
46  the engine gave NaN                test_damage: a_log_probability_that_was_not_finite_...
47  ids and names beyond reason        test_journal: an_id_that_is_no_tokens_...; test_tokens;
                                       test_damage: a_model_of_an_absurd_name_...
48  a lost row and a broken journal    test_run_checks: a_lost_row_is_told_beside_...
49  a cut in a broken row              test_cut_check: a_cut_is_broken_wherever_its_row_is
50  the killed run parted              test_parting
51  empty lines, marks, other types    test_damage: an_empty_line_is_skipped_...,
                                       a_byte_order_mark_..., a_row_of_other_types_...
"""

import itertools
import json

import pytest
from builders import (
    change_records,
    change_row,
    failed,
    generate,
    healthy_runs,
    judged,
    params,
)
from edits import (
    CUT,
    CUTS,
    change_every_row,
    change_info,
    cut_of,
    exit_of,
    found_by,
    judged_without_killed,
    row_of,
)

from restore_parity.checker.checks import check_share, judge
from restore_parity.checker.judgement import CHECKS, Judgement
from restore_parity.checker.loading import load_run, load_runs
from restore_parity.checker.row_checks import Tally
from restore_parity.records import CutResult


@pytest.fixture
def uncaptured(tmp_path):
    """The killed run had calls open, and a token of none."""
    generate(tmp_path / "uninterrupted", "uninterrupted", params())
    generate(tmp_path / "killed", "killed", params(), steps=0)
    generate(tmp_path / "restored", "restored", params(), source=tmp_path / "killed")
    return tmp_path


# --- healthy runs ---------------------------------------------------------------------------------


def test_healthy_runs_pass_every_check(pristine):
    judgement = judged(pristine)
    assert judgement.verdict == "PASS"
    assert judgement.problems == []
    assert judgement.not_run == {}


def test_only_checks_of_rows_that_part_have_nothing_to_compare_in_healthy_runs(pristine):
    seen = judged(pristine).seen
    assert [check for check in CHECKS if not seen[check]] == ["before-cut-call", "near-tie"]


def test_what_was_compared_is_counted(pristine):
    rows = [row_of(pristine, str(key)) for key in params().row_keys()]
    masks = itertools.chain.from_iterable(row.token_loss_mask for row in rows)
    assert judged(pristine).counts == {
        "rows": 8,
        "identical_rows": 8,
        "tokens": sum(row.input_length for row in rows),
        "generated_tokens": int(sum(masks)),
        "started_again": 0,
    }


def test_ids_are_the_truth_and_text_is_not_compared(pristine):
    texts = itertools.count()
    judgement = judge(load_runs(pristine), params(), decode=lambda ids: str(next(texts)))
    assert judgement.verdict == "PASS"
    assert next(texts) == 0  # nothing was decoded, which is slow


@pytest.mark.parametrize(
    ("limit", "checks"), [(1, {"cut-coverage"}), (2, set())], ids=["one token", "two tokens"]
)
def test_calls_of_a_token_or_two_are_compared(tmp_path, limit, checks):
    """A call of one token cannot be cut inside."""
    short = {"tool_limit_tokens": limit, "closing_limit_tokens": [1, 1]}
    given = params(**short, cut_tokens={"1/0/0#0": 1, "1/1/0#1": 1})
    judgement = judged(healthy_runs(tmp_path / "runs", given))
    assert failed(judgement) == checks
    assert cut_of(judgement, "1/0/0#0").prefix_tokens == 1


# --- restored-once: calls that were not cut -------------------------------------------------------


def test_a_record_of_a_call_that_was_not_cut_is_reported(runs):
    stray = {"source_call_id": "k:1/0/1#1"}
    change_records(runs, lambda records: [*records, records[0] | stray])
    (problem,) = judged(runs).problems
    assert problem.check == "restored-once"
    assert problem.got == "one of k:1/0/1#1"


def test_records_where_nothing_was_cut_are_reported(runs):
    change_info(runs, "killed", exit=exit_of(runs) | {"open_calls": {}})
    (runs / "killed" / "journal.jsonl").write_text("")
    assert [problem.got for problem in judged(runs).of("restored-once")] == [
        f"one of k:{cut}" for cut in CUTS
    ]


# --- cut-coverage ---------------------------------------------------------------------------------


def test_cuts_of_one_group_count_once(pristine):
    inside = [cut for cut in judged(pristine).cuts if cut.prefix_tokens and cut.tail_tokens]
    assert len(inside) == 4
    assert not failed(judged(pristine, min_cut_groups=3))
    assert failed(judged(pristine, min_cut_groups=4)) == {"cut-coverage"}


def test_too_few_groups_are_told_with_how_many_calls_were_open(pristine):
    (problem,) = judged(pristine, min_cut_groups=4).problems
    assert problem.expected == "calls cut inside in 4 groups"
    assert problem.got == "in 3; 5 calls were open"


def test_cuts_at_limits_alone_exercise_nothing(tmp_path):
    cuts = {"1/0/0#1": "limit", "1/1/0#1": "limit"}
    given = params(cut_tokens=cuts, steps=1, generations_per_prompt=1)
    judgement = judge(load_runs(healthy_runs(tmp_path / "runs", given, steps=60)), given)
    assert failed(judgement) == {"cut-coverage"}
    assert {cut.tail_tokens for cut in judgement.cuts} == {0}


def test_calls_open_without_a_token_are_no_cuts_and_counted_apart(uncaptured):
    judgement = judged(uncaptured)
    assert failed(judgement) == {"cut-coverage"}
    assert judgement.cuts == []
    assert judgement.counts["started_again"] == 8
    assert load_run(uncaptured / "restored").restores == []


def test_a_call_opened_without_a_token_does_not_spoil_the_others(runs):
    start = {
        "event": "start",
        "call_id": "k:x",
        "key": "1/0/0",
        "call_index": 1,
        "group_id": "k-s1p0",
        "prompt_ids": [],
        "max_tokens": 3,
        "t": 1,
    }
    with (runs / "killed" / "journal.jsonl").open("a") as stream:
        stream.write(json.dumps(start) + "\n")
    opened = exit_of(runs)["open_calls"] | {"k:x": 0}
    change_info(runs, "killed", exit=exit_of(runs) | {"open_calls": opened})
    judgement = judged(runs)
    assert judgement.verdict == "PASS"
    assert judgement.counts["started_again"] == 1
    assert len(judgement.cuts) == 5


# --- reward-signal --------------------------------------------------------------------------------


def test_constant_rewards_are_no_signal(runs):
    change_every_row(runs, lambda row: row.update(reward=0.25))
    (problem,) = judged(runs).problems
    assert problem.check == "reward-signal"
    assert problem.got == "{0.25: 8}, as reward: rows trained on"


@pytest.mark.parametrize(
    ("trained", "verdict"), [("1/0/0", "PASS"), ("", "INCOMPLETE")], ids=["one", "none"]
)
def test_one_row_trained_on_is_enough(runs, trained, verdict):
    change_every_row(runs, lambda row: row.update(sample_loss_mask=0.0))
    for run in ("uninterrupted", "restored"):
        change_row(runs, trained, lambda row: row.update(sample_loss_mask=1.0), run)
    assert judged(runs).verdict == verdict


def test_an_assumption_that_does_not_hold_never_hides_a_fail(runs):
    for key in params().row_keys():
        change_row(runs, str(key), lambda row: row.update(reward=0.25), "uninterrupted")
    judgement = judged(runs)
    assert failed(judgement) == {"reward-signal", "row-exact"}
    assert judgement.verdict == "FAIL"


# --- set-aside-share ------------------------------------------------------------------------------


def cuts_aside(aside, cuts, share):
    """The problems of a share of cuts set aside."""
    found = Judgement(params=params(max_set_aside=share))
    for nth in range(cuts):
        status = "set_aside" if nth < aside else "match"
        cut = CutResult(key=f"1/0/{nth}#1", prefix_tokens=1, tail_tokens=1, status=status)
        found.cuts.append(cut)
    check_share(found, Tally())
    return found.problems


@pytest.mark.parametrize(
    ("aside", "share"), [(1, 0.5), (0, 0.0), (1, 1.0)], ids=["half", "none", "all but one"]
)
def test_a_share_up_to_its_bound_is_allowed(aside, share):
    assert cuts_aside(aside, 2, share) == []


def test_a_share_beyond_its_bound_is_told():
    (problem,) = cuts_aside(1, 2, 0.4)
    assert problem.check == "set-aside-share"
    assert problem.expected == "at most 40% of 2 cuts with a tail, and not all"
    assert problem.got == "1"


def test_all_cuts_set_aside_are_too_many_whatever_the_share():
    (problem,) = cuts_aside(2, 2, 1.0)
    assert problem.got == "2"


def test_a_comparison_without_cuts_has_no_share():
    assert cuts_aside(0, 0, 0.0) == []


# --- evidence that is missing ---------------------------------------------------------------------


def test_without_the_killed_run_five_checks_say_why_they_did_not_run(pristine):
    judgement = judged_without_killed(pristine)
    found = {check: judgement.why(check) for check in CHECKS}
    assert {check: why for check, why in found.items() if why} == {
        "kill-happened": "no killed run was given, so a cut that was ignored cannot be seen",
        "prefix-captured": "0 compared; not compared: 5 cuts of which no capture is known",
        "prefix-logprobs": "no journal was given",
        "finished-captured": "no journal was given",
        "token-budget": "0 compared; not compared: 5 cuts without a known limit",
        "tail-generated": "4 compared; not compared: 4 tails whose end cannot be judged: no limit "
        "or stop token known",
        "already-terminal": "6 compared; not compared: 1 calls said to be terminal without a known "
        "limit and stop token",
    }


def test_a_check_that_lacks_some_evidence_has_run_as_far_as_it_could(pristine):
    judgement = judged_without_killed(pristine)
    assert judgement.status("tail-generated") == "pass"
    assert judgement.status("token-budget") == "not_run"


def test_without_the_killed_run_its_restore_records_tell_the_cuts(pristine):
    judgement = judged_without_killed(pristine)
    assert judgement.verdict == "PASS"
    assert [cut.key for cut in judgement.cuts] == list(CUTS)


def test_records_without_a_hash_leave_the_hash_unchecked(runs):
    change_records(runs, lambda records: [one | {"prefix_ids_sha256": None} for one in records])
    judgement = judged_without_killed(runs)
    assert judgement.lacking["prefix-hash"] == {"cuts without a hash in their record": 5}
    assert judgement.status("prefix-hash") == "not_run"


def test_equal_rows_without_a_restore_record_are_incomplete(runs):
    """Without the killed run nothing says that anything was cut."""
    change_records(runs, lambda records: [])
    judgement = judged_without_killed(runs)
    assert failed(judgement) == {"cut-coverage"}
    assert judgement.verdict == "INCOMPLETE"


def test_equal_rows_whose_cuts_were_ignored_fail(runs):
    change_records(runs, lambda records: [])
    judgement = judged(runs)
    assert ("restored-once", CUT) in found_by(judgement)
    assert judgement.verdict == "FAIL"
