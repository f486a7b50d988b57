# SPDX-License-Identifier: Apache-2.0
"""`gemm` in plain torch: the exact sum of products rounded once, then the epilogue. numerics, sections 11 and 12."""

from __future__ import annotations

import math
from typing import Literal

import torch

from ..errors import not_offered, type_error, value_error
from ..formats import BLOCK, NVFP4, ScaleLayout
from ..operand import NVFP4Operand
from .arguments import float_dtype, narrowed, second_level
from .cast import amax, quantize
from .codes import E4M3_NAN, e2m1_value, e4m3_value, unpack
from .fp32 import constant, ieee_subnormals
from .layouts import unswizzle_scales
from .scales import decode_scale

Activation = Literal["relu", "silu", "gelu", "gelu_tanh"]

_ACTIVATIONS = (None, "relu", "silu", "gelu", "gelu_tanh")
_K_MAX = 1 << 20
_K_CHUNK = 1024
"""Products are at most (6 * 448 * 2^10)^2 < 2^43 units, so that 1024 of them add up below 2^53 and FP64 is exact."""


@ieee_subnormals()
def gemm(
    a: NVFP4Operand | torch.Tensor,
    b: NVFP4Operand,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    out_format: NVFP4 | None = None,
    out_amax: torch.Tensor | float | None = None,
    bias: torch.Tensor | None = None,
    alpha: torch.Tensor | float | None = None,
    c: torch.Tensor | None = None,
    beta: float | None = None,
    activation: Activation | None = None,
    return_amax: Literal["tensor", "row"] | None = None,
) -> torch.Tensor | NVFP4Operand | tuple[torch.Tensor | NVFP4Operand, torch.Tensor]:
    """``D = activation(alpha * (A @ B^T) + beta * C + bias)``. numerics, sections 11 and 12.

    Args:
        a: operand (..., K), or a bfloat16 or float16 tensor (..., K) (W4A16). M is the product of the leading sizes.
        b: operand (N, K). Either may be any orientation, layout and format; ``rht`` must be equal.
        out_dtype: float32, bfloat16 or float16; not used with out_format.
        out_format: None, or the format of an NVFP4 result: block (1, 16), no four_over_six, no rht; N % 16 == 0.
        out_amax: with out_format: the second level of the result, as ``amax`` of `quantize`.
        bias: (N,), float32, bfloat16 or float16.
        alpha: number, or float32 tensor with one element; None is 1.
        c: of the shape of D, float32, bfloat16 or float16, unit column stride. Not read if beta is 0.
        beta: number; None is 1 with c and 0 without.
        activation: None, "relu", "silu", "gelu" (erf form) or "gelu_tanh".
        return_amax: None; or "tensor" or "row", to return also the amax, float32 () or (M,): of D as stored, or,
            with out_format, of the FP32 values that were quantized.

    Returns:
        D of shape (..., N), or with out_format an operand of that shape in SWIZZLED_128X4 layout; with return_amax the
        pair of it and the amax.

    Raises:
        TypeError: the kind or dtype of an argument.
        ValueError: shapes, devices or rht that differ; K above 2^20; beta without c; out_amax missing or unused.
        NotImplementedError: another out_format.
    """
    _check_operands(a, b)
    _check_epilogue(a, b, out_dtype, bias, alpha, c, beta, activation, return_amax)
    m, n = math.prod(a.shape[:-1]), b.rows
    _check_output(out_format, out_amax, m, n, b.device)
    acc = accumulate(a, b)
    t = epilogue(acc, a, b, bias=bias, alpha=alpha, c=c, beta=beta, activation=activation)
    shape = (*a.shape[:-1], n)
    if out_format is None:
        out: torch.Tensor | NVFP4Operand = t.to(out_dtype).view(shape)
    else:
        # D is the FP32 t: nothing is rounded to 16 bits in between.
        out = quantize(
            t.view(shape),
            scaling=out_format.scaling,
            amax=out_amax,
            e4m3_max=out_format.e4m3_max,
            layout=ScaleLayout.SWIZZLED_128X4,
        )
    if return_amax is None:
        return out
    return out, amax(t if isinstance(out, NVFP4Operand) else out.view(m, n), return_amax)


