"""Strict: what makes a restore bit-identical by build of vLLM: set, refused, verified and tried.

docs/strict-restore.md has the measurements and the causes.
"""

from typing import Any, NoReturn

from ...errors import UsageError
from ...params import Params
from .build import Build
from .protocol import Answer, Engine, Request, generate

KERNELS = "restore_parity.experiment.engine.kernels.StrictKernels"  # a step may have any size
KERNELS_FOR = "0.26.0"  # the version whose kernels they replace; others keep to small steps
STEP_TOKENS = 2048
SMALL_STEP_TOKENS = 128
MOST_TOKENS = 255  # from 256 on vLLM's own norm sums in another order
MOST_CALLS = 256
SMALL_HEAD = 64  # up to here FlashAttention 3 takes other tiles at decode than at prefill
SMALL_HEADS_BACKEND = "TRITON_ATTN"
TRIAL_TOKENS = 48  # of each call
HALF_TOKENS = TRIAL_TOKENS // 2  # of each call, restored
TRIAL_CALLS = 8  # at most


def env(build: Build) -> dict[str, str]:
    """The environment that strict sets."""
    if build.on_cpu:
        return {"VLLM_CPU_ATTN_SPLIT_KV": "0"}
    return {"VLLM_BATCH_INVARIANT": "1"}


def refuse(params: Params, build: Build) -> None:
    """Raises UsageError, with the reason, for parameters that are known to break bit-identity."""
    for name, needed in env(build).items():
        if params.engine_env.get(name, needed) != needed:
            raise UsageError(
                f"engine_env.{name}: strict needs {needed!r}", "leave it out, or strict"
            )
    if build.on_cpu:
        _refuse_on_cpu(params)
    else:
        _refuse_on_gpu(params, build)


def _refuse_on_cpu(params: Params) -> None:
    if params.engine_env.get("VLLM_BATCH_INVARIANT", "0") != "0":
        raise UsageError(
            "engine_env.VLLM_BATCH_INVARIANT: crashes on the CPU",
            "leave it out: strict needs none there",
        )


def _refuse_on_gpu(params: Params, build: Build) -> None:
    given = params.engine_args
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        size = given.get(name, 1)
        if not isinstance(size, int) or size < 1:
            raise UsageError(
                f"engine_args.{name}: strict needs a whole number over 0, not {size!r}",
                "leave it out",
            )
    if build.has_code_of(KERNELS_FOR):
        if "worker_extension_cls" in given:
            raise UsageError(
                "engine_args.worker_extension_cls: strict brings its own", "leave it out, or strict"
            )
    elif given.get("max_num_batched_tokens", 1) > MOST_TOKENS:
        raise UsageError(
            f"engine_args.max_num_batched_tokens: {given['max_num_batched_tokens']} with strict; "
            "vLLM's norm sums a token's squares in another order in steps of more than "
            f"{MOST_TOKENS} tokens, and its replacement is written for vLLM {KERNELS_FOR}",
            f"leave it out, or give at most {MOST_TOKENS}",
        )


def args(params: Params, build: Build, head_size: int) -> dict[str, Any]:
    """The engine's arguments that strict sets; `head_size` 0 is an unknown one.

    Raises UsageError for an attention backend that breaks at this head size.
    """
    if build.on_cpu:
        return {}
    found: dict[str, Any] = {}
    step_tokens = SMALL_STEP_TOKENS
    if build.has_code_of(KERNELS_FOR):
        found["worker_extension_cls"] = KERNELS
        step_tokens = STEP_TOKENS
    step_tokens = params.engine_args.get("max_num_batched_tokens", step_tokens)
    found["max_num_batched_tokens"] = step_tokens
    found["max_num_seqs"] = min(step_tokens, MOST_CALLS, len(params.row_keys()))
    if 0 < head_size <= SMALL_HEAD:
        _check_attention(params, head_size)
        if "attention_config" not in params.engine_args:
            found["attention_backend"] = SMALL_HEADS_BACKEND
    return found


