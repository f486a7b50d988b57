# SPDX-License-Identifier: Apache-2.0
"""Calls that every implementation refuses, with the same exception and the same start of the message. numerics, 0.

The start names the operation and, where only one argument can be at fault, the argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from blockscale.formats import NVFP4
from blockscale.operand import NVFP4Operand

NAN = float("nan")
INF = float("inf")


class Inputs:
    """What the calls below are made of, on the device under test."""

    def __init__(self, api: Any, device: torch.device | str) -> None:
        self.api = api
        self.device = device

    def x(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=self.device)

    def holding(self, value: float) -> torch.Tensor:
        """(2, 32) of ones, with ``value`` at (1, 3)."""
        x = self.x(2, 32)
        x[1, 3] = value
        return x

    def op(self, rows: int = 16, k: int = 32, **fmt: Any) -> NVFP4Operand:
        """An operand of ones of format `NVFP4(**fmt)`."""
        form = NVFP4(**fmt)
        return NVFP4Operand(
            torch.full((rows, k // 2), 0x77, dtype=torch.uint8, device=self.device),
            torch.full((rows, k // 16), 0x7E, dtype=torch.uint8, device=self.device),
            self.x(*((rows,) if form.scaling == "row" else ())),
            (rows, k),
            format=form,
        )

    def quantize(self, shape: tuple[int, ...], **keywords: Any) -> object:
        return self.api.quantize(self.x(*shape), **keywords)

    def gemm(self, **keywords: Any) -> object:
        """(16, 32) times (32, 32) transposed, so that D is (16, 32)."""
        return self.api.gemm(self.op(), self.op(32), **keywords)


@dataclass(frozen=True, eq=False)
class RefusalCase:
    """One bad call.

    Attributes:
        name: test id.
        call: makes the call.
        error: the exact exception type.
        start: how the message starts.
    """

    name: str
    call: Callable[[Inputs], object]
    error: type[Exception]
    start: str

    def __str__(self) -> str:
        return self.name


def _quantize(name: str, arg: str, error: type[Exception], call: Callable[..., object], *value: Any) -> RefusalCase:
    return RefusalCase(f"quantize_{name}", lambda i: call(i, *value), error, f"quantize: {arg} must be ")


def _gemm(name: str, arg: str, error: type[Exception], call: Callable[..., object], *value: Any) -> RefusalCase:
    start = f"gemm: {arg} must be " if arg else "gemm: "
    return RefusalCase(f"gemm_{name}", lambda i: call(i, *value), error, start)


_TILES: dict[str, Any] = {"block": (16, 16)}

_FORMATS = (
    RefusalCase("row_tiles", lambda i: i.quantize((16, 16), scaling="row", **_TILES), ValueError, "NVFP4: scaling"),
    RefusalCase("scaling", lambda i: i.quantize((16, 16), scaling="block"), ValueError, "NVFP4: scaling"),
    RefusalCase("block", lambda i: i.quantize((16, 16), block=(16, 1)), ValueError, "NVFP4: block"),
    RefusalCase("e4m3_max", lambda i: i.quantize((16, 16), e4m3_max=300), ValueError, "NVFP4: e4m3_max"),
    RefusalCase("measure", lambda i: i.quantize((16, 16), four_over_six="max"), ValueError, "NVFP4: four_over_six"),
)

_QUANTIZE = (
    _quantize("list", "x", TypeError, lambda i: i.api.quantize([[1.0] * 16])),
    _quantize("operand", "x", TypeError, lambda i: i.api.quantize(i.op())),
    _quantize("float64", "x", TypeError, lambda i: i.api.quantize(i.x(2, 16, dtype=torch.float64))),
    _quantize("int", "x", TypeError, lambda i: i.api.quantize(i.x(2, 16, dtype=torch.int32))),
    _quantize("scalar", "x", ValueError, lambda i: i.quantize(())),
    *(
        _quantize(f"k_{shape[1]}", "x", ValueError, lambda i, shape: i.quantize(shape), shape)
        for shape in ((33, 47), (4, 24), (4, 8))
    ),
    _quantize("k_of_tiles", "x", ValueError, lambda i: i.quantize((16, 24), **_TILES)),
    _quantize("columnwise_m", "x", ValueError, lambda i: i.quantize((33, 16), orientation="columnwise")),
    _quantize(
        "columnwise_m_row", "x", ValueError, lambda i: i.quantize((8, 16), orientation="columnwise", scaling="row")
    ),
    _quantize(
        "columnwise_m_of_tiles", "x", ValueError, lambda i: i.quantize((17, 16), orientation="columnwise", **_TILES)
    ),
    _quantize("orientation", "orientation", ValueError, lambda i: i.quantize((16, 16), orientation="column")),
    _quantize("layout", "layout", TypeError, lambda i: i.quantize((16, 16), layout="linear")),
    _quantize("nonfinite", "nonfinite", ValueError, lambda i: i.quantize((16, 16), nonfinite="ignore")),
    *(
        _quantize(f"amax_{value}", "amax", ValueError, lambda i, value: i.quantize((4, 16), amax=value), value)
        for value in (NAN, INF, -INF, 1e39, 1e-50, -1.0)
    ),
    _quantize("amax_text", "amax", TypeError, lambda i: i.quantize((4, 16), amax="1")),
    _quantize("amax_float64", "amax", TypeError, lambda i: i.quantize((4, 16), amax=i.x(dtype=torch.float64))),
    _quantize("amax_int", "amax", TypeError, lambda i: i.quantize((4, 16), amax=i.x(dtype=torch.int32))),
    *(
        _quantize(
            f"amax_of_shape_{shape}", "amax", ValueError, lambda i, shape: i.quantize((4, 16), amax=i.x(*shape)), shape
        )
        for shape in ((4,), (0,), (1, 1))
    ),
    _quantize("row_amax_number", "amax", ValueError, lambda i: i.quantize((4, 16), scaling="row", amax=1.0)),
    *(
        _quantize(
            f"row_amax_of_shape_{shape}",
            "amax",
            ValueError,
            lambda i, shape: i.quantize((4, 16), scaling="row", amax=i.x(*shape)),
            shape,
        )
        for shape in ((), (1,), (16,), (4, 1))
    ),
    _quantize(
        "row_amax_of_rows_for_columns",
        "amax",
        ValueError,
        lambda i: i.quantize((32, 16), scaling="row", orientation="columnwise", amax=i.x(32)),
    ),
    *(
        _quantize(
            f"raise_{value}",
            "x",
            ValueError,
            lambda i, value: i.api.quantize(i.holding(value), nonfinite="raise"),
            value,
        )
        for value in (NAN, INF, -INF)
    ),
    *(
        _quantize(
            f"raise_amax_{value}",
            "amax",
            ValueError,
            lambda i, value: i.quantize((4, 16), amax=torch.full((), value, device=i.device), nonfinite="raise"),
            value,
        )
        for value in (NAN, INF, -1.0)
    ),
)

_OTHERS = (
    RefusalCase("both_m", lambda i: i.api.quantize_both(i.x(17, 16)), ValueError, "quantize_both: x must be "),
    RefusalCase("both_k", lambda i: i.api.quantize_both(i.x(16, 24)), ValueError, "quantize_both: x must be "),
    RefusalCase("amax_int", lambda i: i.api.amax(i.x(4, dtype=torch.int64)), TypeError, "amax: x must be "),
    RefusalCase("amax_scaling", lambda i: i.api.amax(i.x(4, 16), "block"), ValueError, "amax: scaling must be "),
    RefusalCase("dequantize_tensor", lambda i: i.api.dequantize(i.x(4, 16)), TypeError, "dequantize: op must be "),
    RefusalCase(
        "dequantize_dtype", lambda i: i.api.dequantize(i.op(), torch.float64), TypeError, "dequantize: dtype must be "
    ),
    RefusalCase("transpose_tensor", lambda i: i.api.transpose(i.x(16, 16)), TypeError, "transpose: op must be "),
    RefusalCase("transpose_blocks", lambda i: i.api.transpose(i.op()), ValueError, "transpose: op must be "),
    RefusalCase("transpose_rows", lambda i: i.api.transpose(i.op(17, **_TILES)), ValueError, "transpose: op must be "),
    RefusalCase("swizzle_tensor", lambda i: i.api.swizzle_scales(i.x(4, 4)), TypeError, "swizzle_scales: op must be "),
    RefusalCase(
        "unswizzle_tensor", lambda i: i.api.unswizzle_scales(i.x(4, 4)), TypeError, "unswizzle_scales: op must be "
    ),
)


def _with_output(i: Inputs, fmt: dict[str, Any] | None = None, **keywords: Any) -> object:
    return i.gemm(out_format=NVFP4(**(fmt or {})), **keywords)


_GEMM = (
    _gemm("b_tensor", "b", TypeError, lambda i: i.api.gemm(i.op(), i.x(32, 32))),
    _gemm("a_float32", "a", TypeError, lambda i: i.api.gemm(i.x(16, 32), i.op(32))),
    _gemm("a_list", "a", TypeError, lambda i: i.api.gemm([[1.0]], i.op(32))),
    _gemm("k", "", ValueError, lambda i: i.api.gemm(i.op(16, 32), i.op(16, 48))),
    _gemm("k_plain", "", ValueError, lambda i: i.api.gemm(i.x(16, 48, dtype=torch.float16), i.op(16, 32))),
    _gemm("k_above_2_20", "", ValueError, lambda i: i.api.gemm(i.op(1, 2**20 + 16), i.op(1, 2**20 + 16))),
    _gemm("rht_differs", "", ValueError, lambda i: i.api.gemm(i.op(rht=0xD7E8), i.op(rht=0xD7E9))),
    _gemm("rht_on_one", "", ValueError, lambda i: i.api.gemm(i.op(), i.op(rht=0))),
    _gemm("out_dtype", "out_dtype", TypeError, lambda i: i.gemm(out_dtype=torch.float64)),
    _gemm("alpha_text", "alpha", TypeError, lambda i: i.gemm(alpha="1")),
    _gemm("alpha_float64", "alpha", TypeError, lambda i: i.gemm(alpha=i.x(dtype=torch.float64))),
    _gemm("alpha_two", "alpha", ValueError, lambda i: i.gemm(alpha=i.x(2))),
    *(
        _gemm(f"alpha_{value}", "alpha", ValueError, lambda i, value: i.gemm(alpha=value), value)
        for value in (NAN, INF, -1e39, 1e-50)
    ),
    _gemm("beta_tensor", "beta", TypeError, lambda i: i.gemm(beta=i.x(), c=i.x(16, 32))),
    _gemm("beta_nan", "beta", ValueError, lambda i: i.gemm(beta=NAN, c=i.x(16, 32))),
    _gemm("beta_without_c", "beta", ValueError, lambda i: i.gemm(beta=1.0)),
    _gemm("c_list", "c", TypeError, lambda i: i.gemm(c=[1.0])),
    _gemm("c_float64", "c", TypeError, lambda i: i.gemm(c=i.x(16, 32, dtype=torch.float64))),
    _gemm("c_shape", "c", ValueError, lambda i: i.gemm(c=i.x(32, 16))),
    _gemm("c_row", "c", ValueError, lambda i: i.gemm(c=i.x(32))),
    _gemm("c_expanded", "c", ValueError, lambda i: i.gemm(c=i.x(1, 32).expand(16, 32))),
    _gemm("c_transposed", "c", ValueError, lambda i: i.gemm(c=i.x(32, 16).T)),
    _gemm("bias_float64", "bias", TypeError, lambda i: i.gemm(bias=i.x(32, dtype=torch.float64))),
    _gemm("bias_shape", "bias", ValueError, lambda i: i.gemm(bias=i.x(16))),
    _gemm("activation", "activation", ValueError, lambda i: i.gemm(activation="tanh")),
    _gemm("return_amax", "return_amax", ValueError, lambda i: i.gemm(return_amax="column")),
    _gemm("out_format_text", "out_format", TypeError, lambda i: i.gemm(out_format="nvfp4", out_amax=1.0)),
    *(
        _gemm(
            f"out_format_{next(iter(fmt))}",
            "out_format",
            NotImplementedError,
            lambda i, fmt: _with_output(i, fmt, out_amax=1.0),
            fmt,
        )
        for fmt in (_TILES, {"four_over_six": "mae"}, {"rht": 0})
    ),
    _gemm("out_n", "", ValueError, lambda i: i.api.gemm(i.op(), i.op(24), out_format=NVFP4(), out_amax=1.0)),
    _gemm("out_amax_missing", "out_amax", ValueError, _with_output),
    _gemm("out_amax_alone", "out_amax", ValueError, lambda i: i.gemm(out_amax=1.0)),
    _gemm("out_amax_nan", "out_amax", ValueError, lambda i: _with_output(i, out_amax=NAN)),
    _gemm("out_amax_float64", "out_amax", TypeError, lambda i: _with_output(i, out_amax=i.x(dtype=torch.float64))),
    _gemm("out_amax_shape", "out_amax", ValueError, lambda i: _with_output(i, out_amax=i.x(16))),
    _gemm("row_out_amax_number", "out_amax", ValueError, lambda i: _with_output(i, {"scaling": "row"}, out_amax=1.0)),
    _gemm(
        "row_out_amax_shape", "out_amax", ValueError, lambda i: _with_output(i, {"scaling": "row"}, out_amax=i.x(32))
    ),
)


def _shard(i: Inputs, length: int = 40, **keywords: Any) -> object:
    """partial_amax of a (16, 32) weight."""
    return i.api.partial_amax(i.x(length), keywords.pop("shape", (16, 32)), **({"start": 100} | keywords))


def _scales(i: Inputs, *tiles: int, shape: tuple[int, ...] = (16, 32), **keywords: Any) -> object:
    return i.api.fused_scale(i.x(*tiles), keywords.pop("amax", 1.0), shape, **keywords)


def _codes(i: Inputs, size: int, start: int, length: int = 6, dtype: torch.dtype = torch.uint8) -> object:
    """partial_cast of a (1, 16) weight into a fragment of `size` bytes."""
    out = torch.zeros(size, dtype=dtype, device=i.device)
    scale = torch.full((1, 1), 0x38, dtype=torch.uint8, device=i.device)
    return i.api.partial_cast(i.x(length), out, scale, 1.0, (1, 16), start)


def _merged(i: Inputs, sizes: tuple[int, ...], starts: list[int], lengths: list[int]) -> object:
    fragments = [torch.zeros(size, dtype=torch.uint8, device=i.device) for size in sizes]
    return i.api.merge_fragments(fragments, starts, lengths, (1, 16))


_PRIMARY = (
    RefusalCase("shard_list", lambda i: i.api.partial_amax([1.0], (1, 16), 0), TypeError, "partial_amax: shard must"),
    RefusalCase(
        "shard_int",
        lambda i: i.api.partial_amax(i.x(4, dtype=torch.int32), (1, 16), 0),
        TypeError,
        "partial_amax: shard must be ",
    ),
    *(
        RefusalCase(
            f"shard_at_{start}", lambda i, s=start: _shard(i, start=s), ValueError, "partial_amax: start must be "
        )
        for start in (-1, 473, 513)
    ),
    RefusalCase("shard_behind", lambda i: _shard(i, 0, start=513), ValueError, "partial_amax: start must be "),
    RefusalCase("shard_start", lambda i: _shard(i, start=1.0), TypeError, "partial_amax: start must be "),
    RefusalCase("shard_k", lambda i: _shard(i, shape=(16, 40)), ValueError, "partial_amax: shape must be "),
    RefusalCase("shard_round", lambda i: _shard(i, round_to=torch.int8), TypeError, "partial_amax: round_to must be "),
    RefusalCase("scales_tiles", lambda i: _scales(i, 2, 2), ValueError, "fused_scale: tile_amax must be "),
    RefusalCase("scales_stride", lambda i: _scales(i, 1, 2, row_stride=1), ValueError, "fused_scale: row_stride must"),
    RefusalCase("scales_amax", lambda i: _scales(i, 1, 2, amax=-1.0), ValueError, "fused_scale: amax must be "),
    RefusalCase("scales_layout", lambda i: _scales(i, 1, 2, layout="x"), TypeError, "fused_scale: layout must be "),
    *(
        RefusalCase(f"codes_{size}", lambda i, n=size: _codes(i, n, 5), ValueError, "partial_cast: out must be ")
        for size in (0, 3, 5, 8)
    ),
    RefusalCase("codes_start", lambda i: _codes(i, 3, 11), ValueError, "partial_cast: start must be "),
    RefusalCase("codes_kind", lambda i: _codes(i, 4, 5, dtype=torch.int8), TypeError, "partial_cast: out must be "),
    RefusalCase("merge_lists", lambda i: _merged(i, (8,), [0, 1], [16]), ValueError, "merge_fragments: starts must"),
    RefusalCase("merge_size", lambda i: _merged(i, (7,), [0], [16]), ValueError, "merge_fragments: fragments[0] must"),
    RefusalCase("merge_range", lambda i: _merged(i, (8,), [1], [16]), ValueError, "merge_fragments: starts[0] must be"),
    RefusalCase("merge_twice", lambda i: _merged(i, (3, 3), [0, 4], [5, 5]), ValueError, "merge_fragments: starts"),
    RefusalCase("merge_none", lambda i: _merged(i, (), [], []), ValueError, "merge_fragments: fragments must be "),
)

REFUSAL_CASES: tuple[RefusalCase, ...] = _FORMATS + _QUANTIZE + _OTHERS + _GEMM + _PRIMARY
