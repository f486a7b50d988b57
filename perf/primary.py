# SPDX-License-Identifier: Apache-2.0
"""Speed of the primary-weight stages over all weights of a model in one call each, as a fraction of a copy.

    python -m perf.primary --device cuda --out perf/results/primary-h200.jsonl
    python -m perf.primary --device cpu --layers 1 --width 512 --out perf/results/primary-cpu.jsonl

The list is that of a 7B model: of each layer four (d, d), two (f, d) and one (d, f), f = 2.6875 d, and two embeddings:
226 weights at 32 layers. Masters are float32, rounded to bfloat16. Bytes are counted once: inputs read once, outputs
written once; the copy moves as many in the same run. Calls are those of a `MultiTensorPlan`, as a training step makes
them.
"""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import blockscale as bs

from .casts import copy_call
from .record import environment, summary, write_rows
from .timing import Call, median, time_on_cpu, time_on_cuda

SWIZZLED = bs.ScaleLayout.SWIZZLED_128X4
VOCABULARY = 32000


def model_shapes(layers: int, width: int) -> list[tuple[int, int]]:
    """(out, in) of every weight."""
    wide = width * 43 // 16
    layer = [(width, width)] * 4 + [(wide, width)] * 2 + [(width, wide)]
    return layer * layers + [(VOCABULARY * width // 4096, width)] * 2


@dataclass(frozen=True)
class Case:
    """One row: the bytes that a call moves, and the call."""

    op: str
    format: str
    moved_bytes: int
    run: Call


def cases(shapes: list[tuple[int, int]], device: str) -> list[Case]:
    """Every stage over the list, and the same masters as shards that start where no vector load is possible."""
    elements = sum(m * k for m, k in shapes)
    starts, tile_bytes = [0] * len(shapes), elements // 256
    masters = [torch.randn(shape, device=device) for shape in shapes]
    amax = torch.empty(len(shapes), device=device)
    rounded = {"round_to": torch.bfloat16}
    maxima = bs.MultiTensorPlan.partial_amax(masters, shapes, starts, amax=amax, **rounded)
    maxima.run()
    scaled = bs.MultiTensorPlan.fused_scale(maxima.result, amax, shapes, layout=SWIZZLED)
    scaled.run()
    codes = [torch.empty(m, k // 2, dtype=torch.uint8, device=device) for m, k in shapes]
    tile_scales = [scales.tile_scales for scales in scaled.result]
    cast = bs.MultiTensorPlan.partial_cast(masters, codes, tile_scales, amax, shapes, starts, **rounded)
    cast.run()
    # As if each rank had all elements but the first: addresses of a row of the weight are off by four bytes.
    tails = ([x.view(-1)[:-1] for x in masters], shapes, [1] * len(shapes))
    tail_maxima = bs.MultiTensorPlan.partial_amax(*tails, **rounded)
    tail_cast = bs.MultiTensorPlan.partial_cast(tails[0], codes, tile_scales, amax, *tails[1:], **rounded)
    fmt = bs.NVFP4(block=(16, 16))
    weights = [
        bs.NVFP4Operand(code, scales.block_scale, scales.amax, shape, SWIZZLED, fmt)
        for code, scales, shape in zip(codes, scaled.result, shapes, strict=True)
    ]
    turned = bs.MultiTensorPlan.transpose(weights)
    read = 4 * elements + 4 * tile_bytes
    scale_bytes, cast_bytes = 5 * tile_bytes + elements // 16, 4 * elements + tile_bytes + elements // 2

    def both(_: int) -> None:
        scaled.run()
        cast.run()

    return [
        Case("partial_amax", "with weight amaxes", read, lambda _: maxima.run()),
        Case("partial_amax", "shards start at element 1", read, lambda _: tail_maxima.run()),
        Case("fused_scale", "swizzled scales", scale_bytes, lambda _: scaled.run()),
        Case("partial_cast", "float32 to bfloat16 to codes", cast_bytes, lambda _: cast.run()),
        Case("partial_cast", "shards start at element 1", cast_bytes, lambda _: tail_cast.run()),
        Case("fused_scale and partial_cast", "", scale_bytes + cast_bytes, both),
        Case("transpose", "swizzled scales", elements + elements // 8, lambda _: turned.run()),
    ]


def measure(layers: int, width: int, device: str) -> list[dict[str, Any]]:
    """Rows of every stage over the list of a model."""
    shapes = model_shapes(layers, width)
    elements = sum(m * k for m, k in shapes)
    timing = functools.partial(time_on_cuda, per_graph=3, rounds=15) if device == "cuda" else time_on_cpu
    rows = []
    for case in cases(shapes, device):
        copy = copy_call(case.moved_bytes, 1, device)
        timed = timing({"op": case.run, "copy": copy}, sets=1)
        op_us, copy_us = median(timed["op"]), median(timed["copy"])
        rows.append(
            {
                "op": case.op,
                "format": case.format,
                "shape": f"{len(shapes)} weights, {elements / 1e6:.0f} M elements, width {width}",
                **summary(timed["op"]),
                "gb_per_s": case.moved_bytes / op_us / 1e3,
                "fraction": copy_us / op_us,
                "ceiling": f"copy of {case.moved_bytes} bytes, {case.moved_bytes / copy_us / 1e3:.0f} GB/s",
            }
        )
        print(f"{case.op} {case.format}: {rows[-1]['fraction']:.2f} of a copy", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's default")
    parser.add_argument("--layers", type=int, default=0, help="0: 32 on a GPU, 1 on a CPU")
    parser.add_argument("--width", type=int, default=4096, help="d, a multiple of 256")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    layers = options.layers or (32 if options.device == "cuda" else 1)
    facts = environment(options.device)
    rows = [row | facts for row in measure(layers, options.width, options.device)]
    write_rows(options.out, rows)
    print(options.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
