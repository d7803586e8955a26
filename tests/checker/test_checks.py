"""The checks: a healthy restore passes, and for each id a broken one that it reports."""

import itertools
import json

import msgspec
import pytest
from builders import STOP, at, at_place, change_records, change_row, failed, healthy_runs, judged, params, tie

from restore_parity import figures
from restore_parity.checks import (
    ASSUMPTIONS,
    CHECKS,
    LN_HALF,
    Judgement,
    check_share,
    first_difference,
    judge,
    tie_margins,
)
from restore_parity.foreign import cuts_of_records
from restore_parity.index import COLUMNS
from restore_parity.messages import window
from restore_parity.records import CutResult, Key, ids_sha256
from restore_parity.saved import load_run, load_runs

CUT, ROW, FINISHED = "1/0/0#1", "1/0/0", "1/0/1"


def record(event, source=CUT, **changes):
    """Change one record of the cut; `drop` and `double` are changes too."""

    def change(records):
        kept = []
        for entry in records:
            mine = entry["event"] == event and entry["source_call_id"].endswith(source)
            times = {"drop": 0, "double": 2}.get(changes.get("times", ""), 1) if mine else 1
            kept += [entry | ({k: v for k, v in changes.items() if k != "times"} if mine else {})] * times
        return kept

    return lambda runs: change_records(runs, change)


def row(key=ROW, run="restored", **columns):
    """Change one row; a callable gets the old value."""

    def change(entry):
        for name, value in columns.items():
            entry[name] = value(entry[name]) if callable(value) else value

    return lambda runs: change_row(runs, key, change, run)


def resize(edit):
    """Edit every column of the row alike and its length with them."""

    def change(entry):
        for name in (
            "token_ids",
            "token_loss_mask",
            "advantages",
            "generation_logprobs",
            "prev_logprobs",
            "generation_top2",
        ):
            entry[name] = edit(entry[name])
        entry["input_length"] = len(entry["token_ids"])

    return lambda runs: change_row(runs, ROW, change)


def info(run, **changes):
    def change(runs):
        file = runs / run / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def lines(edit, run="restored"):
    def change(runs):
        file = runs / run / "training.jsonl"
        file.write_bytes(b"".join(edit(file.read_bytes().splitlines(keepends=True))))

    return change


def rewards(run, value):
    def change(runs):
        for key in params().row_keys():
            change_row(runs, str(key), lambda entry: entry.update(reward=value), run)

    return change


def journal(edit):
    def change(runs):
        file = runs / "killed" / "journal.jsonl"
        file.write_text("".join(json.dumps(edit(json.loads(line))) + "\n" for line in file.read_text().splitlines()))

    return change


def captured(change):
    return journal(lambda e: change(e) if e["event"] == "delta" and e["call_id"].endswith(CUT) else e)


def both(*changes):
    return lambda runs: [change(runs) for change in changes]


def other_setup(**changes):
    return {"model": "scripted", "workload": params().sha256(), "stop_token_ids": [STOP]} | changes


def stops_short(runs):
    """Near-tied in its tail, and behind that one token short of its limit, all records agreeing."""
    tie(runs, 0.0)
    resize(lambda values: values[:-1])(runs)
    record("completed", tail_tokens=10)(runs)


def shifted(values):
    return [*values[:-1][:1], *values[:-1]]


