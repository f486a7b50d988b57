# SPDX-License-Identifier: Apache-2.0
"""Shapes that every implementation accepts, with the shapes of what it writes. numerics, sections 3 to 5, 10 and 15."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from blockscale.formats import ScaleLayout


@dataclass(frozen=True, eq=False)
class ShapeCase:
    """`quantize` of ones of a shape.

    Attributes:
        x: shape of the input.
        qdata, block_scale, amax, operand: shapes of the result's fields; ``operand`` is its logical shape.
        keywords: keywords of `quantize`.
    """

    x: tuple[int, ...]
    qdata: tuple[int, int]
    block_scale: tuple[int, int]
    amax: tuple[int, ...]
    operand: tuple[int, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{key}={getattr(value, 'name', value)}" for key, value in self.keywords.items()]
        return ",".join(["x".join(map(str, self.x)), *words])


_COLUMNWISE = {"orientation": "columnwise"}
_ROW = {"scaling": "row"}
_TILES = {"block": (16, 16)}
_SWIZZLED = {"layout": ScaleLayout.SWIZZLED_128X4}

SHAPE_CASES: tuple[ShapeCase, ...] = (
    ShapeCase((1, 16), (1, 8), (1, 1), (), (1, 16)),
    ShapeCase((33, 16), (33, 8), (33, 1), (), (33, 16)),
    ShapeCase((16,), (1, 8), (1, 1), (), (16,)),
    ShapeCase((2, 3, 32), (6, 16), (6, 2), (), (2, 3, 32)),
    ShapeCase((2, 3, 32), (6, 16), (6, 2), (6,), (2, 3, 32), _ROW),
    ShapeCase((5, 80), (5, 40), (128, 8), (), (5, 80), _SWIZZLED),
    ShapeCase((129, 64), (129, 32), (256, 4), (129,), (129, 64), {**_ROW, **_SWIZZLED}),
    ShapeCase((1, 32), (1, 16), (1, 2), (), (1, 32), _TILES),
    ShapeCase((17, 32), (17, 16), (17, 2), (), (17, 32), _TILES),
    ShapeCase((48, 80), (80, 24), (80, 3), (), (80, 48), _COLUMNWISE),
    ShapeCase((4, 4, 32), (32, 8), (32, 1), (32,), (32, 16), {**_COLUMNWISE, **_ROW}),
    ShapeCase((32, 48), (48, 16), (128, 4), (), (48, 32), {**_COLUMNWISE, **_TILES, **_SWIZZLED}),
    ShapeCase((0, 32), (0, 16), (0, 2), (), (0, 32)),
    ShapeCase((0, 32), (0, 16), (0, 2), (0,), (0, 32), _ROW),
    ShapeCase((0, 32), (0, 16), (0, 4), (), (0, 32), _SWIZZLED),
    ShapeCase((0, 32), (0, 16), (0, 2), (), (0, 32), _TILES),
    ShapeCase((0, 32), (32, 0), (32, 0), (), (32, 0), _COLUMNWISE),
    ShapeCase((0, 32), (32, 0), (32, 0), (32,), (32, 0), {**_COLUMNWISE, **_ROW}),
    ShapeCase((7, 0), (7, 0), (7, 0), (), (7, 0)),
    ShapeCase((7, 0), (7, 0), (7, 0), (7,), (7, 0), _ROW),
    ShapeCase((7, 0), (7, 0), (128, 0), (), (7, 0), _SWIZZLED),
    ShapeCase((7, 0), (7, 0), (7, 0), (), (7, 0), _TILES),
    ShapeCase((2, 0, 16), (0, 8), (0, 1), (), (2, 0, 16)),
)
