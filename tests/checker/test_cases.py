"""What users of such systems met, one test a case with its whole kind; the number is the case's.

The cases of parameters (12, 13) are in test_params, of processes (19) in test_supervisor, of notebook and page (20 to 24)
in test_report.
"""

import json

import pytest
from builders import STOP, at, at_place, change_records, change_row, failed, generate, healthy_runs, judged, params, tie

from restore_parity.checks import judge
from restore_parity.figures import spans
from restore_parity.foreign import cuts_of_records
from restore_parity.records import Key, ids_sha256
from restore_parity.saved import load_run, load_runs

COLUMNS = ("token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs", "generation_top2")
CUT, ROW, OTHER = "1/0/0#1", "1/0/0", "1/0/1"  # a cut of 3 prefix and 11 tail tokens, and a row that was not cut


def resize(edit, key=ROW, run="restored"):
    def change(row):
        row.update({name: edit(row[name]) for name in COLUMNS})
        row["input_length"] = len(row["token_ids"])

    return lambda runs: change_row(runs, key, change, run)


def records(runs, event, **changes):
    mine = lambda r: r["event"] == event and r["source_call_id"].endswith(CUT)  # noqa: E731
    change_records(runs, lambda old: [r | (changes if mine(r) else {}) for r in old])


@pytest.mark.parametrize("more", [1, 6])
def test_1_a_tail_beyond_the_limit(runs, more):
    resize(lambda values: [*values, *values[-more:]])(runs)
    records(runs, "completed", tail_tokens=11 + more)
    (problem,) = judged(runs).of("token-budget")
    assert problem.key == CUT and "11 of 14 tokens left" in problem.expected and f"{11 + more} generated" in problem.got


@pytest.mark.parametrize("column", COLUMNS)
def test_2_ragged_columns_are_told_before_any_parity(runs, column):
    change_row(runs, ROW, lambda row: row.update({column: row[column][:8]}))
    judgement = judged(runs)
    assert failed(judgement) == {"dump-complete"} and judgement.problems[0].got == "8"


def test_3_two_restored_records_are_both_shown(runs):
    change_records(runs, lambda old: [*old, next(r for r in old if r["event"] == "restored") | {"call_id": "again"}])
    (problem,) = judged(runs).of("restored-once")
    assert "again" in problem.got and "r:" in problem.got


@pytest.fixture
def uncaptured(tmp_path):
    """The killed run had calls open, and a token of none."""
    for name, more in {"uninterrupted": {}, "killed": {"steps": 0}, "restored": {"source": tmp_path / "killed"}}.items():
        generate(tmp_path / name, name, params(), **more)
    return tmp_path


def test_4_a_call_without_a_captured_token_is_no_cut_and_counted_apart(uncaptured):
    judgement = judged(uncaptured)
    assert failed(judgement) == {"cut-coverage"} and not judgement.cuts and judgement.counts["started_again"] == 8
    assert not load_run(uncaptured / "restored").restores


def test_4_a_restore_from_an_empty_prefix_is_legal(uncaptured):
    row = load_run(uncaptured / "restored").only(Key(1, 0, 0))
    first, stop = row.segments()[0]
    place = {"call_id": "r:1/0/0#0", "source_call_id": "k:1/0/0#0", "prefix_tokens": 0, "call_index": 0}
    place |= {"group_id": row.group_id, "generation_index": 0}
    begun = place | {"event": "restored", "max_tokens": 12, "prefix_ids_sha256": ids_sha256([])}
    ended = place | {"event": "completed", "tail_tokens": stop - first}
    change_records(uncaptured, lambda old: [begun, ended])
    judgement = judged(uncaptured)
    assert failed(judgement) == {"cut-coverage"} and [cut.status for cut in judgement.cuts] == ["match"]
    assert [kind for kind, _, _ in spans(judgement.cuts[0])] == ["prompt", "tail", "tool result", "later call"]


