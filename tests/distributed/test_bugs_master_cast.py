# SPDX-License-Identifier: Apache-2.0
"""Mistakes of other libraries around master weights, one test a kind; one process. Several ranks are next door."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import NVFP4Tensor, ScaleLayout
from blockscale.distributed import ElementRange, PackedRange, packed_range, plans, shard_range
from blockscale.distributed.master_cast import _plans
from blockscale.optim import FusedAdam
from tests.bits import assert_bits_equal, assert_same_operand
from tests.distributed.weights import SHAPES, addresses, assert_equals_full, bytes_of, empty_weights, random_masters

BF16 = torch.bfloat16


def on(device: torch.device, weights: list[NVFP4Tensor], masters: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    return [w.to(device) for w in weights], [m.to(device) for m in masters]


@pytest.mark.parametrize("layout", list(ScaleLayout), ids=str)
def test_bug_47_an_empty_shard_at_the_end(layout: ScaleLayout, device: torch.device) -> None:
    """It starts behind the last element: nothing to write, and scales of what the ranks have found, which is zeros."""
    weights, _ = on(device, empty_weights(layout=layout), [])
    before = [w._held.rowwise.qdata.clone() for w in weights]
    numels = [w.numel() for w in weights]
    bs.cast_master_weights_to_nvfp4(weights, [torch.empty(0, device=device) for _ in weights], numels)
    for weight, codes in zip(weights, before, strict=True):
        assert_bits_equal(weight._held.rowwise.qdata, codes, "codes")
        assert not weight._held.rowwise.block_scale.view(torch.uint8).any()
        assert int(weight._held.rowwise.amax.view(torch.int32)) == 0
    with pytest.raises(ValueError, match=r"start_offsets\[1\] must be in 0\.\.256"):
        bs.cast_master_weights_to_nvfp4(weights, [None] * len(weights), [0, 257, 0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"start_offsets\[0\] must be in 0\.\.3071, for a shard of 1 of 3072"):
        bs.cast_master_weights_to_nvfp4(weights, [torch.ones(1, device=device), *[None] * 5], numels)


def test_bug_53_elements_and_packed_bytes_are_not_mixed() -> None:
    weight = NVFP4Tensor.quantize(torch.randn(64, 64), block=(16, 16))
    run = shard_range(weight.numel(), rank=3, world_size=4)
    assert run == ElementRange(3072, 4096) and len(run) == 1024
    assert packed_range(run) == PackedRange(1536, 2048)
    assert weight.numel() == 4096 and weight.rowwise.qdata.numel() == 2048
    with pytest.raises(TypeError, match="elements must be an ElementRange; got PackedRange"):
        packed_range(packed_range(run))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="elements must be an ElementRange; got tuple"):
        packed_range((3072, 4096))  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("numel", [0, 16, 48, 4096, 48 * 31])
def test_bug_53_ranges_cover_a_weight_with_even_boundaries(numel: int, ranks: int) -> None:
    runs = [shard_range(numel, rank, ranks) for rank in range(ranks)]
    packed = [packed_range(run) for run in runs]
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(numel))
    assert [i for run in packed for i in range(run.start, run.stop)] == list(range(numel // 2))
    assert max(map(len, runs)) == len(runs[0])
    assert packed_range(ElementRange(5, 5)) == PackedRange(2, 2)
    assert packed_range(ElementRange(5, 11)) == PackedRange(2, 6)
    for bad, text in (((3, 0, 1), "numel must be even"), ((4, 2, 2), r"rank must be in 0\.\.1"), ((4, -1, 2), "rank")):
        with pytest.raises(ValueError, match=text):
            shard_range(*bad)


def test_bug_54_every_weight_of_a_call_is_written_at_its_place(device: torch.device) -> None:
    """A list, its reverse, and one with a None in the middle: each weight equals its single call, padding included."""
    for layout in ScaleLayout:
        masters = random_masters("bug 54")
        alone, flat = on(device, empty_weights(layout=layout), [m.view(-1) for m in masters])
        for weight, master in zip(alone, flat, strict=True):
            bs.cast_master_weights_to_nvfp4([weight], [master], [0])
        order = range(len(SHAPES))
        for indices in (list(order), list(reversed(order))):
            weights, _ = on(device, empty_weights(layout=layout), [])
            bs.cast_master_weights_to_nvfp4(
                [weights[i] for i in indices], [flat[i] for i in indices], [0] * len(indices)
            )
            for i in order:
                assert_same_operand(weights[i].rowwise, alone[i].rowwise)
        weights, _ = on(device, empty_weights(layout=layout), [])
        bs.cast_master_weights_to_nvfp4(weights, [*flat[:2], None, *flat[3:]], [0, 0, None, 0, 0, 0])
        for i in order:
            if i != 2:
                assert_same_operand(weights[i].rowwise, alone[i].rowwise)
        assert weights[2]._held.rowwise.qdata.eq(0xFF).all()


@pytest.mark.parametrize("manual", [True, False])
def test_bug_57_old_columnwise_bytes_cannot_be_read(manual: bool, device: torch.device) -> None:
    """After a cast and after a step, for a buffer that is there and for one that is not made yet."""
    values = torch.randn(48, 64, generator=torch.Generator().manual_seed(3)).to(device)
    full = NVFP4Tensor.quantize(values.to(BF16), block=(16, 16), columnwise=True)
    fresh = torch.empty_like(full)  # wants columnwise data, has no buffer, is not filled
    for weight in (full, fresh):
        bs.cast_master_weights_to_nvfp4([weight], [(2 * values).view(-1)], [0], None, None, manual)
        if manual:
            with pytest.raises(ValueError, match="Call post_all_gather_processing"):
                weight.columnwise  # noqa: B018
            bs.post_all_gather_processing([weight])
        want = bs.quantize((2 * values).to(BF16), block=(16, 16), orientation="columnwise")
        assert_same_operand(weight.columnwise, want)
    param = torch.nn.Parameter(full)
    param.grad = torch.ones(48, 64, device=device, dtype=BF16)
    FusedAdam([param], lr=0.1).step()
    assert_same_operand(param.columnwise, bs.transpose(param.rowwise))


def test_bug_70_addresses_stay(device: torch.device) -> None:
    """Through casts with plans and without, with fragments, and through the processing after the gather."""
    masters = random_masters("bug 70")
    weights, flat = on(device, empty_weights(), [m.view(-1) for m in masters])
    before = addresses(weights)
    starts = [0] * len(weights)
    bs.cast_master_weights_to_nvfp4(weights, flat, starts)
    bs.cast_master_weights_to_nvfp4(weights, [m.clone() for m in flat], starts)
    bs.cast_master_weights_to_nvfp4(weights, [m.to(BF16) for m in flat], starts)
    bs.post_all_gather_processing(weights)
    assert addresses(weights) == before
    assert_equals_full([w.cpu() for w in weights], [m.to(BF16) for m in masters], "in place")


def test_bug_98_a_plan_is_not_used_for_other_arguments(device: torch.device) -> None:
    """Each input of the plan is changed alone, at the same addresses where that is possible."""
    values = random_masters("bug 98", ((32, 48),))[0].to(device)
    weights, _ = on(device, empty_weights(((32, 48),)), [])

    def cast(master: torch.Tensor, start: int = 0, **keywords: Any) -> torch.Tensor:
        bs.cast_master_weights_to_nvfp4(weights, [master], [start], **keywords)
        return weights[0]._held.rowwise.qdata.view(-1).clone()

    def full(x: torch.Tensor, dtype: torch.dtype = BF16) -> torch.Tensor:
        return bs.reference.quantize(x.cpu().view(32, 48).to(dtype), block=(16, 16)).qdata.view(-1)

    master = values.clone().view(-1)
    for _ in range(2):
        assert_bits_equal(cast(master), full(values), "the first")
    assert_bits_equal(cast(master, round_master_to_model_dtype=False), full(values, torch.float32), "not rounded")
    master.mul_(-3)
    assert_bits_equal(cast(master), full(-3 * values), "other values at the address")
    half = master.view(BF16)[: values.numel()].copy_(values.view(-1))
    assert_bits_equal(cast(half), full(values), "another dtype at the address")
    before = cast(master.fill_(1.0))
    part = cast(master[:100], 700)  # a shorter run at the same address, elsewhere
    assert_bits_equal(part[:350], before[:350], "codes before the run")
    fragment = torch.zeros(768, dtype=torch.uint8, device=device)
    weights[0]._held.rowwise.qdata.fill_(0x11)
    assert cast(master, fsdp_shard_model_weights=[fragment]).eq(0x11).all() and fragment.eq(0x77).all()
    weights[0].quantize_(values.to(BF16))  # the same bytes' owner, another path
    assert_bits_equal(cast(values.view(-1)), full(values), "after another write")
    replaced = weights[0].to(device, copy=True)
    weights[0]._held.rowwise = replaced._held.rowwise
    assert_bits_equal(cast(values.view(-1)), full(values), "another operand behind the weight")


def test_plans_die_with_their_weights(device: torch.device) -> None:
    weights, masters = on(device, empty_weights(), random_masters("die"))
    count = len(_plans)
    bs.cast_master_weights_to_nvfp4(weights, [m.view(-1) for m in masters], [0] * len(weights))
    bs.post_all_gather_processing(weights)
    assert len(_plans) >= min(count + 1, 256)
    alive = [weakref.ref(w._held.rowwise.qdata) for w in weights]
    made = len(_plans)
    del weights
    gc.collect()
    assert all(ref() is None for ref in alive), "a plan keeps a weight alive"
    assert len(_plans) < made


def test_the_cache_of_plans_is_bounded() -> None:
    cache: plans.PlanCache[int] = plans.PlanCache(most=3)
    for key in range(5):
        cache.put(key, key)
        cache.get(2)
    assert [cache.get(key) for key in range(5)] == [None, None, 2, 3, 4]
    cache.discard(3)
    cache.discard(77)
    assert len(cache) == 2


def test_a_cast_is_seen_by_autograd() -> None:
    weight = torch.nn.Parameter(NVFP4Tensor.quantize(torch.ones(16, 16), block=(16, 16)))
    version = weight._version
    bs.cast_master_weights_to_nvfp4([weight], [torch.ones(256)], [0])
    assert weight._version > version


def test_post_processing_leaves_what_it_should() -> None:
    rowwise_only = NVFP4Tensor.quantize(torch.ones(16, 32), block=(16, 16))
    both = NVFP4Tensor.quantize(torch.ones(16, 32), block=(16, 16), columnwise=True)
    bs.post_all_gather_processing([rowwise_only])
    assert not rowwise_only.wants_columnwise
    both.rowwise.qdata.fill_(0x21)  # as a gather does: no mark says that the columnwise bytes are old
    bs.post_all_gather_processing([rowwise_only, both])
    assert_same_operand(both.columnwise, bs.transpose(both.rowwise))
    before = bytes_of([both])
    for bad, kind, text in (
        ([both, both], ValueError, "must be another weight"),
        ([torch.ones(16, 16)], TypeError, "must be an NVFP4Tensor; got Tensor"),
        (both, TypeError, "model_weights must be a list of NVFP4Tensor"),
    ):
        with pytest.raises(kind, match=text):
            bs.post_all_gather_processing(bad)
    for was, now in zip(before, bytes_of([both]), strict=True):
        assert_bits_equal(now, was, "bytes")
