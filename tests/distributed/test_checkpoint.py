# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint with NVFP4 shards: saved on some ranks, loaded on another number of ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from blockscale import NVFP4Tensor
from tests.tensor.samples import assert_same_tensor

from .fsdp_models import LINEAR, SWIZZLED, TILES, device_of, layer_of, mesh_of, values
from .ranks import error_of, run_ranks

WORLD = 4
ROWS, K = 1536, 48
CASES: tuple[dict[str, Any], ...] = (
    {"columnwise": True, "layout": LINEAR, **TILES},
    {"columnwise": True, "layout": SWIZZLED, **TILES},
    {"columnwise": False, "layout": LINEAR},
)
KINDS = {"fresh": None, "trained": 7, "meta": None}
"""What the parameter holds before it is loaded: zeros, other values, or nothing at all."""


def _model(seed: int, mesh: DeviceMesh, device: torch.device, options: dict[str, Any]) -> torch.nn.Module:
    layer = layer_of(values(seed, ROWS, K, dtype=torch.bfloat16), device, bias=True, **options)
    return fully_shard(torch.nn.Sequential(layer), mesh=mesh)


def _target(kind: str, mesh: DeviceMesh, device: torch.device, options: dict[str, Any]) -> torch.nn.Module:
    if kind == "trained":
        return _model(7, mesh, device, options)
    model = _model(0, mesh, device, options)
    if kind == "fresh":
        with torch.no_grad():
            model[0].weight._local_tensor.zero_()
        return model
    return model.to("meta").to_empty(device=device)


def _reshards(rank: int, folder: Path) -> int:
    """Saves on 1, 2 and 4 ranks and loads each on 1, 2 and 4; returns how many loads this rank has compared."""
    device, compared = device_of(rank), 0
    meshes = [mesh_of(*range(world)) for world in (1, 2, 4)]
    for index, options in enumerate(CASES):
        whole = NVFP4Tensor.quantize(values(3, ROWS, K, dtype=torch.bfloat16).to(device), **options)
        for source in meshes:
            if source.get_coordinate() is not None:
                state = {"model": _model(3, source, device, options).state_dict()}
                place = folder / f"{index}-{source.size()}"
                dcp.save(state, checkpoint_id=place, process_group=source.get_group())
            torch.distributed.barrier()
        for source, target, kind in itertools.product(meshes, meshes, KINDS):
            if target.get_coordinate() is None:
                continue
            model = _target(kind, target, device, options)
            state = {"model": model.state_dict()}
            dcp.load(state, checkpoint_id=folder / f"{index}-{source.size()}", process_group=target.get_group())
            model.load_state_dict(state["model"])
            own, rows = target.get_local_rank(), ROWS // target.size()
            local = model[0].weight._local_tensor.detach()
            assert_same_tensor(local, whole[own * rows : (own + 1) * rows])
            model.unshard()
            assert_same_tensor(model[0].weight.detach(), whole)
            compared += 1
        torch.distributed.barrier()
    return compared


def test_a_checkpoint_loads_on_another_number_of_ranks(tmp_path: Path) -> None:
    each = len(CASES) * len(KINDS) * 3
    assert run_ranks(WORLD, _reshards, (tmp_path,)) == [3 * each, 2 * each, each, each]


def _async_and_helpers(rank: int, folder: Path) -> tuple[str, str] | None:
    """Staged checkpoints, the helpers of torch.distributed.checkpoint.state_dict, and shards of differing amaxes."""
    device, mesh = device_of(rank), mesh_of(0, 1)
    options = CASES[0]
    whole = NVFP4Tensor.quantize(values(3, ROWS, K, dtype=torch.bfloat16).to(device), **options)
    model = _model(3, mesh, device, options)
    saved = dcp.async_save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "async")
    saved.result()
    other = _model(7, mesh, device, options)
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder / "async")
    set_model_state_dict(other, state["model"])
    other.unshard()
    assert_same_tensor(other[0].weight.detach(), whole)

    with torch.no_grad():
        model[0].weight._local_tensor.quantize_(torch.full((ROWS // 2, K), 1.0 + rank, device=device))
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "differing")
    if rank == 0:
        alone = torch.nn.Sequential(layer_of(values(5, ROWS, K, dtype=torch.bfloat16), device, bias=True, **options))
        dcp.load({"model": alone.state_dict()}, checkpoint_id=folder / "differing", no_dist=True)
        return error_of(alone[0].weight.dequantize)
    return None


def test_staging_and_shards_of_differing_amax(tmp_path: Path) -> None:
    error, _ = run_ranks(2, _async_and_helpers, (tmp_path,))
    assert error is not None and error[0] == "ValueError" and "an earlier amax" in error[1]