def accumulate(a: NVFP4Operand | torch.Tensor, b: NVFP4Operand) -> torch.Tensor:
    """``sum_k val(a) * val(sa) * val(b) * val(sb)`` rounded once: FP32 (M, N). numerics, section 11.1.

    Second levels are left out. Two operands: exact integers in units of 2^-20. A plain tensor ``a``: an FP64 sum in
    ascending k, rounded once. A sum of 0 is +0; a block scale 7F in a row of either operand makes its sums NaN.
    """
    if not isinstance(a, NVFP4Operand):
        return _accumulate_plain(a.detach().reshape(math.prod(a.shape[:-1]), a.shape[-1]), b)
    a_units, a_nan = _units(a)
    b_units, b_nan = _units(b)
    total = torch.zeros((a.rows, b.rows), dtype=torch.int64, device=a.device)
    for start in range(0, a.k, _K_CHUNK):
        chunk = slice(start, start + _K_CHUNK)
        total += (a_units[:, chunk] @ b_units[:, chunk].T).to(torch.int64)
    acc = total.to(torch.float32) * 2.0**-20
    return torch.where(a_nan[:, None] | b_nan, torch.full_like(acc, float("nan")), acc)


def epilogue(
    acc: torch.Tensor,
    a: NVFP4Operand | torch.Tensor,
    b: NVFP4Operand,
    *,
    bias: torch.Tensor | None = None,
    alpha: torch.Tensor | float | None = None,
    c: torch.Tensor | None = None,
    beta: float | None = None,
    activation: Activation | None = None,
) -> torch.Tensor:
    """The FP32 values t (M, N) before the output rounding, from acc (M, N). numerics, section 11.2, line by line."""
    if a.shape[-1] == 0:
        t = torch.zeros_like(acc)
    else:
        t = acc
        if isinstance(a, NVFP4Operand):
            t = t * decode_scale(a.amax, a.format.second_level_range).view(-1, 1)
        t = t * decode_scale(b.amax, b.format.second_level_range).view(1, -1)
        if alpha is not None:
            t = _factor("alpha", alpha, t) * t
    beta = 1.0 if beta is None else beta
    if c is not None and beta != 0:
        u = _factor("beta", beta, t) * c.detach().reshape(t.shape).float()
        t = t + u
    if bias is not None:
        t = t + bias.detach().float()
    return _activated(t, activation)


