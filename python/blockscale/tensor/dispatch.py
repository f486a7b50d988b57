# SPDX-License-Identifier: Apache-2.0
"""The table of torch ops on an NVFP4Tensor: which arguments each accepts. Every other op or argument is an error.

A handler does the right thing or raises: none returns the whole tensor for a part of it, and none dequantizes.
numerics, section 14. Arguments arrive by name with defaults filled in (`by_name`): a call has one spelling here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._codes import FLOAT_INPUTS
from ..errors import value_error
from ..formats import BLOCK
from .calls import FUNCTIONS, HANDLERS, unsupported
from .held import Held, row_major_strides
from .nvfp4_tensor import NVFP4Tensor

aten = torch.ops.aten

Arguments = dict[str, Any]
Handler = Callable[[str, Arguments], Any]


def _handles(*overloads: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(overloads, handler))
        return handler

    return register


def _refuse(name: str, given: Arguments) -> NotImplementedError:
    return unsupported(name, (), given)


def _alias(tensor: NVFP4Tensor, shape: Sequence[int] | None = None) -> NVFP4Tensor:
    """Another object around the same bytes."""
    return _view_around(tensor, tensor._held, tuple(tensor.shape if shape is None else shape))


def _view_around(tensor: NVFP4Tensor, held: Held, shape: tuple[int, ...]) -> NVFP4Tensor:
    """A view is an inference tensor only if its base is: autograd gives it the base's version counter."""
    with torch.inference_mode(False) if _is_normal_in_inference_mode(tensor) else contextlib.nullcontext():
        return type(tensor)._around(held, shape, tensor.dtype)


def _is_normal_in_inference_mode(tensor: Tensor) -> bool:
    return torch.is_inference_mode_enabled() and not tensor.is_inference()


def _is_flat(tensor: NVFP4Tensor) -> bool:
    """Whether this is what view(-1) gives: it has no rows of its own."""
    return bool(tensor.shape[-1] != tensor._held.k)


def _matrix(name: str, given: Arguments, key: str = "self") -> NVFP4Tensor:
    """The tensor argument, which must not be a flat alias."""
    tensor: NVFP4Tensor = given[key]
    if not isinstance(tensor, NVFP4Tensor) or _is_flat(tensor):
        raise _refuse(name, given)
    return tensor


# aliases and copies --------------------------------------------------------------------------------------------------


