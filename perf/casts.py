# SPDX-License-Identifier: Apache-2.0
"""Speed of every cast as a fraction of a copy that moves as many bytes in the same run.

    python -m perf.casts --device cpu  --out perf/results/casts-cpu.jsonl
    python -m perf.casts --device cuda --out perf/results/casts-h200.jsonl

Bytes are counted once: inputs read once, outputs written once. The copy reads half of them and writes half.
On the CPU there are two more rows: the plain-torch reference, and a memcpy of the input.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import blockscale as bs

from .record import environment, summary, write_rows
from .timing import Call, median, time_on_cpu, time_on_cuda

SWIZZLED = bs.ScaleLayout.SWIZZLED_128X4
L2_MULTIPLE = 3
"""Buffers rotate until together they are this many times the L2 cache."""


@dataclass(frozen=True)
class Case:
    """One op on one shape: the calls' buffers are made by `prepare(x)` for each set."""

    op: str
    format: str
    moved_bytes: int
    run: Any  # (x, prepared) -> object
    prepare: Any  # x -> prepared


def cases(m: int, k: int, element_bytes: int) -> list[Case]:
    """Every cast of an (m, k) input, with outputs in place so that no allocation is measured."""
    n, scales = m * k, m * k // 16
    read, codes = n * element_bytes, n // 2
    one, both = read + codes + scales, read + 2 * (codes + scales)
    made: list[Case] = [
        Case("amax", "tensor", read, lambda x, _: bs.amax(x), lambda x: None),
        Case("amax", "row", read, lambda x, _: bs.amax(x, "row"), lambda x: None),
        Case("amax", "column", read, lambda x, _: bs.amax(x, "column"), lambda x: None),
    ]

    def quantized(name: str, moved: int, given: bool, **options: Any) -> None:
        def prepare(x: Tensor) -> Any:
            function = bs.quantize_both if name == "quantize_both" else bs.quantize
            second = bs.amax(x) if given else None
            return function, second, function(x, amax=second, layout=SWIZZLED, **options)

        def run(x: Tensor, prepared: Any) -> object:
            function, second, out = prepared
            return function(x, amax=second, layout=SWIZZLED, out=out, **options)

        label = ", ".join(
            [*(f"{key}={value}" for key, value in options.items()), "given amax" if given else "own amax"]
        )
        made.append(Case(name, label, moved, run, prepare))

    quantized("quantize", one, True)
    quantized("quantize", one, False)
    quantized("quantize", one, False, scaling="row")
    quantized("quantize", one, True, orientation="columnwise")
    quantized("quantize", one, True, block=(16, 16))
    quantized("quantize_both", both, True)
    quantized("quantize_both", both, True, block=(16, 16))
    quantized("quantize_both", both, False, scaling="row")

    def dequantized(x: Tensor) -> Any:
        return bs.quantize(x), torch.empty_like(x)

    made.append(Case("dequantize", "to the input dtype", one, lambda x, p: bs.dequantize(p[0], out=p[1]), dequantized))

    def transposed(x: Tensor) -> Any:
        op = bs.quantize(x, block=(16, 16), layout=SWIZZLED)
        return op, bs.transpose(op)

    made.append(
        Case("transpose", "block=(16, 16)", 2 * (codes + scales), lambda x, p: bs.transpose(p[0], out=p[1]), transposed)
    )
    made.append(Case("swizzle_scales", "", 2 * scales, lambda x, p: bs.swizzle_scales(p), lambda x: bs.quantize(x)))
    return made


def copy_call(moved_bytes: int, sets: int, device: str) -> Call:
    """A copy that reads half of moved_bytes and writes half."""
    sources = [torch.randint(0, 255, (moved_bytes // 2,), dtype=torch.uint8, device=device) for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]
    return lambda index: targets[index].copy_(sources[index])


def measure_shape(m: int, k: int, dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Rows of all casts of one shape."""
    element_bytes = torch.empty((), dtype=dtype).element_size()
    sets = 1
    if device == "cuda":
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        sets = max(2, math.ceil(L2_MULTIPLE * l2_bytes / (m * k * element_bytes)))
    inputs = [torch.randn(m, k, device=device).to(dtype) for _ in range(sets)]
    rows = []
    for case in cases(m, k, element_bytes):
        prepared = [case.prepare(x) for x in inputs]
        calls: dict[str, Call] = {
            "op": lambda index, case=case, prepared=prepared: case.run(inputs[index], prepared[index]),
            "copy": copy_call(case.moved_bytes, sets, device),
        }
        timed = time_on_cuda(calls, sets=sets) if device == "cuda" else time_on_cpu(calls, sets=sets, rounds=9)
        rows.append(_row(case, m, k, dtype, timed))
    if device == "cpu":
        rows += _cpu_yardsticks(inputs[0])
    return rows


def _row(case: Case, m: int, k: int, dtype: torch.dtype, timed: dict[str, list[float]]) -> dict[str, Any]:
    op, copy = median(timed["op"]), median(timed["copy"])
    return {
        "op": case.op,
        "format": case.format,
        "shape": f"{m}x{k} {str(dtype).removeprefix('torch.')}",
        **summary(timed["op"]),
        "gb_per_s": case.moved_bytes / op / 1e3,
        "fraction": copy / op,
        "ceiling": f"copy of {case.moved_bytes} bytes, {case.moved_bytes / copy / 1e3:.0f} GB/s",
    }


def _cpu_yardsticks(x: Tensor) -> list[dict[str, Any]]:
    """quantize against the plain-torch reference and against a memcpy of its input, one thread a core."""
    second, target = bs.amax(x), torch.empty_like(x)
    out = bs.quantize(x, amax=second)
    calls: dict[str, Call] = {
        "quantize": lambda _: bs.quantize(x, amax=second, out=out),
        "memcpy": lambda _: target.copy_(x),
        "reference": lambda _: bs.reference.quantize(x, amax=second),
    }
    timed = time_on_cpu({name: calls[name] for name in ("quantize", "memcpy")}, rounds=9)
    timed |= time_on_cpu({"reference": calls["reference"]}, rounds=3)
    shape = f"{x.shape[0]}x{x.shape[1]} {str(x.dtype).removeprefix('torch.')}"
    ours = median(timed["quantize"])
    return [
        {
            "op": f"quantize against {name}",
            "format": "given amax, linear scales",
            "shape": shape,
            **summary(timed[name]),
            "fraction": median(timed[name]) / ours,
            "ceiling": "time of this row / time of quantize",
        }
        for name in ("memcpy", "reference")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's default")
    parser.add_argument("--shapes", default="", help="MxK,MxK,...")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    default = "8192x8192,16384x4096,4096x14336,128x8192" if options.device == "cuda" else "8192x8192"
    shapes = [tuple(int(size) for size in shape.split("x")) for shape in (options.shapes or default).split(",")]
    facts = environment(options.device)
    rows: list[dict[str, Any]] = []
    for m, k in shapes:
        rows += [row | facts for row in measure_shape(m, k, getattr(torch, options.dtype), options.device)]
        print(f"{m}x{k} done", flush=True)
    write_rows(options.out, rows)
    print(options.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
