# SPDX-License-Identifier: Apache-2.0
"""`Linear`: `torch.nn.Linear` for inference, with weight and activation in NVFP4."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from .._checks import check_float_tensor, check_operand
from .._codes import FLOAT_INPUTS
from ..errors import not_offered, type_error, value_error
from ..formats import BLOCK, ScaleLayout
from ..functional import quantize, unswizzle_scales
from ..matmul import MAX_K, gemm
from ..operand import NVFP4Operand, check_scale_bytes, make_operand
from ..tensor import NVFP4Tensor
from .recipe import DEFAULT_RECIPE, Recipe, check_recipe

_STATE_VERSION = 1
_NAME = "nn.Linear"
_FLOAT_NAMES = "torch.float32, torch.bfloat16 or torch.float16"


class Linear(torch.nn.Module):
    """``y = x @ W.T + bias`` with W and x in NVFP4: `torch.nn.Linear` for inference.

    The weight is three buffers: `qdata` uint8 (out, in/2), `block_scale` uint8 (out, in/16), the E4M3 bytes in LINEAR
    layout, and `amax` float32 (). They move, copy and save with the module; `state_dict` also holds what they mean
    (`_extra_state`: version, block rows, e4m3_max), and loading buffers of another meaning or dtype is an error. The
    bias is a parameter that does not require grad. Autocast is not consulted: the output has the layer's `dtype`.

    Attributes:
        in_features, out_features: K, a multiple of 16 up to 2^20, and N, any.
        recipe: how weight and activation are quantized.
        dtype: the output dtype, which `.to(dtype)` changes; the buffers keep theirs.
        bias: (out,) or None.
    """

    qdata: Tensor
    block_scale: Tensor
    amax: Tensor
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        recipe: Recipe = DEFAULT_RECIPE,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A layer with the random weight that torch.nn.Linear would have.

        Args:
            in_features, out_features, bias: as for torch.nn.Linear.
            recipe: how weight and activation are quantized.
            device: where the buffers stand; "meta" makes no weight.
            dtype: float32, bfloat16 or float16; None: torch's default.

        Raises:
            ValueError: in_features that blocks of 16 do not divide. TypeError: another dtype.
        """
        super().__init__()
        check_recipe(_NAME, recipe)
        _check_in_features(_NAME, in_features)
        dtype = _check_dtype(_NAME, torch.get_default_dtype() if dtype is None else dtype)
        source = torch.nn.Linear(in_features, out_features, bias, device=device, dtype=dtype)
        self._hold(quantized_weight(source.weight, recipe), source.bias, recipe, dtype)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, recipe: Recipe = DEFAULT_RECIPE) -> Self:
        """The layer with the weight of a float layer, which stays as it is.

        Args:
            linear: a torch.nn.Linear of float32, bfloat16 or float16, which becomes the output dtype.
            recipe: how weight and activation are quantized.

        Raises:
            TypeError: another class, subclasses included, since they may compute something else; another dtype.
            ValueError: in_features that blocks of 16 do not divide; a weight with NaN or inf.
        """
        name = "nn.Linear.from_linear"
        check_recipe(name, recipe)
        if type(linear) is not torch.nn.Linear:
            hint = "A subclass may compute something else."
            raise type_error(name, "linear", "a torch.nn.Linear", type(linear).__name__, hint)
        dtype = _check_dtype(name, linear.weight.dtype)
        _check_in_features(name, linear.in_features)
        layer = cls._bare()
        layer._hold(quantized_weight(linear.weight, recipe), linear.bias, recipe, dtype)
        layer.train(linear.training)
        return layer

    @classmethod
    def from_operand(
        cls,
        operand: NVFP4Operand,
        bias: Tensor | None = None,
        *,
        recipe: Recipe = DEFAULT_RECIPE,
        dtype: torch.dtype = torch.bfloat16,
    ) -> Self:
        """The layer around a weight that is NVFP4 already, such as one of `checkpoint.from_parts`.

        Args:
            operand: the rowwise operand of W, shape (out, in), of recipe.weight_format. Its storage is shared, except
                for swizzled scales, which become LINEAR.
            bias: (out,) in one of the three dtypes, on the operand's device.
            recipe: says how activations are quantized, and what the weight is expected to be.
            dtype: the output dtype.

        Raises:
            TypeError: a wrong kind or dtype. ValueError: a columnwise operand, which is that of W.T; another format
                than the recipe's; shapes or devices that do not fit.
        """
        name = "nn.Linear.from_operand"
        check_recipe(name, recipe)
        operand = check_operand(name, "operand", operand)
        dtype = _check_dtype(name, dtype)
        if operand.orientation != "rowwise":
            hint = (
                "The rowwise operand of the weight is missing: quantize the weight with orientation='rowwise', "
                "or, for (16, 16) blocks, transpose this operand."
            )
            raise value_error(name, "operand", "rowwise", operand.orientation, hint)
        if operand.format != recipe.weight_format:
            raise value_error(name, "operand", f"of the recipe's format, {recipe.weight_format}", operand.format)
        if len(operand.shape) != 2:
            raise value_error(name, "operand", "of shape (out, in)", operand.shape)
        _check_in_features(name, operand.k)
        if bias is not None:
            check_float_tensor(name, "bias", bias)
            if tuple(bias.shape) != (operand.rows,):
                raise value_error(name, "bias", f"of shape ({operand.rows},)", tuple(bias.shape))
            if bias.device != operand.device:
                raise value_error(name, "bias", f"on {operand.device}, where the operand is", bias.device)
        layer = cls._bare()
        layer._hold(unswizzle_scales(operand), bias, recipe, dtype)
        return layer

    @property
    def operand(self) -> NVFP4Operand:
        """The weight as the operand (out, in) that `gemm` takes; shares the buffers."""
        return make_operand(
            self.qdata,
            self.block_scale.view(torch.float8_e4m3fn),
            self.amax,
            (self.out_features, self.in_features),
            ScaleLayout.LINEAR,
            self.recipe.weight_format,
            "rowwise",
        )

    def forward(self, x: Tensor) -> Tensor:
        """``quantize(x) @ W.T + bias``, with one rounding to `dtype`.

        Args:
            x: (..., in) float32, bfloat16 or float16, of any strides; a view that casts cannot read is copied.

        Returns:
            (..., out) of `dtype`: the bits of ``gemm(quantize(x), quantize(W), bias=bias, out_dtype=dtype)``.

        Raises:
            TypeError, ValueError: another dtype, last dimension or device.
            NotImplementedError: x or bias requires grad while grad mode is on. The layer has no backward yet, and
                does not cut the graph without a word.
        """
        check_float_tensor(_NAME, "x", x)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise value_error(_NAME, "x", f"of shape (..., {self.in_features})", tuple(x.shape))
        if torch.is_grad_enabled():
            for arg, tensor in (("x", x), ("bias", self.bias)):
                if tensor is not None and tensor.requires_grad:
                    rule = "free of requires_grad while grad mode is on"
                    hint = "The layer is for inference; call it under torch.no_grad() or torch.inference_mode()."
                    raise not_offered(_NAME, arg, rule, "requires_grad=True", hint)
        matrix = x.reshape(math.prod(x.shape[:-1]), self.in_features)
        if matrix.stride(-1) != 1:
            matrix = matrix.contiguous()
        activation = self.recipe.activation_format
        quantized = quantize(matrix, scaling=activation.scaling, e4m3_max=activation.e4m3_max)
        y: Tensor = gemm(quantized, self.operand, bias=self.bias, out_dtype=self.dtype)
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """What stands between the brackets of repr."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"NVFP4: {self.recipe}, dtype={self.dtype}"
        )

    def get_extra_state(self) -> Tensor:
        """What the buffers mean, as int64 (3,): state version, block rows, e4m3_max. A tensor, so that any file
        format for tensors can hold a state_dict."""
        return torch.tensor([_STATE_VERSION, self.recipe.weight_block[0], self.recipe.e4m3_max])

    def set_extra_state(self, state: Tensor) -> None:
        """Accepts what `get_extra_state` gives for this recipe; `_load_from_state_dict` has refused the rest."""

    @classmethod
    def _bare(cls) -> Self:
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        return layer

    def _hold(self, operand: NVFP4Operand, bias: Tensor | None, recipe: Recipe, dtype: torch.dtype) -> None:
        """Takes a weight in LINEAR layout, and a copy of the bias."""
        self.out_features, self.in_features = operand.shape
        self.recipe = recipe
        self.dtype = dtype
        self.register_buffer("qdata", operand.qdata)
        self.register_buffer("block_scale", operand.block_scale.view(torch.uint8))
        self.register_buffer("amax", operand.amax)
        copy = None if bias is None else Parameter(bias.detach().clone(), requires_grad=False)
        self.register_parameter("bias", copy)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """`.to`, `.half` and the like: the dtype of the layer changes, that of amax does not."""
        dtype = _check_dtype(_NAME, fn(torch.empty(0, dtype=self.dtype, device=self.qdata.device)).dtype)
        amax = self.amax
        torch.nn.Module._apply(self, fn, recurse)
        self.dtype = dtype
        if self.amax.dtype is not torch.float32:
            self.amax = amax.to(self.amax.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Refuses bytes of another meaning before any buffer is written; torch would convert their dtype in silence."""
        wrong = _unfit_state(self, state_dict, prefix)
        if wrong:
            error_msgs.extend(wrong)
            return
        scales = state_dict.get(prefix + "block_scale")
        if scales is not None and scales.dtype is torch.float8_e4m3fn:
            state_dict[prefix + "block_scale"] = scales.view(torch.uint8)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                "nn.Linear: weight is held in NVFP4; use .operand, or blockscale.dequantize(layer.operand). A module "
                "that reads the weight of its layers cannot be converted: name them in Recipe(skip=...)."
            )
        return super().__getattr__(name)


