# SPDX-License-Identifier: Apache-2.0
"""torch.compile takes the tensor apart and together again; what it traces equals eager mode bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal

from .samples import LAYOUTS, SWIZZLED, TILES, addresses, assert_holds, assert_same_tensor, random


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columnwise", [False, True])
def test_flatten_and_unflatten(layout: Any, columnwise: bool, gen: torch.Generator, device: torch.device) -> None:
    t = NVFP4Tensor.quantize(random(4, 16, 64, gen=gen).to(device), columnwise=columnwise, layout=layout, **TILES)
    assert is_traceable_wrapper_subclass(t)
    names, meta = t.__tensor_flatten__()
    assert len(names) == (6 if columnwise else 3)
    parts = {name: getattr(t, name) for name in names}
    back = NVFP4Tensor.__tensor_unflatten__(parts, meta, t.shape, t.stride())
    assert addresses(back) == addresses(t)
    assert_same_tensor(back, t)
    assert meta == t.clone().__tensor_flatten__()[1], "guards compare it"
    assert meta != t.half().__tensor_flatten__()[1]
    assert not hasattr(NVFP4Tensor, "__getattr__"), "dynamo does not look into classes that have it"


def test_stale_and_unwritten_travel(gen: torch.Generator) -> None:
    x = random(32, 64, gen=gen)
    t = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
    t.columnwise.qdata.zero_()
    t.mark_columnwise_stale(manual=True)
    names, meta = t.__tensor_flatten__()
    back = NVFP4Tensor.__tensor_unflatten__({n: getattr(t, n) for n in names}, meta, t.shape, t.stride())
    with pytest.raises(ValueError, match="stale"):
        _ = back.columnwise
    empty = torch.empty_like(t)
    names, meta = empty.__tensor_flatten__()
    back = NVFP4Tensor.__tensor_unflatten__({n: getattr(empty, n) for n in names}, meta, t.shape, t.stride())
    with pytest.raises(ValueError, match="no values"):
        _ = back.rowwise
    with pytest.raises(NotImplementedError, match="view of rows"):
        t[16:].__tensor_flatten__()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_compiles_with_its_backward(layout: Any, gen: torch.Generator, device: torch.device) -> None:
    layer = torch.nn.Linear(64, 128, device=device)
    w = random(128, 64, gen=gen).to(device)
    layer.weight = torch.nn.Parameter(NVFP4Tensor.quantize(w, columnwise=True, layout=layout, **TILES))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for rows in (5, 16):
        x = random(rows, 64, gen=gen).to(device)
        results = []
        for run in (layer, compiled):
            leaf = x.clone().requires_grad_()
            y = run(leaf)
            y.square().sum().backward()
            results.append((y.detach(), leaf.grad, layer.weight.grad, layer.bias.grad))
            layer.zero_grad()
        for got, want, what in zip(results[1], results[0], ("y", "dx", "dw", "db"), strict=True):
            assert_bits_equal(got, want, what)


def test_operands_are_read_inside(gen: torch.Generator, device: torch.device) -> None:
    t = NVFP4Tensor.quantize(random(128, 64, gen=gen).to(device), columnwise=True, **TILES)
    x = random(5, 64, gen=gen).to(device)

    def function(x: torch.Tensor, t: NVFP4Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = bs.gemm(bs.quantize(x, scaling="row"), t.rowwise, out_dtype=torch.bfloat16)
        return y, bs.gemm(y, t.columnwise, out_dtype=torch.float32)

    got, want = torch.compile(function, fullgraph=True, backend="aot_eager")(x, t), function(x, t)
    assert_bits_equal(got[0], want[0], "rowwise")
    assert_bits_equal(got[1], want[1], "columnwise")


def test_views_and_copies_compile(gen: torch.Generator, device: torch.device) -> None:
    t = NVFP4Tensor.quantize(random(256, 64, gen=gen).to(device), layout=SWIZZLED, **TILES)
    x = random(256, 64, gen=gen).to(device)

    def function(t: NVFP4Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        t = t.clone()
        before = t[128:].dequantize()
        t.copy_(x)
        return before, t.view(2, 128, 64).dequantize(torch.float16), t

    got = torch.compile(function, fullgraph=True, backend="aot_eager")(t, x)
    want = function(t, x)
    assert_bits_equal(got[0], want[0], "part")
    assert_bits_equal(got[1], want[1], "view")
    assert_holds(got[2], x, **TILES)
