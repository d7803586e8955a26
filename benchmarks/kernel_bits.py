"""Which kernels of vLLM's batch-invariant mode keep a token's bits in steps of any size.

    python benchmarks/kernel_bits.py

On a GPU; prints one table. Rows are computed one by one and then in steps of n, by each operation
of a step, and counted where equal to the last bit; attention at a query of one token, as decode
runs it, and as the last of 40, as prefill does.
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
    matrix = values(6144, HIDDEN)

    def fused(x: torch.Tensor, at: slice) -> torch.Tensor:
        out = x.clone()
        ops.fused_add_rms_norm(out, residual[at].clone(), weight, 1e-6)
        return out

    def told(operation) -> list[str]:
        """All rows in steps of n tokens against all rows one by one."""

        def in_steps(n: int) -> torch.Tensor:
            return torch.cat(
                [operation(whole[p : p + n], slice(p, p + n)) for p in range(0, len(whole), n)]
            )

        alone = in_steps(1)
        return [f"{int((alone == in_steps(n)).all(-1).sum()):,}" for n in SIZES]

    plain = told(
        lambda x, at: torch.nn.functional.linear(x, matrix)
    )  # before anything is overridden
    invariant.init_batch_invariance()
    tried = {
        "linear, cuBLAS as it comes": plain,
        "linear_batch_invariant": told(lambda x, at: invariant.linear_batch_invariant(x, matrix)),
        "fused_add_rms_norm": told(fused),
        "rms_norm_batch_invariant": told(
            lambda x, at: invariant.rms_norm_batch_invariant(x, weight)
        ),
        "log_softmax": told(lambda x, at: torch.log_softmax(x.float(), -1)),
    }
    vllms = invariant.matmul_persistent
    # importing it replaces both kernels, so what is vLLM's own was tried before
    from restore_parity.experiment.engine import kernels

    tried["strict's product"] = told(lambda x, at: kernels.matmul(x, matrix.t()))
    tried["strict's norm with a residual"] = told(
        lambda x, at: kernels.rms_norm(x, weight, 1e-6, residual[at].clone())[0]
    )
    print(
        f"| rows of {len(whole):,} equal, in steps of | {' | '.join(map(str, SIZES))} |\n"
        f"| -- |{' -- |' * len(SIZES)}"
    )
    for name, cells in tried.items():
        print(f"| {name} | {' | '.join(cells)} |")
    same = torch.equal(kernels.matmul(whole, matrix.t()), vllms(whole, matrix.t()))
    print(f"\nstrict's product has {'the same bits as' if same else 'other bits than'} vLLM's own")
    print(
        f"\n| FLASH_ATTN, head size | {' | '.join(f'{n} keys' for n in LENGTHS)} |\n"
        f"| -- |{' -- |' * len(LENGTHS)}"
    )
    for head in HEADS:
        cells = []
        for length in LENGTHS:
            one, many = (attend(torch, values, head, length, queries) for queries in (1, 40))
            off = (one.float() - many.float()).abs().max().item()
            cells.append("same" if torch.equal(one, many) else f"{off:.1g} apart")
        print(f"| {head} | {' | '.join(cells)} |")


def attend(torch, values, head: int, length: int, queries: int):
    """Attention of a sequence's last token, one of `queries`, in a batch of four sequences."""
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
