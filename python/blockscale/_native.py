# SPDX-License-Identifier: Apache-2.0
"""The native library: the CPU backend, and the CUDA one, opened when a CUDA tensor first asks for it.

Importing this module touches no GPU, compiler, network or environment variable.
"""

from __future__ import annotations

import functools
import os
import sys

import torch

from .errors import rule_text

try:
    from . import _C as _C  # re-exported: whoever needs it gets this explanation when it fails
except ImportError as error:  # pragma: no cover - needs a broken installation
    raise ImportError(
        f"blockscale's native module does not load: {error}. It does not depend on the torch version, so this is a "
        f"missing or foreign build: Python {sys.version.split()[0]} and torch {torch.__version__} are running. "
        "Rebuild with `pip install --force-reinstall --no-deps .` in a checkout."
    ) from error

CPU = _C.cpu_backend()

_CUDA_LIBRARY_NAME = "libblockscale_cuda.so"
_LAUNCH_OF_THREADS: dict[int, _C.Launch] = {}


@functools.cache
def cuda_library() -> _C.CudaLibrary:
    """The CUDA library of this installation.

    Raises:
        RuntimeError: this build has none, or it cannot be opened; says which targets to build for.
    """
    # Beside the native module, which an editable installation puts elsewhere than the package.
    path = os.path.join(os.path.dirname(_C.__file__), _CUDA_LIBRARY_NAME)
    if not os.path.exists(path):
        raise RuntimeError(
            "blockscale was built without CUDA: CUDA tensors cannot be used. Rebuild with "
            'BLOCKSCALE_CUDA_ARCHS="90a" (Hopper), "100a" (B200), "103a" (B300) or "120a" (RTX 50), or use CPU tensors.'
        )
    return _C.CudaLibrary(path)


@functools.cache
def _cuda_backend(index: int) -> _C.Backend:
    library = cuda_library()
    library.probe(index)
    return library.backend


def backend_of(op: str, device: torch.device) -> _C.Backend:
    """The backend that serves tensors on `device`.

    Raises:
        NotImplementedError: a device type that has no backend.
        RuntimeError: a CUDA device, but no CUDA library, no driver, or no kernel image for this GPU.
    """
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return _cuda_backend(device.index)
    raise NotImplementedError(rule_text(op, "device", "cpu or cuda", device))


def launch_on(device: torch.device, workspace: torch.Tensor | None = None) -> _C.Launch:
    """How a call runs there: on torch's current stream, or with torch's number of CPU threads."""
    if device.type == "cpu":
        threads = torch.get_num_threads()
        launch = _LAUNCH_OF_THREADS.get(threads)
        if launch is None:
            launch = _LAUNCH_OF_THREADS[threads] = _C.Launch(0, -1, threads, 0, 0)
        return launch
    stream: int = torch.cuda.current_stream(device).cuda_stream
    address, size = (workspace.data_ptr(), workspace.nbytes) if workspace is not None else (0, 0)
    return _C.Launch(stream, device.index, 0, address, size)


def workspace_of(size: int, device: torch.device) -> torch.Tensor | None:
    """Device scratch of `size` bytes from torch's allocator, which keeps it alive for the stream; None for 0."""
    return torch.empty(size, dtype=torch.uint8, device=device) if size else None
