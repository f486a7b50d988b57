# SPDX-License-Identifier: Apache-2.0
"""Arguments for every op in torch.ops.blockscale: small, finite, with padding in the scales. One entry an op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from blockscale.formats import ScaleLayout

Arguments = tuple[Any, ...]
LINEAR, SWIZZLED = 0, 1
TENSOR, ROW = 0, 1
_LAYOUTS = (ScaleLayout.LINEAR, ScaleLayout.SWIZZLED_128X4)


def schemas() -> dict[str, str]:
    """Every op of the library, with its schema."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("blockscale::")]
    ops = {
        name.removeprefix("blockscale::"): getattr(torch.ops.blockscale, name.removeprefix("blockscale::"))
        for name in names
    }
    return {name: str(getattr(op, overload)._schema) for name, op in ops.items() for overload in op.overloads()}


def matrix(m: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(m * k).view(m, k) % 23 - 11).to(dtype) / 8


def parts(rows: int, k: int, layout: int, scaling: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An operand's tensors with finite contents."""
    return (
        (torch.arange(rows * k // 2) % 251).to(torch.uint8).view(rows, k // 2),
        torch.full(_LAYOUTS[layout].shape(rows, k), 0x38, dtype=torch.uint8),
        torch.ones(rows) if scaling == ROW else torch.ones(()),
    )


def _quantize(out: bool) -> Iterator[Arguments]:
    for m, k, dtype in (
        (1, 16, torch.float32),
        (5, 48, torch.bfloat16),
        (129, 464, torch.float16),
        (0, 32, torch.float32),
    ):
        for scaling, layout in ((TENSOR, LINEAR), (ROW, SWIZZLED), (TENSOR, SWIZZLED)):
            amax = None if layout == LINEAR else torch.ones(m) if scaling == ROW else torch.ones(())
            arguments = (matrix(m, k, dtype), amax, scaling, 1, 448, layout, False)
            yield (*arguments, *parts(m, k, layout, scaling)) if out else arguments
    tiles = (matrix(48, 80)[:, :64], None, TENSOR, 16, 256, SWIZZLED, True)  # strided rows
    yield (*tiles, *parts(64, 48, SWIZZLED, TENSOR)) if out else tiles


def _quantize_both(out: bool) -> Iterator[Arguments]:
    for m, k, scaling, block_rows, layout in (
        (16, 48, TENSOR, 1, SWIZZLED),
        (144, 80, ROW, 1, SWIZZLED),
        (48, 64, TENSOR, 16, LINEAR),
        (0, 32, ROW, 1, LINEAR),
    ):
        given = (torch.ones(m), torch.ones(k)) if scaling == ROW else (None, None)
        arguments = (matrix(m, k), *given, scaling, block_rows, 448, layout)
        made = (*parts(m, k, layout, scaling), *parts(k, m, layout, scaling))
        yield (*arguments, *made) if out else arguments


def _dequantize(out: bool) -> Iterator[Arguments]:
    for rows, k, layout, scaling, dtype in (
        (5, 48, SWIZZLED, TENSOR, torch.float32),
        (129, 464, LINEAR, ROW, torch.bfloat16),
        (0, 32, LINEAR, TENSOR, torch.float16),
    ):
        head = (*parts(rows, k, layout, scaling), scaling, 448, layout)
        yield (*head, torch.zeros(rows, k, dtype=dtype)) if out else (*head, dtype)


def _transpose(out: bool) -> Iterator[Arguments]:
    for rows, k, layout in ((16, 48, SWIZZLED), (48, 16, LINEAR), (144, 80, SWIZZLED)):
        head = (*parts(rows, k, layout, TENSOR), 448, layout)
        yield (*head, *parts(k, rows, layout, TENSOR)) if out else head


def _relayout() -> Iterator[Arguments]:
    for rows, k in ((5, 48), (129, 464)):
        for source, target in ((LINEAR, SWIZZLED), (SWIZZLED, LINEAR)):
            yield parts(rows, k, source, TENSOR)[1], rows, k, source, target


def _gemm_shared() -> Iterator[tuple[Arguments, int, int]]:
    """The arguments that all GEMM ops share, with M and N."""
    for m, n, k, scaling, layout, return_kind in ((5, 16, 48, ROW, SWIZZLED, 1), (17, 32, 64, TENSOR, LINEAR, -1)):
        a = (*parts(m, k, layout, scaling), scaling, 448, layout)
        b = (*parts(n, k, SWIZZLED, TENSOR), TENSOR, 448, SWIZZLED)
        yield (*a, *b, torch.ones(n), torch.ones(1), 1.0, matrix(m, n), 0.5, 1, return_kind), m, n
        plain = (matrix(m, k, torch.bfloat16), None, None, TENSOR, 448, LINEAR)
        yield (*plain, *b, None, None, 0.5, None, 0.0, 0, 0), m, n


def _gemm() -> Iterator[Arguments]:
    for shared, _, _ in _gemm_shared():
        yield (*shared, torch.bfloat16)


def _gemm_out() -> Iterator[Arguments]:
    for shared, m, n in _gemm_shared():
        yield (*shared, torch.zeros(m, n))


def _gemm_nvfp4(out: bool) -> Iterator[Arguments]:
    for shared, m, n in _gemm_shared():
        scaling = ROW if m == 5 else TENSOR
        head = (*shared, torch.ones(m) if scaling == ROW else torch.ones(()), scaling, 448, SWIZZLED)
        yield (*head, *parts(m, n, SWIZZLED, scaling)) if out else head


SAMPLES: dict[str, Callable[[], Iterator[Arguments]]] = {
    "amax": lambda: ((matrix(m, k), kind) for m, k in ((1, 16), (5, 48), (0, 16)) for kind in (0, 1, 2)),
    "quantize": lambda: _quantize(False),
    "quantize_out": lambda: _quantize(True),
    "quantize_both": lambda: _quantize_both(False),
    "quantize_both_out": lambda: _quantize_both(True),
    "dequantize": lambda: _dequantize(False),
    "dequantize_out": lambda: _dequantize(True),
    "transpose": lambda: _transpose(False),
    "transpose_out": lambda: _transpose(True),
    "relayout": _relayout,
    "gemm": _gemm,
    "gemm_out": _gemm_out,
    "gemm_nvfp4": lambda: _gemm_nvfp4(False),
    "gemm_nvfp4_out": lambda: _gemm_nvfp4(True),
}

MUTATED: dict[str, tuple[str, ...]] = {
    "quantize_out": ("qdata", "block_scale", "amax_out"),
    "quantize_both_out": ("qdata", "block_scale", "amax_out", "qdata_t", "block_scale_t", "amax_out_t"),
    "dequantize_out": ("out",),
    "transpose_out": ("qdata_out", "block_scale_out", "amax_out"),
    "gemm_out": ("out",),
    "gemm_nvfp4_out": ("qdata", "block_scale", "amax_out"),
}
"""What each op may write; every other op writes nothing of its arguments."""
