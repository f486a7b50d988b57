# SPDX-License-Identifier: Apache-2.0
"""What has gone wrong with primary weights in other NVFP4 libraries, as right values here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import LINEAR, SWIZZLED
from tests.memory import Guards, padding_bytes
from tests.primary.shards import cast_by_shards, partition


@pytest.mark.parametrize(
    ("small", "large", "scale"), [(0.0172119140625, 1.46875, 0x4B), (0.05126953125, 0.546875, 0x63)]
)
def test_bug_14_one_order_of_the_scale_formula(small: float, large: float, scale: int, device: torch.device) -> None:
    x = torch.zeros(1, 32, dtype=torch.bfloat16, device=device)
    x[0, 0], x[0, 16] = small, large
    full = bs.quantize(x, block=(16, 16))
    part = bs.fused_scale(bs.partial_amax(x, (1, 32), 0), full.amax, (1, 32))
    assert part.tile_scales.view(torch.uint8).flatten().tolist() == [scale, 0x7E]
    assert_bits_equal(part.block_scale, full.block_scale, "block_scale")


def test_bug_14_many_pairs(device: torch.device, gen: torch.Generator) -> None:
    """Tiles whose maximum tells orders of the formula apart are one in a thousand: a million tiles."""
    tiles = torch.rand(1000, 1000, generator=gen).bfloat16().float() * 3
    x = torch.zeros(1000, 16000)
    x[:, ::16] = tiles
    x = x.to(device)
    amax = bs.amax(x)
    full = bs.quantize(x, block=(1, 16), amax=amax)
    # Tiles of one row: rows 16 i of a weight whose other rows are zero would be the same at 16 times the memory.
    part = bs.fused_scale(tiles.to(device), amax, (16000, 16000))
    assert_bits_equal(part.tile_scales, full.block_scale, "scales")


@pytest.mark.parametrize(("m", "k"), [(48, 64), (16, 16), (304, 48), (64, 528)])
def test_bug_43_padding_of_transposed_scales(m: int, k: int, device: torch.device, guards: Guards) -> None:
    x = torch.randn(m, k, device=device)
    op = bs.quantize(x, block=(16, 16), layout=SWIZZLED)
    outs = [guards.operand((k, m), SWIZZLED, op.format, "columnwise", device) for _ in range(2)]
    for t in (bs.transpose(op, out=outs[0]), bs.multi_tensor_transpose([op], [outs[1]])[0]):
        assert (padding_bytes(t) == 0).all()
        assert_same_operand(t, bs.quantize(x, block=(16, 16), layout=SWIZZLED, orientation="columnwise"))
        assert_same_operand(bs.transpose(t), op)


def test_bug_47_an_empty_shard_at_the_end(device: torch.device) -> None:
    empty = torch.empty(0, device=device)
    tiles = bs.partial_amax(empty, shape=(16, 32), start=512)
    assert_bits_equal(tiles, torch.zeros(1, 2), "tiles")
    fragment = torch.empty(0, dtype=torch.uint8, device=device)
    scales = bs.fused_scale(tiles, 0.0, (16, 32))
    bs.partial_cast(empty, fragment, scales.tile_scales, scales.amax, shape=(16, 32), start=512)
    for start in (513, -1):
        with pytest.raises(ValueError, match="partial_amax: start must be so that shard lies within"):
            bs.partial_amax(empty, shape=(16, 32), start=start)
    with pytest.raises(ValueError, match="partial_cast: start must be"):
        bs.partial_cast(torch.ones(2, device=device), fragment, scales.tile_scales, 1.0, (16, 32), 511)
    if device.type == "cuda":
        torch.cuda.synchronize()
        assert float(torch.ones(1, device=device)) == 1.0  # no sticky error


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
def test_bug_54_the_second_weight_of_a_call(layout: Any, device: torch.device, gen: torch.Generator) -> None:
    ws = [torch.randn(shape, generator=gen).to(device) for shape in ((48, 64), (16, 16), (112, 32))]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        chosen = [ws[i] for i in order]
        shapes, starts = [tuple(w.shape) for w in chosen], [0] * 3
        amax = torch.empty(3, device=device)
        tiles = bs.multi_tensor_partial_amax(chosen, shapes, starts, amax=amax)
        scales = bs.multi_tensor_fused_scale(tiles, amax, shapes, layout=layout)
        outs = [torch.empty(w.numel() // 2, dtype=torch.uint8, device=device) for w in chosen]
        bs.multi_tensor_partial_cast(chosen, outs, [s.tile_scales for s in scales], amax, shapes, starts)
        for w, s, out in zip(chosen, scales, outs, strict=True):
            full = bs.quantize(w, block=(16, 16), layout=layout)
            assert_bits_equal(out.view(full.qdata.shape), full.qdata, "qdata")
            assert_bits_equal(s.block_scale, full.block_scale, "block_scale")
            assert_bits_equal(s.amax, full.amax, "amax")


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_nonfinite_element_on_one_rank_reaches_all(value: float, device: torch.device, gen: torch.Generator) -> None:
    x = torch.randn(48, 64, generator=gen)
    x[20, 33] = value
    x = x.to(device)
    got = cast_by_shards(bs, x, partition(x.numel(), 4, gen))
    assert_same_operand(got, bs.quantize(x, block=(16, 16)))
    assert bs.dequantize(got).isnan().all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_share_bytes(threads: int, gen: torch.Generator) -> None:
    """Many rows of tiles, odd boundaries: any number of threads gives the bytes of one."""
    x = torch.randn(1024, 272, generator=gen)
    bounds = partition(x.numel(), 7, gen)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = cast_by_shards(bs, x, bounds)
    finally:
        torch.set_num_threads(before)
    assert_same_operand(got, bs.quantize(x, block=(16, 16)))


@pytest.mark.parametrize("flush", [False, True])
def test_flush_to_zero_changes_nothing(flush: bool, gen: torch.Generator) -> None:
    x = torch.randn(32, 48, generator=gen) * 2.0**-140
    want = bs.quantize(x, block=(16, 16))
    try:
        torch.set_flush_denormal(flush)
        got = cast_by_shards(bs, x, [0, 77, 1536])
    finally:
        torch.set_flush_denormal(False)
    assert_same_operand(got, want)
    assert got.qdata.any()


@pytest.mark.slow
def test_bug_31_offsets_beyond_2_31(device: torch.device) -> None:
    """Shards at the end of a weight of 2^31 + 2^16 elements: only its scales are whole, 1/256 of it."""
    rows, k = 2**17 + 4, 2**14
    total = rows * k
    assert total > 2**31 + 2**15
    tiles = torch.zeros(-(-rows // 16), k // 16, device=device)
    tiles[-1] = 3.0
    for layout in (LINEAR, SWIZZLED):
        scales = bs.fused_scale(tiles, 3.0, (rows, k), layout=layout)
        flat = scales.block_scale.view(torch.uint8)
        assert int((flat != 0).sum()) == 4 * (k // 16)
        if layout is LINEAR:
            assert (flat[-4:] == 0x7E).all()
    for length in (4 * k, 4 * k - 1, 33):
        start = total - length
        shard = torch.full((length,), 3.0, device=device)
        held = bs.partial_amax(shard, (rows, k), start)
        assert (held[-1, -(length // 16 + 1 if length < k else k // 16) :] == 3.0).all()
        assert not held[:-1].any()
        out = torch.zeros(((total + 1) >> 1) - (start >> 1), dtype=torch.uint8, device=device)
        bs.partial_cast(shard, out, scales.tile_scales, scales.amax, (rows, k), start)
        assert (out[1:] == 0x77).all()
        assert int(out[0]) == (0x70 if start % 2 else 0x77)


@pytest.mark.gpu
@pytest.mark.slow
def test_bug_31_a_transpose_beyond_2_31(cuda: torch.device) -> None:
    rows, k = 2**17 + 16, 2**14
    qdata = torch.zeros(rows, k // 2, dtype=torch.uint8, device=cuda)
    qdata[-1, -1] = 0x71
    scale = torch.full((rows, k // 16), 0x38, dtype=torch.uint8, device=cuda)
    scale[-16:, -1] = 0x40
    fmt = bs.NVFP4(block=(16, 16))
    t = bs.transpose(bs.NVFP4Operand(qdata, scale, torch.ones((), device=cuda), (rows, k), format=fmt))
    assert (int(t.qdata[-2, -1]), int(t.qdata[-1, -1])) == (0x10, 0x70)
    assert int((t.qdata != 0).sum()) == 2
    linear = t.block_scale.view(torch.uint8)
    assert (linear[-16:, -1] == 0x40).all()
    assert int((linear != 0x38).sum()) == 16
