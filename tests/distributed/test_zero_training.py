# SPDX-License-Identifier: Apache-2.0
"""Training with NVFP4 weights and sharded masters is, bit for bit, training that quantizes whole BF16 weights."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import blockscale as bs
from blockscale import NVFP4Tensor
from blockscale.distributed import packed_range, shard_range
from blockscale.optim import FusedAdam
from tests.distributed.backends import BACKENDS, device_of, need
from tests.distributed.models import MODELS
from tests.distributed.ranks import run_ranks
from tests.distributed.whole_run import RATE, masters_of, whole_run

STEPS = 500


def _sharded(rank: int, ranks: int, names: list[str], steps: int, backend: str) -> dict[str, list[float]]:
    return {name: _zero_run(rank, ranks, name, steps, device_of(backend, rank)) for name in names}


def _zero_run(rank: int, ranks: int, name: str, steps: int, device: torch.device) -> list[float]:
    """ZeRO-1: each rank holds and steps a piece of every master; weights are cast in place and gathered packed."""
    make, loss = MODELS[name]
    model = make().to(device)
    params = list(model.parameters())
    masters = list(masters_of(model).values())
    quantized = [p for p in params if isinstance(p, NVFP4Tensor)]
    ranges = [shard_range(m.numel(), rank, ranks) for m in masters]
    shards = [nn.Parameter(m.view(-1)[r.start : r.stop].clone()) for m, r in zip(masters, ranges, strict=True)]
    optimizer = FusedAdam(shards, lr=RATE)
    history = []
    for step in range(steps):
        for p in params:
            p.grad = None
        value = loss(model, step, rank)
        value.backward()
        history.append(value.item())
        for p, shard, r in zip(params, shards, ranges, strict=True):
            grad = p.grad.float()
            dist.all_reduce(grad)
            shard.grad = (grad / ranks).view(-1)[r.start : r.stop]
        optimizer.step()
        owned = [(s, r) for p, s, r in zip(params, shards, ranges, strict=True) if isinstance(p, NVFP4Tensor)]
        bs.cast_master_weights_to_nvfp4(quantized, [s for s, _ in owned], [r.start for _, r in owned])
        for p, (_, r) in zip(quantized, owned, strict=True):
            codes, mine = p.rowwise.qdata.view(-1), packed_range(r)
            dist.all_gather_into_tensor(codes, codes[mine.start : mine.stop].clone())
        bs.post_all_gather_processing(quantized)
        with torch.no_grad():
            for p, shard in zip(params, shards, strict=True):
                if not isinstance(p, NVFP4Tensor):
                    dist.all_gather_into_tensor(p.view(-1), shard.detach())
    return history


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("names", [["MLP", "transformer"]])
def test_500_steps_of_zero_have_the_losses_of_the_whole_run(names: list[str], backend: str, one_thread: None) -> None:
    """Two ranks: the sum of two gradients does not depend on the order, so not one bit may differ."""
    need(backend, 2)
    by_rank = run_ranks(2, _sharded, (2, names, STEPS, backend), backend=backend)
    for name in names:
        whole, _ = whole_run(name, STEPS, 2, device_of(backend, 0))
        for rank in range(2):
            got, want = by_rank[rank][name], [losses[rank] for losses in whole]
            first = next((step for step, (p, q) in enumerate(zip(got, want, strict=True)) if p != q), None)
            assert first is None, f"{name}, rank {rank}: step {first}: {got[first]!r}, expected {want[first]!r}"
        start, end = sum(map(sum, whole[:10])), sum(map(sum, whole[-10:]))
        assert end < 0.5 * start, f"{name} has not learned: {start / 20} to {end / 20}"
