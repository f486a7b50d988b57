# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: every public operation is captured, and a replay reads what its inputs hold then. Bugs 69 and 70."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import blockscale as bs
from tests.bits import assert_same_operand
from tests.gemm.operands import SWIZZLED
from tests.gpu.operations import Inputs, Result, assert_same_results, make_inputs, operations
from tests.memory import addresses


def captured(call: Callable[[], list[Result]]) -> tuple[torch.cuda.CUDAGraph, list[Result]]:
    """The graph of a call, after a warm-up on another stream, and its outputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    return graph, made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", operations(16))
def test_bug_69_a_replay_reads_new_inputs(name: str, dtype: torch.dtype, cuda: torch.device, no_poison: None) -> None:
    """amax, scales, alpha, bias, C and codes are read again; nothing was frozen when the graph was made."""
    call = operations(144)[name]
    first, second = (make_inputs(144, 64, 208, seed, dtype) for seed in (3, 4))
    buffers = first.to(cuda)
    graph, made = captured(lambda: call(buffers))
    for inputs in (first, second, first):
        buffers.copy_(inputs.to(cuda))
        graph.replay()
        torch.cuda.synchronize()
        assert_same_results(made, call(inputs), f"{name} against the CPU")


def test_bug_69_numbers_under_capture(cuda: torch.device, no_poison: None) -> None:
    """A Python float never becomes a copy from host memory."""

    def call(inputs: Inputs) -> list[Result]:
        op = bs.quantize(inputs.x, amax=1.5)
        return [
            op,
            bs.gemm(inputs.a["row"], inputs.b["tensor"], alpha=0.5, c=inputs.c, beta=-2.0),
            bs.gemm(inputs.a["row"], inputs.b["tensor"], out_format=bs.NVFP4(), out_amax=3.0),
        ]

    inputs = make_inputs(32, 48, 64, seed=5)
    buffers = inputs.to(cuda)
    graph, made = captured(lambda: call(buffers))
    other = make_inputs(32, 48, 64, seed=6)
    buffers.copy_(other.to(cuda))
    graph.replay()
    torch.cuda.synchronize()
    assert_same_results(made, call(other), "numbers")


def test_bug_28_empty_calls_under_capture(cuda: torch.device, no_poison: None) -> None:
    inputs = make_inputs(0, 32, 48, seed=7).to(cuda)
    calls = operations(0)
    graph, made = captured(lambda: [result for call in calls.values() for result in call(inputs)])
    graph.replay()
    torch.cuda.synchronize()
    want = [result for call in calls.values() for result in call(make_inputs(0, 32, 48, seed=7))]
    assert_same_results(made, want, "empty")
    assert float(torch.ones(1, device=cuda)) == 1.0


@pytest.mark.parametrize("fmt", [{}, {"scaling": "row"}, {"block": (16, 16)}], ids=["1d", "row", "2d"])
def test_bug_70_a_product_in_a_graph_sees_what_out_wrote(fmt: dict, cuda: torch.device, no_poison: None) -> None:
    gen = torch.Generator().manual_seed(8)
    x, w = torch.randn(48, 80, generator=gen).to(cuda), torch.randn(64, 80, generator=gen).to(cuda)
    a, weight = bs.quantize(x, scaling="row"), bs.quantize(w, layout=SWIZZLED, **fmt)
    result = bs.gemm(a, weight, out_format=bs.NVFP4(), out_amax=9.0)
    before = addresses(a, weight, result)

    def call() -> list[Result]:
        return [
            bs.gemm(a, weight, out_dtype=torch.float32),
            bs.gemm(a, weight, out_format=bs.NVFP4(), out_amax=9.0, out=result),
        ]

    graph, made = captured(call)
    bs.quantize(3 * w, layout=SWIZZLED, out=weight, **fmt)
    bs.quantize(-x, scaling="row", out=a)
    graph.replay()
    torch.cuda.synchronize()
    assert addresses(a, weight, result) == before
    fresh = bs.quantize(-x, scaling="row"), bs.quantize(3 * w, layout=SWIZZLED, **fmt)
    assert_same_results(made[:1], [bs.gemm(*fresh, out_dtype=torch.float32)], "replay")
    assert_same_operand(result, bs.gemm(*fresh, out_format=bs.NVFP4(), out_amax=9.0))


def test_bug_70_a_module_in_a_graph(cuda: torch.device, no_poison: None) -> None:
    """A delayed second level: the graph updates out_amax from its own returned maximum."""
    gen = torch.Generator().manual_seed(9)
    a = bs.quantize(torch.randn(48, 80, generator=gen).to(cuda), scaling="row")
    w = bs.quantize(torch.randn(64, 80, generator=gen).to(cuda))
    out_amax = torch.ones((), device=cuda)

    def call() -> list[Result]:
        op, r = bs.gemm(a, w, out_format=bs.NVFP4(), out_amax=out_amax, return_amax="tensor")
        out_amax.copy_(r)
        return [op]

    graph, (op,) = captured(call)
    out_amax.fill_(1.0)
    graph.replay()
    assert isinstance(op, bs.NVFP4Operand)
    first = float(op.amax)
    graph.replay()
    torch.cuda.synchronize()
    t = bs.gemm(a, w, out_dtype=torch.float32)
    assert first == 1.0
    assert_same_operand(op, bs.quantize(t, layout=SWIZZLED))