BROKEN = {
    "kill-happened": [
        info("killed", exit={"time": 1, "signal": 15, "open_calls": {}}),
        info("killed", exit=None),
        info(
            "killed",
            exit={
                "time": 1,
                "signal": 9,
                "open_calls": {"k:1/0/0#1": 2},
            },
        ),
    ],
    "cut-coverage": [lambda runs: None],  # judged with more groups asked for than there are
    "same-setup": [
        info("restored", setup=other_setup(model="other")),
        info("killed", setup=other_setup(workload="other")),
        info("restored", setup=other_setup(seed=1)),  # which the others do not tell
    ],
    "reward-signal": [both(rewards("uninterrupted", 0.25), rewards("restored", 0.25))],
    "dump-complete": [
        row(generation_logprobs=at(-1, None)),
        row(token_ids=lambda v: v[:-1]),
        lines(lambda v: [*v[:-1], v[-1][:9]]),
    ],
    "row-membership": [lines(lambda v: v[1:]), lines(lambda v: [*v, v[0]]), lines(lambda v: v[:-1], "uninterrupted")],
    "group-membership": [row(FINISHED, group_id="other"), row(FINISHED, group_id="k-s1p1")],
    "restored-once": [
        record("restored", times="drop"),
        record("restored", times="double"),
        record("restored", source_call_id="k:1/0/1#1"),
    ],
    "completed-once": [record("completed", times="drop"), record("completed", times="double")],
    "tail-generated": [stops_short],
    "already-terminal": [
        record("restored", "2/1/1#1", prefix_tokens=8),
        row("2/1/1", token_ids=at(-4, STOP)),
        both(row(token_ids=at(-12, STOP)), row(run="uninterrupted", token_ids=at(-12, STOP))),
    ],
    "call-position": [
        resize(lambda v: v[:-1]),
        resize(lambda v: [*v, v[-1]]),
        row(token_loss_mask=at(-1, 0)),
        record("restored", call_index=0),
        record("restored", generation_index=1),
        record("restored", group_id="k-s1p1"),
        record("completed", tail_tokens=3),
    ],
    "prefix-hash": [record("restored", prefix_ids_sha256=ids_sha256([1, 2, 3])), row(token_ids=at(-13, 49))],
    "prefix-captured": [captured(lambda e: e | {"ids": [99]}), record("restored", prefix_tokens=2)],
    "prefix-logprobs": [
        row(generation_logprobs=at(-13, 0.0)),
        row(generation_logprobs=shifted),
        captured(lambda e: e | {"logprobs": [-9.0]}),
    ],
    "token-budget": [record("restored", max_tokens=14), record("completed", tail_tokens=12)],
    "before-cut-call": [row(token_ids=at(-40, 99))],
    "near-tie": [row(token_ids=at(-2, 99)), row(token_ids=at(-13, 99)), resize(lambda v: [*v, v[-1]])],
    "set-aside-share": [lambda runs: tie(runs, 0.1)],
    "row-exact": [
        row(FINISHED, token_ids=at(-3, 99)),
        row(FINISHED, reward=0.9),
        row(FINISHED, sample_loss_mask=0.0),
        row(reward=0.9),
        row("2/1/0", token_loss_mask=at(-1, 0)),
    ],
    "tail-logprobs": [row(generation_logprobs=at(-1, -0.7)), row(FINISHED, generation_logprobs=shifted)],
    "policy-logprobs": [row(prev_logprobs=at(-1, -0.7))],
}
CASES = [(check, nth) for check, changes in BROKEN.items() for nth in range(len(changes))]
THRESHOLDS = {"cut-coverage": {"min_cut_groups": 5}, "set-aside-share": {"near_tie_margin": 0.3}}


def test_a_healthy_restore_passes_every_check(pristine):
    judgement = judged(pristine)
    assert judgement.verdict == "PASS" and not judgement.problems and not judgement.not_run
    assert [check for check in CHECKS if not judgement.seen[check]] == ["before-cut-call", "near-tie"]


@pytest.mark.parametrize(("check", "nth"), CASES, ids=[f"{check}-{nth}" for check, nth in CASES])
def test_a_broken_restore_is_reported(runs, check, nth):
    BROKEN[check][nth](runs)
    judgement = judged(runs, **THRESHOLDS.get(check, {}))
    assert check in failed(judgement)
    assert judgement.status(check) == "fail"


def test_every_check_has_a_broken_restore():
    assert tuple(BROKEN) == CHECKS


