# SPDX-License-Identifier: Apache-2.0
"""The master cast of a model with 7 billion weights: host time, launches and device time, whole and one by one.

python -m perf.master_cast --device cuda --out master-cast.jsonl
python -m perf.master_cast --device cpu --divide 16 --out master-cast.jsonl      sizes divided by 16 a side

One process without a group: the all-reduces are not in it. `--share 8` owns an eighth of each master, as one of eight
ranks does; scales are made for whole weights on every rank.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from blockscale.distributed import ElementRange, packed_range
from blockscale.optim import FusedAdam

from .record import environment, summary, write_rows

LAYERS, WIDTH, INNER = 32, 4096, 11008
SHAPES = [(WIDTH, WIDTH)] * 4 + [(INNER, WIDTH)] * 2 + [(WIDTH, INNER)]
"""Of one layer: q, k, v, o, gate, up, down."""


class Model:
    """Weights and this rank's share of their masters."""

    def __init__(self, device: str, divide: int, layers: int, share: int) -> None:
        shapes = [(m // divide // 16 * 16, k // divide // 16 * 16) for m, k in SHAPES] * layers
        self.weights = [
            NVFP4Tensor.quantize(torch.zeros(s, device=device, dtype=torch.bfloat16), block=(16, 16), columnwise=True)
            for s in shapes
        ]
        self.masters = [torch.randn(m * k // share // 2 * 2, device=device) for m, k in shapes]
        self.starts = [0] * len(shapes)
        self.elements = sum(m * k for m, k in shapes)
        self.tiles = [torch.empty(m // 16, k // 16, device=device) for m, k in shapes]
        self.amaxes = [torch.empty((), device=device) for _ in shapes]
        self.scales = [
            bs.FusedScales(
                torch.empty(t.shape, device=device, dtype=torch.uint8), w.rowwise.block_scale, w.rowwise.amax
            )
            for t, w in zip(self.tiles, self.weights, strict=True)
        ]
        self.params = [torch.nn.Parameter(weight) for weight in self.weights]

    def whole(self) -> None:
        """The list in one call."""
        bs.cast_master_weights_to_nvfp4(self.weights, self.masters, self.starts)

    def one_by_one(self) -> None:
        """A call for each weight."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            bs.cast_master_weights_to_nvfp4([weight], [master], [0])

    def stages(self) -> None:
        """The stages of each weight in turn, through the public functions."""
        parts = zip(self.weights, self.masters, self.tiles, self.amaxes, self.scales, strict=True)
        for weight, master, tiles, amax, scales in parts:
            shape = tuple(weight.shape)
            bs.partial_amax(master, shape=shape, start=0, round_to=torch.bfloat16, out=tiles)
            torch.amax(tiles, dim=(0, 1), out=amax)
            bs.fused_scale(tiles, amax, shape=shape, out=scales)
            codes = weight.rowwise.qdata.view(-1)[: len(packed_range(ElementRange(0, master.numel())))]
            bs.partial_cast(master, codes, scales.tile_scales, amax, shape, 0, round_to=torch.bfloat16)

    def process(self) -> None:
        """The columnwise data of the list."""
        bs.post_all_gather_processing(self.weights)

    def calls(self) -> dict[str, Callable[[], object]]:
        """Name -> call, the baselines last."""
        optimizer = FusedAdam([torch.nn.Parameter(master) for master in self.masters])
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.randn_like(param)
        return {
            "cast_master_weights_to_nvfp4": self.whole,
            "post_all_gather_processing": self.process,
            "FusedAdam.step of float32 masters": optimizer.step,
            "cast, a call for each weight": self.one_by_one,
            "cast, stages of each weight": self.stages,
        }


def host_times(call: Callable[[], object], device: str, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds until a call returns, and until its work is done."""
    host, total = [], []
    for _ in range(2):
        call()
    for _ in range(rounds):
        _wait(device)
        start = time.perf_counter()
        call()
        host.append((time.perf_counter() - start) * 1e6)
        _wait(device)
        total.append((time.perf_counter() - start) * 1e6)
    return host, total


def launches(call: Callable[[], object], device: str) -> int | None:
    """Kernels, copies and fills of a call; None on a CPU."""
    if device != "cuda":
        return None
    _wait(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        _wait(device)
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--divide", type=int, default=1, help="sizes of matrices are divided by this")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--share", type=int, default=1, help="1/SHARE of every master is owned")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    facts = environment(options.device)
    model = Model(options.device, options.divide, options.layers, options.share)
    shape = f"{len(model.weights)} weights, {model.elements / 1e6:.1f} M elements, 1/{options.share} owned"
    rows: list[dict[str, Any]] = []
    for name, call in model.calls().items():
        host, total = host_times(call, options.device, options.rounds)
        count = launches(call, options.device)
        note = {} if count is None else {"launches": count, "config": f"{count} launches"}
        for what, samples in (("host", host), ("host and device", total)):
            rows.append({"op": name, "format": what, "shape": shape, **note, **summary(samples), **facts})
    write_rows(options.out, rows)
    print(options.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
