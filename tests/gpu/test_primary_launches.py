# SPDX-License-Identifier: Apache-2.0
"""Primary weights: launches that do not grow with the list, no copy and no wait after warm-up, plans under capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, assert_same_operand
from tests.gpu.profiles import launches_of
from tests.inputs import SWIZZLED

pytestmark = pytest.mark.usefixtures("no_poison")

SHAPE = (48, 272)


class Stages:
    """Every stage for n weights, as calls or as plans, on buffers that stay."""

    def __init__(self, n: int, device: torch.device, planned: bool) -> None:
        gen = torch.Generator().manual_seed(n)
        self.masters = [torch.randn(SHAPE, generator=gen).to(device) for _ in range(n)]
        self.amax = torch.empty(n, device=device)
        shapes, starts = [SHAPE] * n, [0] * n
        self.tiles = [torch.empty(3, 17, device=device) for _ in range(n)]
        self.scales = bs.multi_tensor_fused_scale(self.tiles, self.amax, shapes, layout=SWIZZLED)
        self.codes = [torch.empty(48 * 136, dtype=torch.uint8, device=device) for _ in range(n)]
        tile_scales = [s.tile_scales for s in self.scales]
        self.weights = [
            bs.NVFP4Operand(code.view(48, 136), s.block_scale, s.amax, SHAPE, SWIZZLED, bs.NVFP4(block=(16, 16)))
            for code, s in zip(self.codes, self.scales, strict=True)
        ]
        self.turned = bs.multi_tensor_transpose(self.weights)
        arguments = {
            "partial_amax": ((self.masters, shapes, starts), {"out": self.tiles, "amax": self.amax}),
            "fused_scale": ((self.tiles, self.amax, shapes), {"layout": SWIZZLED, "out": self.scales}),
            "partial_cast": ((self.masters, self.codes, tile_scales, self.amax, shapes, starts), {}),
            "transpose": ((self.weights, self.turned), {}),
        }
        self.calls: dict[str, Callable[[], object]] = {}
        for name, (positional, keywords) in arguments.items():
            if planned:
                self.calls[name] = getattr(bs.MultiTensorPlan, name)(*positional, **keywords).run
            else:
                function = getattr(bs, f"multi_tensor_{name}")
                self.calls[name] = lambda f=function, p=positional, k=keywords: f(*p, **k)

    def run(self) -> None:
        for call in self.calls.values():
            call()

    def check(self) -> None:
        for i in range(0, len(self.masters), 1 + len(self.masters) // 5):
            want = ref.quantize(self.masters[i].cpu(), block=(16, 16), layout=SWIZZLED)
            assert_same_operand(self.weights[i], want)
            assert_same_operand(self.turned[i], ref.transpose(want))
            assert_bits_equal(self.amax[i], want.amax, "amax")


@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
@pytest.mark.parametrize("n", [1, 10, 100, 290, 1000])
def test_one_launch_a_stage(n: int, planned: bool, cuda: torch.device) -> None:
    """Two for a partial amax with weight amaxes, which start from zero. A call with more items than the parameters of
    a kernel hold copies their table, a plan has done so before."""
    stages = Stages(n, cuda, planned)
    for name, call in stages.calls.items():
        launches = launches_of(call)
        ours = [launch for launch in launches if launch.ours]
        assert len(ours) == (2 if name == "partial_amax" else 1), launches
        assert len(launches) - len(ours) == (1 if n == 1000 and not planned else 0), launches
    stages.run()
    stages.check()


def test_single_calls_are_one_launch(cuda: torch.device) -> None:
    x = torch.randn(SHAPE, device=cuda)
    amax, out = torch.ones((), device=cuda), torch.zeros(48 * 136, dtype=torch.uint8, device=cuda)
    tiles = bs.partial_amax(x, SHAPE, 0)
    scales = bs.fused_scale(tiles, amax, SHAPE)
    for call in (
        lambda: bs.partial_amax(x, SHAPE, 0),
        lambda: bs.fused_scale(tiles, amax, SHAPE, layout=SWIZZLED),
        lambda: bs.partial_cast(x, out, scales.tile_scales, amax, SHAPE, 0),
    ):
        launches = launches_of(call)
        assert [launch.ours for launch in launches] == [True], launches


def test_nothing_is_launched_for_empty_shards(cuda: torch.device) -> None:
    empty, fragment = torch.empty(0, device=cuda), torch.empty(0, dtype=torch.uint8, device=cuda)
    scale, amax = torch.zeros(3, 17, dtype=torch.uint8, device=cuda), torch.ones((), device=cuda)
    assert not launches_of(lambda: bs.partial_cast(empty, fragment, scale, amax, SHAPE, 48 * 272))
    assert not launches_of(lambda: bs.multi_tensor_partial_cast([], [], [], [], [], []))


@pytest.mark.parametrize("n", [3, 1000])
def test_bug_100_no_wait_after_warm_up(n: int, cuda: torch.device) -> None:
    stages, called = Stages(n, cuda, planned=True), Stages(n, cuda, planned=False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stages.run()
        called.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stages.check()
    called.check()


@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
@pytest.mark.parametrize("n", [5, 200, 1000])
def test_bug_69_lists_under_capture(n: int, planned: bool, cuda: torch.device) -> None:
    """Items travel by value, so that a replay needs nothing of the host; a list that is too long asks for a plan."""
    stages = Stages(n, cuda, planned)
    stages.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    if n == 1000 and not planned:
        with pytest.raises(NotImplementedError, match="Make a MultiTensorPlan before the capture"):  # noqa: SIM117
            with torch.cuda.graph(graph):
                stages.run()
        return
    with torch.cuda.graph(graph):
        stages.run()
    for factor in (1.0, 3.0, 0.25):
        for master in stages.masters:
            master.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        stages.check()


def test_a_plan_runs_on_any_stream(cuda: torch.device) -> None:
    stages = Stages(1000, cuda, planned=True)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            stages.run()
        torch.cuda.current_stream().wait_stream(stream)
    stages.check()