@pytest.mark.parametrize("check", ASSUMPTIONS)
def test_a_failed_assumption_is_incomplete(runs, check):
    BROKEN[check][0](runs)
    assert judged(runs, **THRESHOLDS.get(check, {})).verdict == "INCOMPLETE"


def test_incomplete_never_hides_a_fail(runs):
    rewards("uninterrupted", 0.25)(runs)
    assert judged(runs).verdict == "FAIL"  # the rewards of the restored run differ from those now


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.3])
def test_a_shown_near_tie_is_set_aside(runs, margin):
    tie(runs, margin)
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=0.5)
    cut = next(cut for cut in judgement.cuts if cut.key == CUT)
    assert (judgement.verdict, cut.status, cut.tokens[1]) == ("PASS", "set_aside", 99)
    assert cut.margin_uninterrupted == cut.margin_restored == pytest.approx(margin)


def test_a_near_tie_behind_the_restored_call_is_set_aside_too(runs):
    """A call that follows the restored one is generated by the restored run as well."""
    place = -2
    ours = load_run(runs / "uninterrupted").only(Key(1, 1, 1)).token_ids[place]
    for run, (token, other) in {"uninterrupted": (ours, 99), "restored": (99, ours)}.items():
        pair = [[token, -0.6], [other, -0.7]]
        row("1/1/1", run, token_ids=at(place, token), generation_top2=at(place, pair), generation_logprobs=at(place, -0.6))(
            runs
        )
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=0.5)
    assert judgement.verdict == "PASS" and [c.status for c in judgement.cuts if c.key == "1/1/1#0"] == ["set_aside"]


def test_rows_after_a_set_aside_one_are_counted_and_not_compared_by_policy(runs):
    tie(runs, 0.1)
    row("2/0/0", prev_logprobs=at(-1, -0.7))(runs)
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=0.5)
    assert judgement.verdict == "PASS" and judgement.counts["rows_after_set_aside"] == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"generation_top2": at(-4, None)},
        {"generation_top2": at(-4, [[99, -0.6], [7, -0.7]])},
        {"generation_logprobs": at(-4, -0.5)},
        {"generation_top2": at(-4, [[7, 0.0], [99, -0.6]])},
    ],
    ids=["none", "other token", "another log-probability", "the likelier one not taken"],
)
def test_a_near_tie_without_evidence_is_no_excuse(runs, changes):
    tie(runs, 0.1)
    row(**changes)(runs)
    assert "near-tie" in failed(judged(runs, near_tie_margin=0.3, max_set_aside=0.5))


@pytest.mark.parametrize(
    ("logprobs", "bound", "near"),
    [
        ((-0.6, -0.7), 0.3, True),
        ((-0.2, -0.3), 0.3, False),
        ((-0.7, -1.2), 0.3, False),
        ((LN_HALF + 0.3, -0.6), 0.3, True),  # as sure as one of two tied candidates can seem
        ((0.0, 0.0), 0.8, False),  # a processed log-probability is no evidence, whatever the bound
        ((0.0, -0.1), 0.8, False),
    ],
)
def test_without_top2_two_chosen_tokens_are_evidence_only_as_unsure_as_a_tie(pristine, logprobs, bound, near):
    rows = []
    for run, logprob in zip(("uninterrupted", "restored"), logprobs, strict=True):
        taken = load_run(pristine / run).only(Key(1, 0, 0))
        own = at(-4, logprob)(taken.generation_logprobs)
        rows.append(msgspec.structs.replace(taken, generation_top2=None, generation_logprobs=own))
    margins = tie_margins(*rows, rows[0].input_length - 4, bound=bound)
    assert (margins is not None and max(margins) <= bound) == near


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_a_near_tie_is_near_in_both_runs(runs, run):
    tie(runs, 0.1)
    other = load_run(runs / ("restored" if run == "uninterrupted" else "uninterrupted")).only(Key(1, 0, 0)).token_ids[-4]
    own = load_run(runs / run).only(Key(1, 0, 0)).token_ids[-4]
    row(run=run, generation_top2=at(-4, [[own, -0.6], [other, -3.0]]))(runs)
    judgement = judged(runs, near_tie_margin=0.3, max_set_aside=0.5)
    cut = next(cut for cut in judgement.cuts if cut.key == CUT)
    far = {"uninterrupted": cut.margin_uninterrupted, "restored": cut.margin_restored}
    assert failed(judgement) == {"near-tie"} and far[run] == pytest.approx(2.4) and sum(far.values()) == pytest.approx(2.5)


