# SPDX-License-Identifier: Apache-2.0
"""Random inputs of casts that reach every branch: wide exponents, ties, signed zeros, subnormals, NaN and inf."""

from __future__ import annotations

from typing import Any

import torch

from blockscale.formats import ScaleLayout
from blockscale.operand import NVFP4Operand

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LINEAR, SWIZZLED = ScaleLayout.LINEAR, ScaleLayout.SWIZZLED_128X4

FORMATS: dict[str, dict[str, Any]] = {
    "1d": {},
    "1d_256": {"e4m3_max": 256},
    "row": {"scaling": "row"},
    "row_256": {"scaling": "row", "e4m3_max": 256},
    "2d": {"block": (16, 16)},
    "2d_256": {"block": (16, 16), "e4m3_max": 256},
}
"""Keywords of `quantize` for every format that it writes."""

KINDS = ("wide", "ties", "tiny", "nonfinite")

_TIES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0)


def make(kind: str, m: int, k: int, gen: torch.Generator, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An (m, k) input of one of `KINDS`."""
    x = {"wide": _wide, "ties": _ties, "tiny": _tiny, "nonfinite": _nonfinite}[kind](m, k, gen, dtype)
    x[torch.rand(m, k, generator=gen) < 0.06] = 0.0
    x[torch.rand(m, k, generator=gen) < 0.06] = -0.0
    return x.to(dtype)


def second_level(x: torch.Tensor, scaling: str, columnwise: bool, gen: torch.Generator) -> torch.Tensor:
    """An amax to give: about that of x, often smaller (clipping) and, by row, sometimes 0, negative, inf or NaN."""
    finite = torch.where(x.float().isfinite(), x.float().abs(), torch.zeros(()))
    if scaling == "tensor":
        return (finite.max() if finite.numel() else torch.zeros(())) * 0.7
    rows = finite.T if columnwise else finite
    own = rows.amax(dim=1) if rows.shape[1] else torch.zeros(rows.shape[0])
    factor = torch.rand(own.shape, generator=gen) * 2 - 0.2
    special = torch.tensor([0.0, -0.0, float("inf"), float("nan"), -1.0, 1e-40])
    drawn = special[torch.randint(0, len(special), own.shape, generator=gen)]
    return torch.where(torch.rand(own.shape, generator=gen) < 0.15, drawn, own * factor)


def as_rowwise(op: NVFP4Operand) -> NVFP4Operand:
    """The same fields with orientation="rowwise": a columnwise operand is the rowwise one of the transpose."""
    return NVFP4Operand(op.qdata, op.block_scale, op.amax, op.shape, op.layout, op.format, "rowwise")


def _powers(shape: tuple[int, ...], low: int, high: int, gen: torch.Generator) -> torch.Tensor:
    return torch.ldexp(torch.ones(shape), torch.randint(low, high, shape, generator=gen))


def _wide(m: int, k: int, gen: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Rows and blocks of very different magnitude; a few elements far from the rest."""
    x = torch.randn(m, k, generator=gen) * _powers((m, 1), -4, 5, gen)
    x = x * _powers((m, -(-k // 16)), -7, 3, gen).repeat_interleave(16, dim=1)[:, :k]
    if dtype is not torch.float16:
        far = torch.rand(m, k, generator=gen) < 0.01
        x = torch.where(far, x * _powers((m, k), -100, 4, gen), x)
    return x


def _ties(m: int, k: int, gen: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Midpoints and grid values under power-of-two scales: an element of 2688 pins the second level to 1 over 1."""
    grid = torch.tensor(_TIES)[torch.randint(0, len(_TIES), (m, k), generator=gen)]
    sign = torch.randint(0, 2, (m, k), generator=gen) * 2.0 - 1.0
    x = grid * sign * _powers((m, -(-k // 16)), -3, 9, gen).repeat_interleave(16, dim=1)[:, :k]
    if k:
        x[:, 0] = 2688.0
    return x


def _tiny(m: int, k: int, gen: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Subnormals of the dtype, among numbers just above them."""
    low = {torch.float32: -149, torch.bfloat16: -133, torch.float16: -24}[dtype]
    return torch.randn(m, k, generator=gen).round() * _powers((m, k), low, low + 14, gen)


def _nonfinite(m: int, k: int, gen: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Some rows with a NaN of either sign, some with an inf; under 1 x 16 and row scaling the others are untouched."""
    x = _wide(m, k, gen, dtype)
    values = torch.tensor([float("nan"), -float("nan"), float("inf"), -float("inf")])
    drawn = values[torch.randint(0, 4, (m, k), generator=gen)]
    rows = torch.rand(m, 1, generator=gen) < 0.4
    return torch.where(rows & (torch.rand(m, k, generator=gen) < 0.02), drawn, x)
