# SPDX-License-Identifier: Apache-2.0
"""A fault on one rank: nobody hangs, and no weight decodes to wrong numbers. numerics, section 13.2, steps 1 and 2."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal
from tests.distributed.backends import BACKENDS, device_of, need
from tests.distributed.ranks import error_of, run_ranks
from tests.distributed.test_partial_equals_full import TWO_REDUCES, counted
from tests.distributed.weights import (
    CUTS,
    assert_equals_full,
    bytes_of,
    cut_shards,
    empty_weights,
    gather_codes,
    generator,
    random_masters,
)

SHAPES = ((48, 64), (16, 16), (32, 48))
CPU = torch.device("cpu")
OP = "cast_master_weights_to_nvfp4"


class Call:
    """The arguments of a call, for a test to spoil."""

    def __init__(
        self, rank: int, ranks: int, shapes: Sequence[tuple[int, int]] = SHAPES, device: torch.device = CPU
    ) -> None:
        self.device = device
        self.weights: Any = empty_weights(shapes, device=device)
        masters = random_masters("faults", shapes)
        self.values = [x.bfloat16() for x in masters]
        self.shards: Any
        self.starts: Any
        self.shards, self.starts, self.bounds = cut_shards(masters, CUTS["even"], rank, ranks, generator("faults"))
        self.shards = [shard if shard is None else shard.to(device) for shard in self.shards]
        self.fragments: Any = None
        self.group: Any = None
        self.rounded = True

    def __call__(self) -> None:
        bs.cast_master_weights_to_nvfp4(
            self.weights, self.shards, self.starts, self.group, self.fragments, round_master_to_model_dtype=self.rounded
        )


def _set(call: Call, name: str, index: int, value: Any) -> None:
    getattr(call, name)[index] = value


def _overlapping(device: torch.device) -> list[Any]:
    codes = torch.zeros(384, dtype=torch.uint8, device=device)
    return [None, codes[:64], codes]


def _columnwise_only() -> NVFP4Tensor:
    return NVFP4Tensor(None, bs.quantize(torch.ones(64, 48), block=(16, 16), orientation="columnwise"))


LOCAL: dict[str, tuple[Callable[[Call], Any], str, str]] = {
    "beyond the weight": (
        lambda c: _set(c, "starts", 1, 1000), "ValueError",
        r"start_offsets[1] must be in 0..128, for a shard of 128 of 256 elements; got 1000.",
    ),
    "negative": (lambda c: _set(c, "starts", 2, -2), "ValueError", "start_offsets[2] must be in 0..768"),
    "no start": (
        lambda c: _set(c, "starts", 0, None), "TypeError",
        "start_offsets[0] must be an int, the index of the shard's first element; got NoneType.",
    ),
    "another dtype": (
        lambda c: _set(c, "shards", 2, c.shards[2].double()), "TypeError",
        "master_weights[2] must be float32, bfloat16 or float16; got torch.float64.",
    ),
    "mixed dtypes": (
        lambda c: _set(c, "shards", 1, c.shards[1].bfloat16()), "TypeError",
        "master_weights[1] must be of one dtype; that of master_weights[0] is torch.float32; got torch.bfloat16.",
    ),
    "NVFP4 master": (
        lambda c: _set(c, "shards", 1, c.weights[1]), "TypeError",
        "master_weights[1] must be a plain torch.Tensor or None; got NVFP4Tensor.",
    ),
    "strided": (
        lambda c: _set(c, "shards", 0, torch.ones(64, device=c.device)[::2]), "ValueError",
        "master_weights[0] must be contiguous; got strides (2,). Call .contiguous().",
    ),
    "a shard too few": (
        lambda c: c.shards.pop(), "ValueError", "master_weights must be of 3 entries, as model_weights; got 2.",
    ),
    "no list": (
        lambda c: setattr(c, "starts", 0), "TypeError",
        "start_offsets must be a list with an entry for each weight; got int.",
    ),
    "fragment of another size": (
        lambda c: setattr(c, "fragments", [None, torch.zeros(9, dtype=torch.uint8), None]), "ValueError",
        "fsdp_shard_model_weights[1] must be of 64 bytes; got 9.",
    ),
    "fragment of another dtype": (
        lambda c: setattr(c, "fragments", [None, torch.zeros(64), None]), "TypeError",
        "fsdp_shard_model_weights[1] must be a uint8 tensor or None; got torch.float32.",
    ),
    "fragments that overlap": (
        lambda c: setattr(c, "fragments", _overlapping(c.device)), "ValueError",
        "fsdp_shard_model_weights[2] must be disjoint from the bytes of weight 1; got a byte in both.",
    ),
}  # fmt: skip
"""Faults of one rank's own: what spoils the call, and what must be raised, with the rank put in."""

