"""The cut check: a captured prefix was restored once, in its place, unchanged, to its end.

What is wrong with a token, a log-probability or a record in itself, the mutations show
(test_mutations); here is what they cannot show, and what is told of it.
"""

import pytest
from builders import (
    STOP,
    at_place,
    change_records,
    change_row,
    choose,
    failed,
    generate,
    judged,
    params,
    tie,
)
from edits import (
    CUT,
    FINISHED,
    LOOSE,
    ROW,
    TERMINAL,
    TRAINED,
    change_both,
    change_journal,
    change_lines,
    change_record,
    cut_of,
    found_by,
    judged_without_killed,
    recapture,
    repeat_record,
    resized,
    row_of,
)

from restore_parity.tokens import ids_sha256

# --- records --------------------------------------------------------------------------------------


def test_two_restored_records_are_both_shown(runs):
    change_records(runs, lambda records: [*records, records[0] | {"call_id": "again"}])
    (problem,) = judged(runs).of("restored-once")
    assert problem.key == CUT
    assert problem.got == "['r:1/0/0#1', 'again']"


def test_two_completed_records_are_both_shown(runs):
    repeat_record(runs, "completed", 2)
    (problem,) = judged(runs).of("completed-once")
    assert problem.key == CUT
    assert problem.got == "['r:1/0/0#1', 'r:1/0/0#1']"


def test_a_call_that_is_both_completed_and_terminal_ended_twice(runs):
    terminal = {"event": "already_terminal"}
    change_records(runs, lambda records: [*records, records[-1] | terminal])
    assert found_by(judged(runs)) == [("completed-once", CUT)]


@pytest.mark.parametrize(
    ("event", "fields", "check"),
    [
        ("restored", {"prefix_ids_sha256": None}, "prefix-hash"),
        ("restored", {"max_tokens": None}, "token-budget"),
        ("restored", {"max_tokens": 1}, "token-budget"),
        ("restored", {"group_id": None}, "call-position"),
        ("restored", {"call_index": None}, "call-position"),
        ("restored", {"call_index": 0}, "call-position"),
        ("restored", {"generation_index": 1}, "call-position"),
        ("completed", {"call_id": "another"}, "call-position"),
        ("completed", {"prefix_tokens": 99}, "call-position"),
        ("completed", {"group_id": "another"}, "call-position"),
        ("completed", {"generation_index": 9}, "call-position"),
        ("completed", {"call_index": 0}, "call-position"),
    ],
    ids=str,
)
def test_a_record_that_says_less_or_something_else_is_reported(runs, event, fields, check):
    change_record(runs, event, **fields)
    judgement = judged(runs)
    assert found_by(judgement) == [(check, CUT)]
    assert cut_of(judgement).status == "broken"


@pytest.mark.parametrize(
    "fields", [{"generation_index": 9}, {"call_id": "another"}, {"prefix_tokens": 99}], ids=str
)
def test_without_a_journal_records_must_still_agree_with_their_row(runs, fields):
    change_record(runs, "completed", **fields)
    assert found_by(judged_without_killed(runs)) == [("call-position", CUT)]


def test_without_a_journal_a_record_may_say_less(runs):
    less = {"group_id": None, "call_index": None, "generation_index": None}
    change_record(runs, "completed", **less)
    assert not judged_without_killed(runs).problems


# --- place ----------------------------------------------------------------------------------------


def last_call_untrained(row):
    row["token_loss_mask"][-14:] = [0] * 14


@pytest.mark.parametrize("run", TRAINED)
def test_a_call_that_is_not_in_its_row_is_reported(runs, run):
    """Or that the baseline's row has not."""
    change_row(runs, ROW, last_call_untrained, run)
    judgement = judged(runs)
    assert ("call-position", CUT) in found_by(judgement)
    assert cut_of(judgement).status == "broken"


def test_more_or_fewer_tokens_than_recorded_are_told(runs):
    change_row(runs, ROW, resized(lambda values: [*values, values[-1]]))
    (problem,) = judged(runs).of("call-position")
    assert problem.where == "row 1/0/0, tokens 108 to 123"
    assert problem.expected == "14 tokens: 3 captured, 11 generated"
    assert problem.got == "15 in the row"


@pytest.mark.parametrize("judge", [judged, judged_without_killed], ids=["journal", "no journal"])
def test_a_count_beyond_any_row_is_reported(runs, judge):
    change_record(runs, "restored", prefix_tokens=2**70)
    assert ("call-position", CUT) in found_by(judge(runs))