def _factor(arg: str, value: torch.Tensor | float, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().view(())
    return constant(narrowed("gemm", arg, value), like)


def _units(op: NVFP4Operand) -> tuple[torch.Tensor, torch.Tensor]:
    """``val(code) * val(block_scale)`` in units of 2^-10, FP64 integers (rows, K); and which rows hold a 7F (as 0)."""
    scale = unswizzle_scales(op).block_scale.view(torch.uint8)
    is_nan = scale == E4M3_NAN
    scale_units = e4m3_value(torch.where(is_nan, torch.zeros_like(scale), scale)).double() * 2.0**9
    code_units = e2m1_value(unpack(op.qdata)).double() * 2.0
    return code_units * scale_units.repeat_interleave(BLOCK, dim=1), is_nan.any(dim=1)


def _accumulate_plain(a: torch.Tensor, b: NVFP4Operand) -> torch.Tensor:
    scale = e4m3_value(unswizzle_scales(b).block_scale.view(torch.uint8)).double()
    weights = e2m1_value(unpack(b.qdata)).double() * scale.repeat_interleave(BLOCK, dim=1)
    total = torch.zeros((a.shape[0], b.rows), dtype=torch.float64, device=b.device)
    for k in range(b.k):
        total = total + a[:, k, None].double() * weights[:, k]  # the product has 8 or 11 + 6 bits: exact
    return total.to(torch.float32)


def _activated(t: torch.Tensor, activation: Activation | None) -> torch.Tensor:
    """The activation in FP64, rounded once to FP32. numerics, section 11.2."""
    if activation is None:
        return t
    if activation == "relu":
        return torch.where((t > 0) | t.isnan(), t, torch.zeros_like(t))
    wide = t.double()
    if activation == "silu":
        y = wide / (1 + torch.exp(-wide))
    elif activation == "gelu":
        y = 0.5 * wide * torch.special.erfc(-wide * math.sqrt(0.5))
    else:
        # 0.5 * (1 + tanh(z)) = 1 / (1 + exp(-2z)), without the cancellation at z << 0.
        z = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        y = wide / (1 + torch.exp(-2 * z))
    return y.to(torch.float32)


def _check_operands(a: NVFP4Operand | torch.Tensor, b: NVFP4Operand) -> None:
    if not isinstance(b, NVFP4Operand):
        raise type_error("gemm", "b", "an NVFP4Operand", type(b).__name__)
    if isinstance(a, torch.Tensor):
        if a.dtype not in (torch.bfloat16, torch.float16):
            raise type_error("gemm", "a", "an NVFP4Operand, or bfloat16 or float16", a.dtype, "Quantize it first.")
        if a.dim() == 0:
            raise value_error("gemm", "a", "of shape (..., K)", "()")
    elif not isinstance(a, NVFP4Operand):
        raise type_error("gemm", "a", "an NVFP4Operand, or a bfloat16 or float16 tensor", type(a).__name__)
    if a.shape[-1] != b.k:
        raise value_error("gemm", "b", f"(N, {a.shape[-1]}), with the K of a", b.shape)
    if b.k > _K_MAX:
        raise value_error("gemm", "b", f"(N, K) with K at most {_K_MAX}", f"K = {b.k}")
    _check_device("a", a.device, b.device)
    a_rht = a.format.rht if isinstance(a, NVFP4Operand) else None
    if a_rht != b.format.rht:
        raise value_error("gemm", "b", f"of the rotation of a, rht={a_rht}", f"rht={b.format.rht}")


def _check_epilogue(
    a: NVFP4Operand | torch.Tensor,
    b: NVFP4Operand,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None,
    alpha: torch.Tensor | float | None,
    c: torch.Tensor | None,
    beta: float | None,
    activation: Activation | None,
    return_amax: str | None,
) -> None:
    float_dtype("gemm", "out_dtype", out_dtype)
    if bias is not None:
        _check_tensor("bias", bias, (b.rows,), b.device)
    if c is not None:
        _check_tensor("c", c, (*a.shape[:-1], b.rows), b.device)
        strides = [step for size, step in zip(c.shape, c.stride(), strict=True) if size > 1]
        if 0 in strides or (c.shape[-1] > 1 and c.stride(-1) != 1):
            raise value_error("gemm", "c", "of unit column stride and no stride 0", f"strides {c.stride()}")
    if beta is not None and narrowed("gemm", "beta", beta) != 0 and c is None:
        raise value_error("gemm", "beta", "0 or None without c", beta)
    if isinstance(alpha, torch.Tensor):
        if alpha.dtype is not torch.float32:
            raise type_error("gemm", "alpha", "float32", alpha.dtype)
        if alpha.numel() != 1:
            raise value_error("gemm", "alpha", "of one element", tuple(alpha.shape))
        _check_device("alpha", alpha.device, b.device)
    elif alpha is not None:
        narrowed("gemm", "alpha", alpha)
    if activation not in _ACTIVATIONS:
        raise value_error("gemm", "activation", f"one of {_ACTIVATIONS}", repr(activation))
    if return_amax not in (None, "tensor", "row"):
        raise value_error("gemm", "return_amax", 'None, "tensor" or "row"', repr(return_amax))


def _check_output(
    out_format: NVFP4 | None, out_amax: torch.Tensor | float | None, m: int, n: int, device: torch.device
) -> None:
    if out_format is None:
        if out_amax is not None:
            raise value_error("gemm", "out_amax", "None without out_format", out_amax)
        return
    if not isinstance(out_format, NVFP4):
        raise type_error("gemm", "out_format", "None or an NVFP4", type(out_format).__name__)
    if out_format.block != (1, BLOCK) or out_format.four_over_six is not None or out_format.rht is not None:
        raise not_offered("gemm", "out_format", "block (1, 16) without four_over_six and rht", out_format)
    if n % BLOCK:
        raise value_error("gemm", "b", f"(N, K) with N a multiple of {BLOCK} with out_format", f"N = {n}")
    if out_amax is None:
        raise value_error("gemm", "out_amax", "given with out_format", None)
    second_level("gemm", "out_amax", out_amax, out_format.scaling, m, device)


def _check_tensor(arg: str, tensor: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise type_error("gemm", arg, "a torch.Tensor", type(tensor).__name__)
    float_dtype("gemm", arg, tensor.dtype)
    if tuple(tensor.shape) != shape:
        raise value_error("gemm", arg, f"of shape {shape}", tuple(tensor.shape))
    _check_device(arg, tensor.device, device)


def _check_device(arg: str, device: torch.device, want: torch.device) -> None:
    if device != want:
        raise value_error("gemm", arg, f"on {want}, where b is", device)
