"""vLLM behind the engine protocol: what it is asked for, and what is made of its answers."""

import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from builders import params

from restore_parity.errors import IncompleteError
from restore_parity.experiment.engine.vllm_engine import VllmEngine


@pytest.fixture
def vllm(monkeypatch) -> MagicMock:
    """Stands for the library: it takes everything, and nothing is computed."""
    library = MagicMock()
    monkeypatch.setitem(sys.modules, "vllm", library)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", library.sampling_params)
    return library


@pytest.fixture
def engine_of(vllm, tmp_path):
    """An engine of the stand-in library, with parameters of choice."""
    (tmp_path / "config.json").write_text(json.dumps({"head_dim": 32}))

    def start(**changes) -> VllmEngine:
        return VllmEngine(tmp_path, params(**changes), longest_tokens=64)

    return start


def answer(**changes) -> SimpleNamespace:
    """One step's output of one call, as vLLM gives it: token 5 at an exact tie with token 3."""
    entries = {token: SimpleNamespace(logprob=logprob) for token, logprob in LIKELY.items()}
    given = {"finish_reason": None, "token_ids": [5], "logprobs": [entries]} | changes
    return SimpleNamespace(request_id="u:1/0/0#1", outputs=[SimpleNamespace(**given)])


LIKELY = {3: -0.5, 5: -0.5, 9: -4.0, 7: -2.5}


@pytest.fixture
def step(vllm, engine_of):
    """What one engine step comes to, of one output of vLLM's."""

    def of(output: SimpleNamespace):
        engine = engine_of()
        vllm.LLMEngine.from_engine_args.return_value.step.return_value = [output]
        return engine.step()

    return of


@pytest.mark.parametrize("count", [2, 7])
def test_vllm_is_asked_for_as_many_likeliest_tokens_as_the_parameters_say(vllm, engine_of, count):
    engine_of(top_logprobs=count).add("u:1/0/0#0", [1, 2], 9)
    assert vllm.SamplingParams.call_args.kwargs["logprobs"] == count


def test_all_tokens_that_vllm_gives_are_recorded_the_chosen_one_first_of_a_tie(step):
    (output,) = step(answer())
    assert output.top_logprobs == [[(5, -0.5), (3, -0.5), (7, -2.5), (9, -4.0)]]


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf")], ids=str)
def test_a_log_probability_that_is_not_finite_is_refused_by_the_calls_name(step, logprob):
    entries = {5: SimpleNamespace(logprob=logprob)}
    told = r"no finite log-probability \(.*\) for token 5 of call u:1/0/0#1"
    with pytest.raises(IncompleteError, match=told):
        step(answer(logprobs=[entries]))


def test_a_call_that_vllm_gave_up_is_refused_by_its_name(step):
    with pytest.raises(RuntimeError, match="call u:1/0/0#1 ended by 'abort'"):
        step(answer(finish_reason="abort"))
