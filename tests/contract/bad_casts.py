# SPDX-License-Identifier: Apache-2.0
"""Bad calls of quantize and quantize_both."""

from __future__ import annotations

from typing import Any

import torch

import blockscale as bs
from blockscale.formats import ScaleLayout

from .table import INF, NAN, TILES, BadCall, misused, ruled

SWIZZLED = ScaleLayout.SWIZZLED_128X4
FLOATS = "float32, bfloat16 or float16"
HERE = "None on ... in this version"

_kind = ruled("quantize", TypeError)
_value = ruled("quantize", ValueError)
_format = ruled("quantize", ValueError, op="NVFP4")
_format_kind = ruled("quantize", TypeError, op="NVFP4")
_offered = ruled("quantize", NotImplementedError)


def q(shape: tuple[int, ...] = (4, 16), **keywords: Any) -> Any:
    """quantize of ones."""
    return lambda i: bs.quantize(i.x(*shape), **keywords)


def made(shape: tuple[int, ...] = (4, 16), **arguments: Any) -> Any:
    """quantize of ones with keywords that are made on the device."""
    return lambda i: bs.quantize(i.x(*shape), **{name: make(i) for name, make in arguments.items()})


_X: tuple[BadCall, ...] = (
    _kind("x_list", lambda i: bs.quantize([[1.0] * 16]), "x", "a torch.Tensor", "list"),
    _kind("x_none", lambda i: bs.quantize(None), "x", "a torch.Tensor", "NoneType"),
    _kind("x_operand", lambda i: bs.quantize(i.op()), "x", "a torch.Tensor", "NVFP4Operand"),
    *(
        _kind(f"x_{dtype}", lambda i, d=dtype: bs.quantize(i.x(2, 16).to(d)), "x", FLOATS, str(dtype))
        for dtype in (torch.float64, torch.int32, torch.bool, torch.uint8, torch.float8_e4m3fn, torch.complex64)
    ),
    _value("x_scalar", q(()), "x", "a matrix (..., K)", "a 0-dimensional tensor"),
    _value("x_strided", lambda i: bs.quantize(i.x(64, 4).t()), "x", "contiguous in its last dimension", "strides ..."),
    _value(
        "x_uneven",
        lambda i: bs.quantize(i.x(4, 4, 16)[:, :2]),
        "x",
        "evenly strided over its leading ...",
        "strides ...",
    ),
    *(
        _value(f"x_{m}x{k}", q((m, k)), "x", "of K a multiple of 16", str(k))
        for m, k in ((33, 47), (4, 24), (4, 8), (16, 40))
    ),
    _value("x_k_of_tiles", q((16, 24), **TILES), "x", "of K a multiple of 16", "24"),
    *(
        _value(
            f"x_columnwise_{name}", q((17, 32), orientation="columnwise", **fmt), "x", "of M ... a multiple of 16", "17"
        )
        for name, fmt in (("1d", {}), ("2d", TILES), ("row", {"scaling": "row"}))
    ),
)

