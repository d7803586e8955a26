"""Two kernels of vLLM 0.26's batch-invariant mode, launched otherwise, so that steps of any size keep a token's bits.

vLLM mixes the class below into its workers (`worker_extension_cls`), in every process of tensor parallelism, before a model
is built; importing this module is what replaces them.
"""

import torch
from vllm.model_executor.layers import batch_invariant, layernorm

TILE_ROWS, TILE_COLUMNS, TILE_DEPTH = 64, 32, 128  # for every size, so that a row's sums keep their order
LARGE = 2**31  # elements from which on an offset takes 64 bits

_norm = layernorm.rms_norm_batch_invariant


def rms_norm(x, weight, eps=1e-6, residual=None):
    """vLLM's norm of one program a row also where a residual is added.

    Its own choice there has fewer threads a row, which sum in another order, from 256 tokens on.
    """
    if residual is None:
        return _norm(x, weight, eps)
    residual.add_(x)
    return _norm(residual, weight, eps), residual


def matmul(a, b, bias=None):
    """vLLM's matrix product in smaller tiles; those of 128 x 128 leave most of a GPU idle while a few rows are decoded."""
    (rows, depth), columns = a.shape, b.shape[1]
    out = torch.empty((rows, columns), device=a.device, dtype=a.dtype)
    units = torch.cuda.get_device_properties(a.device).multi_processor_count
    tiles = -(-rows // TILE_ROWS) * -(-columns // TILE_COLUMNS)
    batch_invariant.matmul_kernel_persistent[(min(units, tiles),)](
        *(a, b, out, bias, rows, columns, depth, *a.stride(), *b.stride(), *out.stride()),
        BLOCK_SIZE_M=TILE_ROWS,
        BLOCK_SIZE_N=TILE_COLUMNS,
        BLOCK_SIZE_K=TILE_DEPTH,
        GROUP_SIZE_M=8,
        NUM_SMS=units,
        A_LARGE=a.numel() > LARGE,
        B_LARGE=b.numel() > LARGE,
        C_LARGE=out.numel() > LARGE,
        HAS_BIAS=bias is not None,
        num_stages=4,
        num_warps=4,
    )
    return out


layernorm.rms_norm_batch_invariant = rms_norm
batch_invariant.matmul_persistent = matmul


class StrictKernels:
    """Nothing more: vLLM names it in its workers' configuration, and finds it by importing this module."""
