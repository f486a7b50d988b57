# SPDX-License-Identifier: Apache-2.0
"""Operands whose products are known exactly, and the epilogue line by line in FP64: what gemm is compared with.

Nothing here calls the code under test. Scale layouts come from `blockscale.reference`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from blockscale import reference as ref
from blockscale.formats import NVFP4, ScaleLayout
from blockscale.operand import NVFP4Operand
from tests.bits import from_bits

LINEAR, SWIZZLED = ScaleLayout.LINEAR, ScaleLayout.SWIZZLED_128X4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, relative."""

A_FORMATS: dict[str, dict[str, Any]] = {
    "tensor": {},
    "tensor_256": {"e4m3_max": 256},
    "row": {"scaling": "row"},
    "row_256": {"scaling": "row", "e4m3_max": 256},
    "tiles": {"block": (16, 16)},
}
"""Keywords of NVFP4 for every way of scaling an operand."""

PAIRS = [("tensor", "tensor"), ("row", "tensor"), ("tensor", "row"), ("row", "row"), ("row", "tiles"),
         ("tensor_256", "tiles"), ("row_256", "tensor"), ("tiles", "row_256")]  # fmt: skip
"""Formats of (a, b): row scaling on A, on B, on both; tiles as a weight and as `a`; unequal e4m3_max."""

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_RECIPROCAL = {448: 0x39C30C31, 256: 0x3A2AAAAB}  # bits of 1 / (6 * e4m3_max)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes (rows, K), one a byte, to (rows, K/2) bytes; the even column in the low nibble."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous()


def operand(
    codes: torch.Tensor,
    scales: torch.Tensor,
    amax: torch.Tensor | float = 2688.0,
    fmt: dict[str, Any] | None = None,
    layout: ScaleLayout = LINEAR,
) -> NVFP4Operand:
    """An operand of codes (rows, K) and LINEAR scale bytes (rows, K/16). amax 2688 decodes by code * scale alone."""
    second = torch.as_tensor(amax, dtype=torch.float32)
    made = NVFP4Operand(pack(codes), scales.contiguous(), second, tuple(codes.shape), format=NVFP4(**(fmt or {})))
    return made if layout is LINEAR else ref.swizzle_scales(made)


