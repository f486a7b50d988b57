# SPDX-License-Identifier: Apache-2.0
"""blockscale: NVFP4 casts and GEMM with fused epilogues, the same bytes on CPU and GPU.

Start with `quantize` and `gemm`; `formats.py` and `operand.py` define the objects they take and return.
"""

from . import checkpoint, dispatch, distributed, nn, optim, reference
from .dispatch import GemmConfig, gemm_candidates
from .distributed import cast_master_weights_to_nvfp4, post_all_gather_processing
from .formats import NVFP4, ScaleLayout
from .functional import amax, dequantize, quantize, quantize_both, swizzle_scales, transpose, unswizzle_scales
from .fused_scales import FusedScales
from .matmul import gemm
from .multi_tensor import (
    MultiTensorPlan,
    multi_tensor_fused_scale,
    multi_tensor_partial_amax,
    multi_tensor_partial_cast,
    multi_tensor_transpose,
)
from .nn import Recipe
from .operand import NVFP4Operand
from .primary import fused_scale, merge_fragments, partial_amax, partial_cast
from .tensor import NVFP4Tensor
from .tuning import autotune
from .version import __version__

__all__ = [
    "NVFP4",
    "FusedScales",
    "GemmConfig",
    "MultiTensorPlan",
    "NVFP4Operand",
    "NVFP4Tensor",
    "Recipe",
    "ScaleLayout",
    "__version__",
    "amax",
    "autotune",
    "cast_master_weights_to_nvfp4",
    "checkpoint",
    "dequantize",
    "dispatch",
    "distributed",
    "fused_scale",
    "gemm",
    "gemm_candidates",
    "merge_fragments",
    "multi_tensor_fused_scale",
    "multi_tensor_partial_amax",
    "multi_tensor_partial_cast",
    "multi_tensor_transpose",
    "nn",
    "optim",
    "partial_amax",
    "partial_cast",
    "post_all_gather_processing",
    "quantize",
    "quantize_both",
    "reference",
    "swizzle_scales",
    "transpose",
    "unswizzle_scales",
]
