# SPDX-License-Identifier: Apache-2.0
"""Work goes to the current stream, waits for nothing else, and shares no memory with another. Bugs 67, 68, 81, 100."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal
from tests.gemm.operands import exact_operand
from tests.gpu.operations import assert_same_results, make_inputs, operations
from tests.gpu.profiles import launches_of

EVERY_OPERATION = pytest.mark.parametrize("name", operations(16))


def test_bug_67_consumers_see_what_producers_wrote(cuda: torch.device) -> None:
    x = torch.zeros(256, 512, device=cuda)
    stream = torch.cuda.Stream()
    w = bs.quantize(torch.eye(512, device=cuda))
    for _ in range(100):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            x.fill_(2.0)
            d = bs.gemm(bs.quantize(x, scaling="row"), w, out_dtype=torch.float32)
            op = bs.gemm(bs.quantize(x), w, out_format=bs.NVFP4(), out_amax=2.0)
            y = bs.dequantize(op)
        stream.synchronize()
        assert (d == 2).all()
        assert (y == 2).all()


@EVERY_OPERATION
def test_bug_67_every_launch_is_on_the_current_stream(name: str, cuda: torch.device, no_poison: None) -> None:
    inputs = make_inputs(48, 64, 80, seed=1).to(cuda)
    call = operations(48)[name]
    stream = torch.cuda.Stream()

    def on_stream() -> None:
        with torch.cuda.stream(stream):
            call(inputs)

    launches = launches_of(on_stream)
    assert any(launch.ours for launch in launches), launches
    assert len({launch.stream for launch in launches}) == 1, launches
    default = {launch.stream for launch in launches_of(lambda: call(inputs))}
    assert default.isdisjoint({launch.stream for launch in launches})


def gemm_pairs(cuda: torch.device) -> list[tuple[Any, Any]]:
    gen = torch.Generator().manual_seed(5)
    sizes = ((300, 512, 528), (1024, 768, 1040))
    return [
        (exact_operand(m, k, gen, {"scaling": "row"}).to(cuda), exact_operand(n, k, gen).to(cuda)) for m, n, k in sizes
    ]


def test_bug_68_two_streams(cuda: torch.device) -> None:
    pairs = gemm_pairs(cuda)
    serial = [list(bs.gemm(a, w, return_amax="row")) for a, w in pairs]
    streams = [torch.cuda.Stream() for _ in pairs]
    torch.cuda.synchronize()
    for _ in range(200):
        got: list[Any] = []
        for (a, w), stream in zip(pairs, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(list(bs.gemm(a, w, return_amax="row")))
        torch.cuda.synchronize()
        for p, q in zip(got, serial, strict=True):
            assert_same_results(p, q, "two streams")


def test_bug_68_two_threads(cuda: torch.device) -> None:
    """Each with a stream of its own; the interpreter lock is free while a launch is made."""
    pairs = gemm_pairs(cuda)
    x = torch.randn(512, 1024, device=cuda)
    cast = bs.quantize(x)
    serial = [list(bs.gemm(a, w, return_amax="tensor")) for a, w in pairs]
    torch.cuda.synchronize()
    failures: list[str] = []

    def work(index: int) -> None:
        stream = torch.cuda.Stream()
        try:
            for _ in range(100):
                with torch.cuda.stream(stream):
                    got = [*bs.gemm(*pairs[index], return_amax="tensor"), bs.quantize(x)]
                stream.synchronize()
                assert_same_results(got, [*serial[index], cast], f"thread {index}")
        except Exception as error:
            failures.append(f"thread {index}: {error}")

    threads = [threading.Thread(target=work, args=(index % 2,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_bug_68_two_products_in_one_graph(cuda: torch.device, no_poison: None) -> None:
    pairs = gemm_pairs(cuda)
    serial = [list(bs.gemm(a, w, return_amax="row")) for a, w in pairs]
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        first = list(bs.gemm(*pairs[0], return_amax="row"))
        with torch.cuda.stream(side):
            second = list(bs.gemm(*pairs[1], return_amax="row"))
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert_same_results(first, serial[0], "first branch")
    assert_same_results(second, serial[1], "second branch")


def test_bug_81_no_launch_starts_before_its_inputs_are_there(cuda: torch.device) -> None:
    """2,000 casts, each followed at once by the product that reads it, while a second stream keeps the GPU busy."""
    gen = torch.Generator().manual_seed(6)
    x = torch.randn(128, 512, generator=gen).to(cuda)
    w = bs.quantize(torch.randn(256, 512, generator=gen).to(cuda))
    ref = bs.gemm(bs.quantize(x), w)
    load, noise = torch.cuda.Stream(), torch.randn(2048, 2048, device=cuda)
    wrong = torch.zeros((), dtype=torch.int64, device=cuda)
    for step in range(2000):
        if step % 10 == 0:
            with torch.cuda.stream(load):
                noise @ noise
        wrong += (bs.gemm(bs.quantize(x), w).view(torch.int16) != ref.view(torch.int16)).sum()
    assert int(wrong) == 0


@EVERY_OPERATION
def test_bug_100_no_hidden_sync(name: str, cuda: torch.device, no_poison: None) -> None:
    inputs = make_inputs(48, 64, 80, seed=2).to(cuda)
    call = operations(48)[name]
    want = call(inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = call(inputs)
        bs.quantize(inputs.x, amax=0.7)
        bs.gemm(inputs.a["row"], inputs.b["row"], alpha=0.5, out_format=bs.NVFP4(), out_amax=2.0)
    except RuntimeError as error:
        pytest.fail(f"{name} waited for the device: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same_results(got, want, name)


def test_bug_79_a_device_alpha_outlives_the_call(cuda: torch.device) -> None:
    """The temporary is freed while the kernel that reads it still waits behind a long one."""
    a, w = gemm_pairs(cuda)[0]
    want = bs.gemm(a, w, alpha=0.5)
    for _ in range(50):
        torch.cuda._sleep(500_000)
        d = bs.gemm(a, w, alpha=torch.full((), 0.25, device=cuda) * 2)
        junk = [torch.full((), float("nan"), device=cuda) for _ in range(16)]
        del junk
        assert_bits_equal(d, want, "d")