def random_operand(
    rows: int,
    k: int,
    gen: torch.Generator,
    fmt: dict[str, Any] | None = None,
    layout: ScaleLayout = LINEAR,
    low: int = 0,
    top: int = 0x7F,
) -> NVFP4Operand:
    """Any codes, any scale bytes in low..top-1, any amax."""
    form = NVFP4(**(fmt or {}))
    codes = torch.randint(0, 16, (rows, k), generator=gen, dtype=torch.uint8)
    tile = form.block[0]
    scales = torch.randint(low, top, (-(-rows // tile), k // 16), generator=gen, dtype=torch.uint8)
    amax = torch.rand((rows,) if form.scaling == "row" else (), generator=gen) * 3 + 0.1
    return operand(codes, scales.repeat_interleave(tile, dim=0)[:rows], amax, fmt, layout)


def exact_operand(
    rows: int, k: int, gen: torch.Generator, fmt: dict[str, Any] | None = None, layout: ScaleLayout = LINEAR
) -> NVFP4Operand:
    """Any codes, a quarter of them not zero; block scales 1/4..4: every partial sum of a product is exact in FP32."""
    form = NVFP4(**(fmt or {}))
    keep = torch.rand(rows, k, generator=gen) > 0.75
    codes = torch.randint(0, 16, (rows, k), generator=gen, dtype=torch.uint8) * keep
    tile = form.block[0]
    exponents = torch.randint(-2, 3, (-(-rows // tile), k // 16), generator=gen)
    scales = (0x38 + 8 * exponents).to(torch.uint8).repeat_interleave(tile, dim=0)[:rows]
    amax = torch.rand((rows,) if form.scaling == "row" else (), generator=gen) * 3 + 0.1
    return operand(codes, scales, amax, fmt, layout)


def code_values(op: NVFP4Operand) -> torch.Tensor:
    """val(code) * val(block scale) as FP64 (rows, K), on the CPU; a scale 7F is NaN."""
    codes = torch.stack((op.qdata.cpu() & 15, op.qdata.cpu() >> 4), dim=-1).reshape(op.rows, op.k).long()
    table = torch.tensor([*_VALUES, *(-v for v in _VALUES)], dtype=torch.float64)
    scales = ref.unswizzle_scales(op.to("cpu")).block_scale.to(torch.float32).double()
    return table[codes] * scales.repeat_interleave(16, dim=1)


def exact_accumulator(a: NVFP4Operand, b: NVFP4Operand) -> torch.Tensor:
    """The accumulator of two exact operands, as integers in units of 2^-6; checks that FP32 holds every partial sum."""
    wide_a, wide_b = code_values(a), code_values(b)
    largest = (wide_a.abs() @ wide_b.abs().T).amax() if a.rows and b.rows else torch.zeros(())
    assert largest < 2.0**18, "not an exact case: choose fewer non-zeros"
    units = (wide_a * 8).long() @ (wide_b * 8).long().T
    return units.float() * 2.0**-6


def true_product(a: NVFP4Operand | torch.Tensor, b: NVFP4Operand) -> tuple[torch.Tensor, torch.Tensor]:
    """(A @ B^T, |A| @ |B|^T) of the decoded operands in FP64, second levels as true quotients."""
    wide_a, wide_b = decoded(a), decoded(b)
    return wide_a @ wide_b.T, wide_a.abs() @ wide_b.abs().T


def decoded(x: NVFP4Operand | torch.Tensor) -> torch.Tensor:
    """The values of an operand in FP64, without the roundings of dequantize."""
    if isinstance(x, torch.Tensor):
        return x.cpu().double().reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return code_values(x) * (x.amax.cpu().double() / x.format.second_level_range).view(-1, 1)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """FP64 to FP32 and back. Of one product or one sum of FP32 values this is the FP32 operation, rounded once."""
    return x.float().double()


def _decode_factor(op: NVFP4Operand) -> torch.Tensor:
    reciprocal = from_bits(_RECIPROCAL[op.format.e4m3_max]).double()
    return _rounded(op.amax.cpu().double() * reciprocal)


def _wide(value: torch.Tensor | float) -> torch.Tensor:
    return value.detach().cpu().double() if isinstance(value, torch.Tensor) else torch.tensor(value).double()


def epilogue(
    acc: torch.Tensor,
    a: NVFP4Operand | torch.Tensor,
    b: NVFP4Operand,
    *,
    alpha: torch.Tensor | float | None = None,
    c: torch.Tensor | None = None,
    beta: float | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """FP32 t (M, N) from acc (M, N): numerics, section 11.2, each operation in FP64 and rounded to FP32.

    Activations other than relu are left in FP64 accuracy and rounded once: compare these with a tolerance.
    """
    t = acc.double()
    if isinstance(a, NVFP4Operand):
        t = _rounded(t * _decode_factor(a).view(-1, 1))
    t = _rounded(t * _decode_factor(b).view(1, -1))
    if alpha is not None:
        t = _rounded(_wide(alpha).view(()) * t)
    if c is not None and beta != 0:
        u = _rounded(_wide(1.0 if beta is None else beta) * _wide(c).reshape(t.shape))
        t = _rounded(t + u)
    if bias is not None:
        t = _rounded(t + _wide(bias))
    return activated(t, activation).float()


def activated(t: torch.Tensor, activation: str | None) -> torch.Tensor:
    """The activation of FP64 values, from its definition."""
    if activation is None:
        return t
    if activation == "relu":
        return torch.where(t > 0, t, torch.where(t.isnan(), t, torch.zeros_like(t)))
    if activation == "silu":
        return t * torch.sigmoid(t)
    if activation == "gelu":
        return t * torch.special.ndtr(t)
    assert activation == "gelu_tanh"
    return t * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))


def on(device: torch.device, value: Any) -> Any:
    """Operands, tensors, and dicts of them on a device; anything else as it is."""
    if isinstance(value, dict):
        return {key: on(device, item) for key, item in value.items()}
    return value.to(device) if isinstance(value, (NVFP4Operand, torch.Tensor)) else value
