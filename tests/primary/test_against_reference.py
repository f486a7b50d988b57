# SPDX-License-Identifier: Apache-2.0
"""Each stage on random data against `blockscale.reference`: every byte, with padding and what must stay untouched."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from blockscale.fused_scales import FusedScales
from tests.bits import assert_bits_equal
from tests.inputs import DTYPES, KINDS, LINEAR, SWIZZLED, make
from tests.memory import Guards
from tests.primary.shards import SHAPES, fragment_bytes, partition

pytestmark = pytest.mark.usefixtures("one_thread")

ROUND_TO = (None, torch.bfloat16, torch.float16, torch.float32)


def _moved(scales: FusedScales, device: torch.device) -> FusedScales:
    return FusedScales(*(part.to(device) for part in scales))


def _assert_same_scales(got: FusedScales, want: FusedScales) -> None:
    for field in FusedScales._fields:
        assert_bits_equal(getattr(got, field), getattr(want, field), field)


@pytest.mark.parametrize("round_to", ROUND_TO, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("m", "k"), SHAPES, ids=lambda size: str(size))
def test_every_stage(
    m: int, k: int, dtype: Any, round_to: Any, device: torch.device, gen: torch.Generator, guards: Guards
) -> None:
    for kind in KINDS:
        x = make(kind, m, k, gen, dtype)
        bounds = partition(m * k, 3, gen)
        amax = ref.amax(x.float() if round_to is None else x.to(round_to)) * 0.8
        whole = ref.partial_amax(x, (m, k), 0, round_to=round_to)
        for e4m3_max in (448, 256):
            for layout in (LINEAR, SWIZZLED):
                want = ref.fused_scale(whole, amax, (m, k), layout=layout, e4m3_max=e4m3_max)
                got = bs.fused_scale(whole.to(device), amax.to(device), (m, k), layout=layout, e4m3_max=e4m3_max)
                _assert_same_scales(got, want)
        for start, stop in itertools.pairwise(bounds):
            what = f"{kind} elements {start} to {stop}"
            shard = x.flatten()[start:stop]
            moved = shard.clone().to(device)
            tiles = ref.partial_amax(shard, (m, k), start, round_to=round_to)
            assert_bits_equal(bs.partial_amax(moved, (m, k), start, round_to=round_to), tiles, what)
            out = guards.empty(tuple(tiles.shape), torch.float32, device)
            assert bs.partial_amax(moved, (m, k), start, round_to=round_to, out=out) is out
            assert_bits_equal(out, tiles, f"{what}, out=")
            before = torch.randint(0, 256, (fragment_bytes(start, stop - start),), generator=gen, dtype=torch.uint8)
            fragment = guards.empty(tuple(before.shape), torch.uint8, device)
            fragment.copy_(before)
            arguments = (want.tile_scales, amax, (m, k), start)
            expected = ref.partial_cast(shard, before, *arguments, round_to=round_to, e4m3_max=256)
            on_device = (want.tile_scales.to(device), amax.to(device), (m, k), start)
            assert bs.partial_cast(moved, fragment, *on_device, round_to=round_to, e4m3_max=256) is fragment
            assert_bits_equal(fragment, expected, what)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_of_a_bucket(dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    """A shard and a fragment at every alignment of a flat buffer, as optimizers keep them."""
    m, k = 48, 144
    x = make("wide", m, k, gen, dtype).flatten()
    scales = ref.fused_scale(ref.partial_amax(x, (m, k), 0), 3.0, (m, k))
    for start, length in ((0, m * k), (128, 4000), (131, 4001), (16 * k, 16 * k)):
        want = ref.partial_cast(
            x[start : start + length], torch.zeros(fragment_bytes(start, length), dtype=torch.uint8),
            scales.tile_scales, 3.0, (m, k), start,
        )  # fmt: skip
        tiles = ref.partial_amax(x[start : start + length], (m, k), start)
        for offset in range(8):
            bucket = torch.full((offset + length + 9,), float("nan"), dtype=dtype, device=device)
            shard = bucket[offset : offset + length]
            shard.copy_(x[start : start + length])
            assert_bits_equal(bs.partial_amax(shard, (m, k), start), tiles, f"amax at {offset}")
            packed = torch.zeros(offset + len(want) + 7, dtype=torch.uint8, device=device)
            fragment = packed[offset : offset + len(want)]
            bs.partial_cast(shard, fragment, scales.tile_scales.to(device), 3.0, (m, k), start)
            assert_bits_equal(fragment, want, f"codes at {offset}")
            assert not packed[:offset].any() and not packed[offset + len(want) :].any()


@pytest.mark.parametrize(("m", "k"), SHAPES, ids=lambda size: str(size))
def test_scales_with_a_stride_of_their_own(
    m: int, k: int, device: torch.device, gen: torch.Generator, guards: Guards
) -> None:
    """K/16 = 3 with stride 4 among them; also the padded linear form (R, C), and a buffer on an odd address."""
    x = make("wide", m, k, gen)
    tiles, amax, blocks = ref.partial_amax(x, (m, k), 0), ref.amax(x), k // 16
    for stride in (blocks, -(-blocks // 4) * 4, blocks + 3):
        want = ref.fused_scale(tiles, amax, (m, k), row_stride=stride)
        got = bs.fused_scale(tiles.to(device), amax.to(device), (m, k), row_stride=stride)
        _assert_same_scales(got, want)
        assert tuple(got.block_scale.shape) == (m, stride)
        for r in {0, m // 2, m - 1}:
            assert_bits_equal(got.block_scale[r, :blocks], got.tile_scales[r // 16], f"row {r}")
            assert not got.block_scale.view(torch.uint8)[r, blocks:].any()
        for rows in (m, -(-m // 128) * 128):
            buffers = [
                guards.empty(shape, dtype, device)
                for shape, dtype in (
                    (tuple(tiles.shape), torch.uint8),
                    ((rows * stride + 1,), torch.uint8),
                    ((), torch.float32),
                )
            ]
            block_scale = buffers[1][1:].view(rows, stride) if stride % 2 else buffers[1][:-1].view(rows, stride)
            out = FusedScales(buffers[0], block_scale, buffers[2])
            assert bs.fused_scale(tiles.to(device), amax.to(device), (m, k), out=out) is out
            assert_bits_equal(out.block_scale[:m], want.block_scale.view(torch.uint8), f"{rows} rows")
            assert not out.block_scale[m:].any()
            assert_bits_equal(out.tile_scales, want.tile_scales.view(torch.uint8), "tile scales")


@pytest.mark.parametrize(("m", "k"), [(0, 64), (16, 0), (0, 0), (5, 0)])
def test_nothing(m: int, k: int, device: torch.device) -> None:
    shard = torch.empty(0, device=device)
    tiles = bs.partial_amax(shard, (m, k), 0)
    assert tuple(tiles.shape) == (-(-m // 16), k // 16)
    for layout in (LINEAR, SWIZZLED):
        want = ref.fused_scale(tiles.cpu(), float("0.75"), (m, k), layout=layout)
        _assert_same_scales(bs.fused_scale(tiles, 0.75, (m, k), layout=layout), want)
    wide = bs.fused_scale(tiles, 0.75, (m, k), row_stride=k // 16 + 5)
    assert tuple(wide.block_scale.shape) == (m, k // 16 + 5)
    assert not wide.block_scale.view(torch.uint8)[:, k // 16 :].any()
    fragment = torch.empty(0, dtype=torch.uint8, device=device)
    bs.partial_cast(shard, fragment, wide.tile_scales, wide.amax, (m, k), m * k)


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC00000, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0xBF800000])
def test_the_stored_amax_is_a_magnitude_with_one_nan(bits: int, device: torch.device) -> None:
    amax = torch.tensor([bits - (1 << 32) if bits >> 31 else bits], dtype=torch.int32).view(torch.float32)
    tiles = torch.tensor([[0.0, 1.0, float("inf"), float("nan")]])
    want = ref.fused_scale(tiles, amax, (16, 64), layout=SWIZZLED)
    given = amax.to(device)
    got = bs.fused_scale(tiles.to(device), given, (16, 64), layout=SWIZZLED)
    _assert_same_scales(got, want)
    # The second level may be the very tensor that is stored.
    again = FusedScales(*(torch.empty_like(part) for part in got[:2]), given.view(()))
    bs.fused_scale(tiles.to(device), given, (16, 64), layout=SWIZZLED, out=again)
    _assert_same_scales(again, want)


def test_a_nan_under_scales_that_do_not_know_of_it(device: torch.device) -> None:
    """Stale scales: every NaN is code 7, an inf 7 or F, the others as always; a scale 7F gives 7 to all."""
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, -nan, inf, -inf, 0.0, -0.0, 1.0, -1.0] * 4])
    for dtype in DTYPES:
        for scales in ([0x38, 0x38], [0x7F, 0x38], [0x00, 0x7E]):
            tile_scales = torch.tensor([scales], dtype=torch.uint8)
            want = ref.partial_cast(x.to(dtype), torch.zeros(16, dtype=torch.uint8), tile_scales, 448.0, (1, 32), 0)
            out = torch.zeros(16, dtype=torch.uint8, device=device)
            bs.partial_cast(x.to(dtype).to(device), out, tile_scales.to(device), 448.0, (1, 32), 0)
            assert_bits_equal(out, want, f"{dtype} {scales}")
            if scales[0] == 0x38:
                assert bytes(out[:2].tolist()).hex() == "77f7"
