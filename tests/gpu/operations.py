# SPDX-License-Identifier: Apache-2.0
"""Every public operation as one call on a set of inputs: for streams, graphs, syncs, the sanitizer and memory tests.

The operands of `gemm` are exact (tests/gemm/operands.py), so that its results have the same bits on every device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

import blockscale as bs
from blockscale.operand import NVFP4Operand
from tests.bits import assert_bits_equal
from tests.gemm.operands import A_FORMATS, DTYPES, LINEAR, SWIZZLED, exact_operand
from tests.inputs import FORMATS, make

Result = torch.Tensor | NVFP4Operand
Call = Callable[["Inputs"], list[Result]]


@dataclass(frozen=True)
class Inputs:
    """Buffers that calls read, on one device. The operands have K = x.shape[1] columns."""

    x: torch.Tensor  # (M, K): what is cast
    plain: torch.Tensor  # (M, K) bfloat16 of small integers: a plain left operand
    amax: torch.Tensor
    row_amax: torch.Tensor
    column_amax: torch.Tensor
    alpha: torch.Tensor
    bias: torch.Tensor
    c: torch.Tensor
    a: dict[str, NVFP4Operand]
    b: dict[str, NVFP4Operand]

    def to(self, device: torch.device | str) -> Inputs:
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, dict):
                moved[field.name] = {key: op.to(device) for key, op in value.items()}
            else:
                moved[field.name] = value.to(device)
        return replace(self, **moved)

    def copy_(self, other: Inputs) -> None:
        """The values of other into the buffers of this one, which stay where they are."""
        for field in fields(self):
            mine, its = getattr(self, field.name), getattr(other, field.name)
            for key in mine if isinstance(mine, dict) else [None]:
                p, q = (mine, its) if key is None else (mine[key], its[key])
                pairs = [(p, q)] if isinstance(p, torch.Tensor) else _tensor_pairs(p, q)
                for target, source in pairs:
                    target.copy_(source)


def _tensor_pairs(p: NVFP4Operand, q: NVFP4Operand) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        (p.qdata, q.qdata),
        (p.block_scale.view(torch.uint8), q.block_scale.view(torch.uint8)),
        (p.amax, q.amax),
    ]


def make_inputs(m: int, n: int, k: int, seed: int, dtype: torch.dtype = torch.float32, kind: str = "wide") -> Inputs:
    """CPU inputs. n a multiple of 16 for the NVFP4 output; m too where columnwise operands are wanted."""
    gen = torch.Generator().manual_seed(seed)
    return Inputs(
        x=make(kind, m, k, gen, dtype),
        plain=(torch.randint(-4, 5, (m, k), generator=gen)).bfloat16(),
        amax=torch.rand((), generator=gen) + 0.5,
        row_amax=torch.rand(m, generator=gen) + 0.5,
        column_amax=torch.rand(k, generator=gen) + 0.5,
        alpha=torch.rand((), generator=gen) + 0.5,
        bias=torch.randn(n, generator=gen).half(),
        c=torch.randn(m, n, generator=gen),
        a={name: exact_operand(m, k, gen, fmt, SWIZZLED) for name, fmt in A_FORMATS.items()},
        b={name: exact_operand(n, k, gen, fmt) for name, fmt in A_FORMATS.items()},
    )


def operations(m: int) -> dict[str, Call]:
    """Name to call. Those that need M to be a multiple of 16 are left out where it is not."""
    made: dict[str, Call] = {
        f"amax {scaling}": lambda i, scaling=scaling: [bs.amax(i.x, scaling)] for scaling in ("tensor", "row", "column")
    }
    for name, fmt in FORMATS.items():
        made |= _casts(name, fmt, m)
    made |= _products()
    made["primary weights"] = _primary_weights
    return made


def _primary_weights(i: Inputs) -> list[Result]:
    """Shards with odd boundaries, one by one and as a list; the fragments are merged into a weight."""
    shape, flat, total = tuple(i.x.shape), i.x.flatten(), i.x.numel()
    bounds = sorted(min(bound, total) for bound in (0, 16 * shape[1], total // 2 | 1, total, total))
    starts, lengths = bounds[:-1], [b - a for a, b in itertools.pairwise(bounds)]
    shards = [flat[a:b] for a, b in itertools.pairwise(bounds)]
    amax = torch.empty(len(shards), device=flat.device)
    tiles = bs.multi_tensor_partial_amax(shards, [shape] * 4, starts, round_to=torch.bfloat16, amax=amax)
    whole = torch.stack([tile.view(torch.int32) for tile in tiles]).amax(0).view(torch.float32)
    (scales,) = bs.multi_tensor_fused_scale([whole], [i.amax], [shape], layout=SWIZZLED)
    single = bs.fused_scale(whole, i.amax, shape, row_stride=shape[1] // 16 + 3)
    outs = [
        torch.zeros(((b + 1) >> 1) - (a >> 1) if b > a else 0, dtype=torch.uint8, device=flat.device)
        for a, b in itertools.pairwise(bounds)
    ]
    rest = ([single.tile_scales] * 4, [i.amax] * 4, [shape] * 4, starts)
    bs.multi_tensor_partial_cast(shards, outs, *rest, round_to=torch.bfloat16)
    bs.partial_cast(shards[1], outs[1], single.tile_scales, i.amax, shape, starts[1])
    made = [*tiles, amax, bs.partial_amax(shards[1], shape, starts[1])]
    parts = [part.view(torch.uint8) if part.dim() else part for part in (*scales, *single)]
    return [*made, *parts, *outs, bs.merge_fragments(outs, starts, lengths, shape)]


def _casts(name: str, fmt: dict[str, Any], m: int) -> dict[str, Call]:
    row = fmt.get("scaling") == "row"
    tiles = fmt.get("block") == (16, 16)

    def given(i: Inputs, columnwise: bool) -> torch.Tensor:
        return (i.column_amax if columnwise else i.row_amax) if row else i.amax

    def rowwise(i: Inputs) -> list[Result]:
        op = bs.quantize(i.x, layout=SWIZZLED, **fmt)
        linear = bs.quantize(i.x, amax=given(i, False), **fmt)
        moved: list[Result] = [bs.swizzle_scales(linear), bs.unswizzle_scales(op)]
        return [op, linear, *moved, *(bs.dequantize(op, dtype) for dtype in DTYPES), bs.dequantize(linear)]

    def columnwise(i: Inputs) -> list[Result]:
        own = bs.quantize(i.x, orientation="columnwise", **fmt)
        other = bs.quantize(i.x, orientation="columnwise", layout=SWIZZLED, amax=given(i, True), **fmt)
        both = bs.quantize_both(i.x, layout=SWIZZLED, **fmt)
        pair = (i.row_amax, i.column_amax) if row else i.amax
        return [own, other, *both, *bs.quantize_both(i.x, amax=pair, **fmt)]

    def transposed(i: Inputs) -> list[Result]:
        return [bs.transpose(bs.quantize(i.x, layout=layout, **fmt)) for layout in (LINEAR, SWIZZLED)]

    calls: dict[str, Call] = {f"quantize {name}": rowwise}
    if m % 16 == 0:
        calls[f"quantize_both {name}"] = columnwise
        if tiles:
            calls[f"transpose {name}"] = transposed
    return calls


def _products() -> dict[str, Call]:
    def floats(i: Inputs) -> list[Result]:
        made: list[Result] = []
        for dtype in DTYPES:
            made += bs.gemm(i.a["row"], i.b["tiles"], out_dtype=dtype, return_amax="row")
            made += bs.gemm(
                i.a["tensor_256"], i.b["row"], out_dtype=dtype, alpha=i.alpha, beta=-0.5, c=i.c, bias=i.bias,
                activation="relu", return_amax="tensor",
            )  # fmt: skip
        return made

    def plain(i: Inputs) -> list[Result]:
        return [bs.gemm(i.plain, i.b["tiles"], alpha=0.5, bias=i.bias), bs.gemm(i.plain.half(), i.b["row_256"])]

    def nvfp4(i: Inputs) -> list[Result]:
        made: list[Result] = [*bs.gemm(i.a["row"], i.b["row"], out_format=bs.NVFP4(), out_amax=i.amax,
                                       return_amax="tensor")]  # fmt: skip
        made += bs.gemm(
            i.a["tiles"], i.b["tensor"], out_format=bs.NVFP4(scaling="row", e4m3_max=256), out_amax=i.row_amax,
            bias=i.bias, c=i.c, alpha=0.25, return_amax="row",
        )  # fmt: skip
        return made

    return {"gemm": floats, "gemm plain": plain, "gemm nvfp4": nvfp4}


def assert_same_results(got: list[Result], want: list[Result], what: str) -> None:
    """Bits of tensors and of operands, across devices; any NaN of a float tensor for any other."""
    assert len(got) == len(want)
    for index, (p, q) in enumerate(zip(got, want, strict=True)):
        where = f"{what}, result {index}"
        if isinstance(p, torch.Tensor):
            assert isinstance(q, torch.Tensor)
            assert_bits_equal(p, q, where, nan_equal=True)
            continue
        assert isinstance(q, NVFP4Operand)
        for field in ("shape", "layout", "format", "orientation"):
            assert getattr(p, field) == getattr(q, field), where
        for name, (left, right) in zip(("qdata", "block_scale", "amax"), _tensor_pairs(p, q), strict=True):
            assert_bits_equal(left, right, f"{where}, {name}")