def test_a_near_tie_at_the_restored_calls_first_token_is_inside_it(runs):
    """The killed run itself took the other token there, and captured it."""
    tie(runs, 0.0, place=-14)
    ids = load_run(runs / "restored").only(Key(1, 0, 0)).token_ids[-14:-11]
    logprobs = load_run(runs / "restored").only(Key(1, 0, 0)).generation_logprobs[-14:-11]
    file, taken = runs / "killed" / "journal.jsonl", iter(zip(ids, logprobs, strict=True))
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    for entry in entries:
        if entry["event"] == "delta" and entry["call_id"].endswith(CUT):
            token, logprob = next(taken)
            entry.update(ids=[token], logprobs=[logprob])
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    record("restored", prefix_ids_sha256=ids_sha256(ids))(runs)
    judgement = judged(runs, max_set_aside=0.5)
    assert judgement.verdict == "PASS" and [cut.key for cut in judgement.cuts if cut.status == "set_aside"] == [CUT]


def test_the_trainers_view_of_the_two_tokens_stands_beside_the_engines(runs):
    tie(runs, 0.1)
    ours = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).token_ids[-4]
    length = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).input_length
    seen = at(-4, [[ours, -0.9], [99, -1.0]])([None] * length)
    row(run="uninterrupted", prev_top2=seen)(runs)
    cut = next(cut for cut in judged(runs).cuts if cut.key == CUT)
    assert cut.margin_trainer == pytest.approx(0.1)


def test_statuses_are_told_apart(pristine, runs):
    uninterrupted, _, restored = load_runs(pristine)
    judgement = judge(uninterrupted, restored, None, params(), cuts_of_records(restored))
    assert [judgement.status(check) for check in ("row-exact", "prefix-captured")] == ["pass", "not_run"]


def test_the_spans_of_a_cut_cover_its_row_from_end_to_end(pristine):
    spans = {cut.key: figures.spans(cut) for cut in judged(pristine).cuts}
    kinds = [kind for kind, _, _ in spans[CUT]]
    assert kinds == ["prompt", "earlier call", "tool result", "prefix", "tail"]
    assert [kind for kind, _, _ in spans["1/1/1#0"]] == ["prompt", "prefix", "tail", "tool result", "later call"]
    for parts in spans.values():
        assert parts[0][1] == 0 and all(one[2] == other[1] for one, other in itertools.pairwise(parts))
    assert next(stop - start for kind, start, stop in spans[CUT] if kind == "prefix") == 3


def test_the_noise_of_equal_tokens_is_counted_by_powers_of_two(runs):
    row(FINISHED, generation_logprobs=lambda values: [*values[:-1], values[-1] - 0.25])(runs)
    judgement = judged(runs, max_logprob_diff=0.3)
    assert judgement.noise[-2] == 1 and judgement.noise[None] > 50 and judgement.largest["tail-logprobs"] == 0.25


def test_without_the_killed_run_four_checks_say_why_they_did_not_run(pristine):
    uninterrupted, _, restored = load_runs(pristine)
    judgement = judge(uninterrupted, restored, None, params(), cuts_of_records(restored))
    assert judgement.verdict == "PASS" and len(judgement.cuts) == 5
    assert set(judgement.not_run) == {"kill-happened", "prefix-captured", "prefix-logprobs", "token-budget"}


