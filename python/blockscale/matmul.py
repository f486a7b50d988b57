# SPDX-License-Identifier: Apache-2.0
"""`gemm`: the checks and the words of D = A @ B.T on NVFP4 operands. `gemm_ops.py` does the work."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from . import gemm_ops
from ._checks import (
    check_blocks,
    check_device,
    check_float_tensor,
    check_operand,
    check_out_operand,
    check_second_level,
    flatten_rows,
    is_number,
    narrow_float,
)
from ._codes import ACTIVATION_CODE, AMAX_CODE, FLOAT_INPUTS, SCALING_CODE, layout_code
from .dispatch.config import NVFP4_OUTPUT, OUTPUT_NAMES, GemmConfig, output_code
from .errors import not_offered, type_error, value_error
from .formats import NVFP4, ScaleLayout
from .functional import writable_rows
from .operand import NVFP4Operand, make_operand

MAX_K = 1 << 20
"""Largest K: 2^20 products below 2^23 in units of 2^-20 fill the 63 bits of the exact accumulator."""

_NAME = "gemm"


def gemm(
    a: NVFP4Operand | Tensor,
    b: NVFP4Operand,
    *,
    out_dtype: torch.dtype | None = None,
    out_format: NVFP4 | None = None,
    out_amax: Tensor | float | None = None,
    bias: Tensor | None = None,
    alpha: float | Tensor | None = None,
    c: Tensor | None = None,
    beta: float | None = None,
    activation: Literal["relu", "silu", "gelu", "gelu_tanh"] | None = None,
    return_amax: Literal["tensor", "row"] | None = None,
    out: Tensor | NVFP4Operand | None = None,
    config: GemmConfig | None = None,
    batch_invariant: bool = False,
) -> Any:
    """D[M, N] = activation(alpha * (A[M, K] @ B[N, K].T) + beta * C + bias), in NVFP4 with one rounding to the output.

    The order of the epilogue, each line one FP32 rounding (docs/gemm.md):
    ``t = acc * (amax_A * 1/N_A); t = t * (amax_B * 1/N_B); t = alpha * t; t = t + beta * C; t = t + bias;
    t = activation(t)``, where amax_A is per row of A under scaling="row", amax_B per row of B, N = 6 * e4m3_max.
    A row scale never touches C or bias. On the CPU acc is the exact sum of products, rounded once.

    Args:
        a: an operand (..., K); or a plain bfloat16 or float16 tensor (..., K) (weights-only quantization).
        b: an operand (N, K). Any M and N; K a multiple of 16 up to 2^20. Both scale layouts.
        out_dtype: float32, bfloat16 (default) or float16; overflow gives inf.
        out_format: quantize the output in the epilogue to this format: block (1, 16), nearest; N a multiple of 16.
        out_amax: its second level, required: float32 () or a float for scaling="tensor", (M,) for "row".
        bias: (N,) float32, bfloat16 or float16, added in FP32.
        alpha: a float, or a float32 tensor of one element on the operands' device, read when the kernel runs.
        c: (..., N), three dtypes, unit column stride; may be `out`. Read only if beta is not 0.
        beta: a float; default 1 with c, else 0.
        activation: None, "relu", "silu", "gelu" (erf) or "gelu_tanh".
        return_amax: also return max |output| over the "tensor" (shape ()) or each "row" (shape (M,)), float32: of the
            stored values for a float output, of t for an NVFP4 output (the out_amax of the next step).
        out: a tensor (..., N), or an operand of out_format in SWIZZLED_128X4, to write into.
        config: which kernel runs, on a CUDA device; None chooses one (docs/dispatch.md). None on a CPU.
        batch_invariant: a row of D has the same bits for every M, at the price of a plan that does not look at M. On a
            CPU it always has. Not for a plain `a`.

    Returns:
        A tensor of shape a.shape[:-1] + (N,), or an NVFP4Operand if out_format is given; with return_amax, a pair.

    Raises:
        TypeError: a wrong type or dtype. ValueError: shapes, devices, strides or values that break a rule; a
            columnwise `a` with a rowwise `b`. NotImplementedError: legal, but not offered; a plain a, bias, c
            or alpha that requires grad while grad mode is on.
    """
    a_args, a_shape, m, k = _checked_a(a)
    b = check_operand(_NAME, "b", b)
    device = b.device
    check_device(_NAME, "a", a.device, device)
    if b.k != k:
        raise value_error(_NAME, "b", f"of the K of a, {k}", f"{b.k} (a {a_shape}, b {b.shape})")
    if k > MAX_K:
        raise value_error(_NAME, "K", f"at most {MAX_K}", k)
    if isinstance(a, NVFP4Operand):
        _check_pair(a, b)
    plan = _checked_config(config, a, device)
    _check_batch_invariant(batch_invariant, a)
    n = b.rows
    shape = (*a_shape[:-1], n)
    _check_no_grad(a=a, bias=bias, c=c, alpha=alpha)
    bias = _checked_bias(bias, n, device)
    alpha_value, alpha_tensor = _checked_alpha(alpha, device)
    c_matrix, beta_value = _checked_c(c, beta, shape, device)
    if not (activation is None or isinstance(activation, str)) or activation not in ACTIVATION_CODE:
        raise value_error(_NAME, "activation", 'None, "relu", "silu", "gelu" or "gelu_tanh"', repr(activation))
    if return_amax not in (None, "tensor", "row"):
        raise value_error(_NAME, "return_amax", 'None, "tensor" or "row"', repr(return_amax))
    shared = (
        *a_args,
        *_operand_args(b),
        bias,
        alpha_tensor,
        alpha_value,
        c_matrix,
        beta_value,
        ACTIVATION_CODE[activation],
        AMAX_CODE[return_amax],
        plan,
        batch_invariant,
    )
    result: Tensor | NVFP4Operand
    if out_format is None:
        if out_amax is not None:
            raise value_error(_NAME, "out_amax", "None without out_format", "a second level")
        result, returned = _float_output(shared, shape, out_dtype, out, config)
    else:
        result, returned = _nvfp4_output(shared, shape, m, out_dtype, out_format, out_amax, out, device, config)
    return result if return_amax is None else (result, returned)


def _operand_args(op: NVFP4Operand) -> tuple[Any, ...]:
    scales = op.block_scale.view(torch.uint8)
    return op.qdata, scales, op.amax, SCALING_CODE[op.format.scaling], op.format.e4m3_max, layout_code(op.layout)


def _checked_a(a: object) -> tuple[tuple[Any, ...], tuple[int, ...], int, int]:
    """(op arguments, logical shape, M, K) of the left operand."""
    if isinstance(a, NVFP4Operand):
        _check_second_level_of(a, "a")
        return _operand_args(a), a.shape, a.rows, a.k
    if not isinstance(a, Tensor):
        raise type_error(_NAME, "a", "an NVFP4Operand or a tensor", type(a).__name__, "Make one with quantize.")
    if a.dtype not in (torch.bfloat16, torch.float16):
        hint = "Quantize it, or convert it to bfloat16."
        raise type_error(_NAME, "a", "an NVFP4Operand, or a bfloat16 or float16 tensor", a.dtype, hint)
    matrix = flatten_rows(_NAME, "a", a.detach() if a.requires_grad else a)
    m, k = matrix.shape
    check_blocks(_NAME, "a", k, "K")
    return (matrix, None, None, 0, 448, 0), tuple(a.shape), m, k


def _check_second_level_of(op: NVFP4Operand, arg: str) -> None:
    want = (op.rows,) if op.format.scaling == "row" else ()
    amax = op.amax
    if not isinstance(amax, Tensor):
        raise type_error(_NAME, f"{arg}.amax", "a float32 tensor", type(amax).__name__)
    if amax.dtype is not torch.float32:
        raise type_error(_NAME, f"{arg}.amax", "a float32 tensor", amax.dtype)
    if tuple(amax.shape) != want:
        raise value_error(_NAME, f"{arg}.amax", f"of shape {want}", tuple(amax.shape))
    check_device(_NAME, f"{arg}.amax", amax.device, op.device)


def _check_pair(a: NVFP4Operand, b: NVFP4Operand) -> None:
    """What must agree between two operands beyond K."""
    _check_second_level_of(b, "b")
    if a.format.rht != b.format.rht:
        raise value_error(_NAME, "b", f"of the rht of a, {a.format.rht}", b.format.rht)
    if a.orientation == "columnwise" and b.orientation == "rowwise":
        # Forward is (rowwise, rowwise), dgrad (rowwise, columnwise), wgrad (columnwise, columnwise). The fourth pair
        # sums over the first axis of one source and the last axis of the other: for a square source nothing else
        # would show the mistake.
        hint = "If it is meant, swap the operands and transpose the result."
        raise value_error(_NAME, "a", "rowwise when b is rowwise", "a columnwise operand", hint)


def _checked_config(config: object, a: object, device: torch.device) -> list[int]:
    """The plan of a config; whether its kernel is one for this GPU is seen when the op runs."""
    if config is None:
        return []
    if not isinstance(config, GemmConfig):
        hint = 'As GemmConfig("sm100_256x256x256_b16", cluster=(2, 1)).'
        raise type_error(_NAME, "config", "a GemmConfig or None", type(config).__name__, hint)
    if device.type == "cpu":
        raise value_error(_NAME, "config", "None on cpu", config, "It names a kernel of a GPU.")
    if not isinstance(a, NVFP4Operand):
        raise value_error(_NAME, "config", "None with a plain a", config, "The kernels take NVFP4 on both sides.")
    return list(config.plan)


def _check_batch_invariant(batch_invariant: object, a: object) -> None:
    if not isinstance(batch_invariant, bool):
        raise type_error(_NAME, "batch_invariant", "a bool", type(batch_invariant).__name__)
    if batch_invariant and not isinstance(a, NVFP4Operand):
        hint = "The product of floats is a library's, which chooses its order by M."
        raise not_offered(_NAME, "batch_invariant", "False with a plain a", True, hint)


def _check_output_of(config: GemmConfig | None, output: int) -> None:
    if config is not None and config.output != output:
        raise value_error(_NAME, "config", f"a kernel that writes {OUTPUT_NAMES[output]}", config)


def _check_no_grad(**tensors: object) -> None:
    if not torch.is_grad_enabled():
        return
    for arg, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            hint = "gemm has no backward: call it under torch.no_grad(), inside an autograd.Function, or use nn.Linear."
            raise not_offered(_NAME, arg, "free of requires_grad while grad mode is on", "requires_grad=True", hint)


def _checked_bias(bias: object, n: int, device: torch.device) -> Tensor | None:
    if bias is None:
        return None
    tensor = check_float_tensor(_NAME, "bias", bias)
    if tuple(tensor.shape) != (n,):
        raise value_error(_NAME, "bias", f"of shape ({n},)", tuple(tensor.shape))
    check_device(_NAME, "bias", tensor.device, device)
    if n > 1 and tensor.stride(0) != 1:
        raise value_error(_NAME, "bias", "contiguous", f"strides {tensor.stride()}", "Call .contiguous().")
    return tensor


def _checked_alpha(alpha: object, device: torch.device) -> tuple[float, Tensor | None]:
    if alpha is None:
        return 1.0, None
    if is_number(alpha):
        return narrow_float(_NAME, "alpha", alpha), None  # type: ignore[arg-type]
    if not isinstance(alpha, Tensor):
        raise type_error(_NAME, "alpha", "a float or a float32 tensor", type(alpha).__name__)
    if alpha.dtype is not torch.float32:
        raise type_error(_NAME, "alpha", "float32", alpha.dtype, "Call .float().")
    if alpha.numel() != 1:
        raise value_error(_NAME, "alpha", "a tensor of one element", f"shape {tuple(alpha.shape)}")
    check_device(_NAME, "alpha", alpha.device, device)
    return 1.0, alpha


def _checked_c(c: object, beta: object, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor | None, float]:
    if beta is None:
        value = 0.0 if c is None else 1.0
    elif is_number(beta):
        value = narrow_float(_NAME, "beta", beta)  # type: ignore[arg-type]
    else:
        raise type_error(_NAME, "beta", "a float", type(beta).__name__)
    if c is None:
        if value != 0.0:
            raise value_error(_NAME, "beta", "0 without c", beta)
        return None, 0.0
    tensor = check_float_tensor(_NAME, "c", c)
    if tuple(tensor.shape) != shape:
        raise value_error(_NAME, "c", f"of shape {shape}", tuple(tensor.shape))
    check_device(_NAME, "c", tensor.device, device)
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        hint = "A broadcast c is not read; materialise it, or pass a row as bias."
        raise value_error(_NAME, "c", "free of stride-0 axes", f"strides {tensor.stride()}", hint)
    matrix = flatten_rows(_NAME, "c", tensor)
    return (None, 0.0) if value == 0.0 else (matrix, value)


def _float_output(
    shared: tuple[Any, ...], shape: tuple[int, ...], out_dtype: torch.dtype | None, out: object,
    config: GemmConfig | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if out_dtype is not None and out_dtype not in FLOAT_INPUTS:
        raise type_error(_NAME, "out_dtype", "torch.float32, torch.bfloat16 or torch.float16", out_dtype)
    if out is None:
        _check_output_of(config, output_code(out_dtype or torch.bfloat16))
        d, returned = gemm_ops.gemm(*shared, out_dtype or torch.bfloat16)
        return d.view(shape), returned
    tensor = check_float_tensor(_NAME, "out", out)
    if out_dtype is not None and out_dtype is not tensor.dtype:
        raise type_error(_NAME, "out_dtype", f"{tensor.dtype}, that of out", out_dtype)
    if tuple(tensor.shape) != shape:
        raise value_error(_NAME, "out", f"of shape {shape}", tuple(tensor.shape))
    check_device(_NAME, "out", tensor.device, shared[6].device)
    _check_output_of(config, output_code(tensor.dtype))
    return tensor, gemm_ops.gemm_out(*shared, writable_rows(_NAME, "out", tensor))


def _nvfp4_output(
    shared: tuple[Any, ...], shape: tuple[int, ...], m: int, out_dtype: torch.dtype | None, fmt: object,
    out_amax: object, out: object, device: torch.device, config: GemmConfig | None,
) -> tuple[NVFP4Operand, Tensor]:  # fmt: skip
    if not isinstance(fmt, NVFP4):
        raise type_error(_NAME, "out_format", "an NVFP4", type(fmt).__name__)
    if out_dtype is not None:
        raise type_error(_NAME, "out_dtype", "None with out_format", out_dtype)
    if fmt.block != (1, 16) or fmt.four_over_six is not None or fmt.rht is not None:
        raise not_offered(_NAME, "out_format", "of block (1, 16), without four_over_six and rht", fmt)
    check_blocks(_NAME, "b", shape[-1], "N (for an NVFP4 output)")
    _check_output_of(config, NVFP4_OUTPUT)
    if out_amax is None:
        raise value_error(_NAME, "out_amax", "given with out_format", None, "Use return_amax of the last step.")
    second = check_second_level(_NAME, "out_amax", out_amax, fmt.scaling, m, device)
    layout = ScaleLayout.SWIZZLED_128X4
    options = (second, SCALING_CODE[fmt.scaling], fmt.e4m3_max, layout_code(layout))
    if out is not None:
        operand = check_out_operand(_NAME, out, shape, layout, fmt, "rowwise", device)
        parts = (operand.qdata, operand.block_scale.view(torch.uint8), operand.amax)
        return operand, gemm_ops.gemm_nvfp4_out(*shared, *options, *parts)
    qdata, scales, stored, returned = gemm_ops.gemm_nvfp4(*shared, *options)
    made = make_operand(qdata, scales.view(torch.float8_e4m3fn), stored, shape, layout, fmt, "rowwise")
    return made, returned
