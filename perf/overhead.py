# SPDX-License-Identifier: Apache-2.0
"""Host time of a call on tiny inputs, in microseconds: what Python, torch's dispatcher and the binding cost.

python -m perf.overhead --out perf/results/overhead-cpu.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import blockscale as bs

from .record import environment, summary, write_rows
from .timing import Call, time_on_cpu


def calls() -> dict[str, Call]:
    """Tiny calls; the work in them is far below a microsecond."""
    x, w = torch.randn(1, 16), torch.randn(16, 16)
    second = bs.amax(x)
    xq, wq = bs.quantize(x), bs.quantize(w)
    out = bs.quantize(x)
    d = torch.empty(1, 16, dtype=torch.bfloat16)
    return {
        "torch.empty": lambda _: torch.empty((1, 8), dtype=torch.uint8),
        "amax": lambda _: bs.amax(x),
        "quantize": lambda _: bs.quantize(x),
        "quantize, given amax": lambda _: bs.quantize(x, amax=second),
        "quantize, out=": lambda _: bs.quantize(x, out=out),
        "quantize_both": lambda _: bs.quantize_both(w),
        "dequantize": lambda _: bs.dequantize(xq),
        "gemm": lambda _: bs.gemm(xq, wq),
        "gemm, out=": lambda _: bs.gemm(xq, wq, out=d),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    timed = time_on_cpu(calls(), rounds=31, min_ms=5)
    facts = environment("cpu")
    rows = [{"op": name, "shape": "1x16 or 16x16", **summary(samples), **facts} for name, samples in timed.items()]
    write_rows(options.out, rows)
    print(options.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
