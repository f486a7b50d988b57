# SPDX-License-Identifier: Apache-2.0
"""Enumerations of the C ABI (kernels/contract/types.h) and the plain values that cross an op schema."""

from __future__ import annotations

import torch

from .formats import ScaleLayout

DTYPE_CODE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
FLOAT_INPUTS = (torch.float32, torch.bfloat16, torch.float16)

SCALING_CODE = {"tensor": 0, "row": 1}
LAYOUTS = (ScaleLayout.LINEAR, ScaleLayout.SWIZZLED_128X4)
AMAX_CODE = {None: -1, "tensor": 0, "row": 1, "column": 2}
ACTIVATION_CODE = {None: 0, "relu": 1, "silu": 2, "gelu": 3, "gelu_tanh": 4}


def layout_code(layout: ScaleLayout) -> int:
    """The index of a layout in `LAYOUTS`.

    An identity test, not a dict lookup: torch.compile installs no guard on an enum that it only looks up, and a graph
    made for one layout would then serve the other.
    """
    return 1 if layout is ScaleLayout.SWIZZLED_128X4 else 0