def readable(weight: Tensor) -> Tensor:
    """A weight that casts can read: unit stride along K."""
    weight = weight.detach()
    return weight if weight.stride(-1) == 1 else weight.contiguous()


def quantized_weight(weight: Tensor, recipe: Recipe) -> NVFP4Operand:
    """The operand of a weight (out, in); ValueError for NaN and inf, except on "meta", which holds no values.

    An NVFP4Tensor gives a copy of its rowwise operand; ValueError if its format is not the recipe's.
    """
    if isinstance(weight, NVFP4Tensor):
        if weight.format != recipe.weight_format:
            raise value_error(_NAME, "weight", f"of the recipe's format, {recipe.weight_format}", weight.format)
        return unswizzle_scales(weight.rowwise.clone())
    return quantize(
        readable(weight),
        block=recipe.weight_block,
        e4m3_max=recipe.e4m3_max,
        nonfinite="propagate" if weight.is_meta else "raise",
    )


def _check_in_features(name: str, in_features: int) -> None:
    if in_features % BLOCK or in_features > MAX_K:
        raise value_error(name, "in_features", f"a multiple of {BLOCK} up to {MAX_K}", in_features)


def _check_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in FLOAT_INPUTS:
        raise type_error(name, "dtype", _FLOAT_NAMES, dtype)
    return dtype


