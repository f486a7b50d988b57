# SPDX-License-Identifier: Apache-2.0
"""`Recipe`: how the weight and the activation of a layer become NVFP4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..errors import type_error, value_error
from ..formats import BLOCK, NVFP4

Skip = tuple[str, ...] | Callable[[str, torch.nn.Linear], bool]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the weight and the activation of a layer become NVFP4.

    Attributes:
        row_scaled_activation: True: an amax for each row of the activation (per token), so that a row's result does
            not depend on the rest of the batch. False: one for the whole tensor.
        weight_block: (16, 16), tiles whose bits W and its transpose share; or (1, 16), finer and a little closer.
        e4m3_max: 448, or 256; of both operands.
        skip: which layers `convert` leaves as they are: a tuple of module names, each of which may be a pattern of
            `fnmatch` ("lm_head", "*.pooler.*"); or a function of (name, linear).

    Raises:
        TypeError: an attribute of the wrong kind. ValueError: a value that the format does not have.
    """

    row_scaled_activation: bool = True
    weight_block: tuple[int, int] = (BLOCK, BLOCK)
    e4m3_max: int = 448
    skip: Skip = ()

    def __post_init__(self) -> None:
        if not isinstance(self.row_scaled_activation, bool):
            raise type_error("Recipe", "row_scaled_activation", "a bool", type(self.row_scaled_activation).__name__)
        if not isinstance(self.weight_block, tuple):
            raise type_error("Recipe", "weight_block", "a tuple", type(self.weight_block).__name__)
        if self.weight_block not in ((1, BLOCK), (BLOCK, BLOCK)):
            raise value_error("Recipe", "weight_block", "(1, 16) or (16, 16)", self.weight_block)
        if isinstance(self.e4m3_max, bool) or not isinstance(self.e4m3_max, int):
            raise type_error("Recipe", "e4m3_max", "an int", type(self.e4m3_max).__name__)
        if self.e4m3_max not in (448, 256):
            raise value_error("Recipe", "e4m3_max", "448 or 256", self.e4m3_max)
        skip: object = self.skip
        if callable(skip) or (isinstance(skip, tuple) and all(isinstance(name, str) for name in skip)):
            return
        hint = f"For one name write ({skip!r},)." if isinstance(skip, str) else ""
        raise type_error("Recipe", "skip", "a tuple of names, or a function", type(skip).__name__, hint)

    @property
    def weight_format(self) -> NVFP4:
        """The format of weights."""
        return NVFP4(block=self.weight_block, e4m3_max=self.e4m3_max)

    @property
    def activation_format(self) -> NVFP4:
        """The format of activations."""
        return NVFP4(scaling="row" if self.row_scaled_activation else "tensor", e4m3_max=self.e4m3_max)

    def __str__(self) -> str:
        rows, cols = self.weight_block
        scaling = self.activation_format.scaling
        return f"{rows}x{cols} weight blocks, {scaling}-scaled 1x16 activations, E4M3 up to {self.e4m3_max}"


DEFAULT_RECIPE = Recipe()


def check_recipe(name: str, recipe: object) -> None:
    """Refuses what is no Recipe with a TypeError."""
    if not isinstance(recipe, Recipe):
        raise type_error(name, "recipe", "a Recipe", type(recipe).__name__)
