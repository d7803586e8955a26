"""The calendar workload: distinguishable rows, a tool that answers anything, rewards that differ."""

import json

import pytest
from builders import params

from restore_parity.models import model_path
from restore_parity.workload import Codec, reward, run_tool, tasks


def call(**changes) -> str:
    return json.dumps({"name": "calendar_create_event", "arguments": {"title": "Tea", "date": "2026-01-01"}} | changes)


def test_every_row_asks_for_its_own_event():
    todo = tasks(params(generations_per_prompt=20))
    assert len({task.request for task in todo}) == len(todo) == 80


def test_a_second_execution_of_the_tool_shows():
    assert run_tool(call(), booked=0) == {"event_id": 1} != run_tool(call(), booked=1)


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
    ids=["empty", "text", "no name", "list", "null", "other tool", "no arguments", "no strings", "nested too deep"],
)
def test_an_unparsable_call_gets_an_error_result(text):
    assert "error" in run_tool(text, booked=0)


def test_slot_0_is_never_paid_in_full_and_slot_1_can_be():
    first, second = tasks(params())[0], tasks(params())[2]
    asked = f"{{}}: {' '.join(map(str, range(1, 17)))}"

    def event(task):
        return json.dumps({"name": "calendar_create_event", "arguments": {"title": task.title, "date": task.date}})

    assert reward(first, event(first), asked.format(first.title)) < 1.0
    assert reward(second, event(second), asked.format(second.title)) == 1.0


@pytest.mark.parametrize("model", ["smollm2-135m", "tiny-qwen3"])
def test_tool_turns_join_calls_as_the_template_would(model):
    codec, messages = Codec(model_path(model)), tasks(params())[0].messages()
    answer = codec.prompt_ids(messages)[:0] + codec._encode("abc")
    joined = codec.prompt_ids(messages) + answer + codec.tool_ids(messages, answer[-1], {"event_id": 1})
    told = [{"role": "assistant", "content": "abc"}, {"role": "tool", "content": '{"event_id": 1}'}]
    assert joined == codec.prompt_ids([*messages, *told])


def test_a_captured_stop_token_is_not_doubled_by_the_tool_turn():
    codec, messages = Codec(model_path("smollm2-135m")), tasks(params())[0].messages()
    assert codec.tool_ids(messages, 5, {}) == [codec.stop_ids[0], *codec.tool_ids(messages, codec.stop_ids[0], {})]
