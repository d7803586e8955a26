"""Rollouts and their restore, over a scripted engine: what is asked of it, what is journaled."""

import json

import pytest
from builders import STOP, generate, healthy_runs, judged, params

from restore_parity.checker.loading import load_run
from restore_parity.journal import Call, Journal
from restore_parity.records import AlreadyTerminal, Completed, Key, Restored


@pytest.fixture(scope="module")
def resumed(pristine, tmp_path_factory):
    """The engine of a restored run, to see what was requested of it."""
    folder = tmp_path_factory.mktemp("resumed") / "restored"
    return generate(folder, "restored", params(), source=pristine / "killed")


def calls(folder) -> dict[str, Call]:
    """The calls of a run's journal by their names."""
    journal = Journal(folder / "journal.jsonl").poll()
    return {call.name: call for call in journal.calls.values()}


def requested(engine) -> dict[str, tuple[list[int], int]]:
    """What an engine was asked, prompt and limit, by the calls' names."""
    return {call_id.split(":")[1]: (ids, limit) for call_id, ids, limit in engine.requests}


def records(runs, kind):
    """The restore records of a kind by the names of their source calls."""
    every = load_run(runs / "restored").restores
    return {
        record.source_call_id.split(":")[1]: record for record in every if isinstance(record, kind)
    }


def test_a_row_is_prompt_call_tool_result_call(pristine):
    row = load_run(pristine / "uninterrupted").only(Key(1, 0, 0))
    (first, stop), (second, end) = row.segments()
    assert row.token_loss_mask[:first] == [0] * first
    assert end == row.input_length
    between = bytes(token for token in row.token_ids[stop:second] if token != STOP).decode()
    assert between.strip() == '{"error": "no such call", "attempt": 1}'


def test_rows_end_both_by_stop_and_by_length(pristine):
    reasons = {call.finish_reason for call in calls(pristine / "uninterrupted").values()}
    assert reasons == {"stop", "length"}


def test_a_held_call_keeps_its_planned_tokens_and_stays_open(pristine):
    found = calls(pristine / "killed")
    kept = {name: len(call.ids) for name, call in found.items() if call.is_open}
    planned = {name: params().planned_tokens(name) for name in params().cut_tokens}
    assert kept.items() >= planned.items()


def test_a_cut_call_is_asked_for_its_prompt_and_prefix_and_the_rest_of_its_limit(pristine, resumed):
    cut = calls(pristine / "killed")["1/0/0#1"]
    assert len(cut.ids) == 3
    assert requested(resumed)["1/0/0#1"] == (cut.prompt_ids + cut.ids, cut.max_tokens - 3)


def test_finished_calls_are_taken_from_the_journal(pristine, resumed):
    finished = {name for name, call in calls(pristine / "killed").items() if not call.is_open}
    assert finished
    assert not finished & requested(resumed).keys()


def test_calls_that_never_started_are_started(resumed):
    assert "1/1/1#1" in requested(resumed)


def test_a_call_captured_up_to_its_limit_is_already_terminal(pristine, resumed):
    assert records(pristine, AlreadyTerminal)["2/1/1#1"].reason == "length"
    assert "2/1/1#1" not in requested(resumed)


def test_a_captured_stop_token_is_already_terminal(pristine, tmp_path):
    stopped = calls(pristine / "uninterrupted").values()
    call = next(call for call in stopped if call.finish_reason == "stop")
    given = params(cut_tokens={call.name: len(call.ids)})
    runs = healthy_runs(tmp_path / "runs", given)
    assert records(runs, AlreadyTerminal)[call.name].reason == "stop"


def test_a_call_cut_behind_its_stop_token_passes_the_check(pristine, tmp_path):
    stopped = calls(pristine / "uninterrupted").values()
    call = next(call for call in stopped if call.finish_reason == "stop" and len(call.ids) > 1)
    cuts = {"2/1/0#1": 3} | {call.name: len(call.ids)}
    judgement = judged(healthy_runs(tmp_path / "runs", params(cut_tokens=cuts)))
    assert not judgement.of("already-terminal")
    assert [cut.ended for cut in judgement.cuts if cut.key == call.name] == ["already terminal"]


def test_each_restored_call_is_logged_once_and_ended_once(pristine):
    begun = records(pristine, Restored)
    ended = records(pristine, Completed) | records(pristine, AlreadyTerminal)
    assert begun.keys() == ended.keys()
    assert len(load_run(pristine / "restored").restores) == 2 * len(begun)


def test_a_call_opened_without_a_token_is_started_again(tmp_path):
    given = params()
    generate(tmp_path / "killed", "killed", given, steps=0)
    engine = generate(tmp_path / "restored", "restored", given, source=tmp_path / "killed")
    assert not load_run(tmp_path / "restored").restores
    assert len(engine.requests) == 16


def dumped_groups(folder) -> set[str]:
    """The groups of the rows that a run trained on."""
    rows = load_run(folder).rows.values()
    return {ref.group_id for refs in rows for ref in refs}


def test_group_ids_live_on_in_the_restored_run_alone(pristine):
    captured = {call.group_id for call in calls(pristine / "killed").values()}
    assert dumped_groups(pristine / "restored") == captured
    assert not dumped_groups(pristine / "uninterrupted") & captured


@pytest.mark.parametrize("run", ["uninterrupted", "restored"])
def test_the_tool_runs_once_though_its_call_was_restored(pristine, run):
    for line in (pristine / run / "training.jsonl").read_text().splitlines():
        for row in json.loads(line)["rows"]:
            assert '"attempt": 1' in bytes(row["token_ids"]).decode()


@pytest.mark.parametrize("steps", range(1, 26))
def test_wherever_the_kill_falls_the_restored_rows_are_the_baselines(pristine, tmp_path, steps):
    given = params(cut_tokens={}, kill_after_tokens=1)
    generate(tmp_path / "killed", "killed", given, steps=steps)
    generate(tmp_path / "restored", "restored", given, source=tmp_path / "killed")
    baseline = load_run(pristine / "uninterrupted")
    restored = load_run(tmp_path / "restored")
    for key in given.row_keys():
        assert restored.only(key).token_ids == baseline.only(key).token_ids
