"""Damaged and hostile files: one clear message, the right exit code, no traceback; and edits that once passed unseen."""

import json
import sys

import pytest
from builders import at_place, change_records, change_row, failed, judged, params, tie
from junitparser import JUnitXml

from restore_parity.cli import main

NESTED = b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n"


@pytest.fixture
def check(runs, monkeypatch, capsys):
    """`check` over the (broken) runs; returns exit code and all it printed."""

    def run(*more, uninterrupted="uninterrupted", restored="restored") -> tuple[int, str]:
        folders = ["--uninterrupted", runs / uninterrupted, "--restored", runs / restored, "--killed", runs / "killed"]
        monkeypatch.setattr(sys, "argv", ["restore-parity", "check", *map(str, [*folders, *more])])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, "".join(capsys.readouterr())

    return run


def edit_info(runs, run, **changes):
    file = runs / run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "name", ["killed/run.json", "killed/journal.jsonl", "restored/run.json", "restored/restores.jsonl"]
)
@pytest.mark.parametrize(
    "content", [None, NESTED, b"\xff\xfe\x00", b"[]\n", b"1e400\n"], ids=["folder", "nested", "bytes", "list", "huge"]
)
def test_a_file_that_is_no_such_file_ends_in_one_message(runs, check, name, content):
    (runs / name).unlink()
    (runs / name).mkdir() if content is None else (runs / name).write_bytes(content)
    code, told = check()
    assert code in (1, 3) and name.split("/")[1] in told


@pytest.mark.parametrize("change", [{"key": "x"}, {"key": "1/0"}, {"call_index": -5}, {"max_tokens": 0}], ids=str)
def test_a_call_of_no_place_is_a_broken_journal(runs, check, change):
    file = runs / "killed" / "journal.jsonl"
    first, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([json.dumps(json.loads(first) | change) + "\n", *rest]))
    code, told = check()
    assert code == 3 and "journal.jsonl, line 1, byte 0: broken journal record" in told


@pytest.mark.parametrize("saved", [{"old_thing": 1}, {"steps": 10**9}, {"steps": "two"}], ids=str)
def test_parameters_of_another_version_are_incomplete_and_name_the_file(runs, check, saved):
    edit_info(runs, "restored", params=saved)
    code, told = check()
    assert code == 3 and ("run.json" in told)


@pytest.mark.parametrize("name", ["uninterrupted", "killed", "restored"])
def test_a_run_without_its_run_json_is_incomplete(runs, check, name):
    (runs / name / "run.json").unlink()
    code, told = check()
    assert code == 3 and "run.json" in told


def test_a_row_lost_from_both_dumps_is_not_lost_on_the_checker(runs):
    for run in ("uninterrupted", "restored"):
        file = runs / run / "training.jsonl"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
        (runs / run / "run.json").unlink()
    assert "row-membership" in failed(judged(runs))


@pytest.mark.parametrize(
    ("run", "change"),
    [
        ("restored", {"phase": "uninterrupted"}),
        ("restored", {"run_id": "u"}),
        ("restored", {"trained": None}),
        ("uninterrupted", {"exit": {"time": 1, "signal": 9}}),
        ("uninterrupted", {"setup": {"model": "scripted", "stop_token_ids": []}}),
        ("killed", {"setup": {"model": "another", "stop_token_ids": []}}),
    ],
    ids=str,
)
def test_runs_that_are_not_what_they_are_taken_for_are_incomplete(runs, run, change):
    edit_info(runs, run, **change)
    assert failed(judged(runs)) == {"same-setup"}


def test_a_run_compared_with_itself_is_incomplete(check):
    assert check(uninterrupted="restored")[0] == 3


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("restored", {"prefix_ids_sha256": None}),
        ("restored", {"max_tokens": None}),
        ("restored", {"max_tokens": 1}),
        ("restored", {"group_id": None}),
        ("restored", {"call_index": None}),
        ("completed", {"prefix_tokens": 99}),
        ("completed", {"call_id": "x"}),
        ("completed", {"group_id": "x"}),
        ("completed", {"generation_index": 9}),
    ],
    ids=str,
)
def test_a_record_of_our_own_that_says_less_or_otherwise_is_reported(runs, event, change):
    change_records(runs, lambda records: [r | (change if r["event"] == event else {}) for r in records])
    assert judged(runs).verdict == "FAIL"


def test_a_capture_of_another_prompt_or_group_is_reported(runs):
    file = runs / "killed" / "journal.jsonl"
    for field, value, check in (("prompt_ids", [1, 2, 3], "prefix-captured"), ("group_id", "other", "call-position")):
        before = file.read_text()
        lines = [json.loads(line) for line in before.splitlines()]
        file.write_text("".join(json.dumps(r | ({field: value} if r["event"] == "start" else {})) + "\n" for r in lines))
        assert check in failed(judged(runs))
        file.write_text(before)


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("before-cut-call", lambda row: row.update(sample_loss_mask=0.0)),
        ("before-cut-call", lambda row: row["token_loss_mask"].__setitem__(0, 1)),
        ("policy-logprobs", lambda row: row["prev_logprobs"].__setitem__(-14, -50.0)),
        ("near-tie", lambda row: row["token_ids"].__setitem__(-1, 77)),
        (
            "near-tie",
            lambda row: row["generation_top2"].__setitem__(-4, [[99, -0.6], [row["token_ids"][-4], float("nan")]]),
        ),
        ("near-tie", lambda row: row.pop("generation_top2")),
        ("dump-complete", lambda row: row.pop("generation_top2")),
    ],
    ids=[
        "sample mask",
        "mask before",
        "policy before",
        "a later token not the likeliest",
        "NaN",
        "no evidence",
        "a column lost",
    ],
)
def test_a_tie_excuses_nothing_but_itself(runs, check, change):
    tie(runs, 0.1)
    change_row(runs, "1/0/0", change)
    assert check in failed(judged(runs, near_tie_margin=0.3, max_set_aside=0.5))


