# SPDX-License-Identifier: Apache-2.0
"""NVFP4 tensors for the tests of this folder, and comparison of all that they hold."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_same_operand

TILES = {"block": (16, 16)}
LAYOUTS = tuple(bs.ScaleLayout)
SWIZZLED = bs.ScaleLayout.SWIZZLED_128X4

FORMATS = (
    {},
    {"e4m3_max": 256},
    {"scaling": "row"},
    {"block": (16, 16)},
    {"block": (16, 16), "e4m3_max": 256},
)
"""Keywords of `quantize` for each kind of format."""


def random(*shape: int, gen: torch.Generator, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values whose rows and columns have amaxes of their own."""
    x = torch.randn(shape, generator=gen)
    return (x * torch.exp2(torch.randint(-3, 4, (shape[-1],), generator=gen).float())).to(dtype)


def assert_same_tensor(actual: NVFP4Tensor, expected: NVFP4Tensor) -> None:
    """Class, shape, nominal dtype, and both operands byte for byte."""
    assert type(actual) is NVFP4Tensor
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert (actual.has_rowwise, actual.wants_columnwise) == (expected.has_rowwise, expected.wants_columnwise)
    if expected.has_rowwise:
        assert_same_operand(actual.rowwise, expected.rowwise)
    if expected.wants_columnwise:
        assert_same_operand(actual.columnwise, expected.columnwise)


def assert_holds(tensor: NVFP4Tensor, x: torch.Tensor, **options: Any) -> None:
    """Every orientation equals the cast of x made by itself."""
    layout = tensor.scale_layout
    if tensor.has_rowwise:
        assert_same_operand(tensor.rowwise, bs.quantize(x, layout=layout, **options))
    if tensor.wants_columnwise:
        assert_same_operand(tensor.columnwise, bs.quantize(x, layout=layout, orientation="columnwise", **options))


def addresses(tensor: NVFP4Tensor) -> list[int]:
    """Of every component tensor."""
    return [part.data_ptr() for part in tensor._held.tensors()]