def test_a_row_of_another_group_than_its_cut_is_reported(runs):
    for key in (ROW, FINISHED):
        change_row(runs, key, lambda row: row.update(group_id="another"))
    (row_group,) = [one for one in judged(runs).of("call-position") if "a row of" in one.expected]
    assert row_group.key == CUT
    assert (row_group.expected, row_group.got) == ("a row of group k-s1p0", "another")


def test_a_capture_of_another_group_is_reported(runs):
    change_journal(runs, "start", lambda start: start.update(group_id="another"))
    assert {check for check, _ in found_by(judged(runs))} == {"call-position"}


def tied_in_first_call(runs):
    """The restored row 1/1/1 parts from the baseline in its cut call, before the second one."""
    baseline = row_of(runs, "1/1/1", "uninterrupted")
    place = baseline.segments()[0][1] - 2
    token = baseline.token_ids[place]
    choose(runs, "uninterrupted", "1/1/1", place, [token, 99], 0.0)
    choose(runs, "restored", "1/1/1", place, [99, token], 0.0)


second_call_lost = resized(lambda values: values[:66])


def second_call_untrained(row):
    row["token_loss_mask"][66:] = [0] * (row["input_length"] - 66)


@pytest.mark.parametrize(
    "change", [second_call_lost, second_call_untrained], ids=["lost", "untrained"]
)
def test_what_follows_a_tie_keeps_the_rows_calls(runs, change):
    tied_in_first_call(runs)
    change_row(runs, "1/1/1", change)
    (problem,) = judged(runs, **LOOSE).of("call-position")
    assert problem.key == "1/1/1#0"
    assert problem.expected == "as many calls as the baseline's row has"
    assert problem.got == "1 calls"


# --- prefix ---------------------------------------------------------------------------------------


def test_a_capture_of_another_prompt_is_reported(runs):
    change_journal(runs, "start", lambda start: start.update(prompt_ids=[1, 2, 3]))
    assert found_by(judged(runs)) == [("prefix-captured", CUT)]


def test_a_token_that_is_not_the_captured_one_is_shown_in_its_place(runs):
    change_row(runs, ROW, at_place(-13, token_ids=99))
    (problem,) = judged(runs).of("prefix-captured")
    assert problem.where == "row 1/0/0, tokens 108 to 122[109]"
    assert "[99]" in problem.got


@pytest.mark.parametrize("size", [2, 4], ids=["shorter", "longer"])
def test_log_probabilities_of_a_prefix_of_another_length_are_compared_as_far_as_both_go(runs, size):
    """prefix-captured tells the unequal lengths; what was generated again may differ."""
    change_both(runs, ROW, at_place(-14 + size, generation_logprobs=-0.75))
    ids = row_of(runs, ROW).token_ids[108 : 108 + size]
    begun = {"prefix_tokens": size, "prefix_ids_sha256": ids_sha256(ids), "max_tokens": 14 - size}
    change_record(runs, "restored", **begun)
    change_record(runs, "completed", prefix_tokens=size, tail_tokens=14 - size)
    judgement = judged(runs)
    assert found_by(judgement) == [("prefix-captured", CUT)]
    assert judgement.seen["prefix-logprobs"] == 5


def test_a_restore_from_an_empty_prefix_is_legal(tmp_path):
    generate(tmp_path / "uninterrupted", "uninterrupted", params())
    generate(tmp_path / "killed", "killed", params(), steps=0)
    generate(tmp_path / "restored", "restored", params(), source=tmp_path / "killed")
    start, stop = row_of(tmp_path, ROW).segments()[0]
    record = {
        "event": "restored",
        "call_id": "r:1/0/0#0",
        "source_call_id": "k:1/0/0#0",
        "group_id": "k-s1p0",
        "generation_index": 0,
        "call_index": 0,
        "prefix_tokens": 0,
        "prefix_ids_sha256": ids_sha256([]),
        "max_tokens": 12,
    }
    completed = record | {"event": "completed", "tail_tokens": stop - start}
    change_records(tmp_path, lambda records: [record, completed])
    judgement = judged(tmp_path)
    assert failed(judgement) == {"cut-coverage"}
    assert [cut.status for cut in judgement.cuts] == ["match"]


