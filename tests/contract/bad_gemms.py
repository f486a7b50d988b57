# SPDX-License-Identifier: Apache-2.0
"""Bad calls of gemm."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from blockscale.operand import make_operand

from .table import INF, NAN, TILES, BadCall, misused, ruled

FLOATS = "float32, bfloat16 or float16"
_kind = ruled("gemm", TypeError)
_value = ruled("gemm", ValueError)
_offered = ruled("gemm", NotImplementedError)


def d(**keywords: Any) -> Any:
    """(16, 32) times (32, 32) transposed; values that are functions are made on the device."""
    return lambda i: i.gemm(**{name: value(i) if callable(value) else value for name, value in keywords.items()})


def quantized(fmt: dict[str, Any] | None = None, **keywords: Any) -> Any:
    """The same with an NVFP4 output."""
    return d(out_format=bs.NVFP4(**(fmt or {})), **keywords)


def _columnwise(op: Any) -> Any:
    return bs.NVFP4Operand(op.qdata, op.block_scale, op.amax, op.shape, format=op.format, orientation="columnwise")


def _with_amax(op: Any, amax: Any) -> Any:
    """An operand made around the checks, with another amax."""
    return make_operand(op.qdata, op.block_scale, amax, op.shape, op.layout, op.format, op.orientation)


_OPERANDS: tuple[BadCall, ...] = (
    _kind("b_tensor", lambda i: bs.gemm(i.op(), i.x(32, 32)), "b", "an NVFP4Operand", "Tensor"),
    _kind("b_none", lambda i: bs.gemm(i.op(), None), "b", "an NVFP4Operand", "NoneType"),
    _kind("a_list", lambda i: bs.gemm([[1.0]], i.op(32)), "a", "an NVFP4Operand or a tensor", "list"),
    *(
        _kind(
            f"a_{dtype}",
            lambda i, t=dtype: bs.gemm(i.x(16, 32).to(t), i.op(32)),
            "a",
            "an NVFP4Operand, or a bfloat16 or float16 tensor",
            str(dtype),
        )
        for dtype in (torch.float32, torch.float64, torch.int8)
    ),
    _value("k", lambda i: bs.gemm(i.op(16, 32), i.op(16, 48)), "b", "of the K of a, 32", "48 (a (16, 32), b (16, 48))"),
    _value("k_half", lambda i: bs.gemm(i.op(16, 64), i.op(16, 32)), "b", "of the K of a, 64", "32..."),
    _value(
        "k_plain", lambda i: bs.gemm(i.x(4, 48, dtype=torch.float16), i.op(16, 32)), "b", "of the K of a, 48", "32..."
    ),
    _value("a_plain_k", lambda i: bs.gemm(i.x(4, 40).bfloat16(), i.op(16, 32)), "a", "of K a multiple of 16", "40"),
    _value("a_plain_scalar", lambda i: bs.gemm(i.x().bfloat16(), i.op(16, 32)), "a", "a matrix (..., K)", "a 0-dim..."),
    _value(
        "a_plain_strided",
        lambda i: bs.gemm(i.x(32, 4).bfloat16().t(), i.op(16, 32)),
        "a",
        "contiguous in...",
        "strides...",
    ),
    _value("k_large", lambda i: bs.gemm(i.op(1, 2**20 + 16), i.op(1, 2**20 + 16)), "K", "at most 1048576", "1048592"),
    _value("a_device", lambda i: bs.gemm(i.op().to("meta"), i.op(32)), "a", "on ..., where the other...", "meta"),
    _value("rht", lambda i: bs.gemm(i.op(rht=0xD7E8), i.op(rht=0xD7E9)), "b", "of the rht of a, 55272", "55273"),
    _value("rht_of_one", lambda i: bs.gemm(i.op(), i.op(rht=0)), "b", "of the rht of a, None", "0"),
    _value(
        "columnwise_a",
        lambda i: bs.gemm(_columnwise(i.op()), i.op(32)),
        "a",
        "rowwise when b is rowwise",
        "a columnwise operand",
    ),
    _value(
        "columnwise_of_square",
        lambda i: bs.gemm(bs.quantize(i.x(64, 64), orientation="columnwise"), bs.quantize(i.x(64, 64))),
        "a",
        "rowwise when b is rowwise",
        "a columnwise operand",
    ),
    _kind("amax_none", lambda i: bs.gemm(_with_amax(i.op(), None), i.op(32)), "a.amax", "a float32 tensor", "NoneType"),
    _value(
        "amax_length",
        lambda i: bs.gemm(_with_amax(i.op(scaling="row"), i.x(15)), i.op(32)),
        "a.amax",
        "of shape (16,)",
        "(15,)",
    ),
    _value("b_amax_length", lambda i: bs.gemm(i.op(), _with_amax(i.op(32), i.x(32))), "b.amax", "of shape ()", "(32,)"),
    _kind(
        "amax_bf16",
        lambda i: bs.gemm(_with_amax(i.op(), i.x(dtype=torch.bfloat16)), i.op(32)),
        "a.amax",
        "a float32 tensor...",
        "...bfloat16",
    ),
)

_EPILOGUE: tuple[BadCall, ...] = (
    *(_value(f"alpha_{bad}", d(alpha=bad), "alpha", "a finite float", str(bad)) for bad in (NAN, INF, -INF)),
    *(
        _value(f"alpha_{bad}", d(alpha=bad), "alpha", "representable in float32", str(bad))
        for bad in (1e-50, 1e300, -1e39)
    ),
    _value("alpha_huge_int", d(alpha=10**400), "alpha", "...", "..."),
    *(
        _kind(f"alpha_{type(bad).__name__}", d(alpha=bad), "alpha", "a float or a float32 tensor", type(bad).__name__)
        for bad in ("1", True, [1.0], 1j)
    ),
    *(
        _kind(f"alpha_{dtype}", d(alpha=lambda i, t=dtype: i.x(dtype=t)), "alpha", "float32", str(dtype))
        for dtype in (torch.float64, torch.bfloat16, torch.int32)
    ),
    _value("alpha_two", d(alpha=lambda i: i.x(2)), "alpha", "a tensor of one element", "shape (2,)"),
    _value("alpha_none_element", d(alpha=lambda i: i.x(0)), "alpha", "a tensor of one element", "shape (0,)"),
    _value("alpha_device", d(alpha=torch.ones((), device="meta")), "alpha", "on ..., where...", "meta"),
    _kind("beta_tensor", d(beta=lambda i: i.x(), c=lambda i: i.x(16, 32)), "beta", "a float", "Tensor"),
    _kind("beta_text", d(beta="1", c=lambda i: i.x(16, 32)), "beta", "a float", "str"),
    *(
        _value(f"beta_{bad}", d(beta=bad, c=lambda i: i.x(16, 32)), "beta", rule, str(bad))
        for bad, rule in ((NAN, "a finite float"), (INF, "a finite float"), (1e300, "representable in float32"))
    ),
    _value("beta_without_c", d(beta=1.0), "beta", "0 without c", "1.0"),
    _kind("c_list", d(c=[1.0]), "c", "a torch.Tensor", "list"),
    _kind("c_float64", d(c=lambda i: i.x(16, 32, dtype=torch.float64)), "c", FLOATS, "torch.float64"),
    _value("c_shape", d(c=lambda i: i.x(32, 16)), "c", "of shape (16, 32)", "(32, 16)"),
    _value("c_row", d(c=lambda i: i.x(32)), "c", "of shape (16, 32)", "(32,)"),
    _value("c_expanded", d(c=lambda i: i.x(1, 32).expand(16, 32)), "c", "free of stride-0 axes", "strides (0, 1)"),
    _value("c_transposed", d(c=lambda i: i.x(32, 16).t()), "c", "contiguous in its last dimension", "strides (1, 16)"),
    _value("c_device", d(c=torch.ones(16, 32, device="meta")), "c", "on ..., where...", "meta"),
    _value("c_unread_shape", d(beta=0.0, c=lambda i: i.x(32, 16)), "c", "of shape (16, 32)", "(32, 16)"),
    _offered(
        "c_grad", d(c=lambda i: i.x(16, 32).requires_grad_()), "c", "free of requires_grad...", "requires_grad=True"
    ),
    _kind("bias_list", d(bias=[0.0] * 32), "bias", "a torch.Tensor", "list"),
    _kind("bias_float64", d(bias=lambda i: i.x(32, dtype=torch.float64)), "bias", FLOATS, "torch.float64"),
    _value("bias_shape", d(bias=lambda i: i.x(16)), "bias", "of shape (32,)", "(16,)"),
    _value("bias_matrix", d(bias=lambda i: i.x(1, 32)), "bias", "of shape (32,)", "(1, 32)"),
    _value("bias_scalar", d(bias=lambda i: i.x()), "bias", "of shape (32,)", "()"),
    _value("bias_strided", d(bias=lambda i: i.x(64)[::2]), "bias", "contiguous", "strides (2,)"),
    _value("bias_device", d(bias=torch.ones(32, device="meta")), "bias", "on ..., where...", "meta"),
    _offered(
        "bias_grad",
        d(bias=lambda i: i.x(32).requires_grad_()),
        "bias",
        "free of requires_grad...",
        "requires_grad=True",
    ),
    _offered(
        "alpha_grad",
        d(alpha=lambda i: i.x().requires_grad_()),
        "alpha",
        "free of requires_grad...",
        "requires_grad=True",
    ),
    _value("activation", d(activation="tanh"), "activation", 'None, "relu",...', "'tanh'"),
    _value("activation_list", d(activation=["relu"]), "activation", 'None, "relu",...', "['relu']"),
    _value("return_amax", d(return_amax="column"), "return_amax", 'None, "tensor" or "row"', "'column'"),
    _value("return_amax_bool", d(return_amax=True), "return_amax", 'None, "tensor" or "row"', "True"),
    _kind("config_text", d(config="128x256"), "config", "a GemmConfig or None", "str"),
    _kind("config_tuple", d(config=(4, 1, 1)), "config", "a GemmConfig or None", "tuple"),
    _kind("config_class", lambda i: i.gemm(config=bs.GemmConfig), "config", "a GemmConfig or None", "type"),
    _kind("invariant_int", d(batch_invariant=1), "batch_invariant", "a bool", "int"),
    _kind("invariant_none", d(batch_invariant=None), "batch_invariant", "a bool", "NoneType"),
    _offered(
        "invariant_plain",
        lambda i: bs.gemm(i.x(16, 32).bfloat16(), i.op(32), batch_invariant=True),
        "batch_invariant",
        "False with a plain a",
        "True",
    ),
)

_OUTPUT: tuple[BadCall, ...] = (
    _kind("out_dtype", d(out_dtype=torch.float64), "out_dtype", "torch.float32,...", "torch.float64"),
    _kind("out_dtype_text", d(out_dtype="bfloat16"), "out_dtype", "torch.float32,...", "bfloat16"),
    _kind(
        "out_dtype_of_out",
        d(out_dtype=torch.float16, out=lambda i: i.x(16, 32)),
        "out_dtype",
        "torch.float32, that...",
        "torch.float16",
    ),
    _kind("out_operand", d(out=lambda i: i.op()), "out", "a torch.Tensor", "NVFP4Operand"),
    _kind("out_float64", d(out=lambda i: i.x(16, 32, dtype=torch.float64)), "out", FLOATS, "torch.float64"),
    _value("out_shape", d(out=lambda i: i.x(32, 16)), "out", "of shape (16, 32)", "(32, 16)"),
    _value("out_device", d(out=torch.ones(16, 32, device="meta")), "out", "on ..., where...", "meta"),
    _value("out_strided", d(out=lambda i: i.x(32, 16).t()), "out", "contiguous in its last...", "strides (1, 16)"),
    _value(
        "out_overlapping", d(out=lambda i: i.x(1, 32).expand(16, 32)), "out", "free of overlapping rows", "strides..."
    ),
    _offered(
        "out_grad",
        d(out=lambda i: i.x(16, 32).requires_grad_()),
        "out",
        "free of requires_grad...",
        "requires_grad=True",
    ),
    _kind("format_text", d(out_format="nvfp4", out_amax=1.0), "out_format", "an NVFP4", "str"),
    _kind("format_class", lambda i: i.gemm(out_format=bs.NVFP4, out_amax=1.0), "out_format", "an NVFP4", "type"),
    _kind(
        "format_and_dtype",
        quantized(out_dtype=torch.float16, out_amax=1.0),
        "out_dtype",
        "None with out_format",
        "torch.float16",
    ),
    *(
        _offered(
            f"format_{next(iter(fmt))}",
            quantized(fmt, out_amax=1.0),
            "out_format",
            "of block (1, 16),...",
            "NVFP4(...)",
        )
        for fmt in (TILES, {"four_over_six": "mae"}, {"rht": 0})
    ),
    _value(
        "format_n",
        lambda i: bs.gemm(i.op(), i.op(24), out_format=bs.NVFP4(), out_amax=1.0),
        "b",
        "of N ... of 16",
        "24",
    ),
    _value("out_amax_missing", quantized(), "out_amax", "given with out_format", "None"),
    _value("out_amax_alone", d(out_amax=1.0), "out_amax", "None without out_format", "a second level"),
    *(
        _value(f"out_amax_{bad}", quantized(out_amax=bad), "out_amax", rule, str(bad))
        for bad, rule in (
            (NAN, "a finite float"),
            (INF, "a finite float"),
            (-1.0, "non-negative"),
            (1e-50, "representable in float32"),
            (1e300, "representable in float32"),
        )
    ),
    _kind("out_amax_text", quantized(out_amax="1"), "out_amax", "a float or a float32 tensor", "str"),
    _kind(
        "out_amax_bf16",
        quantized(out_amax=lambda i: i.x(dtype=torch.bfloat16)),
        "out_amax",
        "float32",
        "torch.bfloat16",
    ),
    _value("out_amax_shape", quantized(out_amax=lambda i: i.x(16)), "out_amax", "of shape () or (1,)...", "(16,)"),
    _value(
        "out_amax_device", quantized(out_amax=torch.ones((), device="meta")), "out_amax", "on ..., where...", "meta"
    ),
    _value(
        "row_out_amax_number", quantized({"scaling": "row"}, out_amax=1.0), "out_amax", "a float32 tensor of...", "1.0"
    ),
    _value(
        "row_out_amax_shape",
        quantized({"scaling": "row"}, out_amax=lambda i: i.x(32)),
        "out_amax",
        "of shape (16,)...",
        "(32,)",
    ),
    _kind("q_out_tensor", quantized(out_amax=1.0, out=lambda i: i.x(16, 32)), "out", "an NVFP4Operand", "Tensor"),
    _value(
        "q_out_layout", quantized(out_amax=1.0, out=lambda i: i.op()), "out.layout", "...SWIZZLED_128X4", "...LINEAR"
    ),
    _value(
        "q_out_shape",
        quantized(out_amax=1.0, out=lambda i: bs.swizzle_scales(i.op(32))),
        "out.shape",
        "(16, 32)",
        "(32, 32)",
    ),
    _value(
        "q_out_format",
        quantized(out_amax=1.0, out=lambda i: bs.swizzle_scales(i.op(e4m3_max=256))),
        "out.format",
        "...448...",
        "...256...",
    ),
)

_MISUSE: tuple[BadCall, ...] = (
    misused("gemm", "one", lambda i: bs.gemm(i.op()), r"gemm\(\) missing 1 required positional"),
    misused("gemm", "positional", lambda i: bs.gemm(i.op(), i.op(32), torch.float32), r"gemm\(\) takes 2 positional"),
    misused("gemm", "unknown", d(scale_a=1.0), r"gemm\(\) got an unexpected keyword argument 'scale_a'"),
)

GEMM_CALLS: tuple[BadCall, ...] = _OPERANDS + _EPILOGUE + _OUTPUT + _MISUSE
