# SPDX-License-Identifier: Apache-2.0
"""`NVFP4Tensor`: a matrix in NVFP4 as a `torch.Tensor`, for modules, FSDP2, ZeRO and checkpoints.

Start here; then `dispatch.py`, the table of torch ops, and `fsdp.py`, the all-gather hooks. Only this package knows
`__torch_dispatch__`. What is computed on an NVFP4 matrix is computed on its operands, `rowwise` and `columnwise`.
"""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import torch
from torch import Tensor

from .._checks import check_float_tensor
from .._codes import FLOAT_INPUTS
from ..errors import not_offered, type_error, value_error
from ..formats import BLOCK, NVFP4, Orientation, ScaleLayout, Scaling
from ..functional import dequantize, quantize, quantize_both
from ..operand import NVFP4Operand, make_operand
from . import fsdp
from .calls import FUNCTIONS, HANDLERS, by_name, unsupported
from .held import Columnwise, Held, reshaped
from .pair import checked_pair

_NAME = "NVFP4Tensor"
_STATE_VERSION = 1
_PARTS = ("qdata", "block_scale", "amax")


class NVFP4Tensor(Tensor):
    """A matrix (..., K) held in NVFP4, with a nominal dtype: a parameter that is four bits and a half an element.

    It holds a rowwise operand, and, where it is wanted, the columnwise one: the rowwise operand of the transpose, which
    the gradient of a layer's input needs. Aliases (`detach`, `view`, `param.data`) share both. Torch ops that move
    bytes work (docs/tensor.md has the table); any other op is a NotImplementedError, never a silent dequantize.

    `shape` is the logical shape and `dtype` the nominal dtype, which gradients and `dequantize()` have.
    """

    _held: Held

    @staticmethod
    def __new__(
        cls,
        rowwise: NVFP4Operand | None,
        columnwise: NVFP4Operand | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        requires_grad: bool = False,
    ) -> NVFP4Tensor:
        """A tensor around operands, whose storage it shares.

        Args:
            rowwise: the operand of the matrix, (..., K); None with columnwise data only.
            columnwise: the rowwise operand of the transpose, (K, M), of the same format, layout and device.
            dtype: nominal dtype: float32, bfloat16 or float16.
            requires_grad: as for torch.nn.Parameter.

        Raises:
            TypeError: not an operand; another dtype. ValueError: no operand; an operand of the other orientation;
                shapes, formats, layouts or devices that do not fit together.
        """
        shape = checked_pair(rowwise, columnwise)
        _checked_dtype(dtype)
        state = Columnwise.NONE if columnwise is None else Columnwise.READY
        if rowwise is not None:
            rowwise = reshaped(rowwise, (rowwise.rows, rowwise.k))
        return cls._around(Held(rowwise, columnwise, state), shape, dtype, requires_grad)

    @classmethod
    def _around(
        cls, held: Held, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = False
    ) -> NVFP4Tensor:
        """A tensor object around shared bytes."""
        device = held.any_operand.qdata.device
        tensor: NVFP4Tensor = Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device, requires_grad=requires_grad
        )
        tensor._held = held
        return tensor

    @classmethod
    def from_operands(
        cls,
        rowwise: NVFP4Operand | None,
        columnwise: NVFP4Operand | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> NVFP4Tensor:
        """`NVFP4Tensor(rowwise, columnwise, dtype=dtype)`."""
        return cls(rowwise, columnwise, dtype=dtype)

    @classmethod
    def quantize(
        cls,
        x: Tensor,
        *,
        scaling: Scaling = "tensor",
        block: tuple[int, int] = (1, BLOCK),
        columnwise: bool = False,
        amax: Tensor | float | tuple[Tensor, Tensor] | None = None,
        amax_group: Any = None,
        e4m3_max: int = 448,
        four_over_six: Literal["mae", "mse"] | None = None,
        layout: ScaleLayout = ScaleLayout.LINEAR,
        nonfinite: Literal["propagate", "raise"] = "propagate",
    ) -> NVFP4Tensor:
        """Quantizes a float tensor; its dtype becomes the nominal one.

        Args:
            x: (..., K) float32, bfloat16 or float16; K a multiple of 16. On "meta" the result has no values.
            columnwise: also hold the columnwise operand; M a multiple of 16. block=(16, 16) makes both share their
                bits, and is what FSDP2 needs to rebuild it from gathered rows.
            scaling, block, amax, amax_group, e4m3_max, four_over_six, layout, nonfinite: as for `blockscale.quantize`
                (`quantize_both` with columnwise=True).

        Returns:
            A tensor of x.shape that does not require grad.

        Raises:
            TypeError, ValueError, NotImplementedError: as `blockscale.quantize`.
        """
        options: dict[str, Any] = {
            "scaling": scaling,
            "block": block,
            "amax": amax,
            "amax_group": amax_group,
            "e4m3_max": e4m3_max,
            "four_over_six": four_over_six,
            "layout": layout,
            "nonfinite": nonfinite,
        }
        check_float_tensor(f"{_NAME}.quantize", "x", x)
        if columnwise:
            both = quantize_both(x, **options)
            return cls(both[0], both[1], dtype=x.dtype)
        return cls(quantize(x, **options), dtype=x.dtype)

    # what it holds ---------------------------------------------------------------------------------------------------

    @property
    def rowwise(self) -> NVFP4Operand:
        """The operand of the matrix, of this tensor's shape; shares storage.

        Raises:
            ValueError: there is none; rows that were never written; storage that FSDP2 has freed.
        """
        self._not_flat("rowwise")
        return reshaped(self._held.readable("rowwise"), tuple(self.shape))

    @property
    def columnwise(self) -> NVFP4Operand:
        """The rowwise operand of the transpose, (K, M); shares storage. A stale one is made again here.

        Raises:
            ValueError: there is none; it is stale until `rebuild_columnwise`; as for `rowwise`.
        """
        self._not_flat("columnwise")
        if not self._held.wants_columnwise:
            raise self._held._lacks("columnwise")
        return self._held.readable("columnwise")

    @property
    def format(self) -> NVFP4:
        """What the bytes mean."""
        return self._held.format

    @property
    def scale_layout(self) -> ScaleLayout:
        """Where block scales stand, in both orientations. (`layout` is torch's word for strided or sparse.)"""
        return self._held.layout

    @property
    def has_rowwise(self) -> bool:
        """Whether rowwise data is held."""
        return self._held.rowwise is not None

    @property
    def wants_columnwise(self) -> bool:
        """Whether columnwise data is held, or made when it is first read."""
        return self._held.wants_columnwise

    @property
    def columnwise_is_stale(self) -> bool:
        """Whether columnwise data is wanted and not current."""
        return self._held.state in (Columnwise.STALE, Columnwise.MANUAL)

    def dequantize(self, dtype: torch.dtype | None = None, orientation: Orientation = "rowwise") -> Tensor:
        """The values as a plain tensor of this shape; see `blockscale.dequantize`.

        The gradient passes through unchanged, as through the identity.

        Args:
            dtype: float32, bfloat16 or float16; None: the nominal dtype.
            orientation: which copy is read. The result has this tensor's shape in both cases.

        Raises:
            TypeError, ValueError: another dtype or orientation; data that cannot be read, as for `rowwise`; a tensor
                on "meta", which holds no values.
        """
        if self.is_meta:
            raise value_error(f"{_NAME}.dequantize", "the tensor", "on a device with values", "one on meta")
        if orientation not in ("rowwise", "columnwise"):
            rule = '"rowwise" or "columnwise"'
            raise value_error(f"{_NAME}.dequantize", "orientation", rule, repr(orientation))
        dtype = _checked_dtype(self.dtype if dtype is None else dtype)
        if self.requires_grad and torch.is_grad_enabled():
            values: Tensor = _StraightThrough.apply(self, dtype, orientation)  # type: ignore[no-untyped-call]
            return values
        return _values(self, dtype, orientation)

    # changing it -----------------------------------------------------------------------------------------------------

    def quantize_(
        self,
        x: Tensor,
        *,
        amax: Tensor | float | tuple[Tensor, Tensor] | None = None,
        amax_group: Any = None,
        nonfinite: Literal["propagate", "raise"] = "propagate",
    ) -> Self:
        """Quantizes x into the storage that is held, in every orientation: no address changes. `copy_` does the same.

        Args:
            x: float32, bfloat16 or float16 of this shape, on any device; its dtype need not be the nominal one.
            amax, amax_group, nonfinite: as for `blockscale.quantize`; with both orientations and scaling="row", amax is
                a pair.

        Raises:
            TypeError: another dtype. ValueError: another shape.
            NotImplementedError: this tensor requires grad while grad mode is on.
        """
        name = f"{_NAME}.quantize_"
        if self.requires_grad and torch.is_grad_enabled():
            hint = "Write under torch.no_grad()."
            raise not_offered(name, "the tensor", "free of requires_grad while grad mode is on", "one with it", hint)
        self._quantize_from(name, x, {"amax": amax, "amax_group": amax_group, "nonfinite": nonfinite})
        if not self.is_inference():
            torch.autograd.graph.increment_version(self)
        return self

    def _quantize_from(self, name: str, x: Tensor, options: dict[str, Any]) -> None:
        """What `quantize_` and `copy_` share, below autograd."""
        self._not_flat(name)
        check_float_tensor(name, "x", x)
        if x.shape != self.shape:
            hint = "Nothing is broadcast."
            raise value_error(name, "x", f"of shape {tuple(self.shape)}", tuple(x.shape), hint)
        matrix = x.detach().to(self.device).reshape(self._held.rows, self._held.k)
        self._held.quantize_from(matrix if matrix.stride(-1) == 1 else matrix.contiguous(), options)

    def update_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Says which orientations are held: True makes one from the other, False drops it, None leaves it.

        Raises:
            ValueError: True for what cannot be derived (block (1, 16); M not a multiple of 16); False for the last one.
        """
        held = self._held
        if held.root is not None:
            raise not_offered(f"{_NAME}.update_usage", "the tensor", "a whole tensor", "a view of some rows")
        if columnwise and held.state is Columnwise.NONE:
            held.rebuild_columnwise()
        if rowwise and held.rowwise is None:
            held.derive_rowwise()
        keeps_rowwise = held.rowwise is not None and rowwise is not False
        keeps_columnwise = held.wants_columnwise and columnwise is not False
        if not keeps_rowwise and not keeps_columnwise:
            raise value_error(f"{_NAME}.update_usage", "usage", "of one orientation at least", "none")
        if columnwise is False:
            held.columnwise, held.state = None, Columnwise.NONE
        if rowwise is False:
            held.readable("columnwise")
            held.rowwise = None

    def mark_columnwise_stale(self, manual: bool = False) -> None:
        """Says that the rowwise bytes have changed: the old columnwise bytes cannot be read any more.

        Nothing happens where no columnwise data is wanted.

        Args:
            manual: False: it is made again at the first access. True: access is a ValueError until
                `rebuild_columnwise`, for rowwise data of which other ranks' parts are still to be gathered.
        """
        if self._held.wants_columnwise:
            self._held.state = Columnwise.MANUAL if manual else Columnwise.STALE

    def rebuild_columnwise(self) -> None:
        """Transposes the rowwise data into the columnwise buffers, in place; allocates them if there are none.

        Raises:
            ValueError: block (1, 16), from which it cannot be derived; M not a multiple of 16; no rowwise data.
        """
        self._held.rebuild_columnwise()

    def columnwise_buffer(self) -> NVFP4Operand:
        """The columnwise operand to be written into, for transposes of several tensors in one launch; allocated if
        there is none. Its bytes may be stale: follow the write by `mark_columnwise_current`."""
        return self._held.columnwise_buffer()

    def mark_columnwise_current(self) -> None:
        """Says that `columnwise_buffer` now holds the transpose of the rowwise bytes."""
        self._held.columnwise_buffer()
        self._held.state = Columnwise.READY

    # torch -----------------------------------------------------------------------------------------------------------

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        held = self._held
        fields = [
            f"shape={tuple(self.shape)}",
            f"dtype={self.dtype}",
            str(held.format),
            f"layout={held.layout.name}",
            f"rowwise={held.rowwise is not None}",
            f"columnwise={held.state.value!r}",
            f"device={str(self.device)!r}",
        ]
        if held.missing_rows():
            fields.append("not filled")
        if self.requires_grad:
            fields.append("requires_grad=True")
        return f"NVFP4Tensor({', '.join(fields)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = HANDLERS.get(func)
        if handler is None:
            raise unsupported(str(func), args, kwargs or {})
        return handler(str(func), by_name(func, args, kwargs or {}))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = FUNCTIONS.get(func)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: torch.Size, outer_stride: tuple[int, ...], module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], fsdp.Gathered]:
        """FSDP2's hook before the all-gather: the bytes to gather, and what they mean. See `fsdp.pre_all_gather`."""
        return fsdp.pre_all_gather(self, mesh, outer_size, outer_stride)

    def fsdp_post_all_gather(
        self,
        all_gather_outputs: tuple[Tensor, ...],
        metadata: fsdp.Gathered,
        param_dtype: torch.dtype | None,
        *,
        out: Tensor | None = None,
    ) -> tuple[NVFP4Tensor, tuple[Tensor, ...]] | None:
        """FSDP2's hook after the all-gather: the whole weight. See `fsdp.post_all_gather`."""
        return fsdp.post_all_gather(self, all_gather_outputs, metadata, param_dtype, out)

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        """Component tensors by attribute name, and the rest: how torch.compile takes the tensor apart."""
        held = self._held
        if held.root is not None and held.root.wants_columnwise:
            hint = "Compile over the whole tensor, or clone the view."
            raise not_offered(
                _NAME, "a view of rows under torch.compile", "of a tensor without columnwise", "one", hint
            )
        names = [f"_{op.orientation}_{part}" for op in held.operands() for part in _PARTS]
        formats = {op.orientation: op.format for op in held.operands()}
        return names, {
            "formats": formats,
            "layout": held.layout,
            "state": held.state,
            "missing": held.missing_rows(),
            "dtype": self.dtype,
        }

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, Tensor], meta: dict[str, Any], outer_size: Any, outer_stride: Any
    ) -> NVFP4Tensor:
        """The inverse of `__tensor_flatten__`."""
        operands: dict[str, NVFP4Operand] = {}
        for orientation, fmt in meta["formats"].items():
            qdata, scales, amax = (inner[f"_{orientation}_{part}"] for part in _PARTS)
            shape = (qdata.shape[0], 2 * qdata.shape[1])
            operands[orientation] = make_operand(qdata, scales, amax, shape, meta["layout"], fmt, orientation)
        held = Held(operands.get("rowwise"), operands.get("columnwise"), meta["state"], meta["missing"])
        return cls._around(held, outer_size, meta["dtype"])

    def __deepcopy__(self, memo: dict[int, Any]) -> NVFP4Tensor:
        if id(self) in memo:
            found: NVFP4Tensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError("NVFP4Tensor: only leaves of the graph can be deep-copied; detach first.")
        made: NVFP4Tensor = self.detach().clone()  # type: ignore[assignment]
        made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        others = {key: value for key, value in self.__dict__.items() if key != "_held"}
        made.__dict__.update(copy.deepcopy(others, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        self._not_flat("pickle")
        held = self._held
        columnwise = held.columnwise if held.state is Columnwise.READY else None
        rowwise = held.readable("rowwise") if held.rowwise is not None else None
        if rowwise is not None and held.root is not None:
            rowwise = rowwise.clone()  # torch.save would write the storage of all rows
        state = {
            "rowwise": rowwise,
            "columnwise": columnwise,
            "wants_columnwise": held.wants_columnwise,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "requires_grad": self.requires_grad,
            "is_parameter": getattr(self, "_is_param", False),
        }
        return _restore, (_STATE_VERSION, state)

    def _not_flat(self, name: str) -> None:
        if self.shape[-1] != self._held.k:
            hint = "View it back to its shape first."
            raise not_offered(
                _NAME, name, "asked of a matrix (..., K)", f"a flat alias of shape {tuple(self.shape)}", hint
            )


def _component(orientation: str, part: str) -> property:
    """`_rowwise_qdata` and the like, the names that `__tensor_flatten__` gives out."""
    return property(lambda tensor: getattr(getattr(tensor._held, orientation), part))


for _orientation in ("rowwise", "columnwise"):
    for _part in _PARTS:  # not by __getattr__: torch.compile gives up on classes that have one
        setattr(NVFP4Tensor, f"_{_orientation}_{_part}", _component(_orientation, _part))


class _StraightThrough(torch.autograd.Function):
    """`dequantize` whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, tensor: NVFP4Tensor, dtype: torch.dtype, orientation: Orientation) -> Tensor:
        ctx.dtype = tensor.dtype
        return _values(tensor, dtype, orientation)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].to(ctx.dtype), None, None


def _values(tensor: NVFP4Tensor, dtype: torch.dtype, orientation: Orientation) -> Tensor:
    if orientation == "rowwise":
        return dequantize(tensor.rowwise, dtype)
    return dequantize(tensor.columnwise, dtype).t().contiguous().view(tensor.shape)


def _checked_dtype(dtype: object) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or dtype not in FLOAT_INPUTS:
        raise type_error(_NAME, "dtype", "torch.float32, torch.bfloat16 or torch.float16", dtype)
    return dtype


def _restore(version: int, state: dict[str, Any]) -> NVFP4Tensor:
    """The inverse of `__reduce_ex__`."""
    if version != _STATE_VERSION:
        raise value_error(_NAME, "state version", str(_STATE_VERSION), version, "Upgrade blockscale.")
    rowwise, columnwise = state["rowwise"], state["columnwise"]
    tensor = NVFP4Tensor(rowwise, columnwise, dtype=state["dtype"])
    tensor = NVFP4Tensor._around(tensor._held, tuple(state["shape"]), state["dtype"], state["requires_grad"])
    if state["wants_columnwise"] and columnwise is None:
        tensor._held.state = Columnwise.STALE
    if state["is_parameter"]:
        tensor._is_param = True
    return tensor


torch.serialization.add_safe_globals([_restore])
