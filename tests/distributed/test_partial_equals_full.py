# SPDX-License-Identifier: Apache-2.0
"""Masters cut in any way over 1 to 4 ranks: after the gather every weight has the bytes of one full cast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

import blockscale as bs
from blockscale import ScaleLayout
from tests.bits import assert_bits_equal
from tests.distributed.backends import BACKENDS, device_of, need
from tests.distributed.ranks import run_ranks
from tests.distributed.weights import (
    CUTS,
    SHAPES,
    addresses,
    assert_equals_full,
    bytes_of,
    cut_shards,
    empty_weights,
    gather_codes,
    generator,
    random_masters,
)

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

FORMS: dict[str, dict[str, Any]] = {
    "float32 to bfloat16": {},
    "not rounded": {"rounded": False},
    "bfloat16 masters": {"masters": BF16},
    "float16": {"nominal": F16, "masters": F16},
    "float32 weights, swizzled, 256": {"nominal": F32, "layout": ScaleLayout.SWIZZLED_128X4, "e4m3_max": 256},
    "swizzled": {"layout": ScaleLayout.SWIZZLED_128X4, "manual": False},
}


@contextmanager
def counted() -> Iterator[list[tuple[str, Any]]]:
    """The collectives that are entered: (name, dtype of the tensor)."""
    calls: list[tuple[str, Any]] = []
    names = [name for name in dir(dist) if name.startswith(("all_", "reduce", "broadcast", "gather", "scatter"))]
    real = {name: getattr(dist, name) for name in [*names, "barrier", "send", "recv"] if callable(getattr(dist, name))}

    def counting(name: str) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            calls.append((name, args[0].dtype if args and isinstance(args[0], torch.Tensor) else None))
            return real[name](*args, **keywords)

        return call

    for name in real:
        setattr(dist, name, counting(name))
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(dist, name, function)


TWO_REDUCES = [("all_reduce", torch.int32)] * 2


def _check_form(name: str, cut: str, rank: int, ranks: int, form: dict[str, Any], device: torch.device) -> None:
    nominal, rounded = form.get("nominal", BF16), form.get("rounded", True)
    keywords = {key: form[key] for key in ("layout", "e4m3_max") if key in form}
    weights = empty_weights(dtype=nominal, device=device, **keywords)
    before = addresses(weights)
    for repetition in range(2):  # the second one is of a plan that is there
        what = f"{ranks} ranks, {name}, {cut}, call {repetition}"
        gen = generator(what)
        masters = [x.to(form.get("masters", F32)) for x in random_masters(what)]
        shards, starts, bounds = cut_shards(masters, CUTS[cut], rank, ranks, gen)
        shards = [shard if shard is None else shard.to(device) for shard in shards]
        with counted() as calls:
            bs.cast_master_weights_to_nvfp4(
                weights, shards, starts, None, None, form.get("manual", True), round_master_to_model_dtype=rounded
            )
        first = [("all_gather_object", None)] if ranks > 1 and repetition == 0 else []
        assert [call for call in calls if call[0] != "all_gather"] == [*first, *TWO_REDUCES], (what, calls)
        gather_codes(weights, bounds)
        if form.get("manual", True):
            with pytest.raises(ValueError, match="stale"):
                weights[0].columnwise  # noqa: B018
            with counted() as calls:
                bs.post_all_gather_processing(weights)
                bs.post_all_gather_processing(weights)
            assert calls == []
        values = [x.to(nominal) if rounded else x for x in masters]
        assert_equals_full(weights, values, what)
        assert addresses(weights) == before, what


def _check_fragments(rank: int, ranks: int, device: torch.device) -> None:
    """Row shards in tensors of their own: the weights' codes stay, and the gathered pieces are the full cast's."""
    shapes = ((64 * ranks, 32), (ranks, 48), (16, 16 * ranks))
    masters = random_masters(f"fragments {ranks}", shapes)
    weights = empty_weights(shapes, device=device)
    shards, starts, fragments = [], [], []
    for master in masters:
        size = master.numel() // ranks
        shards.append(master.view(-1)[rank * size : (rank + 1) * size].to(device))
        starts.append(rank * size)
        fragments.append(torch.full((size // 2,), 0xEE, dtype=torch.uint8, device=device))
    fragments[1] = None if ranks == 1 else fragments[1]
    codes = [weight._held.rowwise.qdata.clone() for weight in weights]
    bs.cast_master_weights_to_nvfp4(weights, shards, starts, None, fragments)
    for index, (weight, fragment, master) in enumerate(zip(weights, fragments, masters, strict=True)):
        want = bs.reference.quantize(master.to(BF16), block=(16, 16))
        op = weight._held.rowwise
        assert_bits_equal(op.block_scale.view(torch.uint8), want.block_scale.view(torch.uint8), f"{index} scales")
        if fragment is None:
            assert_bits_equal(op.qdata, want.qdata, f"{index} codes")
            continue
        assert_bits_equal(op.qdata, codes[index], f"{index}: the weight's own codes")
        pieces: list[Any] = [None] * ranks
        dist.all_gather_object(pieces, fragment.cpu())
        assert_bits_equal(torch.cat(pieces).view(op.qdata.shape), want.qdata, f"{index} gathered")


def _check_not_finite(rank: int, ranks: int, device: torch.device) -> None:
    """NaN, inf and -0 in one rank's shard reach every rank's scales."""
    nan, inf = float("nan"), float("inf")
    for value, bits in ((nan, 0x7FC00000), (-nan, 0x7FC00000), (inf, 0x7F800000), (-inf, 0x7F800000)):
        masters = [torch.ones(32, 32), torch.full((16, 32), -0.0)]
        masters[0][-1, 5] = value
        weights = empty_weights(((32, 32), (16, 32)), device=device)
        shards, starts, bounds = cut_shards(masters, CUTS["odd"], rank, ranks, generator("nan"))
        bs.cast_master_weights_to_nvfp4(weights, [s if s is None else s.to(device) for s in shards], starts)
        assert int(weights[0].rowwise.amax.view(torch.int32)) == bits
        assert int(weights[1].rowwise.amax.view(torch.int32)) == 0
        gather_codes(weights, bounds)
        bs.post_all_gather_processing(weights)
        assert_equals_full(weights, [x.to(BF16) for x in masters], f"{value}")
        assert bool(weights[0].dequantize().isnan().all())


def _every_cut(rank: int, ranks: int, backend: str) -> None:
    device = device_of(backend, rank)
    for name, form in FORMS.items():
        for cut in CUTS if name == "float32 to bfloat16" else ("anywhere",):
            _check_form(name, cut, rank, ranks, form, device)
    _check_fragments(rank, ranks, device)
    _check_not_finite(rank, ranks, device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_partial_casts_and_a_gather_equal_the_full_cast(ranks: int, backend: str) -> None:
    need(backend, ranks)
    run_ranks(ranks, _every_cut, (ranks, backend), backend=backend)


def test_without_a_process_group_there_is_no_collective() -> None:
    weights, masters = empty_weights(), random_masters("alone")
    with counted() as calls:
        bs.cast_master_weights_to_nvfp4(weights, [x.view(-1) for x in masters], [0] * len(SHAPES))
    assert calls == []
    bs.post_all_gather_processing(weights)
    assert_equals_full(weights, [x.to(BF16) for x in masters], "alone")


def test_a_part_without_a_group_writes_its_codes_and_all_scales() -> None:
    """One process plays all ranks one after the other; amaxes are then those of each part, so it uses equal parts."""
    weights = empty_weights(((32, 32),))
    master = torch.ones(32, 32)
    for start in (0, 512):
        bs.cast_master_weights_to_nvfp4(weights, [master.view(-1)[start : start + 512]], [start])
        codes = weights[0].rowwise.qdata.view(-1)
        assert codes[start // 2 : start // 2 + 256].eq(0x77).all()


def test_nothing_to_cast() -> None:
    with counted() as calls:
        bs.cast_master_weights_to_nvfp4([], [], [])
        bs.post_all_gather_processing([])
    assert calls == []
    with pytest.raises(ValueError, match=r"master_weights must be of 0 entries, as model_weights; got 1\."):
        bs.cast_master_weights_to_nvfp4([], [torch.ones(1)], [])


def test_rounding_to_the_nominal_dtype_moves_codes() -> None:
    """The two values of the switch differ, so that a test of one could not pass by the other."""
    master = random_masters("differ", ((128, 128),))[0]
    made = []
    for rounded in (True, False):
        weight = empty_weights(((128, 128),))
        bs.cast_master_weights_to_nvfp4(weight, [master.view(-1)], [0], round_master_to_model_dtype=rounded)
        made.append(bytes_of(weight)[0])
    assert not torch.equal(*made)
