"""The calendar workload: rows that differ, a tool that answers anything, rewards that differ."""

import json

import pytest
from builders import params

from restore_parity.experiment.models import model_path
from restore_parity.experiment.workload import Codec, reward, run_tool, tasks


def call(**changes) -> str:
    return json.dumps(
        {"name": "calendar_create_event", "arguments": {"title": "Tea", "date": "2026-01-01"}}
        | changes
    )


def test_every_row_asks_for_its_own_event():
    requests = [task.request for task in tasks(params(generations_per_prompt=20))]
    assert len(requests) == 80
    assert len(set(requests)) == 80


def test_a_second_execution_of_the_tool_shows():
    assert run_tool(call(), booked=0) == {"event_id": 1}
    assert run_tool(call(), booked=1) == {"event_id": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "{}",
        "[]",
        "null",
        call(name="other"),
        call(arguments=[]),
        call(arguments={"title": 1, "date": 2}),
        "[" * 9999,
    ],
    ids=[
        "empty",
        "text",
        "no name",
        "list",
        "null",
        "other tool",
        "no arguments",
        "no strings",
        "nested too deep",
    ],
)
def test_an_unparsable_call_gets_an_error_result(text):
    assert "error" in run_tool(text, booked=0)


def paid_for_the_asked_answer(task) -> float:
    """The reward of a row that does exactly as it is asked."""
    event = call(arguments={"title": task.title, "date": task.date})
    return reward(task, event, f"{task.title}: {' '.join(map(str, range(1, 17)))}")


def test_slot_0_is_never_paid_in_full():
    assert paid_for_the_asked_answer(tasks(params())[0]) < 1.0


def test_slot_1_can_be_paid_in_full():
    assert paid_for_the_asked_answer(tasks(params())[2]) == 1.0


@pytest.mark.parametrize("model", ["smollm2-135m", "tiny-qwen3"])
def test_tool_turns_join_calls_as_the_template_would(model):
    codec = Codec(model_path(model))
    messages = tasks(params())[0].messages()
    answer = codec.encode("abc")
    tool_ids = codec.tool_ids(messages, answer[-1], {"event_id": 1})
    joined = codec.prompt_ids(messages) + answer + tool_ids
    turns = [
        {"role": "assistant", "content": "abc"},
        {"role": "tool", "content": '{"event_id": 1}'},
    ]
    assert joined == codec.prompt_ids([*messages, *turns])


def test_a_captured_stop_token_is_not_doubled_by_the_tool_turn():
    codec = Codec(model_path("smollm2-135m"))
    messages = tasks(params())[0].messages()
    stop_id = codec.stop_ids[0]
    assert codec.tool_ids(messages, 5, {}) == [stop_id, *codec.tool_ids(messages, stop_id, {})]
