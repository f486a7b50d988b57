# SPDX-License-Identifier: Apache-2.0
"""amax over a tensor, its rows and its columns: magnitudes as integers, NaN above inf, one NaN in the result."""

from __future__ import annotations

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, from_bits
from tests.inputs import DTYPES, KINDS, make

NAN, INF = float("nan"), float("inf")


def by_integers(x: torch.Tensor, dim: int | None) -> torch.Tensor:
    """The maximum of the bits of |x|; any NaN becomes 7FC00000."""
    bits = x.float().contiguous().view(torch.int32) & 0x7FFFFFFF
    if bits.numel() == 0:
        shape = () if dim is None else (x.shape[1 - dim],)
        return torch.zeros(shape)
    most = bits.max() if dim is None else bits.amax(dim=dim)
    return torch.where(most > 0x7F800000, torch.full_like(most, 0x7FC00000), most).view(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "k"), [(0, 0), (0, 5), (5, 0), (1, 1), (1, 17), (7, 3), (33, 31), (130, 65), (513, 129), (2, 70000)]
)
def test_amax(m: int, k: int, kind: str, dtype: torch.dtype, device: torch.device, gen: torch.Generator) -> None:
    """K need not be a multiple of 16 here."""
    x = make(kind, m, k, gen, dtype)
    for scaling, dim in (("tensor", None), ("row", 1), ("column", 0)):
        assert_bits_equal(bs.amax(x.to(device), scaling), by_integers(x, dim), scaling)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bug_16_the_extreme_is_negative(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.full((4, 32), -1.0, dtype=dtype, device=device)
    x[0, 0] = 0.25
    q = bs.quantize(x)
    assert_bits_equal(q.amax, torch.tensor(1.0), "amax")
    assert (q.block_scale.view(torch.uint8) == 0x7E).all()
    assert (q.qdata[1:] == 0xFF).all()
    assert (bs.dequantize(q)[1:] == -1).all()
    assert_bits_equal(bs.amax(x), torch.tensor(1.0), "tensor")
    assert_bits_equal(bs.amax(x, "row"), torch.ones(4), "row")
    assert_bits_equal(bs.amax(x, "column"), torch.ones(32), "column")
    for orientation, rows in (("rowwise", 4), ("columnwise", 32)):
        wide = x if orientation == "rowwise" else x.repeat(4, 1)
        q = bs.quantize(wide, scaling="row", orientation=orientation)
        assert_bits_equal(q.amax, torch.ones(rows), orientation)


@pytest.mark.parametrize("where", [0, 1, 15, 16, 17, 31, 63, 64, 65, 99, 100])
def test_one_value_anywhere_is_found(where: int, device: torch.device) -> None:
    """A lane, a vector, a tail."""
    for value in (-3.0, NAN, -INF):
        x = torch.ones(3, 101, device=device)
        x[1, where] = value
        wanted = torch.tensor([1.0, abs(value), 1.0])
        assert_bits_equal(bs.amax(x, "row"), wanted, "row")
        assert_bits_equal(bs.amax(x), wanted[1], "tensor")
        columns = torch.ones(101)
        columns[where] = abs(value)
        assert_bits_equal(bs.amax(x, "column"), columns, "column")


@pytest.mark.parametrize("bits", [0x7F800001, 0xFFC01234, 0x7FFFFFFF, 0xFF800001])
def test_a_nan_of_any_kind_is_stored_as_one(bits: int, device: torch.device) -> None:
    x = torch.ones(16, 16)
    x[3, 4] = from_bits(bits)[0]
    canonical = from_bits(0x7FC00000).view(())
    assert_bits_equal(bs.amax(x.to(device)), canonical, "tensor")
    assert_bits_equal(bs.amax(x.to(device), "row")[3], canonical, "row")
    assert_bits_equal(bs.amax(x.to(device), "column")[4], canonical, "column")
    assert_bits_equal(bs.quantize(x.to(device)).amax, canonical, "quantize")


def test_leading_sizes_are_flattened(device: torch.device, gen: torch.Generator) -> None:
    x = make("wide", 24, 32, gen).to(device)
    cube = x.view(2, 3, 4, 32)
    for scaling in ("tensor", "row", "column"):
        assert_bits_equal(bs.amax(cube, scaling), bs.amax(x, scaling), scaling)
    assert bs.amax(x[0]).shape == ()
    assert bs.amax(x[0], "row").shape == (1,)
    assert_bits_equal(bs.amax(x[0], "column"), x[0].abs(), "column")