def test_no_cut_at_all_is_incomplete(pristine):
    uninterrupted, _, restored = load_runs(pristine)
    restored.restores = []
    assert judge(uninterrupted, restored, None, params(), cuts_of_records(restored)).verdict == "INCOMPLETE"


def test_a_problem_has_four_lines_and_the_command_that_shows_it(runs):
    row(token_ids=at(-13, 49))(runs)
    problem = judged(runs).of("prefix-captured")[0]
    head, where, expected, got, following = str(problem).splitlines()
    assert head == f"prefix-captured {CUT}" and "where" in where and "expected" in expected and "[49]" in got
    assert following == f"  next      restore-parity cut {CUT}"


@pytest.mark.parametrize(
    ("there", "here", "place"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None), ([], [1], 0)],
)
def test_first_difference_counts_a_missing_end(there, here, place):
    assert first_difference(there, here) == place


@pytest.mark.parametrize(
    ("place", "shown"), [(0, "[0], 1, 2 …"), (5, "… 3, 4, [5], 6, 7 …"), (9, "… 7, 8, [9]"), (10, "… 8, 9, [end]")]
)
def test_a_window_is_about_five_tokens_round_the_place(place, shown):
    assert window(list(range(10)), place) == shown


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_rows_behind_a_lost_one_are_still_compared(runs, run):
    lines(lambda values: values[1:], run)(runs)
    row("2/0/0", reward=0.9)(runs)
    judgement = judged(runs)
    assert [problem.key for problem in judgement.of("row-exact")] == ["2/0/0"]
    assert [cut.status for cut in judgement.cuts if cut.key == CUT] == ["broken"] and len(judgement.cuts) == 5


def test_all_cuts_set_aside_is_too_many_whatever_the_share():
    cuts = [CutResult(name, 1, 1, "set_aside") for name in ("1/0/0#1", "1/0/1#1")]
    found = Judgement(params(max_set_aside=1.0), cuts=cuts)
    check_share(found)
    assert [problem.got for problem in found.problems] == ["2"]


@pytest.mark.parametrize(("aside", "share", "ok"), [(1, 0.5, True), (1, 0.4, False), (0, 0.0, True)])
def test_the_share_of_cuts_set_aside_is_held_to_its_bound(aside, share, ok):
    cuts = [CutResult(f"1/0/{n}#1", 1, 1, "set_aside" if n < aside else "match") for n in range(2)]
    found = Judgement(params(max_set_aside=share), cuts=cuts)
    check_share(found)
    assert (not found.problems) == ok


def test_log_probabilities_at_the_difference_itself_may_differ(runs):
    tie(runs, 0.1)
    ours = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).token_ids[-4]
    row(generation_top2=at(-4, [[99, -0.9], [ours, -1.0]]), generation_logprobs=at(-4, -0.9))(runs)
    assert judged(runs, near_tie_margin=0.3, max_set_aside=0.5).verdict == "PASS"


@pytest.mark.parametrize("place", [-14, -12, -11, -1], ids=["prefix", "seam", "tail", "end"])
def test_log_probabilities_of_a_cut_call_are_the_baselines_too(runs, place):
    """A capture whose log-probabilities are wrong, and a restore that agrees with it, would be seen by nothing else."""
    there = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).generation_logprobs[place]
    row(run="uninterrupted", generation_logprobs=at(place, there - 0.125))(runs)
    assert failed(judged(runs)) == {"tail-logprobs"}


def cut_of(judgement, name=CUT):
    return next(cut for cut in judgement.cuts if cut.key == name)


def test_a_healthy_cut_is_told_with_its_budget(pristine):
    cut = cut_of(judged(pristine))
    first, stop = cut.segments[1]
    assert (cut.status, cut.prefix_tokens, cut.tail_tokens, cut.limit_tokens, cut.call_index) == ("match", 3, 11, 14, 1)
    assert (stop - first, cut.ended, len(cut.segments)) == (14, "length", 2)
    assert cut_of(judged(pristine), "2/1/1#1").ended == "already terminal"