@_handles(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def _detach(name: str, given: Arguments) -> NVFP4Tensor:
    return _alias(given["self"])


@_handles(aten.clone.default)
def _clone(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    _check_memory_format(name, given)
    made = tensor._held.map(torch.clone)
    return type(tensor)._around(made, tuple(tensor.shape), tensor.dtype)


@_handles(aten._to_copy.default)
def _to_copy(name: str, given: Arguments) -> NVFP4Tensor:
    """Moves bytes; another float dtype becomes the nominal one. Bytes do not change."""
    tensor = _matrix(name, given)
    _check_memory_format(name, given)
    dtype = _nominal_dtype(name, given, tensor)
    device = tensor.device if given["device"] is None else given["device"]

    def moved(part: Tensor) -> Tensor:
        copied = part.to(device, non_blocking=given["non_blocking"], copy=True)
        return copied.pin_memory() if given["pin_memory"] else copied

    return type(tensor)._around(tensor._held.map(moved), tuple(tensor.shape), dtype)


@_handles(aten._pin_memory.default, aten.pin_memory.default)
def _pin_memory(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    return type(tensor)._around(tensor._held.map(Tensor.pin_memory), tuple(tensor.shape), tensor.dtype)


@_handles(aten.is_pinned.default)
def _is_pinned(name: str, given: Arguments) -> bool:
    return all(part.is_pinned() for part in given["self"]._held.tensors())


@_handles(aten.record_stream.default)
def _record_stream(name: str, given: Arguments) -> None:
    for part in given["self"]._held.tensors():
        part.record_stream(given["s"])


# new tensors of the same format --------------------------------------------------------------------------------------


def _new_like(name: str, given: Arguments, fill: int | None) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    _check_memory_format(name, given)
    shape = tuple(given.get("size", tensor.shape))
    if not shape or shape[-1] % BLOCK:
        raise _refuse(name, given)
    dtype = _nominal_dtype(name, given, tensor)
    device = torch.device(tensor.device if given["device"] is None else given["device"])
    rows = math.prod(shape[:-1])
    held = tensor._held.new(rows, shape[-1], device=device, fill=fill, pin=bool(given["pin_memory"]))
    return type(tensor)._around(held, shape, dtype)


@_handles(aten.new_empty.default, aten.empty_like.default)
def _empty(name: str, given: Arguments) -> NVFP4Tensor:
    return _new_like(name, given, None)


@_handles(aten.new_zeros.default, aten.zeros_like.default)
def _zeros(name: str, given: Arguments) -> NVFP4Tensor:
    return _new_like(name, given, 0)


# writes --------------------------------------------------------------------------------------------------------------


@_handles(aten.zero_.default)
def _zero(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    tensor._held.zero()
    return tensor


@_handles(aten.copy_.default)
def _copy(name: str, given: Arguments) -> NVFP4Tensor:
    """Bytes from an NVFP4Tensor, or values from a float tensor. Into a plain tensor: dequantize() says it aloud."""
    target, source = _matrix(name, given), given["src"]
    if not isinstance(source, NVFP4Tensor):
        target._quantize_from("NVFP4Tensor.copy_", source, {})
        return target
    if _is_flat(source):
        raise _refuse(name, given)
    if source.shape != target.shape:
        raise value_error("NVFP4Tensor.copy_", "src", f"of shape {tuple(target.shape)}", tuple(source.shape))
    for field, ours, theirs in (
        ("format", target.format, source.format),
        ("has_rowwise", target.has_rowwise, source.has_rowwise or not target.has_rowwise),
    ):
        if ours != theirs:
            raise value_error("NVFP4Tensor.copy_", f"src.{field}", f"that of the destination, {ours}", theirs)
    if source._held is not target._held:
        target._held.copy_from(source._held, given["non_blocking"])
    return target


# views ---------------------------------------------------------------------------------------------------------------


@_handles(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(name: str, given: Arguments) -> NVFP4Tensor:
    """The same shape, other leading sizes, or a flat alias; and back."""
    tensor: NVFP4Tensor = given["self"]
    if not isinstance(tensor, NVFP4Tensor):
        raise _refuse(name, given)
    size = given["size"] if "size" in given else given["shape"]
    shape = _inferred(tuple(size), tensor.numel())
    if shape is None or (shape != (tensor.numel(),) and (not shape or shape[-1] != tensor._held.k)):
        raise _refuse(name, given)
    return _alias(tensor, shape)


@_handles(aten.as_strided.default)
def _as_strided(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    whole = (
        tuple(given["size"]) == tuple(tensor.shape)
        and tuple(given["stride"]) == row_major_strides(tuple(tensor.shape))
        and not given["storage_offset"]
    )
    if not whole:
        raise _refuse(name, given)
    return _alias(tensor)


@_handles(aten.slice.Tensor)
def _slice(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    size = tensor.shape[_dim(name, given, tensor)]
    start, stop, _ = slice(given["start"], given["end"]).indices(size)
    if given["step"] != 1:
        raise _refuse(name, given)
    return _rows_of(name, given, tensor, start, max(start, stop))


@_handles(aten.narrow.default)
def _narrow(name: str, given: Arguments) -> NVFP4Tensor:
    tensor = _matrix(name, given)
    size = tensor.shape[_dim(name, given, tensor)]
    start = given["start"] + size if given["start"] < 0 else given["start"]
    if not 0 <= start <= start + given["length"] <= size:
        raise _refuse(name, given)
    return _rows_of(name, given, tensor, start, start + given["length"])


@_handles(aten.split.Tensor)
def _split(name: str, given: Arguments) -> list[NVFP4Tensor]:
    tensor = _matrix(name, given)
    size, piece = tensor.shape[_dim(name, given, tensor)], given["split_size"]
    if piece <= 0 and size:
        raise _refuse(name, given)
    _check_pieces(tensor, given, size, piece)
    starts = range(0, size, piece) if size else [0]
    return [_rows_of(name, given, tensor, start, min(start + piece, size)) for start in starts]


@_handles(aten.split_with_sizes.default)
def _split_with_sizes(name: str, given: Arguments) -> list[NVFP4Tensor]:
    tensor = _matrix(name, given)
    size, pieces = tensor.shape[_dim(name, given, tensor)], given["split_sizes"]
    if sum(pieces) != size or min(pieces, default=0) < 0:
        raise _refuse(name, given)
    starts = [sum(pieces[:index]) for index in range(len(pieces))]
    return [_rows_of(name, given, tensor, start, start + piece) for start, piece in zip(starts, pieces, strict=True)]


@_handles(aten.chunk.default)
def _chunk(name: str, given: Arguments) -> list[NVFP4Tensor]:
    tensor = _matrix(name, given)
    size = tensor.shape[_dim(name, given, tensor)]
    pieces: list[NVFP4Tensor] = _split(name, given | {"split_size": max(1, -(-size // given["chunks"]))})
    return pieces


def _rows_of(name: str, given: Arguments, tensor: NVFP4Tensor, start: int, stop: int) -> NVFP4Tensor:
    """start:stop along the given dimension: the whole, or rows that no tile and no scale atom is cut by."""
    dim = _dim(name, given, tensor)
    if (start, stop) == (0, tensor.shape[dim]):
        return _alias(tensor)
    if dim != 0 or tensor.dim() < 2:
        raise _refuse(name, given)
    inner = math.prod(tensor.shape[1:-1])
    try:
        held = tensor._held.part(start * inner, stop * inner)
    except ValueError as error:
        raise NotImplementedError(f"{_refuse(name, given)} ({error})") from None
    return _view_around(tensor, held, (stop - start, *tensor.shape[1:]))


def _torch_chunk(tensor: Any, chunks: int, dim: int = 0) -> Any:
    """`torch.chunk`, which tells how many pieces are asked for: a last piece that ends inside of a tile is padded by
    FSDP2, on one rank alone, so it is refused here on all of them."""
    if isinstance(tensor, NVFP4Tensor) and tensor.dim() > 1 and dim % tensor.dim() == 0 and chunks > 1:
        piece = -(-tensor.shape[0] // chunks)
        if tensor.shape[0] % chunks and tensor._held.rows % BLOCK:
            _check_pieces(tensor, {"dim": 0}, tensor.shape[0], piece, ragged=True)
    with torch._C.DisableTorchFunctionSubclass():
        return torch.chunk(tensor, chunks, dim)


def _check_pieces(tensor: NVFP4Tensor, given: Arguments, size: int, piece: int, ragged: bool = False) -> None:
    """Pieces of one size, as FSDP2 makes them before any hook runs: the rule of `fsdp.pre_all_gather`, as early."""
    if given["dim"] % tensor.dim() or tensor.format.block == (1, BLOCK) or tensor.dim() < 2 or piece >= size:
        return
    if ragged or piece * math.prod(tensor.shape[1:-1]) % BLOCK:
        pieces = -(-size // piece)
        unit = BLOCK * pieces
        hint = (
            f"Every piece must start on a multiple of {BLOCK} rows. The nearest numbers of rows that {pieces} equal "
            f"pieces take are {size // unit * unit} and {size // unit * unit + unit}."
        )
        rule = f"cut into pieces of a multiple of {BLOCK} rows"
        raise value_error("NVFP4Tensor", "the tensor", rule, f"{size} rows in {pieces} pieces of {piece}", hint)


# shared ---------------------------------------------------------------------------------------------------------------


def _dim(name: str, given: Arguments, tensor: NVFP4Tensor) -> int:
    dim: int = given["dim"]
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"NVFP4Tensor: {name}: dim must be in [{-tensor.dim()}, {tensor.dim() - 1}]; got {dim}.")
    return dim % tensor.dim()


def _inferred(shape: tuple[int, ...], numel: int) -> tuple[int, ...] | None:
    """The shape with a -1 replaced; None if it does not hold numel elements."""
    if shape.count(-1) > 1:
        return None
    known = math.prod(size for size in shape if size != -1)
    if -1 in shape:
        if known == 0 or numel % known:
            return None
        shape = tuple(numel // known if size == -1 else size for size in shape)
    return shape if math.prod(shape) == numel else None


def _nominal_dtype(name: str, given: Arguments, tensor: NVFP4Tensor) -> torch.dtype:
    dtype: torch.dtype = tensor.dtype if given["dtype"] is None else given["dtype"]
    if dtype not in FLOAT_INPUTS or given.get("layout") not in (None, torch.strided):
        raise _refuse(name, given)
    return dtype


def _check_memory_format(name: str, given: Arguments) -> None:
    if given.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format):
        raise _refuse(name, given)


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """``param.data = value`` would change the outer object alone, and leave the bytes as they are."""
    raise NotImplementedError(
        "NVFP4Tensor: assigning to .data is not supported, since it cannot reach the bytes. Use copy_, or replace "
        "the parameter of the module."
    )


FUNCTIONS[torch.chunk] = FUNCTIONS[Tensor.chunk] = _torch_chunk
FUNCTIONS[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]


def _refuse_storage(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise unsupported(f"Tensor.{function.__name__}", args, kwargs)

    return refuse


# These reach below dispatch, for storage that the outer object does not have.
for _function in (Tensor.share_memory_, Tensor.__dlpack__, Tensor.storage):
    FUNCTIONS[_function] = _refuse_storage(_function)
