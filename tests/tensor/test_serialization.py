# SPDX-License-Identifier: Apache-2.0
"""Tensors go through pickle, torch.save, deepcopy, state_dict and checkpoint staging with every field and byte."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from blockscale import NVFP4Tensor

from .samples import FORMATS, LAYOUTS, SWIZZLED, TILES, addresses, assert_holds, assert_same_tensor, random


def _saved(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_bug_73_every_field_comes_back(
    options: dict[str, Any], columnwise: bool, layout: Any, gen: torch.Generator, device: torch.device
) -> None:
    x = random(2, 16, 64, gen=gen, dtype=torch.float16).to(device)
    t = NVFP4Tensor.quantize(x, columnwise=columnwise, layout=layout, **options)
    parameter = torch.nn.Parameter(t)
    for back in (
        torch.load(_saved({"t": t, "p": parameter}), weights_only=True),
        pickle.loads(pickle.dumps({"t": t, "p": parameter})),
        copy.deepcopy({"t": t, "p": parameter}),
    ):
        assert_same_tensor(back["t"], t)
        assert_same_tensor(back["p"].detach(), t)
        assert not isinstance(back["t"], torch.nn.Parameter)
        assert isinstance(back["p"], torch.nn.Parameter) and back["p"].requires_grad
        assert not set(addresses(back["t"])) & set(addresses(t))
    assert torch.load(_saved(t), weights_only=True, map_location="cpu").device.type == "cpu"


def test_it_loads_in_a_fresh_process_that_imported_blockscale(tmp_path: Any) -> None:
    t = NVFP4Tensor.quantize(torch.full((32, 64), 3.0), layout=SWIZZLED, columnwise=True, **TILES)
    torch.save({"w": t}, tmp_path / "w.pt")
    code = (
        "import torch, blockscale\n"
        f"w = torch.load({str(tmp_path / 'w.pt')!r}, weights_only=True)['w']\n"
        "assert type(w) is blockscale.NVFP4Tensor and w.scale_layout is blockscale.ScaleLayout.SWIZZLED_128X4\n"
        "assert torch.equal(w.dequantize(orientation='columnwise'), torch.full((32, 64), 3.0))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_version_is_checked() -> None:
    restore, (version, state) = NVFP4Tensor.quantize(torch.ones(32, 64)).__reduce_ex__(2)
    with pytest.raises(ValueError, match=r"state version must be 1; got 2\. Upgrade blockscale"):
        restore(version + 1, state)


def test_a_part_is_saved_without_the_rest() -> None:
    t = NVFP4Tensor.quantize(torch.ones(1024, 1024), **TILES)
    part = t[:16]
    assert len(_saved(part).getvalue()) < len(_saved(t).getvalue()) / 8
    assert_same_tensor(torch.load(_saved(part), weights_only=True), part)


def test_stale_columnwise_bytes_are_not_saved(gen: torch.Generator) -> None:
    x = random(32, 64, gen=gen)
    t = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
    t.columnwise.qdata.zero_()
    t.mark_columnwise_stale(manual=True)
    back = torch.load(_saved(t), weights_only=True)
    assert_holds(back, x, **TILES)


def test_bug_55_staging_keeps_the_type(gen: torch.Generator, device: torch.device) -> None:
    """As torch.distributed.checkpoint stages: new memory on the CPU, then a copy."""
    from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager

    x = random(32, 64, gen=gen).to(device)
    t = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
    by_hand = t.new_empty(t.size(), device="cpu")
    by_hand.copy_(t)
    companion = _create_cpu_state_dict({"w": t})
    staged = [by_hand, _copy_state_dict({"w": t}, companion)["w"], StateDictStager().stage({"w": t})["w"]]
    for copied in staged:
        assert type(copied) is NVFP4Tensor and copied.device.type == "cpu"
        assert_holds(copied, x.cpu(), **TILES)
        assert not set(addresses(copied)) & set(addresses(t))
        back = torch.load(_saved({"w": copied}), weights_only=True)["w"]
        assert_holds(back, x.cpu(), **TILES)


def test_state_dict(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen).to(device)

    def model() -> torch.nn.Module:
        layer = torch.nn.Linear(64, 32, device=device)
        layer.weight = torch.nn.Parameter(NVFP4Tensor.quantize(torch.ones_like(x), columnwise=True, **TILES))
        return layer

    source, target, assigned = model(), model(), model()
    with torch.no_grad():
        source.weight.copy_(x)
    state = source.state_dict()
    assert type(state["weight"]) is NVFP4Tensor
    before = addresses(target.weight)
    target.load_state_dict(torch.load(_saved(state), weights_only=True))
    assert addresses(target.weight) == before
    assigned.load_state_dict(state, assign=True)
    for layer in (target, assigned):
        assert isinstance(layer.weight, torch.nn.Parameter)
        assert_holds(layer.weight.detach(), x, **TILES)
    target.load_state_dict({"weight": 2 * x, "bias": state["bias"]})  # values, which are quantized in place
    assert_holds(target.weight.detach(), 2 * x, **TILES)
    with pytest.raises(RuntimeError, match=r"size mismatch"):
        target.load_state_dict({"weight": x[:16], "bias": state["bias"]})


def test_deepcopy_of_a_module(gen: torch.Generator) -> None:
    layer = torch.nn.Linear(64, 32)
    layer.weight = torch.nn.Parameter(NVFP4Tensor.quantize(random(32, 64, gen=gen), **TILES))
    layer.weight.note = ["kept"]
    tied = torch.nn.ModuleList([layer, torch.nn.Linear(64, 32)])
    tied[1].weight = layer.weight
    copied = copy.deepcopy(tied)
    assert copied[0].weight is copied[1].weight and copied[0].weight is not layer.weight
    assert copied[0].weight.note == ["kept"] and copied[0].weight.note is not layer.weight.note
    assert_same_tensor(copied[0].weight.detach(), layer.weight.detach())
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(layer.weight.view(-1))
