"""Two kernels of vLLM 0.26's batch-invariant mode, launched so that steps of any size keep bits.

vLLM mixes the class below into its workers (`worker_extension_cls`), in every process of tensor
parallelism, before a model is built; importing this module is what replaces the kernels.
"""

from importlib import import_module
from typing import Any

import torch

# by name: they are vLLM 0.26's, and types may be checked beside another version
layernorm: Any = import_module("vllm.model_executor.layers.layernorm")
batch_invariant: Any = import_module("vllm.model_executor.layers.batch_invariant")

# Sizes of a tile; they are the same for every product, so that a row's sums keep their order
TILE_ROWS = 64
TILE_COLUMNS = 32
TILE_DEPTH = 128
LARGE = 2**31  # elements from which on an offset takes 64 bits

_norm = layernorm.rms_norm_batch_invariant


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    residual: torch.Tensor | None = None,
) -> Any:
    """vLLM's norm of one program a row also where a residual is added.

    Its own choice there has fewer threads a row, which sum in another order, from 256 tokens on.
    Returns the norm, and with a residual the sum that it is the norm of.
    """
    if residual is None:
        return _norm(x, weight, eps)
    residual.add_(x)
    return _norm(residual, weight, eps), residual


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """vLLM's matrix product of a (rows, depth) and b (depth, columns), in smaller tiles.

    Those of 128 x 128 leave most of a GPU idle while a few rows are decoded.
    """
    rows, depth = a.shape
    columns = b.shape[1]
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
    """Nothing more: vLLM imports this module to find the class that its workers' settings name."""