SHARED: dict[str, tuple[Callable[[Call], Any], str, str]] = {
    "a weight fewer": (
        lambda c: [x.pop() for x in (c.weights, c.shards, c.starts)], "ValueError",
        f"{OP}: model_weights must be the same list on every rank; got 3 weights on rank 0 and 2 on rank 1.",
    ),
    "another shape": (
        lambda c: [_set(c, "weights", 1, empty_weights(((32, 16),))[0])], "ValueError",
        f"{OP}: model_weights[1] must be the same weight on every rank; got ((16, 16), ",
    ),
    "another rounding": (
        lambda c: setattr(c, "rounded", False), "ValueError",
        f"{OP}: round_master_to_model_dtype must be the same on every rank; got ",
    ),
    "no NVFP4Tensor": (
        lambda c: _set(c, "weights", 0, torch.ones(48, 64)), "TypeError",
        f"{OP}: rank 1: model_weights[0] must be an NVFP4Tensor; got Tensor.",
    ),
    "no list of weights": (
        lambda c: setattr(c, "weights", c.weights[0]), "TypeError",
        f"{OP}: rank 1: model_weights must be a list of NVFP4Tensor; got NVFP4Tensor.",
    ),
    "twice": (
        lambda c: _set(c, "weights", 2, c.weights[0]), "ValueError",
        f"{OP}: rank 1: model_weights[2] must be another weight than those before it; got model_weights[0] again.",
    ),
    "(1, 16) blocks": (
        lambda c: _set(c, "weights", 1, NVFP4Tensor.quantize(torch.ones(16, 16))), "ValueError",
        f"{OP}: rank 1: model_weights[1].format must be block (16, 16), scaling='tensor' and nothing else; got ",
    ),
    "a view": (
        lambda c: _set(c, "weights", 0, c.weights[0][:16]), "ValueError",
        f"{OP}: rank 1: model_weights[0] must be a whole weight; got a view of a part of it, or a flat alias.",
    ),
    "columnwise only": (
        lambda c: _set(c, "weights", 0, _columnwise_only()), "ValueError",
        f"{OP}: rank 1: model_weights[0] must be an NVFP4Tensor with rowwise data; got columnwise data only.",
    ),
    "another nominal dtype": (
        lambda c: _set(c, "weights", 1, empty_weights(((16, 16),), torch.float16)[0]), "ValueError",
        f"{OP}: rank 1: model_weights[1].dtype must be that of model_weights[0], torch.bfloat16; got torch.float16.",
    ),
}  # fmt: skip
"""Ranks whose weights differ, or are wrong, in the first call."""


def _first_call(rank: int, ranks: int, device: torch.device) -> list[tuple[str, Any, float]]:
    """Each fault on rank 1, with weights that are new: what every rank raises, and that nothing was written."""
    results = []
    for name, (spoil, _, _) in {**LOCAL, **SHARED}.items():
        call = Call(rank, ranks, device=device)
        weights = list(call.weights)
        if rank == 1:
            spoil(call)
        before = bytes_of(weights)
        started = time.monotonic()
        with counted() as calls:
            error = error_of(call)
        for was, now in zip(before, bytes_of(weights), strict=True):
            assert_bits_equal(now, was, f"{name}: a byte was written")
        assert calls == [("all_gather_object", None)], (name, calls)
        results.append((name, error, time.monotonic() - started))
    return results


def _later_call(rank: int, ranks: int, device: torch.device) -> list[tuple[str, Any]]:
    """Each fault on rank 1 after a good call: it raises there, the others get weights of NaN; then all recover."""
    results = []
    for name, (spoil, _, _) in LOCAL.items():
        call, good = Call(rank, ranks, device=device), Call(rank, ranks, device=device)
        call.weights = good.weights
        good()
        if rank == 1:
            spoil(call)
        before = bytes_of(good.weights)
        with counted() as calls:
            error = error_of(call)
        assert calls == TWO_REDUCES, (name, calls)
        if rank == 1:
            for was, now in zip(before, bytes_of(good.weights), strict=True):
                assert_bits_equal(now, was, f"{name}: a byte was written")
        else:
            for weight in good.weights:
                assert bool(weight.dequantize().isnan().all()), name
                assert int(weight.rowwise.amax.view(torch.int32)) == 0x7FC00000
        results.append((name, error))
        with counted() as calls:
            good()
        assert calls == TWO_REDUCES
        gather_codes(good.weights, good.bounds)
        bs.post_all_gather_processing(good.weights)
        assert_equals_full(good.weights, good.values, f"after {name}")
    return results


