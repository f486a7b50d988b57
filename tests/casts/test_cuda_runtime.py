# SPDX-License-Identifier: Apache-2.0
"""Casts as citizens of a CUDA process: streams, graph capture, no hidden sync, no fill, devices that do not mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal, assert_same_operand
from tests.inputs import FORMATS, SWIZZLED, as_rowwise, make
from tests.memory import addresses, padding_bytes

EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)


@pytest.fixture
def no_poison() -> Iterator[None]:
    """Fresh memory without the fill of the poison, where launches are counted or captured."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True


def every_cast(x: torch.Tensor, fmt: dict[str, Any]) -> list[Any]:
    """One call of each cast function; M and K multiples of 16."""
    op = bs.quantize(x, layout=SWIZZLED, **fmt)
    made = [op, *bs.quantize_both(x, **fmt), bs.quantize(x, orientation="columnwise", **fmt)]
    made += [bs.amax(x, scaling) for scaling in ("tensor", "row", "column")]
    made += [bs.dequantize(op), bs.unswizzle_scales(op)]
    return [*made, bs.transpose(op)] if fmt.get("block") == (16, 16) else made


def assert_all_same(got: list[Any], want: list[Any]) -> None:
    for p, q in zip(got, want, strict=True):
        if isinstance(p, torch.Tensor):
            assert_bits_equal(p, q, "tensor", nan_equal=True)
        else:
            assert_same_operand(p, q)


