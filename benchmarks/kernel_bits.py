"""Which kernels of vLLM's batch-invariant mode give a token the same bits in steps of any size: one table, on a GPU.

    python benchmarks/kernel_bits.py

A token is computed alone and then as the first of n, by each operation of a step; attention at a query of one token, as
decode runs it, and as the last of 40, as prefill does. `same` means equal to the last bit.
"""

import os

os.environ["VLLM_BATCH_INVARIANT"] = "1"
SIZES = (2, 16, 64, 128, 255, 256, 512, 2048)
HEADS = (32, 64, 96, 128, 192, 256)
HIDDEN = 2048  # Qwen3-1.7B's
LENGTHS = (64, 100, 200, 300, 1000, 2500)
BLOCK = 16  # tokens of a page of the cache, vLLM's default


def main() -> None:
    import torch
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers import batch_invariant as invariant

    torch.manual_seed(0)

    def values(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    whole, residual, weight = values(max(SIZES), HIDDEN), values(max(SIZES), HIDDEN), values(HIDDEN)
    matrix, ones = values(6144, HIDDEN), torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")

    def fused(n: int) -> torch.Tensor:
        x = whole[:n].clone()
        ops.fused_add_rms_norm(x, residual[:n].clone(), ones, 1e-6)
        return x

    def before(product) -> dict:
        return {n: product(n)[0].clone() for n in (1, *SIZES)}

    plain = before(lambda n: torch.nn.functional.linear(whole[:n], matrix))  # cuBLAS as it comes
    invariant.init_batch_invariance()
    tried = {
        "linear, cuBLAS as it comes": plain,
        "linear, cuBLASLt without workspace": before(lambda n: torch.nn.functional.linear(whole[:n], matrix)),
        "linear_batch_invariant": before(lambda n: invariant.linear_batch_invariant(whole[:n], matrix)),
        "fused_add_rms_norm": before(fused),
        "rms_norm_batch_invariant": before(lambda n: invariant.rms_norm_batch_invariant(whole[:n], weight)),
        "log_softmax": before(lambda n: torch.log_softmax(whole[:n].float(), -1)),
    }
    print(f"| operation | {' | '.join(map(str, SIZES))} |\n| -- |{' -- |' * len(SIZES)}")
    for name, made in tried.items():
        told = ["same" if torch.equal(made[1], made[n]) else "differs" for n in SIZES]
        print(f"| {name} | {' | '.join(told)} |")
    print(f"\n| FLASH_ATTN, head size | {' | '.join(f'{n} keys' for n in LENGTHS)} |\n| -- |{' -- |' * len(LENGTHS)}")
    for head in HEADS:
        told = []
        for length in LENGTHS:
            one, many = (attend(torch, values, head, length, queries) for queries in (1, 40))
            off = (one.float() - many.float()).abs().max().item()
            told.append("same" if torch.equal(one, many) else f"{off:.1g} apart")
        print(f"| {head} | {' | '.join(told)} |")


def attend(torch, values, head: int, length: int, queries: int):
    """The attention of a sequence's last token, among `queries` of its last ones, in a batch of four such sequences."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version

    torch.manual_seed(head + length)
    batch, pages = 4, -(-length // BLOCK)
    keys, texts = values(batch * pages, BLOCK, 3, head), values(batch * pages, BLOCK, 3, head)
    asked = values(batch, 40, 9, head)[:, -queries:].reshape(batch * queries, 9, head)
    numbers = {"dtype": torch.int32, "device": "cuda"}
    out = flash_attn_varlen_func(
        q=asked,
        k=keys,
        v=texts,
        cu_seqlens_q=torch.arange(batch + 1, **numbers) * queries,
        max_seqlen_q=queries,
        seqused_k=torch.full((batch,), length, **numbers),
        max_seqlen_k=length,
        softmax_scale=head**-0.5,
        causal=True,
        block_table=torch.arange(batch * pages, **numbers).reshape(batch, pages),
        fa_version=get_flash_attn_version(head_size=head),
        num_splits=1,
    )
    return out.reshape(batch, queries, 9, head)[:, -1]


if __name__ == "__main__":
    main()
