"""Rollouts and their restore, over a scripted engine: what is asked of the engine, and what is journaled."""

import json

import pytest
from builders import STOP, generate, healthy_runs, params

from restore_parity.checks import judge
from restore_parity.journal import Journal
from restore_parity.records import AlreadyTerminal, Completed, Key, Restored
from restore_parity.saved import load_run, load_runs

KILLED = "killed/journal.jsonl"


@pytest.fixture(scope="module")
def resumed(pristine, tmp_path_factory):
    """The engine of a restored run, to see what was requested of it."""
    return generate(tmp_path_factory.mktemp("again") / "restored", "restored", params(), source=pristine / "killed")


def records(pristine, kind):
    return {r.source_call_id.split(":")[1]: r for r in load_run(pristine / "restored").restores if isinstance(r, kind)}


def test_a_row_is_prompt_call_tool_result_call(pristine):
    row = load_run(pristine / "uninterrupted").only(Key(1, 0, 0))
    (first, stop), (second, end) = row.segments()
    assert row.token_loss_mask[:first] == [0] * first and end == row.input_length
    assert (
        bytes(row.token_ids[stop + (row.token_ids[stop] == STOP) : second]).decode().strip()
        == '{"error": "no such call", "attempt": 1}'
    )


def test_rows_end_both_by_stop_and_by_length(pristine):
    calls = Journal(pristine / "uninterrupted" / "journal.jsonl").poll().calls.values()
    assert {call.finish_reason for call in calls} == {"stop", "length"}


def test_a_held_call_keeps_its_planned_tokens_and_stays_open(pristine):
    opened = {c.call_id[2:]: len(c.ids) for c in Journal(pristine / KILLED).poll().open_calls()}
    planned = {name: params().planned_tokens(name) for name in params().cut_tokens}
    assert opened.items() >= planned.items()


def test_a_cut_call_is_asked_for_its_prompt_and_prefix_and_the_rest_of_its_limit(pristine, resumed):
    calls = {call.call_id[2:]: call for call in Journal(pristine / KILLED).poll().open_calls()}
    asked = {call_id[2:]: (ids, most) for call_id, ids, most in resumed.requests}
    cut = calls["1/0/0#1"]
    assert asked["1/0/0#1"] == (cut.prompt_ids + cut.ids, cut.max_tokens - len(cut.ids)) and len(cut.ids) == 3


def test_finished_calls_are_taken_from_the_journal(pristine, resumed):
    finished = {c.call_id[2:] for c in Journal(pristine / KILLED).poll().calls.values() if not c.is_open}
    assert finished and not finished & {call_id[2:] for call_id, _, _ in resumed.requests}


def test_calls_that_never_started_are_started(resumed):
    assert "1/1/1#1" in {call_id[2:] for call_id, _, _ in resumed.requests}


def test_a_call_captured_up_to_its_limit_is_already_terminal(pristine, resumed):
    assert records(pristine, AlreadyTerminal)["2/1/1#1"].reason == "length"
    assert "2/1/1#1" not in {call_id[2:] for call_id, _, _ in resumed.requests}


def test_a_captured_stop_token_is_already_terminal(pristine, tmp_path):
    call = next(
        c for c in Journal(pristine / "uninterrupted" / "journal.jsonl").poll().calls.values() if c.finish_reason == "stop"
    )
    given = params(cut_tokens={call.call_id[2:]: len(call.ids)})
    runs = healthy_runs(tmp_path / "runs", given)
    assert records(runs, AlreadyTerminal)[call.call_id[2:]].reason == "stop"


def test_each_restored_call_is_logged_once_and_ended_once(pristine):
    begun, ended = records(pristine, Restored), records(pristine, Completed) | records(pristine, AlreadyTerminal)
    assert begun.keys() == ended.keys() and len(load_run(pristine / "restored").restores) == 2 * len(begun)


def test_a_call_opened_without_a_token_is_started_again(tmp_path):
    given = params()
    generate(tmp_path / "killed", "killed", given, steps=0)
    engine = generate(tmp_path / "restored", "restored", given, source=tmp_path / "killed")
    assert not load_run(tmp_path / "restored").restores and len(engine.requests) == 16


def test_group_ids_live_on_in_the_restored_run_alone(pristine):
    uninterrupted, killed, restored = load_runs(pristine)
    groups = [{ref.group_id for refs in run.rows.values() for ref in refs} for run in (uninterrupted, restored)]
    assert groups[1] == {call.group_id for call in killed.journal.calls.values()} and not groups[0] & groups[1]


def test_the_tool_runs_once_though_its_call_was_restored(pristine):
    for run in ("uninterrupted", "restored"):
        for line in (pristine / run / "training.jsonl").read_text().splitlines():
            for row in json.loads(line)["rows"]:
                assert '"attempt": 1' in bytes(row["token_ids"]).decode()


@pytest.mark.parametrize("steps", range(1, 26))
def test_wherever_the_kill_falls_the_restored_rows_are_the_baselines(pristine, tmp_path, steps):
    given = params(cut_tokens={}, kill_after_tokens=1)
    generate(tmp_path / "killed", "killed", given, steps=steps)
    generate(tmp_path / "restored", "restored", given, source=tmp_path / "killed")
    runs = [load_run(folder) for folder in (pristine / "uninterrupted", tmp_path / "restored")]
    tokens = [[run.only(key).token_ids for key in given.row_keys()] for run in runs]
    assert tokens[0] == tokens[1]


def test_a_call_cut_behind_its_stop_token_is_rightly_terminal(tmp_path, pristine):
    calls = Journal(pristine / "uninterrupted" / "journal.jsonl").poll().calls.values()
    call = next(call for call in calls if call.finish_reason == "stop" and len(call.ids) > 1)
    given = params(
        cut_tokens={call.name: len(call.ids), "2/1/0#1": 3} if call.name != "2/1/0#1" else {call.name: len(call.ids)}
    )
    uninterrupted, killed, restored = load_runs(healthy_runs(tmp_path / "runs", given))
    judgement = judge(uninterrupted, restored, killed, given)
    assert not judgement.of("already-terminal")
    assert [cut.ended for cut in judgement.cuts if cut.key == call.name] == ["already terminal"]
