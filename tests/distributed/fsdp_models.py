# SPDX-License-Identifier: Apache-2.0
"""Small models with NVFP4 weights, and the meshes of ranks on which the distributed tests shard them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import blockscale as bs
from blockscale import NVFP4Tensor

TILES = {"block": (16, 16)}
SWIZZLED = bs.ScaleLayout.SWIZZLED_128X4
LINEAR = bs.ScaleLayout.LINEAR

# A block's output is reshaped by torch.nn.Linear; nothing here writes into it.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def device_of(rank: int) -> torch.device:
    """CUDA under nccl, else the CPU."""
    return torch.device("cuda", rank) if dist.get_backend() == "nccl" else torch.device("cpu")


def mesh_of(*ranks: int) -> DeviceMesh:
    """A mesh of some ranks. Every rank of the world calls, since groups are made together."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return DeviceMesh(device, list(ranks), mesh_dim_names=("shard",))


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layer_of(weight: torch.Tensor, device: torch.device, bias: bool = False, **options: Any) -> torch.nn.Linear:
    """A torch.nn.Linear with an NVFP4 weight of these values."""
    n, k = weight.shape
    layer = torch.nn.Linear(k, n, bias=bias, device=device, dtype=weight.dtype)
    if bias:
        with torch.no_grad():
            layer.bias.copy_(values(n, n))
    layer.weight = torch.nn.Parameter(NVFP4Tensor.quantize(weight.to(device), **options))
    return layer


def sharded(module: torch.nn.Module, mesh: DeviceMesh, **options: Any) -> torch.nn.Module:
    """`fully_shard` of every child, then of the module."""
    for child in module.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)
