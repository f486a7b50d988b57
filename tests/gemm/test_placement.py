# SPDX-License-Identifier: Apache-2.0
"""Which code and which scale is used where: needles across block and atom edges, and scales that name their place."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal
from tests.gemm.operands import LINEAR, SWIZZLED, on, operand

F32 = torch.float32
ROWS = (0, 1, 15, 16, 31, 32, 33, 63, 64, 96, 127, 128, 129, 160, 255, 256, 260)
COLUMNS = (0, 1, 2, 15, 16, 17, 31, 32, 47, 48, 63, 64, 65, 79, 127, 128, 143)
LAYOUT_PAIRS = pytest.mark.parametrize(("left", "right"), list(itertools.product((LINEAR, SWIZZLED), repeat=2)))


def needle(rows: int, k: int, row: int, column: int, code: int, scale: int, stray: int, layout: Any) -> Any:
    """Zero codes under `stray` scales everywhere, but for one code with a scale of its own."""
    codes = torch.zeros(rows, k, dtype=torch.uint8)
    scales = torch.full((rows, k // 16), stray, dtype=torch.uint8)
    codes[row, column] = code
    scales[row, column // 16] = scale
    return operand(codes, scales, layout=layout)


@LAYOUT_PAIRS
@pytest.mark.parametrize("column", COLUMNS)
def test_needle(column: int, left: Any, right: Any, device: torch.device) -> None:
    """1 * 2 times -1.5 * 4, under scales of 448 everywhere else: any other scale or nibble gives another number."""
    for row, other in zip(ROWS, reversed(ROWS), strict=True):
        a = on(device, needle(261, 144, row, column, 2, 0x40, 0x7E, left))
        b = on(device, needle(262, 144, other, column, 11, 0x48, 0x7E, right))
        d = bs.gemm(a, b, out_dtype=F32)
        assert d.nonzero().tolist() == [[row, other]], (row, other)
        assert float(d[row, other]) == -12.0, (row, other)


@LAYOUT_PAIRS
def test_needles_of_different_columns_do_not_meet(left: Any, right: Any, device: torch.device) -> None:
    for column, other in itertools.pairwise(COLUMNS):
        a = on(device, needle(130, 144, 129, column, 7, 0x7E, 0x7E, left))
        b = on(device, needle(130, 144, 64, other, 7, 0x7E, 0x7E, right))
        assert bs.gemm(a, b, out_dtype=F32).count_nonzero() == 0, (column, other)


def test_needle_in_large_k(device: torch.device) -> None:
    """Around the chunks of 1,024 in which the CPU sums."""
    for column in (0, 1023, 1024, 1025, 2047, 2048, 3071, 3087):
        a = on(device, needle(3, 3088, 1, column, 2, 0x40, 0x7E, SWIZZLED))
        b = on(device, needle(4, 3088, 3, column, 11, 0x48, 0x7E, LINEAR))
        expected = torch.zeros(3, 4)
        expected[1, 3] = -12.0
        assert_bits_equal(bs.gemm(a, b, out_dtype=F32), expected, f"column {column}")


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 127, 128, 129, 300])
@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 9])
def test_scale_permutation(rows: int, blocks: int, layout: Any, device: torch.device) -> None:
    """All codes 1; the scales are a permutation of powers of two in each row that names (row, block).

    B picks one block at a time, so that D[row, block] is 16 times the very scale of that place.
    """
    row, block = torch.arange(rows)[:, None], torch.arange(blocks)[None, :]
    exponents = (7 * row + 3 * block + row // 32 + row // 128) % 15 - 6
    scales = ((exponents + 7) << 3).to(torch.uint8)
    tested = operand(torch.full((rows, 16 * blocks), 2, dtype=torch.uint8), scales, layout=layout)
    codes = torch.eye(blocks, dtype=torch.uint8).repeat_interleave(16, dim=1) * 2
    picker = operand(codes, torch.full((blocks, blocks), 0x38, dtype=torch.uint8))
    expected = 16 * 2.0 ** exponents.to(F32)
    assert_bits_equal(bs.gemm(on(device, tested), on(device, picker), out_dtype=F32), expected, "as a")
    d = bs.gemm(on(device, picker), on(device, tested), out_dtype=F32)
    assert_bits_equal(d, expected.T.contiguous(), "as b")


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
def test_every_code_and_every_scale_byte(layout: Any, device: torch.device) -> None:
    """D[code, byte] = val(code) * val(byte), by one element each; the values come from torch and a table."""
    codes = torch.zeros(16, 16, dtype=torch.uint8)
    codes[:, 5] = torch.arange(16)
    a = operand(codes, torch.full((16, 1), 0x38, dtype=torch.uint8), layout=layout)
    ones = torch.zeros(127, 16, dtype=torch.uint8)
    ones[:, 5] = 2
    b = operand(ones, torch.arange(127, dtype=torch.uint8)[:, None], layout=layout)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    scales = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    expected = values[:, None] * scales[None, :] + 0.0  # a sum of zero is +0
    assert_bits_equal(bs.gemm(on(device, a), on(device, b), out_dtype=F32), expected, "d")
    swapped = bs.gemm(on(device, b), on(device, a), out_dtype=F32)
    assert_bits_equal(swapped, expected.T.contiguous(), "d of the transposed roles")


@pytest.mark.parametrize("scaling", ["a", "b", "both"])
def test_row_amax_permutation(scaling: str, device: torch.device) -> None:
    """A power of two in each row's amax that names the row: no row takes its neighbour's."""
    codes, scales = torch.full((130, 16), 2, dtype=torch.uint8), torch.full((130, 1), 0x38, dtype=torch.uint8)
    names = 2.0 ** ((torch.arange(130) * 7 + torch.arange(130) // 64) % 23 - 11).float()
    row = operand(codes, scales, 2688.0 * names, {"scaling": "row"})
    plain = operand(codes, scales)
    a, b = (row if scaling in ("a", "both") else plain), (row if scaling in ("b", "both") else plain)
    factor_a = names[:, None] if a is row else torch.ones(130, 1)
    factor_b = names[None, :] if b is row else torch.ones(1, 130)
    d = bs.gemm(on(device, a), on(device, b), out_dtype=F32)
    assert_bits_equal(d, 16 * factor_a * factor_b, "d")


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
def test_rows_and_columns_commute(layout: Any, device: torch.device, gen: torch.Generator) -> None:
    """Permuting the rows of A permutes those of D; stacking rows stacks results. Of B: columns."""
    x, w = torch.randn(150, 96, generator=gen), torch.randn(140, 96, generator=gen)
    p, q = torch.randperm(150, generator=gen), torch.randperm(140, generator=gen)
    a, b = ref.quantize(x, scaling="row", layout=layout), ref.quantize(w, scaling="row", layout=layout)
    a_moved = ref.quantize(x[p], scaling="row", layout=layout)
    b_moved = ref.quantize(w[q], scaling="row", layout=layout)
    d = bs.gemm(on(device, a), on(device, b), out_dtype=F32).cpu()
    cases = [
        (a_moved, b, d[p], "rows of a"),
        (a, b_moved, d[:, q], "rows of b"),
        (a[:128], b, d[:128], "fewer rows of a"),
        (a, b[:128], d[:, :128], "fewer rows of b"),
    ]
    for left, right, expected, what in cases:
        got = bs.gemm(on(device, left), on(device, right), out_dtype=F32).cpu()
        if device.type == "cpu":
            assert_bits_equal(got, expected, what)
        else:  # another shape may be summed in another order
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
