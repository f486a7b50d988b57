# SPDX-License-Identifier: Apache-2.0
"""How ops are registered: one torch library, one Python implementation for each op on the CPU and CUDA keys, one fake.

`Library.define` and `impl` rather than the decorators: those cost several microseconds more on each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("blockscale", "DEF")  # kept alive for the life of the process


def register_op(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines ``blockscale::<schema>`` and returns its default overload.

    Args:
        schema: torch schema without the namespace.
        implementation: allocates outputs and calls the native library; tensors only, no autograd.
        fake: the same shapes, strides and dtypes without data.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, implementation, "CPU")
    LIBRARY.impl(name, implementation, "CUDA")
    torch.library.register_fake(f"blockscale::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.blockscale, name).default