def _unfit_state(layer: Linear, state_dict: dict[str, Any], prefix: str) -> list[str]:
    """Messages for entries of a state_dict that are not bytes of this layer's format."""
    dtypes = {
        "qdata": (torch.uint8,),
        "block_scale": (torch.uint8, torch.float8_e4m3fn),
        "amax": (torch.float32,),
    }
    wrong = []
    for key, allowed in dtypes.items():
        tensor = state_dict.get(prefix + key)
        if tensor is not None and tensor.dtype not in allowed:
            names = " or ".join(str(dtype) for dtype in allowed)
            wrong.append(f"nn.Linear: {prefix}{key} must be {names}; got {tensor.dtype}.")
    scales = state_dict.get(prefix + "block_scale")
    if not wrong and scales is not None and scales.device.type == "cpu":
        try:
            check_scale_bytes(_NAME, scales)
        except ValueError as error:
            wrong.append(str(error))
    state = state_dict.get(prefix + "_extra_state")
    want = layer.get_extra_state().tolist()
    got = want if state is None else torch.as_tensor(state).tolist()
    if got != want:
        wrong.append(
            f"nn.Linear: {prefix}_extra_state must be (version, block rows, e4m3_max) = {want}, as this layer's "
            f"recipe says; got {got}."
        )
    return wrong