def kernels_of(call: Callable[[], object], device: torch.device) -> list[str]:
    """Names of what ran: kernels and memory operations on a GPU, torch's own ops on the CPU."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    call()
    with torch.profiler.profile(activities=activities) as profile:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return [event.name for event in profile.events()]


@EVERY_FORMAT
def test_bug_99_padding_costs_no_fill(fmt: dict[str, Any], device: torch.device, no_poison: None) -> None:
    x = torch.randn(5, 48, device=device)
    stale = [torch.full((1 << n,), 0x7F, dtype=torch.uint8, device=device) for n in range(6, 12)]
    del stale  # the allocator hands these bytes out again
    made: list[Any] = []
    names = kernels_of(lambda: made.append(bs.quantize(x, layout=SWIZZLED, **fmt)), device)
    assert any("quantize" in name for name in names), names
    wrong = [n for n in names if any(word in n.lower() for word in ("fill", "memset", "zero", "memcpy", "aten::copy"))]
    assert not wrong, names
    for op in made:
        assert (padding_bytes(op) == 0).all()


@pytest.mark.gpu
@EVERY_FORMAT
def test_bug_100_no_hidden_sync(fmt: dict[str, Any], cuda: torch.device, gen: torch.Generator, no_poison: None) -> None:
    x = make("wide", 48, 80, gen).to(cuda)
    want = every_cast(x, fmt)  # warm-up
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = every_cast(x, fmt)
        bs.quantize(x, amax=0.7)
    except RuntimeError as error:
        pytest.fail(f"a cast waited for the device: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_all_same(got, want)


@pytest.mark.gpu
def test_bug_67_work_goes_to_the_current_stream(cuda: torch.device) -> None:
    x = torch.zeros(256, 512, device=cuda)
    stream = torch.cuda.Stream()
    for _ in range(100):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            x.fill_(2.0)
            y = bs.dequantize(bs.quantize(x))
            t = bs.dequantize(bs.transpose(bs.quantize(x, block=(16, 16), layout=SWIZZLED)))
            largest = bs.amax(x, "column")
        stream.synchronize()
        assert (y == 2).all()
        assert (t == 2).all()
        assert (largest == 2).all()


@pytest.mark.gpu
@EVERY_FORMAT
def test_bug_69_graph_replay_reads_new_data(
    fmt: dict[str, Any], cuda: torch.device, gen: torch.Generator, no_poison: None
) -> None:
    x = make("wide", 144, 208, gen).to(cuda)
    other = (make("wide", 144, 208, gen) * 8).to(cuda)
    given = torch.tensor(0.5, device=cuda)
    want = every_cast(other, fmt)
    every_cast(x, fmt)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        every_cast(x, fmt)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = every_cast(x, fmt)
        clipped = None if fmt.get("scaling") == "row" else bs.quantize(x, amax=given, **fmt)
    x.copy_(other)
    given.fill_(0.25)
    graph.replay()
    torch.cuda.synchronize()
    assert_all_same(got, want)
    if clipped is not None:
        assert_same_operand(clipped, bs.quantize(other, amax=0.25, **fmt))


@pytest.mark.gpu
def test_bug_69_a_float_amax_under_capture(cuda: torch.device, no_poison: None) -> None:
    x = torch.randn(32, 64, device=cuda)
    want = bs.quantize(x, amax=1.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = bs.quantize(x, amax=1.5)
    graph.replay()
    torch.cuda.synchronize()
    assert_same_operand(got, want)
    refused = pytest.raises(NotImplementedError, match=r'nonfinite must be "propagate" under .* graph capture')
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        bs.quantize(x, nonfinite="raise")


@pytest.mark.gpu
@EVERY_FORMAT
def test_bug_70_a_graph_sees_what_out_wrote(
    fmt: dict[str, Any], cuda: torch.device, gen: torch.Generator, no_poison: None
) -> None:
    w = make("wide", 48, 80, gen).to(cuda)
    op = bs.quantize(w, layout=SWIZZLED, **fmt)
    before = addresses(op)
    y = bs.dequantize(op)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bs.dequantize(op)
    bs.quantize(3 * w, layout=SWIZZLED, out=op, **fmt)
    graph.replay()
    torch.cuda.synchronize()
    assert addresses(op) == before
    assert_bits_equal(y, bs.dequantize(bs.quantize(3 * w, **fmt)), "replay")


@pytest.mark.gpu
def test_two_streams_do_not_share_a_workspace(cuda: torch.device, gen: torch.Generator) -> None:
    xs = [make("wide", 512, 1024, gen).to(cuda), make("wide", 256, 4096, gen, torch.bfloat16).to(cuda)]
    want = [bs.quantize(x, layout=SWIZZLED) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    for _ in range(50):
        got = []
        for x, stream in zip(xs, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(bs.quantize(x, layout=SWIZZLED))
        torch.cuda.synchronize()
        for p, q in zip(got, want, strict=True):
            assert_same_operand(p, q)


@pytest.mark.gpu
@EVERY_FORMAT
def test_large_input_against_the_cpu(fmt: dict[str, Any], cuda: torch.device, gen: torch.Generator) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = make("nonfinite" if dtype is torch.float16 else "wide", 1040, 8208, gen, dtype)
        for got, want in zip(every_cast(x.to(cuda), fmt), every_cast(x, fmt), strict=True):
            if isinstance(got, torch.Tensor):
                assert_bits_equal(got, want, str(dtype), nan_equal=True)
            else:
                assert_same_operand(as_rowwise(got), as_rowwise(want.to("cpu")))


@pytest.mark.gpu
def test_bug_66_tensors_of_two_devices(cuda: torch.device) -> None:
    x = torch.randn(16, 64, device=cuda)
    q = bs.quantize(x)
    amax = torch.tensor(1.0)
    with pytest.raises(ValueError, match="amax must be on cuda:0, where the other arguments are; got cpu"):
        bs.quantize(x, amax=amax)
    with pytest.raises(ValueError, match="amax must be on cpu, where the other arguments are; got cuda:0"):
        bs.quantize(x.cpu(), amax=amax.to(cuda))
    with pytest.raises(ValueError, match="out must be on cuda:0, where the other arguments are; got cpu"):
        bs.quantize(x, out=q.to("cpu"))
    with pytest.raises(ValueError, match="out must be on cuda:0, where the other arguments are; got cpu"):
        bs.dequantize(q, out=torch.empty(16, 64))
    with pytest.raises(ValueError, match="amax must be on cuda:0, where qdata is; got cpu"):
        bs.NVFP4Operand(q.qdata, q.block_scale, q.amax.cpu(), q.shape)
    for keywords, arg in (
        ({"bias": torch.ones(16)}, "bias"),
        ({"alpha": torch.ones(())}, "alpha"),
        ({"c": torch.ones(16, 16)}, "c"),
        ({"out": torch.empty(16, 16, dtype=torch.bfloat16)}, "out"),
    ):
        with pytest.raises(ValueError, match=f"^gemm: {arg} must be on cuda:0, where the other arguments are; got cpu"):
            bs.gemm(q, q, **keywords)
