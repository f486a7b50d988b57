# SPDX-License-Identifier: Apache-2.0
"""Calls of torch ops that arrive at an NVFP4Tensor: the tables of what is handled, and the error for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

HANDLERS: dict[Any, Callable[[str, dict[str, Any]], Any]] = {}
"""Overload of a torch op -> handler of (its name, its arguments by name). `dispatch.py` fills it."""

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""Function of the torch API -> what it does on an NVFP4Tensor, above autograd. `nn/functional.py` adds linear."""


def unsupported(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NotImplementedError:
    """The error for an op that no handler takes."""
    shown = [_shown(value) for value in args] + [f"{key}={_shown(value)}" for key, value in kwargs.items()]
    return NotImplementedError(
        f"NVFP4Tensor: {name}({', '.join(shown)}) is not supported. NVFP4 data is moved and viewed, not computed "
        "with: call dequantize() for a plain tensor, or use .rowwise and .columnwise with blockscale.gemm."
    )


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__}{tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return repr(value)


def by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by their names in the schema, defaults included."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            bound[argument.name] = args[position]
        else:
            bound[argument.name] = kwargs.get(argument.name, argument.default_value)
    return bound
