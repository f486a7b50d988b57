# SPDX-License-Identifier: Apache-2.0
"""What of a device matters: its architecture, SMs, the kernels built for it; and what a tuned choice is bound to."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from .._native import backend_of
from ..version import __version__
from .config import KERNELS, TARGETS


class DeviceFacts(NamedTuple):
    """A device as the heuristic sees it; `built` has bit i set for kernel i."""

    arch: int
    multiprocessors: int
    built: int


class DeviceKey(NamedTuple):
    """What a tuned choice is bound to: two GPUs of one kind share it, another driver or version of ours does not."""

    name: str
    capability: str
    multiprocessors: int
    driver: int
    """Version of the CUDA driver interface, 1000 * major + 10 * minor."""
    library: str
    """Version of blockscale."""


TYPICAL_MULTIPROCESSORS = {90: 132, 100: 148, 103: 148, 120: 170}
"""SMs of H200, B200, B300 and RTX 5090: for looking at choices without the device."""


def arch_of(capability: tuple[int, int]) -> int | None:
    """The architecture of kernels that a compute capability runs; None if there is none. Exact, not by major number."""
    arch = 10 * capability[0] + capability[1]
    return arch if arch in TARGETS else None


def built_kernels(backend: object) -> int:
    """The kernels that a backend was built with, as a set of bits; 0 if it has no fused GEMM."""
    built = getattr(backend, "gemm_built", None)
    if built is None:
        return 0
    return sum(1 << kernel.index for kernel in KERNELS if built(kernel.index))


@functools.cache
def _facts_of_index(index: int) -> DeviceFacts | None:
    properties = torch.cuda.get_device_properties(index)
    arch = arch_of((properties.major, properties.minor))
    if arch is None:
        return None
    return DeviceFacts(
        arch, properties.multi_processor_count, built_kernels(backend_of("gemm", torch.device("cuda", index)))
    )


def device_facts(device: torch.device) -> DeviceFacts | None:
    """The facts of a CUDA device; None for a CPU and for a GPU that no kernel is written for."""
    if device.type != "cuda":
        return None
    return _facts_of_index(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _key_of_index(index: int) -> DeviceKey:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    driver_version = getattr(torch._C, "_cuda_getDriverVersion", int)  # a CPU build of torch lacks it
    return DeviceKey(properties.name, capability, properties.multi_processor_count, driver_version(), __version__)


def device_key(device: torch.device) -> DeviceKey:
    """What choices that are tuned on this CUDA device are bound to."""
    return _key_of_index(torch.cuda.current_device() if device.index is None else device.index)
