"""vLLM behind the engine protocol: in this process, or in one process a rank."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import IncompleteError
from ...params import Params
from ...records import TopLogprobs
from ..models import head_size
from . import strict
from .build import engine_version
from .data_parallel import Ranks
from .protocol import Output
from .settings import engine_args, with_companion

COMPANION = "companion"


class VllmEngine:
    """vLLM's LLMEngine in this process, or Ranks where `data_parallel_size` is over 1.

    The environment is set before (see settings.engine_env). `args` are the arguments it was given,
    `effective` what it made of those that decide bits. Raises UsageError where the engine does not
    run as `strict` asks.
    """

    def __init__(self, folder: Path, params: Params, longest_tokens: int):
        # imported here: vLLM reads some of its environment when it is imported
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.args = engine_args(params, longest_tokens, head_size(folder))
        self._engine = _start({"model": str(folder), "trust_remote_code": False} | self.args)
        self._sampling = partial(
            SamplingParams,
            temperature=params.temperature,
            top_p=params.top_p,
            seed=params.seed,
            logprobs=params.top_logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.device = str(self._engine.vllm_config.device_config.device_type)
        self.effective = _effective(self._engine.vllm_config)
        self._open: set[str] = set()
        self._companion_tokens = longest_tokens - 1 if with_companion(params) else 0
        self._start_companion()
        if params.strict:
            strict.verify(self.effective, engine_version())

    def try_restore(self) -> None:
        """Raises UsageError where a trial restore in this engine is not bit-identical."""
        strict.try_restore(
            self,
            longest_tokens=self.effective["max_model_len"],
            step_tokens=self.effective["max_num_batched_tokens"],
            calls=self.effective["max_num_seqs"],
        )
        if self._companion_tokens:  # a fresh one: the trial has used up some of its tokens
            self._engine.abort_request([COMPANION])
            self._start_companion()

    def _start_companion(self) -> None:
        """Start the companion, where there is one: longer than any call, its tokens thrown away."""
        if self._companion_tokens:
            sampling = self._sampling(max_tokens=self._companion_tokens, ignore_eos=True)
            self._engine.add_request(COMPANION, {"prompt_token_ids": [0]}, sampling)

    def add(self, call_id: str, prompt_ids: list[int], max_tokens: int, **sampling: Any) -> None:
        """Request at most `max_tokens` tokens after `prompt_ids`."""
        asked = self._sampling(max_tokens=max_tokens, **sampling)
        self._engine.add_request(call_id, {"prompt_token_ids": prompt_ids}, asked)
        self._open.add(call_id)

    def step(self) -> list[Output]:
        """Run one engine step; an empty list when nothing came out."""
        outputs = []
        for request in self._engine.step():
            if request.request_id != COMPANION:
                outputs.append(_output(request))
        self._open.difference_update(o.call_id for o in outputs if o.finish_reason)
        return outputs

    def busy(self) -> bool:
        """Whether a requested call has not ended; the companion is none."""
        return bool(self._open)


def _start(given: dict[str, Any]) -> Any:
    """vLLM's own engine, or what looks like it over several ranks."""
    if given.get("data_parallel_size", 1) != 1:
        return Ranks(**given)
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**given))


def _effective(config: Any) -> dict[str, Any]:
    """What the running engine has made of its arguments and environment, where it decides bits."""
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


def _output(request: Any) -> Output:
    """What vLLM's own output says of one call. Raises RuntimeError where it was aborted."""
    answer = request.outputs[0]
    reason = answer.finish_reason
    if reason not in (None, "stop", "length"):
        raise RuntimeError(
            f"call {request.request_id} ended by {reason!r}, as where one of vLLM's processes died"
        )
    ids = list(answer.token_ids)
    logprobs = []
    top_logprobs = []
    for token, candidates in zip(ids, answer.logprobs or [], strict=True):
        logprob = candidates[token].logprob
        if not math.isfinite(logprob):
            raise IncompleteError(
                f"the engine gave no finite log-probability ({logprob}) for token {token} of call "
                f"{request.request_id}"
            )
        logprobs.append(logprob)
        top_logprobs.append(_likeliest(token, candidates))
    return Output(
        call_id=request.request_id,
        ids=ids,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        finish_reason=reason,
    )


def _likeliest(chosen: int, candidates: dict[int, Any]) -> TopLogprobs:
    """The tokens that vLLM gave log-probabilities of, likeliest first.

    At an exact tie the chosen one comes first.
    """

    def rank(candidate: tuple[int, float]) -> tuple[float, bool]:
        token, logprob = candidate
        return -logprob, token != chosen

    pairs = [(token, entry.logprob) for token, entry in candidates.items()]
    return sorted(pairs, key=rank)
