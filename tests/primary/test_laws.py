# SPDX-License-Identifier: Apache-2.0
"""Partial casts of any partition of a weight, merged, are the full quantize of it, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import DTYPES, KINDS, LINEAR, SWIZZLED, make
from tests.memory import Guards
from tests.primary.shards import SHAPES, cast_by_shards, fragment_bytes, partition


@pytest.mark.parametrize("layout", [LINEAR, SWIZZLED], ids=str)
@pytest.mark.parametrize(("m", "k"), SHAPES, ids=lambda size: str(size))
def test_partial_equals_full(
    m: int, k: int, layout: Any, device: torch.device, gen: torch.Generator, guards: Guards
) -> None:
    for dtype in DTYPES:
        for kind in KINDS:
            for cuts, unit in ((0, 1), (1, 1), (5, 1), (3, 2), (3, 16)):
                x = make(kind, m, k, gen, dtype).to(device)
                bounds = partition(m * k, cuts, gen, unit)
                e4m3_max = 256 if cuts == 5 else 448
                got = cast_by_shards(bs, x, bounds, layout=layout, e4m3_max=e4m3_max, guards=guards)
                full = bs.quantize(x, block=(16, 16), layout=layout, e4m3_max=e4m3_max)
                try:
                    assert_same_operand(got, full)
                except AssertionError as error:
                    raise AssertionError(f"{dtype} {kind} {bounds}: {error}") from None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rounded_master_equals_the_rounded_weight(
    dtype: Any, model: Any, kind: str, device: torch.device, gen: torch.Generator
) -> None:
    x = make(kind, 40, 144, gen, dtype).to(device)
    bounds = partition(x.numel(), 4, gen)
    got = cast_by_shards(bs, x, bounds, round_to=model)
    assert_same_operand(got, bs.quantize(x.to(model), block=(16, 16)))


def test_rounding_the_master_changes_codes(device: torch.device, gen: torch.Generator) -> None:
    """The two ways differ, so the tests above can tell them apart."""
    x = torch.randn(256, 256, generator=gen).to(device)
    plain, rounded = (cast_by_shards(bs, x, [0, x.numel()], round_to=to) for to in (None, torch.bfloat16))
    assert 0 < int((plain.qdata != rounded.qdata).sum()) < x.numel() // 20
    assert_same_operand(plain, bs.quantize(x, block=(16, 16)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_value_of_a_dtype_rounds_as_torch_does(dtype: Any, device: torch.device) -> None:
    """All high halves of FP32 with low halves around ties, rounded in registers and by torch."""
    words = torch.arange(1 << 16, dtype=torch.int32)
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001], dtype=torch.int32)
    x = ((words << 16)[:, None] | low).view(torch.float32).view(-1, 64)
    one = bs.partial_amax(x.to(device), tuple(x.shape), 0, round_to=dtype)
    assert_bits_equal(one, ref.partial_amax(x.to(dtype), tuple(x.shape), 0), "tile amax")
    scales = ref.fused_scale(one.cpu(), 2688.0, tuple(x.shape))
    out = torch.zeros(x.numel() // 2, dtype=torch.uint8, device=device)
    bs.partial_cast(x.to(device), out, scales.tile_scales.to(device), 2688.0, tuple(x.shape), 0, round_to=dtype)
    want = ref.partial_cast(
        x.to(dtype), torch.zeros(x.numel() // 2, dtype=torch.uint8), scales.tile_scales, 2688.0, tuple(x.shape), 0
    )
    assert_bits_equal(out, want, "codes")


@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.lists(st.integers(0, 40 * 96), max_size=6),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
)
def test_any_partition(m: int, blocks: int, cuts: list[int], dtype: Any, seed: int) -> None:
    k = 16 * blocks
    bounds = [0, *sorted(min(cut, m * k) for cut in cuts), m * k]
    x = make("nonfinite" if seed % 5 == 0 else "wide", m, k, torch.Generator().manual_seed(seed), dtype)
    assert_same_operand(cast_by_shards(bs, x, bounds), ref.quantize(x, block=(16, 16)))


def test_merging_in_place_keeps_other_nibbles(device: torch.device, gen: torch.Generator) -> None:
    shape, total = (8, 32), 256
    whole = torch.randint(0, 256, (8, 16), generator=gen, dtype=torch.uint8)
    for start, length in ((0, 256), (5, 6), (4, 1), (5, 1), (5, 2), (255, 1), (17, 200), (0, 0), (256, 0)):
        other = torch.randint(0, 256, (8, 16), generator=gen, dtype=torch.uint8)
        size = fragment_bytes(start, length)
        fragment = whole.view(-1)[start // 2 : start // 2 + size].clone()
        want = ref.merge_fragments([fragment], [start], [length], shape, out=other.clone())
        out = other.to(device)
        assert bs.merge_fragments([fragment.to(device)], [start], [length], shape, out=out) is out
        assert_bits_equal(out, want, f"{start}, {length}")
        held = torch.zeros(total, dtype=torch.bool)
        held[start : start + length] = True
        codes = torch.stack((out.cpu().view(-1) & 15, out.cpu().view(-1) >> 4), 1).view(-1)
        source = torch.where(held.view(-1, 2), torch.stack((whole.view(-1) & 15, whole.view(-1) >> 4), 1),
                             torch.stack((other.view(-1) & 15, other.view(-1) >> 4), 1)).view(-1)  # fmt: skip
        assert_bits_equal(codes, source, "codes")


def test_bug_45_the_other_copys_nibble_is_stale(device: torch.device) -> None:
    """Neither OR nor a copy of whole bytes: both copies of the shared byte have a nibble that means nothing."""
    left = torch.tensor([0x21, 0xF3], dtype=torch.uint8, device=device)  # elements 0, 1, 2; stale F
    right = torch.tensor([0x4E, 0x65], dtype=torch.uint8, device=device)  # elements 3, 4, 5; stale E
    rest = torch.zeros(5, dtype=torch.uint8, device=device)
    for order in ([0, 1, 2], [2, 1, 0]):
        fragments, starts, lengths = ([v[i] for i in order] for v in ([left, right, rest], [0, 3, 6], [3, 3, 10]))
        merged = bs.merge_fragments(fragments, starts, lengths, (1, 16))
        assert bytes(merged.flatten().tolist()).hex() == "2143650000000000"