_FORMAT: tuple[BadCall, ...] = (
    _format("scaling", q(scaling="block"), "scaling", '"tensor" or "row"', "'block'"),
    _format("scaling_none", q(scaling=None), "scaling", '"tensor" or "row"', "None"),
    _format("scaling_list", q(scaling=["tensor"]), "scaling", '"tensor" or "row"', "['tensor']"),
    _format("block", q(block=(16, 1)), "block", "(1, 16) or (16, 16)", "(16, 1)"),
    _format("block_number", q(block=16), "block", "(1, 16) or (16, 16)", "16"),
    _format("block_32", q(block=(1, 32)), "block", "(1, 16) or (16, 16)", "(1, 32)"),
    _format("block_of_lists", q(block=([1], 16)), "block", "(1, 16) or (16, 16)", "([1], 16)"),
    _format("row_tiles", q((16, 16), scaling="row", **TILES), "scaling", '"tensor" with block=(16, 16)', '"row"'),
    _format("e4m3_max", q(e4m3_max=300), "e4m3_max", "448 or 256", "300"),
    _format("e4m3_max_bool", q(e4m3_max=True), "e4m3_max", "448 or 256", "True"),
    _format_kind("e4m3_max_float", q(e4m3_max=448.0), "e4m3_max", "...", "..."),
    _format("measure", q(four_over_six="max"), "four_over_six", 'None, "mae" or "mse"', "'max'"),
    _format("measure_bool", q(four_over_six=True), "four_over_six", 'None, "mae" or "mse"', "True"),
    _format("rht_negative", q(rht=-1), "rht", "a 16-bit sign mask", "-0x1"),
    _format("rht_17_bits", q(rht=1 << 16), "rht", "a 16-bit sign mask", "0x10000"),
    _format("rht_of_tiles", q(rht=0xD7E8, **TILES), "rht", "None with block=(16, 16)", "0xd7e8"),
    _format("rht_and_measure", q(rht=1, four_over_six="mae"), "rht", "None with four_over_six", "0x1"),
    _format_kind("rht_text", q(rht="D7E8"), "rht", "None or an int", "str"),
    _format_kind("rht_bool", q(rht=True), "rht", "None or an int", "bool"),
    _offered("measure_mae", q(four_over_six="mae"), "four_over_six", HERE, "'mae'"),
    _offered("measure_tiles", q((16, 16), four_over_six="mse", **TILES), "four_over_six", HERE, "'mse'"),
    _offered("rht", q((16, 16), rht=0xD7E8, orientation="columnwise"), "rht", HERE, "0xd7e8"),
    _value("orientation", q(orientation="column"), "orientation", '"rowwise" or "columnwise"', "'column'"),
    _value("orientation_none", q(orientation=None), "orientation", '"rowwise" or "columnwise"', "None"),
    _kind("layout_text", q(layout="linear"), "layout", "a ScaleLayout", "str"),
    _kind("layout_none", q(layout=None), "layout", "a ScaleLayout", "NoneType"),
    _value("rounding", q(rounding="even"), "rounding", '"nearest" or "stochastic"', "'even'"),
    _offered("stochastic", q(rounding="stochastic", seed=1), "rounding", '"nearest" on ... version', '"stochastic"'),
    _value(
        "stochastic_tiles", q(rounding="stochastic", **TILES), "rounding", '"nearest" with (16, 16)...', '"stochastic"'
    ),
    _value(
        "stochastic_measure",
        q(rounding="stochastic", four_over_six="mae"),
        "rounding",
        '"nearest" with...',
        '"stochastic"',
    ),
    _value("seed", q(seed=3), "seed", 'None with rounding="nearest"', "3"),
)

_AMAX: tuple[BadCall, ...] = (
    *(_value(f"amax_{number}", q(amax=number), "amax", "a finite float", str(number)) for number in (NAN, INF, -INF)),
    *(
        _value(f"amax_{number}", q(amax=number), "amax", "representable in float32", str(number))
        for number in (1e39, 1e300, -1e300, 1e-50)
    ),
    _value("amax_huge_int", q(amax=10**400), "amax", "...", "..."),
    _value("amax_negative", q(amax=-1.0), "amax", "non-negative", "-1.0"),
    *(
        _kind(f"amax_{type(bad).__name__}", q(amax=bad), "amax", "a float or a float32 tensor", type(bad).__name__)
        for bad in ("1", True, [1.0], 1j)
    ),
    *(
        _kind(f"amax_{dtype}", made(amax=lambda i, d=dtype: i.x(dtype=d)), "amax", "float32", str(dtype))
        for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int32)
    ),
    *(
        _value(
            f"amax_shape_{shape}",
            made(amax=lambda i, s=shape: i.x(*s)),
            "amax",
            "of shape () or (1,) with...",
            str(shape),
        )
        for shape in ((4,), (0,), (1, 1), (2,))
    ),
    _value("amax_device", q(amax=torch.ones((), device="meta")), "amax", "on ..., where the other...", "meta"),
    _value("row_amax_number", q(scaling="row", amax=1.0), "amax", "a float32 tensor of shape (4,)...", "1.0"),
    *(
        _value(
            f"row_amax_shape_{shape}",
            lambda i, s=shape: bs.quantize(i.x(4, 16), scaling="row", amax=i.x(*s)),
            "amax",
            "of shape (4,) with scaling='row'",
            str(shape),
        )
        for shape in ((), (1,), (16,), (4, 1), (3,), (5,))
    ),
    _value(
        "row_amax_of_the_other_side",
        lambda i: bs.quantize(i.x(32, 16), scaling="row", orientation="columnwise", amax=i.x(32)),
        "amax",
        "of shape (16,) with scaling='row'",
        "(32,)",
    ),
    _value(
        "row_amax_strided",
        lambda i: bs.quantize(i.x(4, 16), scaling="row", amax=i.x(4, 2)[:, 0]),
        "amax",
        "contiguous",
        "strides (2,)",
    ),
    _value("group_and_amax", q(amax=1.0, amax_group=object()), "amax_group", "None when amax is given", "a group"),
    _value("group_and_row", q(scaling="row", amax_group=object()), "amax_group", "None with scaling='row'", "a group"),
    _kind("group_text", q(amax_group="world"), "amax_group", "...", "..."),
    _value("nonfinite", q(nonfinite="ignore"), "nonfinite", '"propagate" or "raise"', "'ignore'"),
    _value("nonfinite_none", q(nonfinite=None), "nonfinite", '"propagate" or "raise"', "None"),
    *(
        _value(
            f"raise_{bad}",
            lambda i, b=bad: bs.quantize(i.holding(b), nonfinite="raise"),
            "x",
            "finite with nonfinite='raise'",
            "1 NaN or inf, the first at (1, 3)",
        )
        for bad in (NAN, INF, -INF)
    ),
    *(
        _value(
            f"raise_amax_{bad}",
            lambda i, b=bad: bs.quantize(i.x(4, 16), amax=i.x() * b, nonfinite="raise"),
            "amax",
            "finite and non-negative with...",
            f"[{bad}]",
        )
        for bad in (NAN, INF, -1.0)
    ),
)

