"""The engine's settings: what strict sets, refuses and verifies, on either build of vLLM."""

import subprocess
import sys

import pytest
from builders import params

from restore_parity import engine, strict
from restore_parity.engine import check_engine, compile_caches, engine_args, engine_env, with_companion
from restore_parity.errors import UsageError


@pytest.fixture
def gpu_build(monkeypatch):
    """As where vLLM's own build is installed: only its name is asked for, no engine is started."""
    monkeypatch.setattr(engine, "version", lambda name: "0.26.0")


def test_strict_on_the_cpu_is_unsplit_attention_and_a_companion():
    given = params(strict=True)
    assert engine_env(given)["VLLM_CPU_ATTN_SPLIT_KV"] == "0" and with_companion(given)
    assert engine_args(given, 99, 128)["max_num_seqs"] == 9


def test_strict_on_a_gpu_is_batch_invariance_known_kernels_and_no_prefix_cache(gpu_build):
    given = params(strict=True, steps=100)
    args = engine_args(given, 99, 128)
    assert engine_env(given)["VLLM_BATCH_INVARIANT"] == "1" and not with_companion(given)
    assert (args["max_num_batched_tokens"], args["max_num_seqs"], args["enable_prefix_caching"]) == (2048, 256, False)
    assert args["worker_extension_cls"] == strict.KERNELS and "attention_backend" not in args


def test_a_local_part_of_a_version_is_the_same_code(gpu_build, monkeypatch):
    monkeypatch.setattr(engine, "version", lambda name: "0.26.0+cu129")
    assert engine_args(params(strict=True), 99, 128)["max_num_batched_tokens"] == 2048


@pytest.mark.parametrize("chunk", [None, "2048", 0])
def test_a_step_size_that_is_no_number_is_refused(gpu_build, chunk):
    with pytest.raises(UsageError, match="max_num_batched_tokens"):
        check_engine(params(strict=True, engine_args={"max_num_batched_tokens": chunk}))


def test_a_version_whose_kernels_are_not_known_keeps_to_small_steps(gpu_build, monkeypatch):
    monkeypatch.setattr(engine, "version", lambda name: "0.27.0")
    args = engine_args(params(strict=True), 99, 128)
    assert args["max_num_batched_tokens"] == 128 and "worker_extension_cls" not in args
    check_engine(params(strict=True, engine_args={"max_num_batched_tokens": 255}))
    with pytest.raises(UsageError, match="more than 255 tokens"):
        check_engine(params(strict=True, engine_args={"max_num_batched_tokens": 256}))


def test_small_heads_get_the_attention_that_holds(gpu_build):
    assert engine_args(params(strict=True), 99, 64)["attention_backend"] == "TRITON_ATTN"
    assert "attention_backend" not in engine_args(params(strict=True), 99, 0)
    config = {"attention_config": {"backend": "triton_attn"}}
    assert "attention_backend" not in engine_args(params(strict=True, engine_args=config), 99, 64)


@pytest.mark.parametrize(
    "given",
    [
        {"attention_backend": "FLASH_ATTN"},
        {"attention_backend": "flash_attn"},
        {"attention_backend": None},
        {"attention_config": {"backend": "FLASH_ATTN"}},
        {"attention_config": {"backend": "TRITON_ATTN", "backend_per_kind": {"full": "FLASH_ATTN"}}},
    ],
    ids=str,
)
def test_small_heads_are_refused_any_other_attention_however_it_is_written(gpu_build, given):
    engine_args(params(strict=True, engine_args=given), 99, 128)
    with pytest.raises(UsageError, match="strict and heads of 64"):
        engine_args(params(strict=True, engine_args=given), 99, 64)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine_args": {"worker_extension_cls": "other.Class"}}, "strict brings its own"),
        ({"engine_env": {"VLLM_BATCH_INVARIANT": "0"}}, "strict needs '1'"),
    ],
    ids=["other kernels", "no batch invariance"],
)
def test_what_breaks_strict_on_a_gpu_is_refused_with_the_reason(gpu_build, changes, told):
    with pytest.raises(UsageError, match=told):
        check_engine(params(strict=True, **changes))
    check_engine(params(**changes))


@pytest.mark.parametrize(
    ("env", "told"),
    [({"VLLM_CPU_ATTN_SPLIT_KV": "1"}, "strict needs '0'"), ({"VLLM_BATCH_INVARIANT": "1"}, "crashes on the CPU")],
    ids=["split attention", "batch invariance"],
)
def test_what_breaks_strict_on_the_cpu_is_refused_with_the_reason(env, told):
    with pytest.raises(UsageError, match=told):
        check_engine(params(strict=True, engine_env=env))