def test_what_was_compared_is_counted(pristine):
    judgement, rows = judged(pristine), [load_run(pristine / "restored").only(key) for key in params().row_keys()]
    generated = sum(map(int, itertools.chain.from_iterable(row.token_loss_mask for row in rows)))
    told = {"rows": 8, "tokens": sum(row.input_length for row in rows), "generated_tokens": generated}
    assert {name: judgement.counts[name] for name in told} == told and judgement.seen["dump-complete"] == 16 + 8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (record("completed", times="drop"), (3, 0, 14)),
        (record("restored", times="drop"), (0, 0, 14)),
        (row(token_ids=at(-2, 99)), (3, 11, 14)),
    ],
    ids=["no end", "no begin", "another token"],
)
def test_a_broken_cut_is_told_with_what_is_known_of_it(runs, change, told):
    change(runs)
    cut = cut_of(judged(runs))
    assert (cut.status, cut.prefix_tokens, cut.tail_tokens, cut.limit_tokens) == ("broken", *told)


def test_a_cut_whose_row_is_in_neither_dump_is_still_told(runs):
    for run in ("uninterrupted", "restored"):
        lines(lambda values: values[1:], run)(runs)
    judgement = judged(runs)
    assert cut_of(judgement).status == "broken" and "row-membership" in failed(judgement)


def test_records_where_nothing_was_cut_are_told(runs):
    opened = json.loads((runs / "killed" / "run.json").read_text())["exit"] | {"open_calls": {}}
    info("killed", exit=opened)(runs)
    (runs / "killed" / "journal.jsonl").write_text("")
    assert "restored-once" in failed(judged(runs))


@pytest.mark.parametrize("key", ["2/0/0", "2/1/1"])
def test_policy_is_compared_in_every_step_while_nothing_is_set_aside(runs, key):
    row(key, prev_logprobs=at(-1, -0.7))(runs)
    assert [problem.key for problem in judged(runs).problems] == [key]


@pytest.mark.parametrize(("trained", "verdict"), [("1/0/0", "PASS"), ("", "INCOMPLETE")], ids=["one", "none"])
def test_one_row_trained_on_is_enough(runs, trained, verdict):
    for run, key in itertools.product(("uninterrupted", "restored"), map(str, params().row_keys())):
        row(key, run, sample_loss_mask=float(key == trained), reward=0.5 if key == "2/1/1" else 0.25)(runs)
    assert judged(runs).verdict == verdict


def test_a_row_lost_from_both_dumps_is_told_where_one_run_knows_the_plan(runs):
    for run in ("uninterrupted", "restored"):
        lines(lambda values: [values[0], *values[2:]], run)(runs)
    (runs / "restored" / "run.json").unlink()
    assert {problem.key for problem in judged(runs).of("row-membership")} == {FINISHED}


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_a_row_that_one_dump_alone_lacks_is_told_without_any_plan(runs, run):
    lines(lambda values: [values[0], *values[2:]], run)(runs)
    dumps = [load_run(runs / name / "training.jsonl", name) for name in ("uninterrupted", "restored")]
    assert [problem.key for problem in judge(*dumps, None, params()).of("row-membership")] == [FINISHED]


def test_two_prompts_of_one_group_are_told(runs):
    for key in ("1/0/0", "1/0/1"):
        row(key, group_id="k-s1p1")(runs)
    told = judged(runs).of("group-membership")
    assert [problem.got for problem in told] == ["['prompt 1/0', 'prompt 1/1']"]


def test_a_cut_call_that_is_not_in_its_row_is_told(runs):
    row(token_loss_mask=lambda values: [*values[:-14], *[0] * 14])(runs)
    assert "call-position" in failed(judged(runs)) and cut_of(judged(runs)).status == "broken"


