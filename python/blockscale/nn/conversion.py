# SPDX-License-Identifier: Apache-2.0
"""`convert`: replaces the linear layers of a model, and reports what it did and what it left alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from .._codes import FLOAT_INPUTS
from ..errors import type_error
from ..formats import BLOCK
from ..functional import amax as amax_of
from ..matmul import MAX_K
from ..operand import NVFP4Operand
from ..tensor import NVFP4Tensor
from .linear import Linear, quantized_weight, readable
from .recipe import DEFAULT_RECIPE, Recipe, check_recipe


@dataclass(frozen=True)
class ConversionReport:
    """What `convert` did.

    Attributes:
        converted: names of the layers that were replaced; a layer in several places counts once, by its first name.
        skipped: name of each torch.nn.Linear, or subclass, that was left alone -> why.
        bytes_before, bytes_after: parameters and buffers of the whole model.
        weight_bytes_before, weight_bytes_after: weights of the converted layers alone.
        unmatched_skips: names in recipe.skip that matched no layer.
    """

    converted: tuple[str, ...]
    skipped: dict[str, str]
    bytes_before: int
    bytes_after: int
    weight_bytes_before: int
    weight_bytes_after: int
    unmatched_skips: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{len(self.converted)} layers converted to NVFP4: weights {self.weight_bytes_before:,} -> "
            f"{self.weight_bytes_after:,} bytes, model {self.bytes_before:,} -> {self.bytes_after:,} bytes"
        ]
        lines += [f"  left alone: {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [f"  skip={name!r} matched no layer" for name in self.unmatched_skips]
        return "\n".join(lines)


def convert(
    model: torch.nn.Module, recipe: Recipe = DEFAULT_RECIPE, *, on_layer: Callable[[str], None] | None = None
) -> ConversionReport:
    """Replaces the torch.nn.Linear modules of a model, in place, by `Linear` with the same names.

    Left alone, with a reason in the report: what recipe.skip names; subclasses of torch.nn.Linear; in_features that
    blocks of 16 do not divide; other dtypes; weights with NaN or inf; weights that a hook computes (weight norm,
    pruning); a forward replaced on the instance; a weight that is also a parameter of another kind of module, such as
    an embedding; and layers of torch.nn.TransformerEncoderLayer, whose fast path reads their weights.

    A module that stands in several places is converted once and stays shared. Linear modules that share one weight
    share its codes. Forward hooks go to the new layer, and their handles still remove them. References from outside
    the module tree keep the float layer.

    Args:
        model: the model; not itself a torch.nn.Linear.
        recipe: how layers are quantized, and which are skipped.
        on_layer: called with the name of each layer once it is quantized, for progress.

    Raises:
        TypeError: not a module; a bare torch.nn.Linear, for which there is `Linear.from_linear`.
    """
    if not isinstance(model, torch.nn.Module):
        raise type_error("nn.convert", "model", "a torch.nn.Module", type(model).__name__)
    check_recipe("nn.convert", recipe)
    if isinstance(model, torch.nn.Linear):
        hint = "A module cannot replace itself; use nn.Linear.from_linear."
        raise type_error("nn.convert", "model", "a module that contains layers", type(model).__name__, hint)
    bytes_before = _bytes_of(model)
    reasons = _reasons_by_owner(model)
    replaced: dict[torch.nn.Module, Linear] = {}
    operands: dict[Tensor, NVFP4Operand] = {}
    skipped: dict[str, str] = {}
    names: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        reason = _reason_to_skip(name, module, recipe) or reasons.get(module)
        if reason is not None:
            skipped[name] = reason
            continue
        if module.weight not in operands:
            operands[module.weight] = quantized_weight(module.weight, recipe)
        layer = Linear.from_operand(operands[module.weight], module.bias, recipe=recipe, dtype=module.weight.dtype)
        layer.train(module.training)
        _carry_hooks(module, layer)
        replaced[module] = layer
        names.append(name)
        if on_layer is not None:
            on_layer(name)
    for parent in list(model.modules()):
        for child_name, child in list(parent._modules.items()):
            if child in replaced:
                setattr(parent, child_name, replaced[child])
    return ConversionReport(
        converted=tuple(names),
        skipped=skipped,
        bytes_before=bytes_before,
        bytes_after=_bytes_of(model),
        weight_bytes_before=sum(weight.nbytes for weight in operands),
        weight_bytes_after=sum(operand.nbytes for operand in operands.values()),
        unmatched_skips=_unmatched_skips(recipe, [*names, *skipped]),
    )


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def _carry_hooks(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """The very dictionaries, to which the handles of the hooks point."""
    for attribute in _HOOKS:
        setattr(target, attribute, getattr(source, attribute))


def _reason_to_skip(name: str, linear: torch.nn.Linear, recipe: Recipe) -> str | None:
    """Why a layer is left alone, judged by itself; None if nothing speaks against it."""
    if callable(recipe.skip):
        if recipe.skip(name, linear):
            return "skipped by the recipe"
    elif any(fnmatch.fnmatchcase(name, pattern) for pattern in recipe.skip):
        return "skipped by the recipe"
    if type(linear) is not torch.nn.Linear:
        return f"a subclass of torch.nn.Linear, {type(linear).__name__}"
    if not isinstance(linear._parameters.get("weight"), Parameter):
        return "its weight is computed by a hook"
    if "forward" in vars(linear):
        return "its forward was replaced"
    if linear.weight.dtype not in FLOAT_INPUTS:
        return f"its weight is {linear.weight.dtype}"
    if linear.in_features % BLOCK or linear.in_features > MAX_K:
        return f"in_features {linear.in_features} is not a multiple of {BLOCK} up to {MAX_K}"
    if isinstance(linear.weight, NVFP4Tensor):
        other = linear.weight.format != recipe.weight_format
        return f"its weight is NVFP4 of another format, {linear.weight.format}" if other else None
    if not linear.weight.is_meta and not bool(amax_of(readable(linear.weight)).isfinite()):
        return "its weight holds NaN or inf"
    return None


def _reasons_by_owner(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """Why layers are left alone because of other modules: those that share the weight or read it themselves."""
    foreign_owner: dict[Tensor, str] = {}
    readers: dict[torch.nn.Module, str] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            reader = "torch.nn.TransformerEncoderLayer reads its weight directly"
            readers.update(dict.fromkeys(module.children(), reader))
        for key, parameter in module._parameters.items():
            if parameter is not None and not (type(module) is torch.nn.Linear and key == "weight"):
                foreign_owner[parameter] = f"{name}.{key}" if name else key
    for module in model.modules():
        if type(module) is torch.nn.Linear and module._parameters.get("weight") in foreign_owner:
            readers[module] = f"its weight is also {foreign_owner[module.weight]}"
    return readers


def _unmatched_skips(recipe: Recipe, names: list[str]) -> tuple[str, ...]:
    if callable(recipe.skip):
        return ()
    return tuple(pattern for pattern in recipe.skip if not fnmatch.filter(names, pattern))


def _bytes_of(model: torch.nn.Module) -> int:
    tensors = {*model.parameters(), *model.buffers()}
    return sum(tensor.nbytes for tensor in tensors)