@pytest.mark.parametrize("name", ["data_parallel_rank", "data_parallel_size_local", "data_parallel_external_lb"])
def test_data_parallel_ranks_elsewhere_are_refused_for_a_run_would_wait_forever(name):
    with pytest.raises(UsageError, match=f"{name}.*wait forever"):
        check_engine(params(engine_args={"data_parallel_size": 2, name: 1}))
    check_engine(params(engine_args={"data_parallel_size": 2}))


@pytest.mark.parametrize("given", [{"strict": True}, {"companion": True}])
def test_a_companion_that_keeps_pace_with_one_rank_only_is_refused(given):
    with pytest.raises(UsageError, match="companion"):
        check_engine(params(engine_args={"data_parallel_size": 2}, **given))


@pytest.mark.parametrize(
    ("running", "told"),
    [
        ({"worker_extension_cls": ""}, "max_num_batched_tokens = 2048"),
        ({"enable_prefix_caching": True}, "enable_prefix_caching = True"),
        ({"batch_invariant": False}, "batch_invariant = False"),
    ],
)
def test_an_engine_that_does_not_run_as_strict_asks_is_refused(running, told):
    right = {"max_num_batched_tokens": 2048, "enable_prefix_caching": False, "batch_invariant": True}
    right["worker_extension_cls"] = strict.KERNELS
    strict.verify(right, "vllm")
    with pytest.raises(UsageError, match=told):
        strict.verify(right | running, "vllm")


class Trial:
    """An engine of made-up numbers: token n has log-probability -n, by `noise` less in the longest call's restored half."""

    def __init__(self, noise: float):
        self.noise, self.open, self.asked = noise, {}, []

    def add(self, call_id, prompt_ids, max_tokens, **sampling):
        self.open[call_id] = (len(prompt_ids), max_tokens)
        self.asked.append((len(prompt_ids), max_tokens))

    def busy(self):
        return bool(self.open)

    def step(self):
        made = []
        for call_id, (length, left) in self.open.items():
            ids = list(range(length, length + left))
            shift = self.noise if call_id == "trial-0" and left < strict.TRIAL_TOKENS else 0.0
            made.append(engine.Output(call_id, ids, [-n - shift for n in ids], [], "length"))
        self.open = {}
        return made


def test_a_trial_restores_calls_up_to_the_longest_in_steps_full_of_them():
    trial = Trial(0.0)
    strict.prove(trial, longest_tokens=3000, chunk_tokens=2048, seqs=24)
    whole, restored = trial.asked[:8], trial.asked[8:]
    assert sum(whole[0]) == sum(restored[0]) == 3000 and len(restored) == 8
    assert sum(length for length, _ in restored) > 2048


def test_an_engine_whose_trial_restore_moves_a_bit_is_refused_with_how_far():
    with pytest.raises(UsageError, match=r"24 of 192 log-probabilities of equal tokens moved, by up to 0\.25 nats"):
        strict.prove(Trial(0.25), longest_tokens=600, chunk_tokens=2048, seqs=24)


def test_an_engine_too_short_for_a_trial_is_refused():
    with pytest.raises(UsageError, match="max_model_len: 48 leaves no room"):
        strict.prove(Trial(0.0), longest_tokens=48, chunk_tokens=2048, seqs=24)


@pytest.mark.parametrize(
    ("split", "longest", "pieces", "holds"),
    [(0, 1024, 0, True), (1, 1024, 0, False), (0, 3000, 8, True)],
    ids=["as strict sets it", "split attention", "a long call prefilled in small pieces"],
)
def test_a_real_engine_passes_the_trial_with_strict_settings_only(split, longest, pieces, holds):
    script = """
import os, sys
from restore_parity import engine, errors, models, params, strict
split, longest, pieces = map(int, sys.argv[1:])
given = params.Params(model="tiny-qwen3", companion=True, engine_args={"long_prefill_token_threshold": pieces})
os.environ.update(engine.engine_env(given) | {"VLLM_CPU_ATTN_SPLIT_KV": str(split)})
running = engine.VllmEngine(models.model_path("tiny-qwen3"), given, longest)
try:
    strict.prove(running, longest, 512, 8)
except errors.UsageError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""
    command = [sys.executable, "-c", script, *map(str, (split, longest, pieces))]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    assert ("a trial restore in this engine is not bit-identical" not in told.stdout) is holds


def test_overlapped_engines_share_a_gpus_memory(gpu_build):
    given = params(overlap_starts=True, engine_args={"gpu_memory_utilization": 0.6})
    assert engine_args(given, 99, 128)["gpu_memory_utilization"] == pytest.approx(0.2)
    assert "gpu_memory_utilization" not in engine_args(params(), 99, 128)


def test_what_one_run_compiles_the_next_finds():
    caches = [compile_caches(params(runs=f"runs/{name}"))["VLLM_CACHE_ROOT"] for name in ("one", "other")]
    assert caches[0] == caches[1] and not caches[0].startswith(str(params(runs="runs/one").folder))
