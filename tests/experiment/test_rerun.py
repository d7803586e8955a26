"""A cut run again both ways: what the engine is asked, and what comes of it."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import STOP, ScriptedEngine

from restore_parity.errors import IncompleteError
from restore_parity.experiment.rerun import (
    PROCESSOR,
    RerunTask,
    forced,
    prefilled,
    read_rerun,
    run_again,
)
from restore_parity.journal import Journal
from restore_parity.runs import read_info


class ForcedEngine(ScriptedEngine):
    """The scripted engine, which takes a request's sampling and keeps it."""

    def __init__(self):
        super().__init__()
        self.sampling = {}

    def add(self, call_id, prompt_ids, max_tokens, **sampling):
        super().add(call_id, prompt_ids, max_tokens)
        self.sampling[call_id] = sampling


@pytest.fixture
def task(pristine):
    """The cut 1/0/0#1 among all calls that were open at the kill."""

    def of(cut: str = "1/0/0#1") -> RerunTask:
        calls = Journal(pristine / "killed" / "journal.jsonl").poll().open_calls()
        info = read_info(pristine / "killed")
        return RerunTask(cut=cut, calls=calls, info=info, uninterrupted=None, restored=None)

    return of


def baseline(pristine, name: str):
    journal = Journal(pristine / "uninterrupted" / "journal.jsonl").poll()
    return next(call for call in journal.calls.values() if call.name == name)


def test_a_prefilled_call_is_the_captured_prefix_and_its_tail(pristine, task):
    view = prefilled(ForcedEngine(), task(), {STOP})
    call = baseline(pristine, "1/0/0#1")
    assert view.before == call.prompt_ids
    assert view.ids == call.ids
    assert view.logprobs == call.logprobs
    assert view.top_logprobs == call.top_logprobs


def test_a_forced_call_is_asked_for_whole_with_its_captured_tokens_given(task):
    engine = ForcedEngine()
    forced(engine, task())
    cut = next(call for call in task().calls if call.name == "1/0/0#1")
    assert engine.sampling[cut.name] == {"extra_args": {"forced_ids": cut.ids}}
    assert (cut.name, cut.prompt_ids, cut.max_tokens) in engine.requests


def test_all_calls_that_were_open_are_in_the_batch(task):
    engine = ForcedEngine()
    forced(engine, task())
    in_order = sorted(task().calls, key=lambda call: call.key)
    assert [call_id for call_id, _, _ in engine.requests] == [call.name for call in in_order]


def test_an_already_terminal_call_is_its_prefix_and_is_not_requested(pristine, task):
    engine = ForcedEngine()
    view = prefilled(engine, task("2/1/1#1"), {STOP})
    cut = next(call for call in task().calls if call.name == "2/1/1#1")
    assert view.ids == cut.ids
    assert "2/1/1#1" not in [call_id for call_id, _, _ in engine.requests]


def test_nothing_is_read_where_nothing_was_run(tmp_path):
    assert read_rerun(tmp_path) is None


def test_a_run_that_does_not_tell_its_engine_settings_cannot_be_run_again(task, tmp_path):
    with pytest.raises(IncompleteError, match="the rerun ended with exit code 1") as error:
        run_again(tmp_path / "again", task())
    assert str(error.value).endswith("setup has no engine_args; the call cannot run as it did")


def test_the_processor_is_where_vllm_is_told_to_find_it():
    module, name = PROCESSOR.split(":")
    source = Path(find_spec(module).origin).read_text()
    assert f"\nclass {name}(AdapterLogitsProcessor):" in source


def test_importing_it_imports_neither_torch_nor_an_engine():
    code = "import restore_parity.experiment.rerun, sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(result.stdout.split())
    assert not loaded & {"torch", "transformers", "vllm"}
    assert "restore_parity.experiment.rerun" in loaded
