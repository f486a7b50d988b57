# SPDX-License-Identifier: Apache-2.0
"""Layers: `Linear` holds an NVFP4 weight, `convert` puts it into a model, `Recipe` says how both are quantized.

Start with `Linear.forward` in `linear.py`: quantize the activation, one `gemm` with the bias in its epilogue. It is for
inference: where a gradient would be expected, a NotImplementedError says so. For training, a `torch.nn.Linear` whose
weight is an `NVFP4Tensor` computes `functional.linear`.
"""

from . import functional
from .conversion import ConversionReport, convert
from .linear import Linear
from .recipe import Recipe

__all__ = ["ConversionReport", "Linear", "Recipe", "convert", "functional"]