@pytest.mark.parametrize("limit", [1, 2])
def test_5_calls_of_a_token_or_two_are_compared(tmp_path, limit):
    given = params(tool_limit_tokens=limit, closing_limit_tokens=[1, 1], cut_tokens={"1/0/0#0": 1, "1/1/0#1": 1})
    judgement = judged(healthy_runs(tmp_path / "runs", given))
    assert failed(judgement) == ({"cut-coverage"} if limit == 1 else set())  # a call of one token cannot be cut inside
    assert {cut.prefix_tokens for cut in judgement.cuts} >= {1}


def test_6_ids_are_the_truth_and_text_is_not_compared(pristine):
    uninterrupted, killed, restored = load_runs(pristine)
    texts = iter(map(str, range(10**6)))
    assert judge(uninterrupted, restored, killed, params(), text=lambda ids: next(texts)).verdict == "PASS"


@pytest.mark.parametrize("key", [ROW, OTHER], ids=["a cut row", "another"])
def test_7_a_row_one_token_longer_is_never_set_aside(runs, key):
    resize(lambda values: [*values, values[-1]], key)(runs)
    judgement = judged(runs, near_tie_margin=9.0, max_set_aside=1.0)
    assert failed(judgement) & {"near-tie", "row-exact"} and not any(c.status == "set_aside" for c in judgement.cuts)


@pytest.mark.parametrize(("margin", "near"), [(0.02, True), (0.3, True), (0.31, False), (2.5, False)])
def test_8_and_10_a_margin_is_near_up_to_the_bound(runs, margin, near):
    tie(runs, margin)
    judgement = judged(runs, near_tie_margin=0.3000001, max_set_aside=1.0)
    cut = next(cut for cut in judgement.cuts if cut.key == CUT)
    assert (cut.status == "set_aside") == near and cut.tokens[1] == 99 and cut.margin_restored == pytest.approx(margin)
    assert failed(judgement) == (set() if near else {"near-tie"})


def test_9_a_margin_of_nothing_is_called_an_exact_tie(runs):
    from restore_parity.tables import ties

    tie(runs, 0.0)
    judgement = judged(runs, max_set_aside=1.0)
    assert judgement.verdict == "PASS" and "or 99: an exact tie" in ties(judgement, params()).data


def test_10_the_first_token_after_the_cut_may_not_differ_by_2_5_nats(runs):
    tie(runs, 2.5, place=-11)
    assert judged(runs, near_tie_margin=0.3, max_set_aside=1.0).of("near-tie")[0].got.endswith("margins 2.5 and 2.5 nats")


def test_11_equal_rows_without_a_restore_record_are_no_pass(runs):
    """Without the killed run nothing says that anything was cut; with it, cuts were ignored, and that is worse."""
    change_records(runs, lambda old: [])
    uninterrupted, killed, restored = load_runs(runs)
    assert judge(uninterrupted, restored, None, params(), cuts_of_records(restored)).verdict == "INCOMPLETE"
    assert judge(uninterrupted, restored, killed, params()).verdict == "FAIL"


@pytest.mark.parametrize("column", ["generation_logprobs", "prev_logprobs", "advantages"])
def test_14_equal_rows_of_nothing_but_nan(runs, column):
    for run in ("uninterrupted", "restored"):
        for key in params().row_keys():
            change_row(runs, str(key), lambda row: row.update({column: [float("nan")] * row["input_length"]}), run)
    assert "dump-complete" in failed(judged(runs))


def test_15_equal_text_of_other_ids_is_called_retokenised(runs):
    uninterrupted = load_run(runs / "uninterrupted").only(Key(1, 0, 1))
    change_row(runs, OTHER, at_place(-3, token_ids=uninterrupted.token_ids[-3] + 1000))
    _, killed, restored = load_runs(runs)
    baseline = load_run(runs / "uninterrupted")
    judgement = judge(baseline, restored, killed, params(), text=lambda ids: "".join(chr(i % 1000) for i in ids))
    (problem,) = judgement.of("row-exact")
    assert problem.key == OTHER and problem.got.endswith("the decoded text of both rows is equal: re-tokenised")