# --- end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [1, 6])
def test_a_tail_beyond_the_limit_is_told_with_what_was_left(runs, more):
    change_row(runs, ROW, resized(lambda values: [*values, *values[-more:]]))
    change_record(runs, "completed", tail_tokens=11 + more)
    (problem,) = judged(runs).of("token-budget")
    assert problem.key == CUT
    assert problem.expected == "11 of 14 tokens left"
    assert problem.got == f"11 asked for, {11 + more} generated"


PAST_STOP = {"already-terminal", "row-shape"}  # of the cut, and of the baseline's row


@pytest.mark.parametrize(
    ("place", "checks"),
    [(-1, set()), (-2, PAST_STOP), (-4, PAST_STOP)],
    ids=["last", "before the last", "inside"],
)
def test_a_stop_token_may_be_the_last_and_no_other(runs, place, checks):
    change_both(runs, ROW, at_place(place, token_ids=STOP))
    assert failed(judged(runs)) == checks


def test_a_terminal_call_has_no_tail(runs):
    """Both runs went past the limit by one token, and the records do not tell of it."""
    change_both(runs, "2/1/1", resized(lambda values: [*values, values[-1]]))
    (problem,) = judged(runs).of("already-terminal")
    assert problem.key == TERMINAL
    assert problem.got == "prefix 9, call of 10"


def test_a_call_with_budget_left_was_not_terminal(runs):
    """The limit of the killed run's call was one token higher."""
    change_journal(runs, "start", lambda start: start.update(max_tokens=10), cut=TERMINAL)
    change_record(runs, "restored", cut=TERMINAL, max_tokens=1)
    (problem,) = judged(runs).problems
    assert (problem.check, problem.key) == ("already-terminal", TERMINAL)
    assert problem.got == "prefix 9 of 10, stop token: False"


def test_a_call_with_budget_left_behind_a_stop_token_was_terminal(runs):
    change_journal(runs, "start", lambda start: start.update(max_tokens=10), cut=TERMINAL)
    change_both(runs, "2/1/1", at_place(-1, token_ids=STOP))
    row = row_of(runs, "2/1/1")
    ids = row.token_ids[-9:]
    recapture(runs, ids, row.generation_logprobs[-9:], cut=TERMINAL)
    change_record(runs, "restored", cut=TERMINAL, max_tokens=1, prefix_ids_sha256=ids_sha256(ids))
    assert not judged(runs).problems


def test_a_tail_that_stops_short_behind_its_tie_is_reported(runs):
    tie(runs, 0.0)
    change_row(runs, ROW, resized(lambda values: values[:-1]))
    change_record(runs, "completed", tail_tokens=10)
    (problem,) = judged(runs, **LOOSE).of("tail-generated")
    assert problem.key == CUT
    assert problem.expected == "a stop token last, or 14 tokens"
    assert problem.got == "13"


def test_a_tail_may_stop_short_by_a_stop_token(runs):
    for run in TRAINED:
        change_row(runs, ROW, resized(lambda values: values[:-1]), run)
        change_row(runs, ROW, at_place(-1, token_ids=STOP), run)
    change_record(runs, "completed", tail_tokens=10)
    assert not judged(runs).problems


# --- where the rows part --------------------------------------------------------------------------


def test_a_row_may_part_at_a_near_tie_inside_its_restored_call(runs):
    tied_in_first_call(runs)
    judgement = judged(runs, **LOOSE)
    assert not judgement.problems
    assert cut_of(judgement, "1/1/1#0").status == "set_aside"


def test_a_row_may_part_at_a_near_tie_behind_its_restored_call(runs):
    """The restored run generated the later call as well."""
    token = row_of(runs, "1/1/1", "uninterrupted").token_ids[-2]
    choose(runs, "uninterrupted", "1/1/1", -2, [token, 99], 0.1)
    choose(runs, "restored", "1/1/1", -2, [99, token], 0.1)
    judgement = judged(runs, **LOOSE)
    assert not judgement.problems
    assert cut_of(judgement, "1/1/1#0").status == "set_aside"


def test_a_row_may_not_part_before_its_restored_call(runs):
    change_row(runs, ROW, at_place(-40, token_ids=99))
    (problem,) = judged(runs).of("before-cut-call")
    assert (problem.key, problem.where) == (CUT, "token 82")
    assert problem.expected.startswith("tokens equal before 108, masks up to 82: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(sample_loss_mask=0.0),
        lambda row: row["token_loss_mask"].__setitem__(0, 1),
    ],
    ids=["of the row", "of a token before"],
)
def test_a_tie_excuses_no_mask(runs, change):
    tie(runs, 0.1)
    change_row(runs, ROW, change)
    assert ("before-cut-call", CUT) in found_by(judged(runs, **LOOSE))