def _check_attention(params: Params, head_size: int) -> None:
    """Raises UsageError where another attention backend is given than the one that holds."""
    config = params.engine_args.get("attention_config") or {}
    backend = config.get("backend", SMALL_HEADS_BACKEND)
    backend = params.engine_args.get("attention_backend", backend)
    if str(backend).upper() == SMALL_HEADS_BACKEND and "backend_per_kind" not in config:
        return
    raise UsageError(
        f"engine_args: the attention backend {backend} with strict and heads of {head_size}; up "
        f"to {SMALL_HEAD} FLASH_ATTN, which vLLM would choose, sums over other tiles at decode "
        "than at prefill, so a restored call gets other bits, and no backend but "
        f"{SMALL_HEADS_BACKEND} was measured",
        f"leave it out, which takes {SMALL_HEADS_BACKEND}",
    )


def verify(effective: dict[str, Any], build: Build) -> None:
    """Raises UsageError where the running engine has made something else of the settings."""
    if effective["enable_prefix_caching"]:
        _not_as_set(effective, "enable_prefix_caching")
    if build.on_cpu:
        if effective["split_kv_on_cpu"]:
            _not_as_set(effective, "split_kv_on_cpu")
        return
    if not effective["batch_invariant"]:
        _not_as_set(effective, "batch_invariant")
    has_kernels = effective["worker_extension_cls"] == KERNELS
    if effective["max_num_batched_tokens"] > MOST_TOKENS and not has_kernels:
        _not_as_set(effective, "max_num_batched_tokens")


def _not_as_set(effective: dict[str, Any], name: str) -> NoReturn:
    raise UsageError(
        f"strict: the engine runs with {name} = {effective[name]!r}, so its restores are not "
        "bit-identical",
        "look for what sets it: engine_args, engine_env, or this version of vLLM",
    )


def try_restore(engine: Engine, longest_tokens: int, step_tokens: int, calls: int) -> None:
    """Restore the second half of some calls in the running engine, in steps full of them.

    Settings can be right and an unknown kernel wrong; this is the engine that is about to run.
    The longest call is as long as the engine takes, since kernels may change with the length.
    Raises UsageError, saying by how much they moved, where log-probabilities keep not every bit.
    """
    size = longest_tokens - TRIAL_TOKENS
    if size < 1:
        raise UsageError(
            f"engine_args.max_model_len: {longest_tokens} leaves no room for strict's trial "
            "restore",
            f"leave it out, or give more than {TRIAL_TOKENS}",
        )
    calls = max(2, min(TRIAL_CALLS, calls, step_tokens // 256))
    prompts = {f"trial-{n}": _trial_prompt(n, max(1, size // (n + 1))) for n in range(calls)}
    whole = _generate(engine, prompts, TRIAL_TOKENS)
    cut = {name: prompt + whole[name].ids[:HALF_TOKENS] for name, prompt in prompts.items()}
    tails = _generate(engine, cut, TRIAL_TOKENS - HALF_TOKENS)
    _check_tails(whole, tails)


def _trial_prompt(n: int, tokens: int) -> list[int]:
    """Ids that any vocabulary has, others in each call."""
    return [3 + (7 * n + place) % 89 for place in range(tokens)]


def _generate(engine: Engine, prompts: dict[str, list[int]], tokens: int) -> dict[str, Answer]:
    requests = [
        Request(call_id=name, prompt_ids=prompt, max_tokens=tokens, sampling={"ignore_eos": True})
        for name, prompt in prompts.items()
    ]
    return generate(engine, requests)


def _check_tails(whole: dict[str, Answer], tails: dict[str, Answer]) -> None:
    """Raises UsageError where a restored half differs from the same half of the whole call."""
    other_tokens = 0
    differences = []  # nats, of equal tokens
    for name, tail in tails.items():
        ids = whole[name].ids[HALF_TOKENS:]
        logprobs = whole[name].logprobs[HALF_TOKENS:]
        other_tokens += sum(one != other for one, other in zip(ids, tail.ids, strict=True))
        for at, logprob in enumerate(logprobs):
            if ids[at] == tail.ids[at]:
                differences.append(abs(logprob - tail.logprobs[at]))
    moved = sum(difference != 0 for difference in differences)
    if other_tokens or moved:
        raise UsageError(
            f"strict: a trial restore in this engine is not bit-identical: {moved} of "
            f"{len(differences)} log-probabilities of equal tokens moved, by up to "
            f"{max(differences, default=0):.2g} nats; {other_tokens} tokens differ",
            "docs/strict-restore.md tells which settings are known to hold; or leave strict out",
        )
