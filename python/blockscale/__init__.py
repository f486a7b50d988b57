# SPDX-License-Identifier: Apache-2.0
"""blockscale: NVFP4 casts and GEMM with fused epilogues, the same bytes on CPU and GPU.

Start with `quantize` and `gemm`; `formats.py` and `operand.py` define the objects they take and return.
"""

from . import checkpoint, nn, reference
from .formats import NVFP4, ScaleLayout
from .functional import amax, dequantize, quantize, quantize_both, swizzle_scales, transpose, unswizzle_scales
from .matmul import gemm
from .nn import Recipe
from .operand import NVFP4Operand
from .version import __version__

__all__ = [
    "NVFP4",
    "NVFP4Operand",
    "Recipe",
    "ScaleLayout",
    "__version__",
    "amax",
    "checkpoint",
    "dequantize",
    "gemm",
    "nn",
    "quantize",
    "quantize_both",
    "reference",
    "swizzle_scales",
    "transpose",
    "unswizzle_scales",
]
