# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with NVFP4 shards and FusedAdam is, bit for bit, the run of one process with whole weights.

No bound is needed: with two ranks the sum of two gradients and its half are the same in every order, the optimizer is
elementwise, and shards are quantized under one amax.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from blockscale import NVFP4Tensor
from blockscale.optim import FusedAdam
from tests.bits import assert_bits_equal
from tests.distributed.backends import BACKENDS, device_of, need
from tests.distributed.models import MLP, mlp_loss
from tests.distributed.ranks import run_ranks
from tests.distributed.whole_run import RATE, whole_run

STEPS = 12


def _train(rank: int, ranks: int, backend: str) -> dict[str, Any]:
    """Losses, collectives of the optimizer, and the gathered weights at the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = device_of(backend, rank)
    mesh = init_device_mesh(device.type, (ranks,))
    model = MLP().to(device)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = FusedAdam(model.parameters(), lr=RATE)
    losses, collectives = [], []
    for step in range(STEPS):
        if step == STEPS // 2:
            _reload(model, optimizer)
        loss = mlp_loss(model, step, rank)
        loss.backward()
        losses.append(loss.item())
        with _counted() as calls:
            optimizer.step()
        collectives.append(calls)
        optimizer.zero_grad()
    _check_state(model, optimizer, ranks)
    weights = []
    for layer in model.layers:
        layer.unshard()
        assert isinstance(layer.weight, NVFP4Tensor)
        weights.append([t.cpu().clone() for op in (layer.weight.rowwise, layer.weight.columnwise) for t in _bytes(op)])
        layer.reshard()
    return {"losses": losses, "collectives": collectives, "weights": weights}


def _bytes(op: Any) -> tuple[torch.Tensor, ...]:
    return op.qdata, op.block_scale.view(torch.uint8), op.amax


def _counted() -> Any:
    from tests.distributed.test_partial_equals_full import counted

    return counted()


def _check_state(model: nn.Module, optimizer: FusedAdam, ranks: int) -> None:
    """State is DTensors of the parameter's placement; a shard's amax is that of the whole weight."""
    from torch.distributed.tensor import DTensor

    for p in model.parameters():
        assert isinstance(p, DTensor) and isinstance(p._local_tensor, NVFP4Tensor)
        assert p._local_tensor.shape[0] * ranks == p.shape[0]
        for name in ("exp_avg", "exp_avg_sq", "master"):
            state = optimizer.state[p][name]
            assert isinstance(state, DTensor) and state.placements == p.placements and state.shape == p.shape
            assert state.dtype is torch.float32
        amaxes: list[Any] = [None] * ranks
        dist.all_gather_object(amaxes, p._local_tensor.rowwise.amax.cpu())
        assert all(torch.equal(amax, amaxes[0]) for amax in amaxes)
        largest = optimizer.state[p]["master"].full_tensor().bfloat16().float().abs().max()
        assert_bits_equal(amaxes[0], largest, "amax")


def _reload(model: nn.Module, optimizer: FusedAdam) -> None:
    """State through state_dict and back into the optimizer, which must not change the run."""
    state = optimizer.state_dict()
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    state = {**state, "param_groups": [{**group, "lr": RATE} for group in state["param_groups"]]}
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fsdp2_has_the_losses_and_weights_of_the_whole_run(backend: str, one_thread: None) -> None:
    need(backend, 2)
    results = run_ranks(2, _train, (2, backend), backend=backend)
    history, whole = whole_run("MLP", STEPS, 2, device_of(backend, 0), gradient_dtype=torch.bfloat16)
    for rank, result in enumerate(results):
        assert result["losses"] == [losses[rank] for losses in history], f"rank {rank}"
        one_reduce = [("all_reduce", torch.int32)]
        assert result["collectives"] == [[("all_gather_object", None), *one_reduce], *[one_reduce] * (STEPS - 1)]
        for number, (weight, layer) in enumerate(zip(result["weights"], whole.layers, strict=True)):
            want = [t for op in (layer.weight.rowwise, layer.weight.columnwise) for t in _bytes(op)]
            for got, expected in zip(weight, want, strict=True):
                assert_bits_equal(got, expected, f"rank {rank}, weight {number}")