def test_masks_behind_a_tie_may_differ(runs):
    """The tails may differ in length."""
    tie(runs, 0.1)
    change_row(runs, ROW, resized(lambda values: values[:-1]), "uninterrupted")
    top2 = [[STOP, -0.2]]
    stopped = at_place(-1, token_ids=STOP, generation_top_logprobs=top2, generation_logprobs=-0.2)
    change_row(runs, ROW, stopped, "uninterrupted")
    assert not judged(runs, **LOOSE).problems


@pytest.mark.parametrize("key", [ROW, FINISHED], ids=["a cut row", "a finished row"])
def test_a_longer_row_is_never_set_aside(runs, key):
    change_row(runs, key, resized(lambda values: [*values, values[-1]]))
    judgement = judged(runs, near_tie_margin=9.0, max_set_aside=1.0)
    assert judgement.verdict == "FAIL"
    assert judgement.set_aside == 0


def test_a_longer_cut_row_has_no_evidence_of_a_near_tie(runs):
    change_row(runs, ROW, resized(lambda values: [*values, values[-1]]))
    (problem,) = judged(runs, near_tie_margin=9.0).of("near-tie")
    assert problem.got.endswith(
        ", no two generated tokens to be tied: one row has ended or is untrained"
    )
    assert cut_of(judged(runs)).tokens is None


# --- what is told of a cut ------------------------------------------------------------------------


def test_a_healthy_cut_is_told_with_its_place_and_budget(pristine):
    cut = cut_of(judged(pristine))
    assert cut.status == "match"
    assert (cut.prefix_tokens, cut.tail_tokens, cut.limit_tokens) == (3, 11, 14)
    assert cut.segments == [(54, 66), (108, 122)]
    assert cut.call_index == 1
    assert cut.first_difference is None


@pytest.mark.parametrize(
    ("name", "ended"), [(CUT, "length"), (TERMINAL, "already terminal")], ids=["cut", "terminal"]
)
def test_how_a_restored_call_ended_is_told(pristine, name, ended):
    assert cut_of(judged(pristine), name).ended == ended


def test_a_set_aside_cut_is_told_with_its_tokens_and_margins(runs):
    tie(runs, 0.1)
    token = row_of(runs, ROW, "uninterrupted").token_ids[-4]
    cut = cut_of(judged(runs, **LOOSE))
    assert cut.status == "set_aside"
    assert cut.first_difference == 118
    assert cut.tokens == (token, 99)
    assert cut.margin_uninterrupted == pytest.approx(0.1)
    assert cut.margin_restored == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("event", "sizes"), [("completed", (3, 0, 14)), ("restored", (0, 0, 14))], ids=str
)
def test_a_cut_without_a_record_is_broken_and_told_as_far_as_known(runs, event, sizes):
    repeat_record(runs, event, 0)
    cut = cut_of(judged(runs))
    assert cut.status == "broken"
    assert (cut.prefix_tokens, cut.tail_tokens, cut.limit_tokens) == sizes


def test_a_cut_whose_tail_is_another_is_broken(runs):
    change_row(runs, ROW, at_place(-2, token_ids=99))
    cut = cut_of(judged(runs))
    assert cut.status == "broken"
    assert (cut.prefix_tokens, cut.tail_tokens, cut.limit_tokens) == (3, 11, 14)


@pytest.mark.parametrize(
    "lacking", [["restored"], ["uninterrupted"], [*TRAINED]], ids=["restored", "baseline", "both"]
)
def test_a_cut_whose_row_is_missing_is_broken(runs, lacking):
    for run in lacking:
        change_lines(runs, lambda lines: lines[1:], run)
    judgement = judged(runs)
    assert cut_of(judgement).status == "broken"
    assert len(judgement.cuts) == 5
    assert failed(judgement) == {"row-membership"}


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(reward=0.9),
        lambda row: row.update(sample_loss_mask=0.0),
        lambda row: row["generation_logprobs"].__setitem__(-1, -2.3),
        lambda row: row["prev_logprobs"].__setitem__(-1, -2.3),
        lambda row: row["advantages"].__setitem__(-1, -2.3),
    ],
    ids=["reward", "sample mask", "tail", "policy", "advantages"],
)
def test_a_cut_is_broken_wherever_its_row_is(runs, change):
    """Case 49."""
    change_row(runs, ROW, change)
    assert cut_of(judged(runs)).status == "broken"