@pytest.mark.parametrize("changes", [{"generation_index": 9}, {"call_id": "x"}], ids=str)
def test_without_a_journal_records_must_still_agree_with_their_row(runs, changes):
    record("completed", **changes)(runs)
    uninterrupted, _, restored = load_runs(runs)
    assert failed(judge(uninterrupted, restored, None, params(), cuts_of_records(restored))) == {"call-position"}


@pytest.mark.parametrize(("place", "holds"), [(-1, True), (-2, False)])
def test_a_stop_token_may_be_the_last_and_no_other(runs, place, holds):
    for run in ("uninterrupted", "restored"):
        row(run=run, token_ids=at(place, STOP))(runs)
    assert ("already-terminal" in failed(judged(runs))) != holds


def test_log_probabilities_of_an_earlier_call_of_a_cut_row_are_compared(runs):
    place = load_run(runs / "restored").only(Key(1, 0, 0)).segments()[0][0]
    row(generation_logprobs=lambda values: [*values[:place], values[place] - 0.5, *values[place + 1 :]])(runs)
    assert [(problem.check, problem.key) for problem in judged(runs).problems] == [("tail-logprobs", ROW)]


def test_margins_are_each_runs_own(runs):
    tie(runs, 0.1)
    ours = load_run(runs / "uninterrupted").only(Key(1, 0, 0)).token_ids[-4]
    row(generation_top2=at(-4, [[99, -0.9], [ours, -1.1]]), generation_logprobs=at(-4, -0.9))(runs)
    cut = cut_of(judged(runs, near_tie_margin=0.3, max_set_aside=0.5))
    assert (cut.margin_uninterrupted, cut.margin_restored) == (pytest.approx(0.1), pytest.approx(0.2))


def test_a_trainer_that_saw_other_tokens_is_no_witness(runs):
    tie(runs, 0.1)
    ours = load_run(runs / "uninterrupted").only(Key(1, 0, 0))
    row(run="uninterrupted", prev_top2=at(-4, [[ours.token_ids[-4], -0.9], [7, -1.0]])([None] * ours.input_length))(runs)
    assert cut_of(judged(runs)).margin_trainer is None


def test_a_tie_of_dumps_without_top2_is_judged_by_its_two_tokens(runs):
    tie(runs, 0.1)
    for run, key in itertools.product(("uninterrupted", "restored"), map(str, params().row_keys())):
        change_row(runs, key, lambda entry: entry.pop("generation_top2"), run)
    cut = cut_of(judged(runs, near_tie_margin=0.3, max_set_aside=0.5))
    assert (cut.status, cut.margin_restored) == ("set_aside", 0.0)


def test_a_problem_names_its_row_and_one_of_none_its_place(runs):
    change_row(runs, FINISHED, lambda entry: entry.pop("generation_top2"))
    info("killed", exit=None)(runs)
    told = {problem.check: problem for problem in judged(runs).problems}
    assert (told["dump-complete"].key, told["dump-complete"].next) == (FINISHED, f"restore-parity cut {FINISHED}")
    assert (told["kill-happened"].key, told["kill-happened"].next) == ("", "look at killed/run.json, exit")


def test_messages_show_the_text_of_token_ids_and_of_nothing_else(runs):
    row(token_ids=at(-13, 49), generation_logprobs=at(-13, -0.75))(runs)
    row(FINISHED, token_ids=at(-3, 49))(runs)
    uninterrupted, killed, restored = load_runs(runs)
    told = {
        p.check: p for p in judge(uninterrupted, restored, killed, params(), text=lambda ids: f"text of {ids}").problems
    }
    for check in ("prefix-captured", "near-tie", "row-exact"):
        assert "text of [" in told[check].expected and "text of [" in told[check].got
    assert "text of" not in told["prefix-logprobs"].got and "re-tokenised" not in told["row-exact"].got


