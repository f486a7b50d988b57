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
        yield (*a, *b, torch.ones(n), torch.ones(1), 1.0, matrix(m, n), 0.5, 1, return_kind, [], False), m, n
        plain = (matrix(m, k, torch.bfloat16), None, None, TENSOR, 448, LINEAR)
        yield (*plain, *b, None, None, 0.5, None, 0.0, 0, 0, [], False), m, n


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


_SHARDS = ((5, 48, 7, 100), (40, 80, 0, 3200), (16, 32, 512, 0))
"""M, K, start and length of shards: odd and inside, whole, and empty at the end."""


def _shard(m: int, k: int, start: int, length: int) -> torch.Tensor:
    return matrix(m, k, torch.bfloat16 if k == 48 else torch.float32).flatten()[start : start + length].clone()


def _tiles(m: int, k: int) -> torch.Tensor:
    return torch.arange(-(-m // 16) * (k // 16)).view(-(-m // 16), k // 16) / 8


def _fragment(start: int, length: int) -> torch.Tensor:
    return torch.full((((start + length + 1) >> 1) - (start >> 1) if length else 0,), 0x5A, dtype=torch.uint8)


def _scales(m: int, k: int, rows: int, stride: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.zeros(-(-m // 16), k // 16, dtype=torch.uint8), torch.zeros(rows, stride, dtype=torch.uint8)
    return *made, torch.zeros(())


def _partial_amax(out: bool) -> Iterator[Arguments]:
    for m, k, start, length in _SHARDS:
        head = (_shard(m, k, start, length), m, k, start, 1)
        yield (*head, _tiles(m, k)) if out else head


def _fused_scale(out: bool) -> Iterator[Arguments]:
    for m, k, layout, stride in ((5, 48, LINEAR, 4), (40, 80, SWIZZLED, 5), (0, 32, LINEAR, 2)):
        head = (_tiles(m, k), torch.ones(()), m, k, layout, 448, stride)
        rows, columns = _LAYOUTS[layout].shape(m, k) if layout == SWIZZLED else (m, stride)
        yield (*head, *_scales(m, k, rows, columns)) if out else head


def _partial_cast() -> Iterator[Arguments]:
    for m, k, start, length in _SHARDS:
        scales = torch.full((-(-m // 16), k // 16), 0x38, dtype=torch.uint8)
        yield _shard(m, k, start, length), _fragment(start, length), scales, torch.ones(1), m, k, start, 1, 448


def _columns(rows: Any, count: int) -> tuple[list[Any], ...]:
    """Parallel lists of the items of all shards, and of one alone."""
    return tuple([row[i] for row in rows] for i in range(count))


def _multi_partial_amax() -> Iterator[Arguments]:
    for chosen in (_SHARDS, _SHARDS[:1]):
        shards, tiles = [_shard(*place) for place in chosen], [_tiles(m, k) for m, k, _, _ in chosen]
        ms, ks, starts = _columns(chosen, 3)
        yield shards, ms, ks, starts, 0, tiles, torch.zeros(len(chosen)) if len(chosen) > 1 else None


def _multi_fused_scale() -> Iterator[Arguments]:
    for count in (1, 3):
        chosen = list(_fused_scale(True))[:count]
        tiles, amaxes, ms, ks, layouts, e4m3_maxes, _, *made = _columns(chosen, 10)
        yield (tiles, [amax.clone() for amax in amaxes], ms, ks, layouts, e4m3_maxes, *made)


def _multi_partial_cast() -> Iterator[Arguments]:
    for count in (1, 3):
        shards, outs, scales, amaxes, ms, ks, starts, _, e4m3_maxes = _columns(list(_partial_cast())[:count], 9)
        yield shards, outs, scales, amaxes, ms, ks, starts, 0, e4m3_maxes


def _multi_transpose() -> Iterator[Arguments]:
    for count in (1, 3):
        qdata, scales, amaxes, e4m3_maxes, layouts, *made = _columns(list(_transpose(True))[:count], 8)
        yield (qdata, scales, amaxes, layouts, e4m3_maxes, *made)


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
    "partial_amax": lambda: _partial_amax(False),
    "partial_amax_out": lambda: _partial_amax(True),
    "fused_scale": lambda: _fused_scale(False),
    "fused_scale_out": lambda: _fused_scale(True),
    "partial_cast": _partial_cast,
    "multi_tensor_partial_amax": _multi_partial_amax,
    "multi_tensor_fused_scale": _multi_fused_scale,
    "multi_tensor_partial_cast": _multi_partial_cast,
    "multi_tensor_transpose": _multi_transpose,
}

MUTATED: dict[str, tuple[str, ...]] = {
    "quantize_out": ("qdata", "block_scale", "amax_out"),
    "quantize_both_out": ("qdata", "block_scale", "amax_out", "qdata_t", "block_scale_t", "amax_out_t"),
    "dequantize_out": ("out",),
    "transpose_out": ("qdata_out", "block_scale_out", "amax_out"),
    "gemm_out": ("out",),
    "gemm_nvfp4_out": ("qdata", "block_scale", "amax_out"),
    "partial_amax_out": ("out",),
    "fused_scale_out": ("tile_scales", "block_scale", "amax_out"),
    "partial_cast": ("out",),
    "multi_tensor_partial_amax": ("tile_amaxes", "amax"),
    "multi_tensor_fused_scale": ("tile_scales", "block_scales", "stored"),
    "multi_tensor_partial_cast": ("outs",),
    "multi_tensor_transpose": ("qdata_out", "block_scales_out", "amaxes_out"),
}
"""What each op may write; every other op writes nothing of its arguments."""
