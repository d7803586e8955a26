"""The engine's settings: what strict sets, refuses and verifies, on either build of vLLM."""

import pytest
from builders import params

from restore_parity import engine
from restore_parity.engine import check_engine, engine_args, engine_env, with_companion
from restore_parity.errors import UsageError


@pytest.fixture
def gpu_build(monkeypatch):
    """As where vLLM's own build is installed: only its name is asked for, no engine is started."""
    monkeypatch.setattr(engine, "version", lambda name: "0.26.0")


def test_strict_on_the_cpu_is_unsplit_attention_and_a_companion():
    given = params(strict=True)
    assert engine_env(given)["VLLM_CPU_ATTN_SPLIT_KV"] == "0" and with_companion(given)
    assert engine_args(given, 99)["max_num_seqs"] == 9


def test_strict_on_a_gpu_is_batch_invariance_small_steps_and_no_prefix_cache(gpu_build):
    given = params(strict=True, steps=100)
    args = engine_args(given, 99)
    assert engine_env(given)["VLLM_BATCH_INVARIANT"] == "1" and not with_companion(given)
    assert (args["max_num_batched_tokens"], args["max_num_seqs"], args["enable_prefix_caching"]) == (128, 128, False)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"engine_args": {"max_num_batched_tokens": 256}}, "parted with steps of 256"),
        ({"engine_env": {"VLLM_BATCH_INVARIANT": "0"}}, "strict needs '1'"),
    ],
    ids=["large steps", "no batch invariance"],
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


def test_data_parallel_ranks_are_refused_for_they_would_wait_forever():
    with pytest.raises(UsageError, match="tensor_parallel_size"):
        check_engine(params(engine_args={"data_parallel_size": 2}))


@pytest.mark.parametrize(
    "running", [{"max_num_batched_tokens": 2048}, {"enable_prefix_caching": True}, {"batch_invariant": False}], ids=str
)
def test_an_engine_that_does_not_run_as_strict_asks_is_refused(gpu_build, running):
    right = {"max_num_batched_tokens": 128, "enable_prefix_caching": False, "batch_invariant": True}
    engine._verify_strict(right)
    with pytest.raises(UsageError, match=next(iter(running))):
        engine._verify_strict(right | running)


def test_overlapped_engines_share_a_gpus_memory(gpu_build):
    given = params(overlap_starts=True, engine_args={"gpu_memory_utilization": 0.6})
    assert engine_args(given, 99)["gpu_memory_utilization"] == pytest.approx(0.2)
    assert "gpu_memory_utilization" not in engine_args(params(), 99)


def test_what_one_run_compiles_the_next_finds(gpu_build):
    caches = [engine_env(params(runs=f"runs/{name}"))["VLLM_CACHE_ROOT"] for name in ("one", "other")]
    assert caches[0] == caches[1] and not caches[0].startswith(str(params(runs="runs/one").folder))
