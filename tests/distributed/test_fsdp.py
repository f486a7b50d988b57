# SPDX-License-Identifier: Apache-2.0
"""NVFP4 parameters under FSDP2 on one to four ranks: gathered bytes, refusals on every rank, training.

One start of four processes for each test: meshes of one, two, three and four of them take turns.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal
from tests.tensor.samples import assert_same_tensor

from .fsdp_models import LINEAR, SWIZZLED, TILES, device_of, layer_of, mesh_of, sharded, values
from .ranks import error_of, run_ranks

WORLD = 4
MESHES = ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3))


def _gathers(rank: int) -> int:
    """Unsharded weights equal the whole ones, over iterations with changing shards; returns how many were compared."""
    device, compared = device_of(rank), 0
    cases: list[dict[str, Any]] = [
        {"columnwise": True, "layout": LINEAR, **TILES},
        {"columnwise": True, "layout": SWIZZLED, **TILES},
        {"columnwise": False, "layout": SWIZZLED, "e4m3_max": 256, **TILES},
        {"columnwise": False, "layout": LINEAR},
    ]
    for mesh in [mesh_of(*ranks) for ranks in MESHES]:
        if mesh.get_coordinate() is None:
            continue
        world, own = mesh.size(), mesh.get_local_rank()
        rows = 1536 // world
        for options in cases:
            layer = layer_of(values(1, 1536, 48, dtype=torch.bfloat16), device, **options)
            fully_shard(layer, mesh=mesh)
            assert type(layer.weight._local_tensor) is NVFP4Tensor
            before = None
            for step in range(3):
                x = values(10 + step, 1536, 48, dtype=torch.bfloat16).to(device) * 2.0**step
                whole = NVFP4Tensor.quantize(x, **options)
                with torch.no_grad():
                    layer.weight._local_tensor.copy_(
                        NVFP4Tensor.quantize(x[own * rows : (own + 1) * rows], amax=x.abs().max().float(), **options)
                        if options["columnwise"] is False
                        else whole[own * rows : (own + 1) * rows]
                    )
                layer.unshard()
                gathered = layer.weight
                assert isinstance(gathered, torch.nn.Parameter) and isinstance(gathered, NVFP4Tensor)
                assert_same_tensor(gathered.detach(), whole)
                version, identity = gathered._version, id(gathered)
                if before is not None:
                    assert (identity, version) == before, "the same object, its version counter kept"
                before = (identity, version)
                compared += 1
                parts = gathered._held.tensors()
                layer.reshard()
                assert all(part.untyped_storage().nbytes() == 0 for part in parts), "reshard frees every tensor"
                freed = error_of(gathered.dequantize)
                assert freed is not None and "FSDP2 freed" in freed[1]
    return compared


def test_gathered_weights_are_the_unsharded_ones_bit_for_bit(backend: str) -> None:
    cases, steps = 4, 3
    assert run_ranks(WORLD, _gathers, backend=backend) == [cases * steps * meshes for meshes in (4, 3, 2, 1)]


def _refusals(rank: int) -> list[tuple[str, Any]]:
    """(case, error) of calls that must fail in the same way on every rank, before any rank waits for another."""
    device, mesh = device_of(rank), mesh_of(*range(WORLD))
    three = mesh_of(0, 1, 2)
    seen: list[tuple[str, Any]] = []

    def attempt(name: str, mesh: DeviceMesh, rows: int, amax: float | None = None, **options: Any) -> None:
        if mesh.get_coordinate() is None:
            return
        x = torch.ones(rows, 64)

        def call() -> None:
            layer = layer_of(x, device, amax=amax, **options)
            fully_shard(layer, mesh=mesh)
            layer.unshard()

        seen.append((name, error_of(call)))

    attempt("uneven: three pieces of 16 rows and one of 13", mesh, 61, **TILES)
    attempt("uneven: an empty rank", mesh, 96, **TILES)
    attempt("uneven over three ranks", three, 4096, **TILES)
    attempt("misaligned: pieces of 20 rows", mesh, 80, **TILES)
    attempt("row-scaled", mesh, 64, scaling="row")
    attempt("1x16 with columnwise", mesh, 64, columnwise=True)
    attempt("swizzled atoms cut", mesh, 64, layout=SWIZZLED, **TILES)
    attempt("differing amax", mesh, 64, amax=1.0 + rank, **TILES)
    attempt("1024 rows work", mesh, 1024, columnwise=True, **TILES)
    total = torch.ones(1, device=device)
    dist.all_reduce(total)  # the group is usable: no collective was left half done
    assert total.item() == WORLD
    return seen


def test_refusals_are_the_same_on_every_rank(backend: str) -> None:
    first, *others = run_ranks(WORLD, _refusals, backend=backend)
    for other in others:
        mine = first if len(other) == len(first) else [case for case in first if case[0] != "uneven over three ranks"]
        assert other == mine
    errors = dict(first)
    for name, kind, words in (
        ("uneven: three pieces of 16 rows and one of 13", "ValueError", ("61", "4 pieces", "0 and 64")),
        ("uneven over three ranks", "ValueError", ("4096", "3 pieces", "4080 and 4128")),
        ("uneven: an empty rank", "ValueError", ("96", "64 and 128")),
        ("misaligned: pieces of 20 rows", "ValueError", ("20", "multiple of 16", "64 and 128")),
        ("row-scaled", "NotImplementedError", ("row amaxes",)),
        ("1x16 with columnwise", "ValueError", ("1x16",)),
        ("swizzled atoms cut", "NotImplementedError", ("128",)),
        ("differing amax", "ValueError", ("amax must be equal on all ranks", "[1.0, 2.0, 3.0, 4.0]")),
    ):
        if name == "differing amax" and backend == "nccl":
            continue  # without waiting for the device, every value becomes NaN: tests/tensor/test_hooks.py
        assert errors[name] is not None, name
        assert errors[name][0] == kind, errors[name]
        assert all(word in errors[name][1] for word in words), errors[name]
    assert errors["1024 rows work"] is None


class Block(torch.nn.Module):
    """Attention of one head and an MLP, all four products on NVFP4 weights."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        options = {"columnwise": True, **TILES}
        self.qkv = layer_of(values(seed, 192, 64, dtype=dtype) / 8, device, **options)
        self.out = layer_of(values(seed + 1, 64, 64, dtype=dtype) / 8, device, bias=True, **options)
        self.up = layer_of(values(seed + 2, 128, 64, dtype=dtype) / 8, device, **options)
        self.down = layer_of(values(seed + 3, 64, 128, dtype=dtype) / 8, device, **options)
        self.norm = torch.nn.RMSNorm(64, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).split(64, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v)
        return x + self.down(torch.relu(self.up(x)))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _step(model: torch.nn.Module, masters: dict[str, torch.Tensor], group: Any, lr: float = 0.05) -> None:
    """SGD on FP32 masters of the rows that are here; NVFP4 weights are written again with the amax of all rows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight, gradient = _local(parameter), _local(parameter.grad)
            masters[name] -= lr * gradient.float()
            if isinstance(weight, NVFP4Tensor):
                weight.quantize_(masters[name].to(weight.dtype), amax_group=group)
            else:
                weight.copy_(masters[name])
    model.zero_grad()


def _masters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    local = {name: _local(parameter.detach()) for name, parameter in model.named_parameters()}
    return {
        name: weight.dequantize(torch.float32) if isinstance(weight, NVFP4Tensor) else weight.float().clone()
        for name, weight in local.items()
    }


def _trains_in_each_dtype(rank: int) -> list[list[float]]:
    return [_trains(rank, dtype) for dtype in (torch.bfloat16, torch.float32)]


def _trains(rank: int, dtype: torch.dtype) -> list[float]:
    """Three steps in which every rank sees the same batch: the mean of equal gradients over 2 or 4 ranks is exact, so
    losses, weights and masters equal those of one process bit for bit. Then one step with batches of their own."""
    device = device_of(rank)
    losses: list[float] = []
    for ranks in ((0, 1), (0, 1, 2, 3)):
        mesh = mesh_of(*ranks)
        if mesh.get_coordinate() is None:
            continue
        group, own, world = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        alone = torch.nn.Sequential(Block(device, dtype, 1), Block(device, dtype, 11))
        model = torch.nn.Sequential(Block(device, dtype, 1), Block(device, dtype, 11))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        sharded(model, mesh, mp_policy=policy)
        masters, single = _masters(model), _masters(alone)
        for step in range(3):
            x = values(100, 2, 8, 64, dtype=dtype).to(device)
            both = []
            for net, own_masters, amaxes in ((model, masters, group), (alone, single, None)):
                loss = net(x).float().square().mean()
                loss.backward()
                _step(net, own_masters, amaxes)
                both.append(loss.item())
            assert both[0] == both[1], (step, both)
            losses.append(both[0])
            for name, parameter in alone.named_parameters():
                theirs = dict(model.named_parameters())[name]
                rows = len(parameter) // world
                expected = parameter.detach()[own * rows : (own + 1) * rows]
                if isinstance(expected, NVFP4Tensor):
                    assert_same_tensor(_local(theirs.detach()), expected)
                else:
                    assert_bits_equal(_local(theirs.detach()), expected, name)
                assert_bits_equal(masters[name], single[name][own * rows : (own + 1) * rows], name)

        batches = [values(200 + r, 2, 8, 64, dtype=dtype).to(device) for r in range(world)]
        model(batches[own]).float().square().mean().backward()
        gradients: list[dict[str, torch.Tensor]] = []
        for batch in batches:
            alone(batch).float().square().mean().backward()
            gradients.append({n: p.grad.double() for n, p in alone.named_parameters()})
            alone.zero_grad()
        for name, parameter in model.named_parameters():
            terms = torch.stack([gradient[name] for gradient in gradients])
            exact, spread = terms.mean(0), terms.abs().mean(0)
            # world-1 additions and one division in FP32, then one rounding to the parameter's dtype
            bound = world * 2.0**-24 * spread + torch.finfo(dtype).eps / 2 * exact.abs() + 2.0**-40
            got = parameter.grad.full_tensor().double()
            assert ((got - exact).abs() <= bound).all(), name
    return losses


def test_training_equals_one_process(backend: str) -> None:
    for losses in zip(*run_ranks(WORLD, _trains_in_each_dtype, backend=backend), strict=True):
        assert losses[0] == losses[1] and losses[2] == losses[3] == losses[0][3:]
        assert losses[0][2] < losses[0][0], "the loss falls"


def _ways(rank: int) -> list[str]:
    """Other ways to run FSDP2; the names of those that were compared."""
    device, mesh = device_of(rank), mesh_of(0, 1)
    x, w = values(1, 8, 64).to(device), values(3, 128, 64).to(device)
    options: dict[str, Any] = {"columnwise": True, **TILES}
    expected = bs.gemm(bs.quantize(x, scaling="row"), bs.quantize(w, **TILES), out_dtype=torch.float32)
    done = []

    def check(name: str, model: torch.nn.Module, backward: bool = True) -> None:
        for _ in range(2):
            leaf = x.clone().requires_grad_(backward)
            y = model(leaf)
            assert_bits_equal(y.detach(), expected, name)
            if backward:
                y.sum().backward()
                gradient = model[0].weight.grad
                assert type(gradient) is DTensor and type(gradient.to_local()) is torch.Tensor
        done.append(name)

    with torch.device("meta"):
        layer = torch.nn.Linear(64, 128, bias=False)
        layer.weight = torch.nn.Parameter(NVFP4Tensor.quantize(layer.weight.detach(), **options))
        meta = torch.nn.Sequential(layer)
    sharded(meta, mesh).to_empty(device=device)
    unfilled = error_of(lambda: meta(x))
    assert unfilled is not None and "no values in rows 0:64" in unfilled[1]
    with torch.no_grad():
        meta[0].weight._local_tensor.quantize_(w[rank * 64 :][:64], amax=bs.amax(w))
    check("meta", meta)

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(layer_of(w, device, **options))

    check("no reshard", sharded(model(), mesh, reshard_after_forward=False))
    with torch.inference_mode():
        check("inference mode", sharded(model(), mesh), backward=False)
    if device.type == "cpu":  # on CUDA the weights would have to start on the CPU
        check("offload", sharded(model(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)))
    compiled = model()
    compiled[0].compile(fullgraph=True, backend="aot_eager")
    check("compile", sharded(compiled, mesh))
    mixed = sharded(model(), mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    y = mixed(x)
    half = bs.gemm(bs.quantize(x.bfloat16(), scaling="row"), bs.quantize(w, **TILES), out_dtype=torch.bfloat16)
    assert_bits_equal(y.detach(), half, "mixed precision")
    y.float().sum().backward()
    assert mixed[0].weight.grad.dtype is mixed[0].weight.dtype is torch.float32
    refused = error_of(lambda: mixed[0].weight.full_tensor())
    assert refused is not None and refused[0] == "NotImplementedError" and "all_gather_into_tensor" in refused[1]
    return done


def test_other_ways_to_run_it(backend: str) -> None:
    offload = [] if backend == "nccl" else ["offload"]
    done = ["meta", "no reshard", "inference mode", *offload, "compile"]
    assert run_ranks(2, _ways, backend=backend) == [done, done]