def test_16_missing_and_doubled_rows_are_both_told_with_their_lines(runs):
    file = runs / "restored" / "training.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[3], lines[3], *lines[4:]]))
    told = {problem.key: problem.got for problem in judged(runs).of("row-membership")}
    assert told == {"1/1/0": "0: none", "1/1/1": "2: training.jsonl, line 3, row 0; training.jsonl, line 4, row 0"}


def test_17_rewards_permuted_within_a_step_are_told_row_by_row(runs):
    keys = [key for key in params().row_keys() if key.train_step == 1]
    rewards = [load_run(runs / "restored").only(key).reward for key in keys]
    for key, reward in zip(keys, [*rewards[1:], rewards[0]], strict=True):
        change_row(runs, str(key), lambda row, reward=reward: row.update(reward=reward))
    moved = {str(key) for key, a, b in zip(keys, rewards, [*rewards[1:], rewards[0]], strict=True) if a != b}
    assert {problem.key for problem in judged(runs).of("row-exact")} == moved and moved


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf"), None], ids=str)
def test_18_bare_nan_and_infinity_are_read_and_placed(runs, value):
    change_row(runs, OTHER, at_place(-3, generation_logprobs=value))
    (problem,) = judged(runs).of("dump-complete")
    assert "line 2, row 0" in problem.where and "generation_logprobs[" in problem.where + problem.got


def test_25_the_seams_token_doubled(runs):
    seam = load_run(runs / "restored").only(Key(1, 0, 0)).segments()[1][0] + 3
    resize(lambda values: [*values[:seam], values[seam - 1], *values[seam:]])(runs)
    assert "call-position" in failed(judged(runs))


def test_25_the_seams_token_dropped(runs):
    seam = load_run(runs / "restored").only(Key(1, 0, 0)).segments()[1][0] + 3
    resize(lambda values: [*values[: seam - 1], *values[seam:]])(runs)
    assert failed(judged(runs)) >= {"call-position", "prefix-hash"}


@pytest.mark.parametrize("by", [1, -1])
def test_26_log_probabilities_of_the_prefix_shifted_by_one(runs, by):
    start = load_run(runs / "restored").only(Key(1, 0, 0)).segments()[1][0]

    def shift(row):
        values = row["generation_logprobs"]
        values[start : start + 3] = values[start + by : start + by + 3]

    change_row(runs, ROW, shift)
    assert "prefix-logprobs" in failed(judged(runs, max_logprob_diff=9.0))


def test_27_a_wrong_capture_that_the_restore_agrees_with(runs):
    """C16: hash, capture and records agree, the reward is equal; only the baseline's own evidence speaks against it."""
    row = load_run(runs / "restored").only(Key(1, 0, 0))
    start = row.segments()[1][0]
    wrong = [*row.token_ids[start : start + 2], 99]
    change_row(runs, ROW, at_place(start + 2 - row.input_length, token_ids=99))
    records(runs, "restored", prefix_ids_sha256=ids_sha256(wrong))
    file = runs / "killed" / "journal.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    mine = [line for line in lines if line["event"] == "delta" and line["call_id"].endswith(CUT)]
    mine[2]["ids"] = [99]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=1.0)
    assert failed(judgement) == {"near-tie"} and judgement.problems[0].key == CUT


def test_the_stop_token_of_a_tail_may_not_be_followed(runs):
    """Of the kind of case 1: generation past the end, here past a stop token that both runs ignore."""
    for run in ("uninterrupted", "restored"):
        change_row(runs, ROW, lambda row: row.update(token_ids=at(-4, STOP)(row["token_ids"])), run)
    assert failed(judged(runs)) == {"already-terminal"}