_OUT: tuple[BadCall, ...] = (
    _kind("out_tensor", made(out=lambda i: i.x(4, 16)), "out", "an NVFP4Operand", "Tensor"),
    _kind("out_tuple", made(out=lambda i: (i.op(4, 16), i.op(4, 16))), "out", "an NVFP4Operand", "tuple"),
    _value("out_shape", made(out=lambda i: i.op(16, 16)), "out.shape", "(4, 16)", "(16, 16)"),
    _value("out_shape_3d", made((1, 4, 16), out=lambda i: i.op(4, 16)), "out.shape", "(1, 4, 16)", "(4, 16)"),
    _value(
        "out_layout", made(out=lambda i: bs.swizzle_scales(i.op(4, 16))), "out.layout", "...LINEAR", "...SWIZZLED_128X4"
    ),
    _value("out_row", made(out=lambda i: i.op(4, 16, scaling="row")), "out.format", "...'tensor'...", "...'row'..."),
    _value("out_256", made(out=lambda i: i.op(4, 16, e4m3_max=256)), "out.format", "...448...", "...256..."),
    _value(
        "out_tiles",
        made((16, 16), out=lambda i: i.op(16, 16, **TILES)),
        "out.format",
        "...(1, 16)...",
        "...(16, 16)...",
    ),
    _value(
        "out_orientation",
        lambda i: bs.quantize(i.x(16, 16), orientation="columnwise", out=i.op(16, 16)),
        "out.orientation",
        "columnwise",
        "rowwise",
    ),
    _value("out_device", made(out=lambda i: i.op(4, 16).to("meta")), "out", "on ..., where the other...", "meta"),
)

_MISUSE: tuple[BadCall, ...] = (
    misused("quantize", "nothing", lambda i: bs.quantize(), r"quantize\(\) missing 1 required positional"),
    misused("quantize", "positional", lambda i: bs.quantize(i.x(4, 16), "row"), r"quantize\(\) takes 1 positional"),
    misused(
        "quantize", "flags", lambda i: bs.quantize(i.x(4, 16), "row", True, False), r"quantize\(\) takes 1 positional"
    ),
    misused("quantize", "unknown", lambda i: bs.quantize(i.x(4, 16), block_size=16), r"quantize\(\) got an unexpected"),
)

_both_kind = ruled("quantize_both", TypeError)
_both_value = ruled("quantize_both", ValueError)
_both_offered = ruled("quantize_both", NotImplementedError)
_both_format = ruled("quantize_both", ValueError, op="NVFP4")


