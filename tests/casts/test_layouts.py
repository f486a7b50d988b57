# SPDX-License-Identifier: Apache-2.0
"""Scale layouts by absolute offsets (a swapped swizzle still round-trips with its own inverse), and the transpose."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.operand import NVFP4Operand
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import LINEAR, SWIZZLED, as_rowwise, make
from tests.memory import padding_bytes

OFFSETS = {(0, 0): 0, (1, 0): 16, (32, 0): 4, (33, 0): 20, (0, 3): 3, (0, 4): 512, (127, 3): 511, (128, 0): 1024,
           (255, 7): 2047}  # fmt: skip
"""(row, block) to byte offset for 8 padded columns; numerics, section 10."""


def with_scales(scales: torch.Tensor, layout: Any = LINEAR) -> NVFP4Operand:
    """An operand of zeros that holds these scale bytes (rows, K/16)."""
    rows, blocks = scales.shape
    zeros = torch.zeros(rows, blocks * 8, dtype=torch.uint8, device=scales.device)
    return NVFP4Operand(zeros, scales, torch.ones((), device=scales.device), (rows, blocks * 16), layout)


def naive_swizzle(scales: torch.Tensor) -> torch.Tensor:
    """The offsets of numerics, section 10, one byte at a time."""
    rows, blocks = scales.shape
    padded_rows, padded = -(-rows // 128) * 128, -(-blocks // 4) * 4
    out = torch.zeros(padded_rows * padded, dtype=torch.uint8)
    for r in range(rows):
        for b in range(blocks):
            at = ((r // 128) * (padded // 4) + b // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + b % 4
            out[at] = scales[r, b]
    return out.view(padded_rows, padded)


def test_bug_24_absolute_offsets(device: torch.device) -> None:
    s = torch.arange(256 * 8).remainder(119).view(256, 8).to(torch.uint8)
    op = bs.swizzle_scales(with_scales(s.to(device)))
    z = op.block_scale.view(torch.uint8).flatten().cpu()
    for (m, k), offset in OFFSETS.items():
        assert z[offset] == s[m, k], (m, k)
    for m in range(256):
        for k in range(8):
            assert z[(m // 128) * 1024 + k // 4 * 512 + (m % 32) * 16 + (m % 128) // 32 * 4 + k % 4] == s[m, k]


@pytest.mark.parametrize(("rows", "blocks"), [(130, 3), (1, 1), (256, 8), (128, 4), (129, 5), (33, 41), (0, 3), (7, 0)])
def test_bug_24_inverses(rows: int, blocks: int, device: torch.device, gen: torch.Generator) -> None:
    s = torch.randint(1, 127, (rows, blocks), generator=gen).to(torch.uint8)
    linear = with_scales(s.to(device))
    swizzled = bs.swizzle_scales(linear)
    assert swizzled.layout is SWIZZLED
    assert_bits_equal(swizzled.block_scale.view(torch.uint8), naive_swizzle(s), "swizzled")
    assert_same_operand(bs.unswizzle_scales(swizzled), linear)
    assert swizzled.qdata.data_ptr() == linear.qdata.data_ptr()


def test_unswizzle_reads_no_padding(device: torch.device) -> None:
    s = torch.randint(1, 127, (130, 3)).to(torch.uint8)
    buffer = torch.full((256, 4), 0x7F, dtype=torch.uint8)
    clean = naive_swizzle(s)
    op = with_scales(s)
    dirty = dataclasses.replace(op, block_scale=torch.where(clean != 0, clean, buffer), layout=SWIZZLED).to(device)
    assert_same_operand(bs.unswizzle_scales(dirty), op.to(device))


def test_bug_25_nothing_is_swizzled_twice(device: torch.device) -> None:
    x = torch.randn(128, 64, device=device)
    q = bs.quantize(x, layout=SWIZZLED)
    assert bs.swizzle_scales(q) is q
    linear = bs.quantize(x)
    assert bs.unswizzle_scales(linear) is linear
    assert q.block_scale.shape == linear.block_scale.shape  # the size tells nothing
    assert not torch.equal(q.block_scale.view(torch.uint8), linear.block_scale.view(torch.uint8))
    same = NVFP4Operand(q.qdata, q.block_scale, q.amax, q.shape, SWIZZLED, q.format)
    assert_same_operand(same, q)
    for consumer in (bs.dequantize, bs.unswizzle_scales, bs.swizzle_scales):
        got, want = consumer(q), consumer(linear)
        if isinstance(got, torch.Tensor):
            assert_bits_equal(got, want, "dequantize")
        else:
            assert_same_operand(got, want)


def test_bug_25_the_layout_travels_and_has_no_setter(device: torch.device) -> None:
    q = bs.quantize(torch.randn(256, 64, device=device), layout=SWIZZLED)
    for copy in (q.clone(), q.to(device), q[:128], q[128:], q[:]):
        assert copy.layout is SWIZZLED
    for field, value in (("layout", LINEAR), ("format", bs.NVFP4()), ("amax", q.amax), ("shape", (1, 16))):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(q, field, value)
    t = bs.transpose(bs.quantize(torch.randn(32, 64, device=device), block=(16, 16), layout=SWIZZLED))
    assert t.layout is SWIZZLED


@pytest.mark.parametrize("m", [16, 112, 144, 240])
def test_bug_33_rows_of_16_but_not_128(m: int, device: torch.device, gen: torch.Generator) -> None:
    x = make("wide", m, 256, gen).to(device)
    for fmt in ({}, {"scaling": "row"}, {"block": (16, 16)}):
        swizzled, linear = bs.quantize(x, layout=SWIZZLED, **fmt), bs.quantize(x, **fmt)
        assert_same_operand(bs.unswizzle_scales(swizzled), linear)
        last = bs.quantize(x[-16:], amax=linear.amax[-16:] if linear.amax.dim() else linear.amax, **fmt)
        assert_bits_equal(linear.block_scale[-16:], last.block_scale, "the last 16 rows")


def test_bug_39_1x16_bytes_are_not_moved(device: torch.device) -> None:
    x = torch.ones(16, 16, device=device)
    x[:, 0] = torch.arange(16) + 1.0
    for op in (bs.quantize(x), bs.quantize(x, scaling="row"), bs.quantize(x, orientation="columnwise")):
        with pytest.raises(ValueError, match=r"^transpose: op must be of block \(16, 16\); got \(1, 16\)\. Scales of"):
            bs.transpose(op)
    tiles = {"block": (16, 16)}
    assert_same_operand(as_rowwise(bs.transpose(bs.quantize(x, **tiles))), bs.quantize(x.t().contiguous(), **tiles))


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize("e4m3_max", [448, 256])
@pytest.mark.parametrize(
    ("m", "k"), [(16, 16), (48, 64), (64, 48), (144, 464), (16, 656), (128, 128), (16, 0), (0, 16)]
)
def test_law_2_transpose(
    m: int, k: int, e4m3_max: int, layout: Any, device: torch.device, gen: torch.Generator
) -> None:
    fmt = {"block": (16, 16), "e4m3_max": e4m3_max, "layout": layout}
    for kind in ("wide", "nonfinite"):
        x = make(kind, m, k, gen).to(device)
        op = bs.quantize(x, **fmt)
        t = bs.transpose(op)
        assert (t.shape, t.orientation, t.layout) == ((k, m), "columnwise", layout)
        assert_same_operand(as_rowwise(t), bs.quantize(x.t().contiguous(), **fmt))
        assert_same_operand(t, bs.quantize(x, orientation="columnwise", **fmt))
        assert_same_operand(bs.transpose(t), op)
        assert_bits_equal(bs.dequantize(t), bs.dequantize(op).t().contiguous(), "values", nan_equal=True)
        for made, source in ((t.qdata, op.qdata), (t.block_scale, op.block_scale), (t.amax, op.amax)):
            assert made.data_ptr() != source.data_ptr() or made.numel() == 0


def test_transpose_moves_any_nibble_and_tile_scale(device: torch.device, gen: torch.Generator) -> None:
    """Bytes that no quantize would write: every code, every scale byte, an amax of NaN, in both layouts."""
    m, k = 48, 144
    qdata = torch.randint(0, 256, (m, k // 2), generator=gen).to(torch.uint8)
    tiles = torch.randint(0, 128, (m // 16, k // 16), generator=gen).to(torch.uint8)
    scale = tiles.repeat_interleave(16, dim=0)
    fmt = bs.NVFP4(block=(16, 16))
    op = NVFP4Operand(qdata, scale, torch.tensor(float("nan")), (m, k), format=fmt).to(device)
    codes = torch.stack([qdata & 15, qdata >> 4], dim=-1).flatten(1).T
    for source in (op, bs.swizzle_scales(op)):
        t = bs.transpose(source)
        assert_bits_equal(t.qdata, codes[:, 0::2] | codes[:, 1::2] << 4, "qdata")
        linear = bs.unswizzle_scales(t).block_scale.view(torch.uint8)
        assert_bits_equal(linear, tiles.T.repeat_interleave(16, dim=0), "block_scale")
        assert_bits_equal(t.amax, source.amax, "amax")


def test_bug_43_padded_columns_of_a_transpose(device: torch.device) -> None:
    x = torch.randn(48, 64, device=device)
    fmt = {"block": (16, 16), "layout": SWIZZLED}
    t = bs.transpose(bs.quantize(x, **fmt))
    padding = padding_bytes(t)
    assert padding.numel() == 512 - 64 * 3
    assert (padding == 0).all()
    assert_same_operand(as_rowwise(t), bs.quantize(x.t().contiguous(), **fmt))
