# SPDX-License-Identifier: Apache-2.0
"""The master cast and FusedAdam on a GPU: launches that do not grow with the list, no wait, and CUDA graphs.
Bugs 69, 93 and 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from blockscale.optim import FusedAdam
from tests.bits import assert_bits_equal
from tests.distributed.weights import assert_equals_full
from tests.gpu.profiles import launches_of

pytestmark = pytest.mark.usefixtures("no_poison")

SHAPES = ((48, 64), (112, 48), (16, 272))
COUNTS = [1, 10, 290, 1000]


@contextmanager
def no_waiting() -> Iterator[None]:
    """A wait for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Cast:
    """A cast of n weights, whole, and the processing after a gather."""

    def __init__(self, n: int, device: torch.device) -> None:
        gen = torch.Generator().manual_seed(n)
        shapes = [SHAPES[i % len(SHAPES)] for i in range(n)]
        self.values = [torch.randn(shape, generator=gen) for shape in shapes]
        zeros = [torch.zeros(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
        self.weights = [NVFP4Tensor.quantize(x, block=(16, 16), columnwise=True) for x in zeros]
        self.masters = [x.view(-1).to(device) for x in self.values]
        self.starts = [0] * n

    def cast(self) -> None:
        bs.cast_master_weights_to_nvfp4(self.weights, self.masters, self.starts)

    def process(self) -> None:
        bs.post_all_gather_processing(self.weights)

    def check(self) -> None:
        torch.cuda.synchronize()
        for i in range(0, len(self.weights), 1 + len(self.weights) // 6):
            assert_equals_full([self.weights[i].cpu()], [self.values[i].bfloat16()], f"weight {i}")


@pytest.mark.parametrize("n", COUNTS)
def test_bug_100_a_cast_is_four_launches_for_any_list(n: int, cuda: torch.device) -> None:
    call = Cast(n, cuda)
    for function, count in ((call.cast, 4), (call.process, 1)):
        launches = launches_of(function)
        assert len(launches) == count and all(launch.ours for launch in launches), launches
        with no_waiting():
            function()
    call.check()


@pytest.mark.parametrize("n", COUNTS)
def test_bug_100_a_step_has_as_many_launches_for_any_list(n: int, cuda: torch.device) -> None:
    """The step counts, the step, and for NVFP4 the cast (4) and the transpose: 7 in all; nothing waits."""
    call = Cast(n, cuda)
    params = [torch.nn.Parameter(weight) for weight in call.weights]
    for p in params:
        p.grad = torch.randn(p.shape, device=cuda).bfloat16()
    optimizer = FusedAdam(params)
    launches = launches_of(optimizer.step)
    assert len(launches) == 7, launches
    assert sum(launch.ours for launch in launches) == 6, launches
    for p in params:  # moved gradients: the descriptors are copied again, without a wait
        p.grad = p.grad.clone()
    with no_waiting():
        optimizer.step()
    for p in params[:: 1 + n // 6]:
        want = bs.quantize(optimizer.master(p).bfloat16(), block=(16, 16))
        assert_bits_equal(p.rowwise.qdata, want.qdata, "codes")


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """The graph of a call, after warm-ups on another stream and on the one that captures."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            call()
    torch.cuda.current_stream().wait_stream(side)
    return graph


def test_bug_69_a_captured_cast_reads_new_masters(cuda: torch.device) -> None:
    call = Cast(7, cuda)

    def both() -> None:
        call.cast()
        call.process()

    graph = captured(both)
    for factor in (1.0, -3.0, 0.5):
        for master, values in zip(call.masters, call.values, strict=True):
            master.copy_(values.view(-1) * factor)
        graph.replay()
        torch.cuda.synchronize()
        assert_equals_full([w.cpu() for w in call.weights], [(x * factor).bfloat16() for x in call.values], "replay")


@pytest.mark.parametrize("inside", [False, True], ids=["gradients outside", "gradients in the graph"])
def test_bug_69_a_captured_step_goes_the_way_of_eager_ones(inside: bool, cuda: torch.device) -> None:
    """Step count, learning rate and gradients are read at each replay, wherever gradients live."""
    gen = torch.Generator().manual_seed(4)
    values = [torch.randn(shape, generator=gen) for shape in SHAPES]

    def make() -> tuple[list[torch.nn.Parameter], FusedAdam, torch.Tensor]:
        quantized = [NVFP4Tensor.quantize(x.to(cuda).bfloat16(), block=(16, 16), columnwise=True) for x in values]
        params = [torch.nn.Parameter(x) for x in (*quantized, values[0].to(cuda), values[1].to(cuda).half())]
        rate = torch.tensor(1e-2, device=cuda)
        return params, FusedAdam(params, lr=rate), rate

    sources = [torch.randn(p.shape, generator=gen).to(cuda, p.dtype) for p in make()[0]]

    def call(params: list[torch.nn.Parameter], optimizer: FusedAdam) -> None:
        for p, source in zip(params, sources, strict=True):
            if inside:
                p.grad = source * 2
            elif p.grad is None:
                p.grad = source
        optimizer.step()

    captured_params, captured_optimizer, captured_rate = make()
    graph = captured(lambda: call(captured_params, captured_optimizer))
    params, optimizer, rate = make()
    for _ in range(2):
        call(params, optimizer)
    for step in range(4):
        for source in sources:
            source.copy_(torch.randn(source.shape, generator=gen))
        captured_rate.fill_(1e-2 / (step + 1))
        rate.fill_(1e-2 / (step + 1))
        graph.replay()
        torch.cuda.synchronize()
        call(params, optimizer)
        for p, q in zip(captured_params, params, strict=True):
            for name, value in optimizer.state[q].items():
                assert_bits_equal(captured_optimizer.state[p][name], value, f"step {step}: {name}")
            if isinstance(q, NVFP4Tensor):
                assert_bits_equal(p.rowwise.qdata, q.rowwise.qdata, "codes")
                assert_bits_equal(p.columnwise.qdata, q.columnwise.qdata, "columnwise codes")
            else:
                assert_bits_equal(p.detach(), q.detach(), "parameter")


def test_bug_68_casts_on_two_streams(cuda: torch.device) -> None:
    """Each stream has buffers of its own."""
    calls = [Cast(20, cuda), Cast(21, cuda)]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(50):
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                call.cast()
                call.process()
    torch.cuda.synchronize()
    for call in calls:
        call.check()


def test_bug_31_more_than_2_31_elements(cuda: torch.device) -> None:
    """One tensor whose last elements have offsets above 2^31: 40 GiB of state, so only where there is room."""
    count = (1 << 31) + 4096 + 5
    if torch.cuda.mem_get_info(cuda)[0] < 16 * count + (4 << 30):
        pytest.skip("needs 36 GiB of free GPU memory")
    param = torch.nn.Parameter(torch.zeros(count, device=cuda))
    param.grad = torch.ones(count, device=cuda)
    FusedAdam([param], lr=1.0, weight_decay=0.0).step()
    want = bs.reference.adam(
        torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.ones(1), step=1, lr=1.0, weight_decay=0.0
    )[0]
    assert_bits_equal(param[-3:].detach().cpu(), want.expand(3).contiguous(), "the last elements")
    assert bool((param == float(want)).all())