def both(shape: tuple[int, ...] = (16, 32), **keywords: Any) -> Any:
    """quantize_both of ones."""
    return lambda i: bs.quantize_both(i.x(*shape), **keywords)


def _pair_amax(*shapes: tuple[int, ...]) -> Any:
    return lambda i: bs.quantize_both(i.x(16, 32), scaling="row", amax=tuple(i.x(*shape) for shape in shapes))


def _column(i: Any, rows: int = 32, k: int = 16) -> Any:
    op = i.op(rows, k)
    return bs.NVFP4Operand(op.qdata, op.block_scale, op.amax, op.shape, orientation="columnwise")


_BOTH: tuple[BadCall, ...] = (
    _both_kind("x_list", lambda i: bs.quantize_both([[1.0] * 16]), "x", "a torch.Tensor", "list"),
    _both_kind("x_int", lambda i: bs.quantize_both(i.x(16, 16).int()), "x", FLOATS, "torch.int32"),
    _both_value("m", both((17, 16)), "x", "of M ... a multiple of 16", "17"),
    _both_value("k", both((16, 24)), "x", "of K a multiple of 16", "24"),
    _both_value("row_1d", both((16,)), "x", "of M ... a multiple of 16", "1"),
    _both_format("row_tiles", both(scaling="row", **TILES), "scaling", '"tensor" with...', '"row"'),
    _both_kind("layout", both(layout=1), "layout", "a ScaleLayout", "int"),
    _both_offered("stochastic", both(rounding="stochastic"), "rounding", "...", '"stochastic"'),
    _both_offered("measure", both(four_over_six="mae"), "four_over_six", HERE, "'mae'"),
    _both_offered("rht", both(rht=0), "rht", HERE, "0x0"),
    _both_kind("amax_pair_of_tensor", both(amax=(1.0, 2.0)), "amax", "a float or a float32...", "tuple"),
    _both_value("amax_number_of_row", both(scaling="row", amax=1.0), "amax", "a pair of float32...", "float"),
    _both_value("amax_one_of_row", _pair_amax((16,)), "amax", "a pair of float32...", "tuple"),
    _both_value("amax_swapped", _pair_amax((32,), (16,)), "amax[0]", "of shape (16,)...", "(32,)"),
    _both_value("amax_second", _pair_amax((16,), (16,)), "amax[1]", "of shape (32,)...", "(16,)"),
    _both_value("amax_1e300", both(amax=1e300), "amax", "representable in float32", "1e+300"),
    _both_value("group_and_amax", both(amax=1.0, amax_group=object()), "amax_group", "None when amax...", "a group"),
    _both_value(
        "group_and_row", both(scaling="row", amax_group=object()), "amax_group", "None with scaling...", "a group"
    ),
    _both_value(
        "group_and_row_amax",
        lambda i: bs.quantize_both(i.x(16, 32), scaling="row", amax=(i.x(16), i.x(32)), amax_group=object()),
        "amax_group",
        "None with scaling='row'",
        "a group",
    ),
    _both_value("nonfinite", both(nonfinite="no"), "nonfinite", '"propagate" or "raise"', "'no'"),
    _both_kind(
        "out_one", lambda i: bs.quantize_both(i.x(16, 32), out=i.op()), "out", "a pair of operands", "NVFP4Operand"
    ),
    _both_kind(
        "out_list", lambda i: bs.quantize_both(i.x(16, 32), out=[i.op(), _column(i)]), "out", "a pair...", "list"
    ),
    _both_value(
        "out_first",
        lambda i: bs.quantize_both(i.x(16, 32), out=(_column(i), i.op())),
        "out[0].shape",
        "(16, 32)",
        "(32, 16)",
    ),
    _both_value(
        "out_second",
        lambda i: bs.quantize_both(i.x(16, 32), out=(i.op(), i.op(32, 16))),
        "out[1].orientation",
        "columnwise",
        "rowwise",
    ),
    misused(
        "quantize_both", "positional", lambda i: bs.quantize_both(i.x(16, 16), "row"), r"quantize_both\(\) takes 1"
    ),
    misused("quantize_both", "orientation", both(orientation="rowwise"), r"quantize_both\(\) got an unexpected"),
)

CAST_CALLS: tuple[BadCall, ...] = _X + _FORMAT + _AMAX + _OUT + _MISUSE + _BOTH
