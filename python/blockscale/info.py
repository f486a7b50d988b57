# SPDX-License-Identifier: Apache-2.0
"""What this installation is and can do: `collect` as plain data, `show` for a terminal, `select_target` for a GPU.

Nothing here fails for want of a GPU, a driver or a CUDA build of torch; the reason is part of the answer.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

from . import _native, evidence
from ._native import _C
from ._terminal import Terminal
from .dispatch.candidates import ranked
from .dispatch.config import KERNELS, TARGETS
from .dispatch.device import TYPICAL_MULTIPROCESSORS, DeviceFacts, built_kernels
from .dispatch.problem import GemmFacts
from .errors import not_offered
from .version import __version__

_TARGET_OF_CAPABILITY = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a"}


_SHAPES = ((1, 8192, 8192), (64, 8192, 8192), (512, 8192, 8192), (8192, 8192, 8192))
"""M, N, K for which the choice of a kernel is shown: two decode steps, a short prompt, training."""


def select_target(capability: tuple[int, int]) -> str:
    """The target whose kernels a GPU of this compute capability runs.

    Exact, without a "major number" rule: code for an architecture-specific target runs on that capability alone.

    Args:
        capability: (major, minor), as torch.cuda.get_device_capability gives it.

    Raises:
        NotImplementedError: any capability without kernels.
    """
    target = _TARGET_OF_CAPABILITY.get(capability)
    if target is None:
        names = ", ".join(f"{major}.{minor} ({name})" for (major, minor), name in _TARGET_OF_CAPABILITY.items())
        got = ".".join(map(str, capability))
        raise not_offered("select_target", "compute capability", f"one of {names}", got, "Use CPU tensors.")
    return target


@dataclass(frozen=True)
class Device:
    """A CUDA device as blockscale sees it.

    Attributes:
        index, name, capability: as torch gives them.
        target: whose kernels it would run; None if there are none.
        reason: why blockscale cannot use it; None if it can.
    """

    index: int
    name: str
    capability: str
    target: str | None
    reason: str | None


@dataclass(frozen=True)
class CudaState:
    """What there is of CUDA.

    Attributes:
        targets: those of the CUDA library that is installed; empty if none is.
        devices: the devices that torch sees.
        reason: why no device can be used; None if one can.
    """

    targets: tuple[str, ...]
    devices: tuple[Device, ...]
    reason: str | None

    @property
    def usable(self) -> tuple[Device, ...]:
        """The devices on which blockscale runs."""
        return tuple(device for device in self.devices if device.reason is None)


def cuda_state() -> CudaState:
    """Looks for the CUDA library, the driver and the devices. Never raises for what is missing."""
    try:
        library = _native.cuda_library()
    except RuntimeError as error:
        return CudaState((), _devices(None), str(error))
    targets = _targets(library.targets)
    devices = _devices(library)
    if not devices:
        # The library's own probe knows about drivers that are missing or too old.
        return CudaState(targets, (), _probe(library, 0) or _why_torch_sees_none())
    usable = any(device.reason is None for device in devices)
    return CudaState(targets, devices, None if usable else devices[0].reason)


def _targets(archs: str) -> tuple[str, ...]:
    """("sm_90a", "sm_100a") of "90a;100a"."""
    return tuple(f"sm_{arch}" for arch in archs.split(";") if arch)


def _devices(library: _C.CudaLibrary | None) -> tuple[Device, ...]:
    try:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(_device(library, index) for index in range(count))
    except (AssertionError, RuntimeError):
        return ()  # torch without CUDA, or a driver that fails later than at the first question


def _device(library: _C.CudaLibrary | None, index: int) -> Device:
    capability = torch.cuda.get_device_capability(index)
    target, reason = None, None
    try:
        target = select_target(capability)
    except NotImplementedError as error:
        reason = str(error)
    if reason is None:
        reason = "this build has no CUDA library" if library is None else _probe(library, index)
    return Device(index, torch.cuda.get_device_name(index), ".".join(map(str, capability)), target, reason)


def _probe(library: _C.CudaLibrary, index: int) -> str | None:
    try:
        library.probe(index)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return str(error)
    return None


def _why_torch_sees_none() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    return f"torch {torch.__version__} sees no CUDA device: no driver, or none is visible"


def collect() -> dict[str, Any]:
    """Everything that `blockscale info` prints, as values that JSON holds.

    Returns:
        "versions", "cpu", "cuda", "backends" (["cpu"] or ["cpu", "cuda"]), "paths": for each operation and target
        the path, whether this build has it, and its grade; "not built" and no grade where it has not; and
        "gemm_kernels": for each target of the CUDA library the fused kernels that are built, and those that the
        heuristic chooses for a BF16 output of a few shapes.
    """
    cuda = cuda_state()
    built = {"cpu", *cuda.targets}
    return {
        "versions": {
            "blockscale": __version__,
            "native module": _C.build_version,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "compiler": _C.build_compiler,
        },
        "cpu": {
            "machine": platform.machine(),
            "instruction set": _C.cpu_isa(),
            "threads": torch.get_num_threads(),
        },
        "cuda": {
            "built for": list(_targets(_C.build_cuda_archs)),
            "library": list(cuda.targets),
            "torch cuda": torch.version.cuda,
            "devices": [asdict(device) for device in cuda.devices],
            "usable": bool(cuda.usable),
            "reason": cuda.reason,
        },
        "backends": ["cpu", "cuda"] if cuda.usable else ["cpu"],
        "paths": [
            {
                "operation": path.operation,
                "target": path.target,
                "built": path.target in built,
                "path": f"{path.kind}: {path.how}" if path.target in built else "not built",
                "grade": path.grade.value if path.target in built else None,
            }
            for path in evidence.paths()
        ],
        "gemm_kernels": [_gemm_kernels(target) for target in cuda.targets],
    }


def _gemm_kernels(target: str) -> dict[str, Any]:
    """The fused GEMM kernels of one target. A CUDA library that has none is an answer too."""
    arch = next((arch for arch, name in TARGETS.items() if name == target), 0)
    built = built_kernels(getattr(_native.cuda_library(), "backend", None))
    kernels = [kernel for kernel in KERNELS if kernel.arch == arch]
    here = DeviceFacts(arch, TYPICAL_MULTIPROCESSORS.get(arch, 1), built)
    choices = []
    for m, n, k in _SHAPES:
        best = ranked(GemmFacts(m, n, k, 0, False, 0, False, False), here)[:1]
        choices.append({"m": m, "n": n, "k": k, "config": str(best[0].config) if best else None})
    names = [kernel.name for kernel in kernels if built >> kernel.index & 1]
    return {
        "target": target,
        "built": names,
        "known": len(kernels),
        "multiprocessors": here.multiprocessors,
        "choices": choices,
    }


def show(info: dict[str, Any], terminal: Terminal) -> None:
    """Prints what `collect` gave."""
    versions, cpu, cuda = info["versions"], info["cpu"], info["cuda"]
    terminal.line(f"blockscale {versions['blockscale']}", style="bold")
    rows = [
        ["torch", str(versions["torch"])],
        ["python", versions["python"]],
        ["native module", f"{versions['native module']}, {versions['compiler']}"],
        ["cpu", f"{cpu['machine']}, {cpu['instruction set']}, {cpu['threads']} threads"],
        ["cuda targets", ", ".join(cuda["built for"]) or "none"],
        ["backends", ", ".join(info["backends"])],
    ]
    if cuda["reason"] is not None:
        rows.append(["no cuda because", cuda["reason"]])
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        terminal.line(f"  {label:<{width}}  {value}")
    for device in cuda["devices"]:
        state = device["reason"] or f"runs {device['target']}"
        terminal.line(f"  cuda:{device['index']}  {device['name']}, capability {device['capability']}: {state}")

    terminal.heading("Paths and evidence")
    by_operation: dict[str, dict[str, dict[str, Any]]] = {}
    for path in info["paths"]:
        by_operation.setdefault(path["operation"], {})[path["target"]] = path
    table = [[name, *(_cell(row[target]) for target in evidence.TARGETS)] for name, row in by_operation.items()]
    terminal.table(("operation", *evidence.TARGETS), table)
    terminal.line(f"gemm on CPU: {evidence.EXACT_SUM}.")
    terminal.line(f"gemm on CUDA without a fused kernel: {evidence.BF16_ROUTE}.")
    for target in info["gemm_kernels"]:
        _show_kernels(target, terminal)


def _show_kernels(target: dict[str, Any], terminal: Terminal) -> None:
    count = f"{len(target['built'])} of {target['known']}"
    terminal.heading(f"Fused GEMM kernels for {target['target']}: {count} built")
    if not target["built"]:
        return
    rows = [[f"{c['m']} x {c['n']} x {c['k']}", c["config"] or "none"] for c in target["choices"]]
    terminal.table(("M x N x K, BF16 output", "choice (an estimate, not a measurement)"), rows)
    terminal.line(f"for a device of {target['multiprocessors']} SMs; blockscale.gemm_candidates has any other shape")


def _cell(path: dict[str, Any]) -> str:
    return path["grade"] if path["built"] else "not built"
