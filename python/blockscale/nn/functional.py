# SPDX-License-Identifier: Apache-2.0
"""`linear` on an `NVFP4Tensor` weight, with a backward: what `torch.nn.functional.linear` does when it gets one.

So a `torch.nn.Linear` whose weight is an NVFP4Tensor trains as it is, under FSDP2 too. `nn.Linear` is for inference.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .._checks import check_float_tensor
from ..errors import type_error, value_error
from ..formats import NVFP4, ScaleLayout
from ..functional import dequantize, quantize
from ..matmul import gemm
from ..operand import NVFP4Operand, make_operand
from ..tensor import NVFP4Tensor
from ..tensor.calls import FUNCTIONS, unsupported
from .recipe import Recipe, check_recipe

_NAME = "nn.functional.linear"


def linear(x: Tensor, weight: NVFP4Tensor, bias: Tensor | None = None, *, recipe: Recipe | None = None) -> Tensor:
    """``y = quantize(x) @ W.T + bias`` with an NVFP4 weight, and its gradients.

    Forward: x is quantized as the recipe says and multiplied with the weight's rowwise operand. Backward, of the
    function that the forward computed, with quantizing taken as the identity: ``dX = dY @ W`` from the columnwise
    operand, which has the same values where blocks are (16, 16); ``dW = dY.T @ dequantize(quantize(x))``, a plain
    tensor of the weight's nominal dtype. dY is not quantized: a recipe speaks of weights and activations. For backward,
    x is kept in NVFP4.

    Args:
        x: (..., K) float32, bfloat16 or float16; its dtype is that of y.
        weight: (N, K), with rowwise data, and columnwise data if the gradient of x is needed.
        bias: (N,), added in the GEMM's epilogue.
        recipe: None: row-scaled activations, with the weight's e4m3_max. Else its weight_format is the weight's.

    Returns:
        (..., N) of x.dtype: the bits of ``gemm(quantize(x), weight.rowwise, bias=bias, out_dtype=x.dtype)``.

    Raises:
        TypeError: a wrong kind or dtype. ValueError: shapes or devices that do not fit; an orientation that is missing;
            a weight of another format than the recipe's.
    """
    check_float_tensor(_NAME, "x", x)
    if not isinstance(weight, NVFP4Tensor):
        raise type_error(_NAME, "weight", "an NVFP4Tensor", type(weight).__name__)
    if weight.dim() != 2:
        raise value_error(_NAME, "weight", "of shape (N, K)", tuple(weight.shape))
    k = weight.shape[-1]
    if x.dim() == 0 or x.shape[-1] != k:
        raise value_error(_NAME, "x", f"of shape (..., {k})", tuple(x.shape))
    if bias is not None:
        check_float_tensor(_NAME, "bias", bias)
    fmt = _activation_format(weight, recipe)
    if torch.is_grad_enabled():
        if x.requires_grad:
            weight.columnwise  # noqa: B018  (missing data is an error here, not later in backward)
        if x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad):
            y: Tensor = _Linear.apply(x, weight, bias, fmt)  # type: ignore[no-untyped-call]
            return y
    return _forward(x, weight, bias, fmt)[0]


def _activation_format(weight: NVFP4Tensor, recipe: Recipe | None) -> NVFP4:
    if recipe is None:
        return NVFP4(scaling="row", e4m3_max=weight.format.e4m3_max)
    check_recipe(_NAME, recipe)
    if recipe.weight_format != weight.format:
        raise value_error(_NAME, "weight", f"of the recipe's format, {recipe.weight_format}", weight.format)
    return recipe.activation_format


def _rows(x: Tensor) -> Tensor:
    """A tensor (..., K) of any strides as a matrix that casts read."""
    matrix = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()


def _forward(x: Tensor, weight: NVFP4Tensor, bias: Tensor | None, fmt: NVFP4) -> tuple[Tensor, NVFP4Operand]:
    bias = None if bias is None else bias.detach()
    quantized = quantize(_rows(x.detach()), scaling=fmt.scaling, e4m3_max=fmt.e4m3_max)
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    gemm(quantized, weight.rowwise, bias=bias, out=y.view(quantized.rows, weight.shape[0]))  # y itself is no view
    return y, quantized


class _Linear(torch.autograd.Function):
    """The products of `linear`. The weight is saved as the object it is: FSDP2 frees and refills its storage."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: NVFP4Tensor, bias: Tensor | None, fmt: NVFP4) -> Tensor:
        y, quantized = _forward(x, weight, bias, fmt)
        keeps_x = weight.requires_grad
        ctx.save_for_backward(
            weight, *((quantized.qdata, quantized.block_scale, quantized.amax) if keeps_x else (None, None, None))
        )
        ctx.fmt = fmt
        ctx.x_shape = x.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, *parts = ctx.saved_tensors
        dy = _rows(grads[0])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = _times_weight(dy, weight.columnwise).view(ctx.x_shape)
        if ctx.needs_input_grad[1]:
            shape = (dy.shape[0], weight.shape[1])
            x = make_operand(parts[0], parts[1], parts[2], shape, ScaleLayout.LINEAR, ctx.fmt, "rowwise")
            dtype = torch.promote_types(dy.dtype, weight.dtype)
            dw = (dy.to(dtype).t() @ dequantize(x, dtype)).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            db = dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return dx, dw, db, None


def _times_weight(dy: Tensor, columnwise: NVFP4Operand) -> Tensor:
    """dY (M, N) @ W (N, K) from the rowwise operand (K, N) of the transpose of W."""
    if dy.dtype is torch.float32:  # `gemm` takes plain operands of 16 bits only
        return dy @ dequantize(columnwise).t()
    dx: Tensor = gemm(dy, columnwise, out_dtype=dy.dtype)
    return dx


def _torch_linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """`torch.nn.functional.linear` when one of its arguments is an NVFP4Tensor."""
    if isinstance(input, NVFP4Tensor) or isinstance(bias, NVFP4Tensor):
        raise unsupported("torch.nn.functional.linear", (input, weight, bias), {})
    return linear(input, weight, bias)


FUNCTIONS[torch.nn.functional.linear] = _torch_linear