def _later_shared(rank: int, ranks: int, device: torch.device) -> None:
    """A fault that every rank sees, in weights that are known: the same error everywhere, and no collective."""
    call = Call(rank, ranks, device=device)
    call()
    call.weights[2] = call.weights[0]
    with counted() as calls:
        error = error_of(call)
    assert error is not None and "model_weights[2] must be another weight" in error[1], error
    assert calls == []


def _several_groups(rank: int, ranks: int) -> None:
    """Weights of two groups side by side, and one list with two groups in turn: an exchange for each group."""
    pair = [0, 1] if rank < 2 else [2, 3]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    own, everyone = Call(rank - pair[0], 2, ((48, 64), (16, 16)) if rank < 2 else ((16, 16 * 4),)), Call(rank, ranks)
    own.group = mine
    for repetition in range(3):
        with counted() as calls:
            own()
            everyone()
        gathers = [("all_gather_object", None)] if repetition == 0 else []
        assert calls == [*gathers, *TWO_REDUCES, *gathers, *TWO_REDUCES], (repetition, calls)
    gather_codes(own.weights, own.bounds, mine)
    gather_codes(everyone.weights, everyone.bounds)
    bs.post_all_gather_processing(own.weights)
    bs.post_all_gather_processing(everyone.weights)
    assert_equals_full(own.weights, own.values, f"group of rank {rank}")
    assert_equals_full(everyone.weights, everyone.values, "all")
    # The same weights with another group are new to it.
    again = Call(rank - pair[0], 2)
    again.weights, again.group = everyone.weights, mine
    with counted() as calls:
        again()
    assert calls == [("all_gather_object", None), *TWO_REDUCES]


def _all(rank: int, ranks: int, backend: str) -> tuple[Any, Any]:
    device = device_of(backend, rank)
    first, later = _first_call(rank, ranks, device), _later_call(rank, ranks, device)
    _later_shared(rank, ranks, device)
    return first, later


def _four(rank: int) -> tuple[Any, Any]:
    _several_groups(rank, 4)
    return None, None


@pytest.fixture(scope="module", params=BACKENDS)
def two_ranks(request: pytest.FixtureRequest) -> list[tuple[Any, Any]]:
    need(request.param, 2)
    return run_ranks(2, _all, (2, request.param), backend=request.param)


def test_a_fault_in_the_first_call_is_raised_by_every_rank(two_ranks: list[tuple[Any, Any]]) -> None:
    by_rank = [{name: error for name, error, _ in first} for first, _ in two_ranks]
    assert by_rank[0].keys() == {*LOCAL, *SHARED}
    for name, (_, kind, text) in LOCAL.items():
        assert by_rank[0][name] == by_rank[1][name]
        assert by_rank[0][name][0] == kind and by_rank[0][name][1].startswith(f"{OP}: rank 1: {text}"), by_rank[0][name]
    for name, (_, kind, text) in SHARED.items():
        assert by_rank[0][name] == by_rank[1][name]
        assert by_rank[0][name][0] == kind and by_rank[0][name][1].startswith(text), by_rank[0][name]
    assert max(seconds for first, _ in two_ranks for _, _, seconds in first) < 10


def test_a_later_fault_is_raised_there_and_is_nan_elsewhere(two_ranks: list[tuple[Any, Any]]) -> None:
    (_, zero), (_, one) = two_ranks
    assert [error for _, error in zero] == [None] * len(LOCAL)
    for (name, error), (_, kind, text) in zip(one, LOCAL.values(), strict=True):
        assert error[0] == kind and error[1].startswith(f"{OP}: {text}"), (name, error)


def test_two_groups_at_once() -> None:
    run_ranks(4, _four)


ALONE = [name for name in (*LOCAL, *SHARED) if name not in ("a weight fewer", "another rounding", "another shape")]
"""Those that are faults without another rank to compare with."""


@pytest.mark.parametrize("name", ALONE)
def test_alone_the_fault_is_raised_and_nothing_is_written(name: str) -> None:
    spoil, kind, text = {**LOCAL, **SHARED}[name]
    call = Call(1, 2)
    weights = list(call.weights)
    before = bytes_of(weights)
    spoil(call)
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value).__name__ == kind
    assert str(caught.value).startswith(f"{OP}: {text.removeprefix(f'{OP}: rank 1: ')}")
    for was, now in zip(before, bytes_of(weights), strict=True):
        assert_bits_equal(now, was, f"{name}: a byte was written")
