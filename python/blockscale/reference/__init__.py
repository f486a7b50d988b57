# SPDX-License-Identifier: Apache-2.0
"""The oracle: blockscale's functions in plain torch, one FP32 operation a line, for tests and for users' own CI.

Start with `cast.py`; `codes.py` and `scales.py` hold the formulas that it strings together, `layouts.py` the order of
the block scales, `matmul.py` the product, `primary.py` the stages of primary weights. Every function gives the bytes of
the page "numerics" of the documentation, whose sections the comments name. Nothing here calls a kernel or shares code
with one. It is slow on purpose and runs wherever torch does.

Not offered here: stochastic rounding, making a rotated (rht) operand.
"""

from .adam import adam
from .cast import amax, dequantize, quantize, quantize_both, transpose
from .layouts import swizzle_scales, unswizzle_scales
from .matmul import gemm
from .primary import (
    fused_scale,
    merge_fragments,
    multi_tensor_fused_scale,
    multi_tensor_partial_amax,
    multi_tensor_partial_cast,
    multi_tensor_transpose,
    partial_amax,
    partial_cast,
)

__all__ = [
    "adam",
    "amax",
    "dequantize",
    "fused_scale",
    "gemm",
    "merge_fragments",
    "multi_tensor_fused_scale",
    "multi_tensor_partial_amax",
    "multi_tensor_partial_cast",
    "multi_tensor_transpose",
    "partial_amax",
    "partial_cast",
    "quantize",
    "quantize_both",
    "swizzle_scales",
    "transpose",
    "unswizzle_scales",
]
