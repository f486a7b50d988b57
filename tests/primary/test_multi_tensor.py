# SPDX-License-Identifier: Apache-2.0
"""Lists: every item equals its single call, whatever the mix of shapes, dtypes and alignments, and however long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from blockscale.fused_scales import FusedScales
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import DTYPES, LINEAR, SWIZZLED, make
from tests.memory import Guards
from tests.primary.shards import fragment_bytes

SHAPES = ((48, 64), (16, 16), (112, 32), (1, 16), (33, 272), (0, 32), (16, 0), (130, 48), (17, 1104))


@dataclass
class Lists:
    """Parallel lists of one call of each stage, on one device."""

    shards: list[torch.Tensor]
    shapes: list[tuple[int, int]]
    starts: list[int]
    tiles: list[torch.Tensor]
    amaxes: torch.Tensor
    layouts: list[Any]
    e4m3_maxes: list[int]
    fragments: list[torch.Tensor]


def make_lists(n: int, device: torch.device, gen: torch.Generator, guards: Guards | None = None) -> Lists:
    """n weights of mixed shapes, each with a shard of any dtype, range and alignment."""
    guards = guards or Guards()
    made = Lists([], [], [], [], torch.empty(n, device=device), [], [], [])
    for i in range(n):
        m, k = SHAPES[(i * 5 + i // 9) % len(SHAPES)]
        x = make("wide" if i % 7 else "nonfinite", m, k, gen, DTYPES[i % 3])
        first, last = sorted(torch.randint(0, m * k + 1, (2,), generator=gen).tolist())
        if i % 4 == 0:
            first, last = 0, m * k
        offset = i % 3
        bucket = torch.empty(last - first + offset, dtype=x.dtype, device=device)
        bucket[offset:].copy_(x.flatten()[first:last])
        made.shards.append(bucket[offset:])
        made.shapes.append((m, k))
        made.starts.append(first)
        tiles = ref.partial_amax(x, (m, k), 0)
        made.tiles.append(tiles.to(device))
        made.amaxes[i] = ref.amax(tiles)
        made.layouts.append((LINEAR, SWIZZLED)[i % 2])
        made.e4m3_maxes.append((448, 256)[i % 5 == 0])
        made.fragments.append(guards.empty((fragment_bytes(first, last - first),), torch.uint8, device, fill=0x3C))
    return made


@pytest.mark.parametrize("n", [1, 2, 9, 30, 300, pytest.param(1100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
def test_every_item_equals_its_single_call(
    n: int, planned: bool, device: torch.device, gen: torch.Generator, guards: Guards
) -> None:
    """300 items do not fit in what a launch carries for short lists, 1100 not in any: they need a table."""
    lists = make_lists(n, device, gen, guards)
    amax = torch.full((n,), 7.0, device=device)

    def run(stage: str, *arguments: Any, **keywords: Any) -> Any:
        if not planned:
            return getattr(bs, f"multi_tensor_{stage}")(*arguments, **keywords)
        plan = getattr(bs.MultiTensorPlan, stage)(*arguments, **keywords)
        plan.run()
        plan.run()  # the second one from the same items
        assert plan.is_current()
        return plan.result

    tiles = run("partial_amax", lists.shards, lists.shapes, lists.starts, round_to=torch.bfloat16, amax=amax)
    scales = run(
        "fused_scale", lists.tiles, lists.amaxes, lists.shapes, layout=lists.layouts, e4m3_max=lists.e4m3_maxes
    )
    codes = run(
        "partial_cast", lists.shards, lists.fragments, [s.tile_scales for s in scales], lists.amaxes, lists.shapes,
        lists.starts, round_to=torch.bfloat16, e4m3_max=lists.e4m3_maxes,
    )  # fmt: skip
    assert all(one is fragment for one, fragment in zip(codes, lists.fragments, strict=True))
    for i in range(n):
        place = (lists.shapes[i], lists.starts[i])
        single = bs.partial_amax(lists.shards[i], *place, round_to=torch.bfloat16)
        assert_bits_equal(tiles[i], single, f"tile amax of {i}")
        assert_bits_equal(amax[i], bs.amax(single.view(1, -1)), f"amax of {i}")
        options = {"layout": lists.layouts[i], "e4m3_max": lists.e4m3_maxes[i]}
        want = bs.fused_scale(lists.tiles[i], lists.amaxes[i], lists.shapes[i], **options)
        for field in FusedScales._fields:
            assert_bits_equal(getattr(scales[i], field), getattr(want, field), f"{field} of {i}")
        fragment = torch.full_like(lists.fragments[i], 0x3C)
        bs.partial_cast(
            lists.shards[i], fragment, want.tile_scales, lists.amaxes[i], *place, round_to=torch.bfloat16,
            e4m3_max=lists.e4m3_maxes[i],
        )  # fmt: skip
        assert_bits_equal(lists.fragments[i], fragment, f"codes of {i}")


@pytest.mark.parametrize("n", [1, 8, 300, pytest.param(1100, marks=pytest.mark.slow)])
def test_transposes(n: int, device: torch.device, gen: torch.Generator, guards: Guards) -> None:
    shapes = ((16, 16), (128, 128), (144, 272), (48, 16), (0, 32), (272, 144), (256, 32), (16, 400))
    ops, out = [], []
    for i in range(n):
        m, k = shapes[i % len(shapes)]
        options: dict[str, Any] = {"layout": (LINEAR, SWIZZLED)[i // 2 % 2], "e4m3_max": (448, 256)[i % 3 == 0]}
        ops.append(bs.quantize(make("wide", m, k, gen).to(device), block=(16, 16), **options))
        out.append(guards.operand((k, m), ops[i].layout, ops[i].format, "columnwise", device))
    got = bs.multi_tensor_transpose(ops)
    assert all(a is b for a, b in zip(bs.multi_tensor_transpose(ops, out), out, strict=True))
    plan = bs.MultiTensorPlan.transpose(ops)
    plan.run()
    for i, op in enumerate(ops):
        want = ref.transpose(op.to("cpu"))
        for other in (got[i], out[i], plan.result[i], bs.transpose(op)):
            assert_same_operand(other, want)


def test_one_buffer_for_all_tiles(device: torch.device, gen: torch.Generator) -> None:
    """As a caller would lay them out for a single all-reduce."""
    lists = make_lists(9, device, gen)
    sizes = [tiles.numel() for tiles in lists.tiles]
    buffer = torch.full((sum(sizes),), float("nan"), device=device)
    views = [part.view(t.shape) for part, t in zip(buffer.split(sizes), lists.tiles, strict=True)]
    result = bs.multi_tensor_partial_amax(lists.shards, lists.shapes, lists.starts, out=views)
    assert all(one is view for one, view in zip(result, views, strict=True))
    singles = [bs.partial_amax(*item).flatten() for item in zip(lists.shards, lists.shapes, lists.starts, strict=True)]
    assert_bits_equal(buffer, torch.cat(singles), "buffer")
    fresh = bs.multi_tensor_partial_amax(lists.shards, lists.shapes, lists.starts)
    assert len({part.untyped_storage().data_ptr() for part in fresh}) == 1
    assert_bits_equal(torch.cat([part.flatten() for part in fresh]), buffer, "fresh")


def test_an_empty_list() -> None:
    assert bs.multi_tensor_partial_amax([], [], []) == []
    assert bs.multi_tensor_partial_amax([], [], [], amax=torch.empty(0)) == []
    assert bs.multi_tensor_fused_scale([], [], []) == []
    assert bs.multi_tensor_fused_scale([], torch.empty(0), []) == []
    assert bs.multi_tensor_partial_cast([], [], [], [], [], []) == []
    assert bs.multi_tensor_transpose([]) == []
    for plan in (bs.MultiTensorPlan.partial_amax([], [], []), bs.MultiTensorPlan.transpose([])):
        plan.run()
        assert plan.result == []
        assert plan.is_current()


def test_amaxes_start_from_zero_each_time(device: torch.device) -> None:
    shards = [torch.full((256,), 3.0, device=device), torch.empty(0, device=device)]
    amax = torch.full((2,), 1e30, device=device)
    plan = bs.MultiTensorPlan.partial_amax(shards, [(16, 16)] * 2, [0, 256], amax=amax)
    for value in (3.0, 2.0, float("nan"), 0.5):
        shards[0].fill_(value)
        plan.run()
        assert_bits_equal(amax, torch.tensor([value, 0.0]), f"after {value}")


def test_a_plan_sees_new_values_and_moved_storage(device: torch.device, gen: torch.Generator) -> None:
    x = torch.randn(48, 64, generator=gen).to(device)
    plan = bs.MultiTensorPlan.partial_amax([x], [(48, 64)], [0])
    for factor in (1.0, 3.0):
        x.mul_(factor)
        plan.run()
        assert_bits_equal(plan.result[0], bs.partial_amax(x, (48, 64), 0), f"times {factor}")
    assert plan.is_current()
    keep = x.data
    x.data = x.data.clone()
    assert not plan.is_current()
    assert keep.data_ptr() != x.data_ptr()


def test_fragments_of_one_launch_are_disjoint(device: torch.device) -> None:
    """Two shards of a weight cut at an odd element share a byte; at an even one they do not."""
    w = torch.randn(16, 16, device=device)
    scales = bs.fused_scale(bs.partial_amax(w, (16, 16), 0), 4.0, (16, 16))
    qdata = torch.zeros(128, dtype=torch.uint8, device=device)
    for cut in (100, 101):
        shards = [w.flatten()[:cut], w.flatten()[cut:]]
        fragments = [qdata[: (cut + 1) // 2], qdata[cut // 2 :]]
        rest = ([scales.tile_scales] * 2, [scales.amax] * 2, [(16, 16)] * 2, [0, cut])
        if cut % 2 == 0:
            bs.multi_tensor_partial_cast(shards, fragments, *rest)
            assert_bits_equal(qdata.view(16, 8), bs.quantize(w, block=(16, 16), amax=4.0).qdata, "codes")
            continue
        before = qdata.clone()
        for order in (slice(None), slice(None, None, -1)):
            lists = [values[order] for values in (shards, fragments, *rest)]
            with pytest.raises(ValueError, match=r"outs\[1\] must be disjoint from outs\[0\]; got a common byte"):
                bs.multi_tensor_partial_cast(*lists)
            with pytest.raises(ValueError, match="disjoint"):
                bs.MultiTensorPlan.partial_cast(*lists)
        assert_bits_equal(qdata, before, "nothing was written")


def test_the_native_library_refuses_overlaps_too() -> None:
    items = bs._native._C.PrimaryList(2)
    shard, out = torch.ones(8), torch.zeros(8, dtype=torch.uint8)
    scale, amax = torch.full((1,), 0x38, dtype=torch.uint8), torch.ones(1)
    for address in (out.data_ptr() + 3, out.data_ptr()):
        items.add_partial_cast(shard.data_ptr(), 0, 0, 1, 16, 0, 8, scale.data_ptr(), amax.data_ptr(), address, 448)
    with pytest.raises(ValueError, match=r"out\[1\] must be disjoint from out\[0\]"):
        bs._native.CPU.primary(items, bs._native.launch_on(torch.device("cpu")))
    with pytest.raises(ValueError, match="stage"):
        items.add_partial_amax(shard.data_ptr(), 0, 0, 1, 16, 0, 8, amax.data_ptr(), 0)
