# SPDX-License-Identifier: Apache-2.0
"""torch.compile: one graph, static and dynamic, and the bytes of eager; operands go in and out of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import LINEAR, SWIZZLED, make

aot = {"backend": "aot_eager", "fullgraph": True}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def round_trip(x: torch.Tensor) -> torch.Tensor:
    return bs.dequantize(bs.quantize(x, scaling="row", layout=SWIZZLED), torch.bfloat16)


def layer(x: torch.Tensor, w: Any) -> torch.Tensor:
    return bs.gemm(bs.quantize(x), w)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_bug_71_inductor_equals_eager(dynamic: bool, device: torch.device, gen: torch.Generator) -> None:
    w = bs.quantize(torch.randn(40, 464, generator=gen).to(device), block=(16, 16), layout=SWIZZLED)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    for m in (129, 5) if dynamic else (129,):
        x = torch.randn(m, 464, generator=gen).to(device)
        assert_bits_equal(compiled(x, w), layer(x, w), f"m = {m}")
        x[0, 0] = float("nan")
        assert_bits_equal(compiled(x, w), layer(x, w), f"NaN, m = {m}", nan_equal=True)


def _by_shards(x: torch.Tensor) -> Any:
    """A weight cast by two shards that share a byte."""
    (m, k), flat, cut = x.shape, x.flatten(), 101
    shards = ((flat[:cut], 0), (flat[cut:], cut))
    tiles = torch.stack([bs.partial_amax(shard, (m, k), start) for shard, start in shards]).amax(0)
    scales = bs.fused_scale(tiles, tiles.amax(), (m, k), layout=SWIZZLED)
    outs = [torch.zeros(51, dtype=torch.uint8, device=x.device)]
    outs.append(torch.zeros((m * k + 1) // 2 - 50, dtype=torch.uint8, device=x.device))
    for (shard, start), out in zip(shards, outs, strict=True):
        bs.partial_cast(shard, out, scales.tile_scales, scales.amax, (m, k), start)
    qdata = bs.merge_fragments(outs, [0, cut], [cut, m * k - cut], (m, k))
    return qdata, scales.block_scale.view(torch.uint8), scales.amax


def _by_lists(x: torch.Tensor) -> Any:
    shapes, amax = [tuple(x.shape)] * 2, torch.zeros(2, device=x.device)
    tiles = bs.multi_tensor_partial_amax([x, x * 2], shapes, [0, 0], amax=amax)
    scales = bs.multi_tensor_fused_scale(tiles, amax, shapes)
    outs = [torch.zeros(x.numel() // 2, dtype=torch.uint8, device=x.device) for _ in range(2)]
    bs.multi_tensor_partial_cast([x, x * 2], outs, [s.tile_scales for s in scales], amax, shapes, [0, 0])
    turned = bs.multi_tensor_transpose([bs.quantize(x, block=(16, 16))])[0]
    return *outs, amax, *(s.tile_scales.view(torch.uint8) for s in scales), turned


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "round trip": round_trip,
    "quantize": lambda x: bs.quantize(x, layout=SWIZZLED),
    "row": lambda x: bs.quantize(x, scaling="row", e4m3_max=256),
    "given": lambda x: bs.quantize(x, amax=1.5),
    "columnwise": lambda x: bs.quantize(x, orientation="columnwise"),
    "tiles": lambda x: bs.transpose(bs.quantize(x, block=(16, 16), layout=SWIZZLED)),
    "both": lambda x: bs.quantize_both(x, layout=SWIZZLED),
    "amax": lambda x: (bs.amax(x), bs.amax(x, "row"), bs.amax(x, "column")),
    "swizzle": lambda x: bs.unswizzle_scales(bs.swizzle_scales(bs.quantize(x))),
    "view": lambda x: bs.quantize(x[:, 16:]),
    "mixed with torch": lambda x: bs.dequantize(bs.quantize(torch.relu(x) * 2)) + 1,
    "shards": lambda x: _by_shards(x),
    "lists": lambda x: _by_lists(x),
    "quantized output": lambda x: bs.gemm(bs.quantize(x), bs.quantize(x), out_format=bs.NVFP4(), out_amax=9.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_bug_71_one_graph_equals_eager(name: str, dynamic: bool, device: torch.device, gen: torch.Generator) -> None:
    function = CASES[name]
    compiled = torch.compile(function, dynamic=dynamic, **aot)
    for m, k in ((16, 48), (48, 80)) if dynamic else ((16, 48),):
        x = make("ties", m, k, gen).to(device)
        _assert_same(compiled(x), function(x), f"{m} x {k}")


def _assert_same(got: Any, want: Any, what: str) -> None:
    if isinstance(want, tuple):
        for p, q in zip(got, want, strict=True):
            _assert_same(p, q, what)
    elif isinstance(want, torch.Tensor):
        assert_bits_equal(got, want, what, nan_equal=True)
    else:
        assert_same_operand(got, want)


def test_an_operand_is_an_input_and_an_output(device: torch.device, gen: torch.Generator) -> None:
    def both_ways(op: Any) -> Any:
        return bs.transpose(op), bs.swizzle_scales(op), bs.dequantize(op)

    compiled = torch.compile(both_ways, **aot)
    for seed in range(3):
        op = bs.quantize(torch.randn(16, 48, generator=gen).to(device) + seed, block=(16, 16))
        _assert_same(compiled(op), both_ways(op), f"call {seed}")
    assert counters["stats"]["unique_graphs"] == 1


CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "dequantize": lambda op: bs.dequantize(op),
    "transpose": lambda op: bs.transpose(op),
    "swizzle_scales": lambda op: bs.swizzle_scales(op),
    "unswizzle_scales": lambda op: bs.unswizzle_scales(op),
    "gemm": lambda op: bs.gemm(op, op, out_dtype=torch.float32),
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_change_of_the_operands_layout_is_seen(name: str, device: torch.device) -> None:
    """128 x 64: both layouts have the same shape, so that the field alone tells them apart."""
    x = torch.randn(128, 64, device=device)
    operands = [bs.quantize(x, block=(16, 16), layout=layout) for layout in (LINEAR, SWIZZLED, LINEAR, SWIZZLED)]
    compiled = torch.compile(CONSUMERS[name], **aot)
    for number, op in enumerate(operands):
        _assert_same(compiled(op), CONSUMERS[name](op), f"call {number}, {op.layout.name}")


REQUESTS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "quantize": lambda x, layout: bs.quantize(x, layout=layout),
    "quantize_both": lambda x, layout: bs.quantize_both(x, layout=layout),
    "its scales alone": lambda x, layout: bs.quantize(x, layout=layout).block_scale.view(torch.uint8),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_change_of_the_layout_asked_for_is_seen(name: str, device: torch.device) -> None:
    x = torch.randn(128, 64, device=device)
    compiled = torch.compile(REQUESTS[name], **aot)
    for layout in (LINEAR, SWIZZLED, LINEAR):
        _assert_same(compiled(x, layout), REQUESTS[name](x, layout), layout.name)


def test_a_change_of_the_operands_format_is_seen(device: torch.device) -> None:
    compiled = torch.compile(CONSUMERS["dequantize"], **aot)
    x = torch.randn(16, 64, device=device)
    formats = ({}, {"e4m3_max": 256}, {"scaling": "row"}, {"block": (16, 16)}, {"scaling": "row", "e4m3_max": 256}, {})
    for fmt in formats:
        op = bs.quantize(x, **fmt)
        assert_bits_equal(compiled(op), bs.dequantize(op), str(fmt))


def test_out_is_written_in_a_graph(device: torch.device) -> None:
    def write(x: torch.Tensor, out: Any) -> Any:
        return bs.dequantize(bs.quantize(x, out=out, layout=SWIZZLED))

    x = torch.randn(5, 48, device=device)
    out = bs.quantize(torch.ones(5, 48, device=device), layout=SWIZZLED)
    address = out.qdata.data_ptr()
    y = torch.compile(write, **aot)(x, out)
    assert out.qdata.data_ptr() == address
    assert_same_operand(out, bs.quantize(x, layout=SWIZZLED))
    assert_bits_equal(y, bs.dequantize(out), "y")


def test_a_refusal_in_a_graph_is_the_refusal_of_eager() -> None:
    with pytest.raises(Exception, match="K a multiple of 16; got 24"):
        torch.compile(bs.quantize, **aot)(torch.ones(4, 24))
    with pytest.raises(Exception, match=r'nonfinite must be "propagate" under torch.compile'):
        torch.compile(lambda x: bs.quantize(x, nonfinite="raise"), **aot)(torch.ones(4, 16))


def test_bug_28_no_rows_in_a_graph(device: torch.device) -> None:
    for function in (CASES["quantize"], CASES["row"], CASES["both"]):
        x = torch.empty(0, 64, device=device)
        _assert_same(torch.compile(function, **aot)(x), function(x), "no rows")


def test_bug_97_shapes_do_not_recompile() -> None:
    compiled = torch.compile(bs.quantize, backend="aot_eager")
    shapes = ((16,), (4, 16), (2, 3, 32), (7, 48), (1, 1, 1, 16)) * 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for shape in shapes:
            x = torch.randn(shape)
            assert_same_operand(compiled(x), bs.quantize(x))
    assert counters["stats"]["unique_graphs"] <= 5, dict(counters["stats"])
    assert not [w for w in caught if "recompile" in str(w.message)]
    assert not any("limit" in reason for reason in counters["unimplemented"])


def test_bug_97_sizes_of_one_rank_share_a_graph() -> None:
    compiled = torch.compile(bs.quantize, backend="aot_eager", fullgraph=True)
    for m in range(2, 40):
        x = torch.randn(m, 64)
        assert_same_operand(compiled(x), bs.quantize(x))
    assert counters["stats"]["unique_graphs"] <= 2, dict(counters["stats"])
