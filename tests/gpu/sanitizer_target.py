# SPDX-License-Identifier: Apache-2.0
"""Every operation over small odd sizes, compared with the CPU's bytes: what compute-sanitizer is run on.

    compute-sanitizer --tool memcheck python -m tests.gpu.sanitizer_target memcheck

The argument names the tool, to choose what is run (racecheck is slow, and needs no other dtype to see a race).
Without a sanitizer it is a quick check of a device. `--device cpu` runs the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from tests.gpu.operations import assert_same_results, make_inputs, operations

FULL = ((1, 16, 16), (5, 32, 48), (16, 16, 1040), (48, 48, 80), (129, 144, 208), (272, 16, 528))
SHORT = ((5, 32, 48), (48, 48, 80), (144, 16, 528))
CHOICES = {
    "memcheck": (FULL, (torch.float32, torch.bfloat16, torch.float16)),
    "initcheck": (SHORT, (torch.float32, torch.bfloat16)),
    "racecheck": (SHORT, (torch.bfloat16,)),
    "synccheck": (SHORT, (torch.bfloat16,)),
}


# initcheck does not see what the copy engine writes, as torch's product of matrices does: every read of an accumulator
# would be an error. The casts write with ordinary stores.
UNSEEN = {"initcheck": "gemm"}


def run(tool: str, device: torch.device) -> int:
    """Runs and compares; the number of operations run. AssertionError where bytes differ."""
    sizes, dtypes = CHOICES[tool]
    count = 0
    for m, n, k in sizes:
        for dtype in dtypes:
            inputs = make_inputs(m, n, k, m + n + k, dtype)
            there = inputs.to(device)
            for name, call in operations(m).items():
                if tool in UNSEEN and name.startswith(UNSEEN[tool]):
                    continue
                assert_same_results(call(there), call(inputs), f"{name}, {m} x {n} x {k}, {dtype}")
                count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="?", choices=sorted(CHOICES), default="memcheck")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("needs a CUDA GPU, or --device cpu", file=sys.stderr)
        return 2
    start = time.monotonic()
    count = run(args.tool, device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"{count} operations on {device} match the CPU, {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