def test_a_tie_at_a_tools_token_is_none(runs):
    """A tool that ran twice and answered otherwise, with a top-2 made up for it."""
    for run, (token, other) in {"uninterrupted": (50, 51), "restored": (51, 50)}.items():
        changed = {"token_ids": token, "generation_logprobs": -0.6, "generation_top2": [[token, -0.6], [other, -0.6]]}
        place = -load_run(runs / run).only(Key(1, 1, 1)).input_length + 80
        for name, value in changed.items():
            row("1/1/1", run, **{name: at(place, value)})(runs)
    assert not load_run(runs / "restored").only(Key(1, 1, 1)).token_loss_mask[80]
    assert "near-tie" in failed(judged(runs, near_tie_margin=0.3, max_set_aside=0.5))


def cut_short(entry):
    entry.update({name: entry[name][:66] for name in COLUMNS if entry.get(name)}, input_length=66)


def trained_no_more(entry):
    stop = entry["token_loss_mask"].index(0, entry["token_loss_mask"].index(1))
    entry["token_loss_mask"][stop:] = [0] * (entry["input_length"] - stop)


@pytest.mark.parametrize("change", [cut_short, trained_no_more], ids=lambda change: change.__name__)
def test_what_follows_a_tie_keeps_the_rows_calls(runs, change):
    ours = load_run(runs / "uninterrupted").only(Key(1, 1, 1))
    place = ours.segments()[0][1] - 2 - ours.input_length
    token = ours.token_ids[place]
    for run, own, other in (("uninterrupted", token, 99), ("restored", 99, token)):
        pair = [[own, -0.6], [other, -0.6]]
        change_row(runs, "1/1/1", at_place(place, token_ids=own, generation_top2=pair, generation_logprobs=-0.6), run)
    loose = {"near_tie_margin": 0.3, "max_set_aside": 0.5}
    assert not failed(judged(runs, **loose))
    change_row(runs, "1/1/1", change)
    assert "call-position" in failed(judged(runs, **loose))


def test_a_cut_of_a_row_that_was_never_planned_is_reported(runs):
    journal(lambda e: e | {"key": "9/9/9"} if e["event"] == "start" and e["call_id"].endswith(CUT) else e)(runs)
    assert "row-membership" in failed(judged(runs))


def test_cuts_of_one_group_count_once(pristine):
    inside = {cut.key.split("#")[0] for cut in judged(pristine).cuts if cut.prefix_tokens and cut.tail_tokens}
    groups = {row.rpartition("/")[0] for row in inside}
    assert len(groups) < len(inside) and not failed(judged(pristine, min_cut_groups=len(groups)))
    assert failed(judged(pristine, min_cut_groups=len(groups) + 1)) == {"cut-coverage"}


def test_a_group_that_is_another_than_the_cut_calls_is_told(runs):
    for key in ("1/0/0", "1/0/1"):
        change_row(runs, key, lambda row: row.update(group_id="other"))
    assert CUT in {problem.key for problem in judged(runs).of("call-position")}


def test_cuts_at_limits_alone_exercise_nothing(tmp_path):
    given = params(cut_tokens={"1/0/0#1": "limit", "1/1/0#1": "limit"}, steps=1, generations_per_prompt=1)
    uninterrupted, killed, restored = load_runs(healthy_runs(tmp_path / "runs", given, steps=60))
    judgement = judge(uninterrupted, restored, killed, given)
    assert failed(judgement) == {"cut-coverage"} and judgement.cuts


ABSURD = [{"prefix_tokens": -7}, {"tail_tokens": -1}, {"call_index": -9}, {"prefix_tokens": 2**70}]


@pytest.mark.parametrize("changes", ABSURD, ids=str)
def test_absurd_counts_of_a_record_are_told(runs, changes):
    event = "completed" if "tail_tokens" in changes else "restored"
    record(event, **changes)(runs)
    uninterrupted, _, restored = load_runs(runs)
    assert judge(uninterrupted, restored, None, params(), cuts_of_records(restored)).verdict == "FAIL"
