# SPDX-License-Identifier: Apache-2.0
"""Checks a CUDA library that was built on a machine without a GPU: what it exports, embeds, needs and answers.

python scripts/check_cuda_build.py build/cuda
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from blockscale import _C

TARGETS = "90a;100a;103a;120a"
EXPORTS = {
    "blockscale_cuda_backend",
    "blockscale_cuda_probe",
    "blockscale_cuda_targets",
    "blockscale_cuda_check_codecs",
}


def main() -> int:
    """0 if the library is as it should be; each fault is a line on standard error."""
    library = next(Path(sys.argv[1]).rglob("libblockscale_cuda.so"))
    faults: list[str] = []
    exported = set(re.findall(r" T (\w+)", _output("nm", "-D", "--defined-only", str(library))))
    if exported != EXPORTS:
        faults.append(f"exports {sorted(exported)}, expected {sorted(EXPORTS)}")
    needed = set(re.findall(r"Shared library: \[([^\]]+)\]", _output("readelf", "-d", str(library))))
    foreign = {name for name in needed if not re.match(r"(libstdc\+\+|libgcc_s|libc|libm|libdl|ld-linux)", name)}
    if foreign:
        faults.append(f"needs {sorted(foreign)}: the runtime must be static and the driver opened when used")
    opened = _C.CudaLibrary(str(library))
    if opened.targets != TARGETS:
        faults.append(f"targets {opened.targets!r}, expected {TARGETS!r}")
    try:
        opened.probe(0)
    except RuntimeError as error:
        print(f"without a usable device it says: {error}")
    else:
        print("a device is usable here")
    for fault in faults:
        print(f"{library}: {fault}", file=sys.stderr)
    print(f"{library.name}: {library.stat().st_size / 2**20:.1f} MiB, targets {opened.targets}")
    return 1 if faults else 0


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
