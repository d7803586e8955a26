"""The engine's settings: its environment and arguments, known before vLLM is imported."""

import os
from typing import Any

from ...errors import UsageError
from ...params import Params
from . import strict
from .build import engine_version

# what says that some of a run's data-parallel ranks are started by others
RANKS_ELSEWHERE = {
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_size_local",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
}
OVERLAPPED = 3  # engines that share the device when starts overlap
MOST_CALLS = 256  # in one engine step, vLLM's own default
MEMORY_SHARE = 0.9  # of a GPU's memory, vLLM's own default


def check_engine(params: Params) -> None:
    """Raises UsageError, with the reason, for settings that cannot work on the installed engine.

    That is what the engine cannot have, and what is known to break `strict`.
    """
    for name in sorted(RANKS_ELSEWHERE & set(params.engine_args)):
        raise UsageError(
            f"engine_args.{name}: a run starts all its data-parallel ranks itself, on this "
            "machine, and would wait forever for others",
            "leave it out; data_parallel_size says how many there are",
        )
    if params.engine_args.get("data_parallel_size", 1) != 1 and with_companion(params):
        raise UsageError(
            "engine_args.data_parallel_size: a companion, which strict needs on the CPU, keeps "
            "pace with one rank only",
            "leave it out, or strict and companion",
        )
    if params.strict:
        strict.refuse(params, engine_version())


def with_companion(params: Params) -> bool:
    """Whether one more request runs along.

    It is asked for, or needed by strict on the CPU, where a lone token is summed in another order.
    """
    return params.companion or (params.strict and engine_version().on_cpu)


def engine_env(params: Params) -> dict[str, str]:
    """The environment an engine process gets.

    It is equal in the three runs, since a change keeps tokens but not bits.
    """
    build = engine_version()
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if build.on_cpu:
        env |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": str(os.cpu_count()),
            # Nothing is compiled in eager mode but a helper of the sampler, which would ask for a
            # C++ compiler on the machine
            "TORCH_COMPILE_DISABLE": "1",
        }
    if params.strict:
        env |= strict.env(build)
    return env | params.engine_env


def compile_caches(params: Params) -> dict[str, str]:
    """More of the environment, which decides no bits: where compiled kernels are kept.

    What one run compiles the next finds, in a folder beside the runs.
    """
    cache = params.folder.absolute().parent / "compiled"
    folders = {
        "VLLM_CACHE_ROOT": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TRITON_CACHE_DIR": cache / "triton",
    }
    return {name: str(folder) for name, folder in folders.items()}


def engine_args(params: Params, longest_tokens: int, head_size: int) -> dict[str, Any]:
    """vLLM's arguments but for the model's folder; the parameters' own go over the defaults.

    Raises UsageError for an attention backend that breaks `strict`.
    """
    build = engine_version()
    calls = len(params.row_keys())
    if with_companion(params):
        calls += 1
    args: dict[str, Any] = {
        "dtype": params.dtype,
        "seed": params.seed,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        "load_format": "safetensors",
        "max_model_len": longest_tokens,
        "max_num_seqs": min(MOST_CALLS, calls),
    }
    if params.strict:
        args |= strict.args(params, build, head_size)
    args |= params.engine_args
    if params.overlap_starts and not build.on_cpu:
        share = args.get("gpu_memory_utilization", MEMORY_SHARE)
        args["gpu_memory_utilization"] = share / OVERLAPPED
    return args