@pytest.mark.parametrize("change", [{"generation_logprobs": 0.5}, {"token_ids": -7}], ids=str)
def test_values_that_no_engine_gives_are_told(runs, change):
    for run in ("uninterrupted", "restored"):
        change_row(runs, "1/0/1", at_place(-3, **change), run)
    assert "dump-complete" in failed(judged(runs))


def test_a_lone_surrogate_is_told_where_it_stands(runs, check):
    file = runs / "restored" / "training.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"sample_id":"', b'"sample_id":"\\ud800', 1))
    code, told = check()
    assert code == 1 and "training.jsonl, line 1" in told


def test_blank_lines_are_no_damage(runs):
    with (runs / "restored" / "training.jsonl").open("a") as stream:
        stream.write("\n")
    assert judged(runs).verdict == "PASS"


def test_calls_opened_without_a_token_are_counted_apart(runs):
    file = runs / "killed" / "journal.jsonl"
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
    with file.open("a") as stream:
        stream.write(json.dumps(start) + "\n")
    info = json.loads((runs / "killed" / "run.json").read_text())["exit"]
    opened = info["open_calls"] | {"k:x": 0}
    edit_info(runs, "killed", exit=info | {"open_calls": opened})
    judgement = judged(runs)
    assert (judgement.verdict, judgement.counts["started_again"], len(judgement.cuts)) == ("PASS", 1, 5)


def test_thresholds_come_from_the_runs_where_none_are_given(runs, check):
    change_row(runs, "1/0/1", at_place(-3, generation_logprobs=-0.31))
    code, told = check()
    assert code == 1 and "judged by the parameters in" in told and params().max_logprob_diff == 0.0


def test_options_that_contradict_each_other_are_refused(runs, check):
    assert check("--selection", runs / "killed/run.json", "--log", runs / "killed/run.json")[0] == 2


@pytest.mark.parametrize("where", ["missing/r.json", "killed"], ids=["no folder", "a folder"])
def test_results_that_cannot_be_written_are_a_mistake(runs, check, where):
    assert check("--json", runs / where)[0] == 2


@pytest.mark.parametrize(
    "text",
    [
        "engine_args: {x: 2024-01-01}",
        "engine_args: {x: !!binary aGk=}",
        "engine_args: &a {x: *a}",
        "x: 2024-99-99",
        "[ " * 5000,
        'runs: "a\\0b"',
        "steps: 1000000000",
        f"seed: {'9' * 6000}",
    ],
    ids=["date", "binary", "circular", "no date", "nested", "nul", "too many", "too long"],
)
def test_yaml_that_is_no_parameters_is_one_message(tmp_path, check, text):
    (tmp_path / "p.yaml").write_text(text)
    code, told = check("--params", tmp_path / "p.yaml")
    assert code == 2 and "p.yaml" in told


@pytest.mark.parametrize("name", ["1/0/0#9", "1/0/0#-1", "1/0/0#1#2"])
def test_a_cut_that_is_none_is_a_mistake(runs, monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["restore-parity", "cut", name, "--runs", str(runs)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2 and "cut" in capsys.readouterr().err


def test_characters_that_xml_forbids_leave_a_readable_junit_file(runs):
    from restore_parity import results

    change_row(runs, "1/0/1", lambda row: row.update(group_id="\uffff\x01\ud7ff"))
    told = results.msgspec.to_builtins(results.results(judged(runs), {}))
    results.write_junit(runs / "junit.xml", told)
    assert JUnitXml.fromfile(str(runs / "junit.xml")).failures


@pytest.mark.parametrize(
    "setup",
    [{}, {"model": "scripted"}, {"model": 5, "stop_token_ids": [2]}, {"model": "scripted", "stop_token_ids": "ab"}],
    ids=str,
)
def test_a_setup_that_does_not_tell_model_and_stop_tokens_is_incomplete(runs, check, setup):
    for run in ("uninterrupted", "killed", "restored"):
        edit_info(runs, run, setup=setup)
    code, told = check()
    assert code == 3 and "run.json" in told


@pytest.mark.parametrize("change", [{"prev_top2": [None]}, {"token_ids": [2**40]}], ids=["a short witness", "a huge id"])
def test_columns_that_could_not_be_read_later_are_damage(runs, check, change):
    tie(runs, 0.1)
    change_row(runs, "1/0/0", lambda row: row.update(change), "uninterrupted")
    code, told = check()
    assert code == 1 and "dump-complete" in told
