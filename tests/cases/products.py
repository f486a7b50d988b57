# SPDX-License-Identifier: Apache-2.0
"""GEMMs whose result is known to the bit: golden vectors of the epilogue and edge cases. numerics, sections 11, 15, 16.

Operands are built from bytes, so that a case does not depend on `quantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from blockscale.formats import NVFP4
from blockscale.operand import NVFP4Operand

from ..bits import from_bits, from_hex

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class GemmCase:
    """One `gemm` call and its result.

    Attributes:
        name: test id.
        a, b: make the operands (``a`` may be a plain tensor), on the CPU.
        d: makes D, whose dtype is the out_dtype of the call; compared as bits (any NaN for NaN).
        keywords: makes further keywords of `gemm`; tensors among them are moved to the device under test.
        acc: FP32 bits of the accumulator where the table has them, flat.
    """

    name: str
    a: Callable[[], NVFP4Operand | torch.Tensor]
    b: Callable[[], NVFP4Operand]
    d: Callable[[], torch.Tensor]
    keywords: Callable[[], dict[str, Any]] = dict
    acc: tuple[int, ...] = field(default=())

    def __str__(self) -> str:
        return self.name


def operand(codes: str, scales: str, *amax: float, scaling: str = "tensor") -> Callable[[], NVFP4Operand]:
    """Makes an operand from hex bytes. For scaling="row", as many rows as amaxes; else one row."""

    def make() -> NVFP4Operand:
        count = len(amax) if scaling == "row" else 1
        qdata = from_hex(codes, count, -1)
        k = 2 * qdata.shape[1]
        second = torch.tensor(amax, dtype=torch.float32).view(count if scaling == "row" else ())
        fmt = NVFP4(scaling="row" if scaling == "row" else "tensor")
        return NVFP4Operand(qdata, from_hex(scales, count, k // 16), second, (count, k), format=fmt)

    return make


def ones(rows: int, k: int) -> Callable[[], NVFP4Operand]:
    """Makes an operand of ones: code 6, block scale 448, amax 1."""

    def make() -> NVFP4Operand:
        qdata = torch.full((rows, k // 2), 0x77, dtype=torch.uint8)
        return NVFP4Operand(qdata, torch.full((rows, k // 16), 0x7E, dtype=torch.uint8), torch.tensor(1.0), (rows, k))

    return make


def matrix(*values: list[float], dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    """Makes the matrix of these rows."""
    return lambda: torch.tensor(values, dtype=dtype)


def word(bits: int) -> Callable[[], torch.Tensor]:
    """Makes a (1, 1) float32 matrix from bits."""
    return lambda: from_bits(bits).view(1, 1)


A = "FF EE CD AB 20 43 65 76"
B = "FF EE CD 9B 10 43 65 76"

# 12345678 = 2^16 * 188 + 2^8 * 97 + 78: a block for each power, its code products adding up to the factor. Codes of A:
# 6 6 6 6 6 4 / 6 6 6 1 / 6 6 6; of B: 6 6 6 6 6 2 / 6 6 4 1 / 6 6 1. Scales of both: 256 / 16 / 1.
LARGE_A = "77 77 67 00 00 00 00 00" + "77 27 00 00 00 00 00 00" + "77 07 00 00 00 00 00 00"
LARGE_B = "77 77 47 00 00 00 00 00" + "77 26 00 00 00 00 00 00" + "77 02 00 00 00 00 00 00"
LARGE_SCALES = "78 58 38"

EPILOGUE_CASES: tuple[GemmCase, ...] = (
    GemmCase("A_times_A", operand(A, "7E", 8.0), operand(A, "7E", 8.0), word(0x43B5C71D), acc=(0x4C1C9200,)),
    GemmCase(
        "A_times_B_alpha",
        operand(A, "7E", 8.0),
        operand(B, "61", 100.0),
        word(0x4335B249),
        lambda: {"alpha": 0.5},
        acc=(0x4A485200,),
    ),
    GemmCase(
        "A_times_B_alpha_tensor",
        operand(A, "7E", 8.0),
        operand(B, "61", 100.0),
        word(0x4335B249),
        lambda: {"alpha": torch.tensor([0.5])},
        acc=(0x4A485200,),
    ),
    GemmCase(
        "every_term_rounded_separately",
        operand(LARGE_A, LARGE_SCALES, 3.0),
        operand(LARGE_B, LARGE_SCALES, 0.7),
        word(0xBFB99BF6),
        lambda: {"alpha": 1.7, "beta": 2.5, "c": torch.tensor([[-2.9]]), "bias": torch.tensor([-0.3])},
        acc=(0x4B3C614E,),
    ),
    GemmCase(
        "alpha_and_bias_without_c",
        operand(LARGE_A, LARGE_SCALES, 3.0),
        operand(LARGE_B, LARGE_SCALES, 0.7),
        lambda: from_bits(0x40C3329C).view(1, 1) + torch.tensor(-0.3),
        lambda: {"alpha": 1.7, "bias": torch.tensor([-0.3])},
    ),
    GemmCase("ones_float16", ones(64, 64), ones(64, 64), lambda: torch.full((64, 64), 64.0, dtype=torch.float16)),
    GemmCase(
        "bias_is_not_scaled_by_the_row",
        operand("77" * 16, "7E 7E", 1.0, 4.0, scaling="row"),
        ones(1, 16),
        matrix([26.0], [74.0]),
        lambda: {"bias": torch.tensor([10.0])},
    ),
    GemmCase(
        "c_is_not_scaled_by_alpha_or_the_row",
        operand("77" * 16, "7E 7E", 1.0, 1.0, scaling="row"),
        ones(1, 16),
        matrix([14.0], [14.0]),
        lambda: {"alpha": 0.5, "beta": 2.0, "c": torch.full((2, 1), 3.0)},
    ),
    GemmCase(
        "c_without_beta_counts_once", ones(1, 16), ones(1, 16), matrix([19.0]), lambda: {"c": torch.tensor([[3.0]])}
    ),
    GemmCase(
        "c_is_not_read_with_beta_0",
        ones(2, 16),
        ones(3, 16),
        matrix(*[[16.0] * 3] * 2),
        lambda: {"beta": 0.0, "c": torch.full((2, 3), NAN)},
    ),
    GemmCase(
        "c_and_bias_of_16_bits",
        ones(1, 16),
        ones(2, 16),
        matrix([17.5, 16.25]),
        lambda: {
            "c": torch.tensor([[0.5, 0.25]], dtype=torch.float16),
            "bias": torch.tensor([1.0, 0.0], dtype=torch.bfloat16),
        },
    ),
    GemmCase(
        "zero_row",
        operand("00" * 8 + "77" * 8, "00 7E", 0.0, 1.0, scaling="row"),
        ones(1, 16),
        matrix([7.0], [23.0]),
        lambda: {"beta": 2.0, "c": torch.full((2, 1), 3.0), "bias": torch.tensor([1.0])},
    ),
    GemmCase(
        "no_k",
        lambda: NVFP4Operand(
            torch.zeros(2, 0, dtype=torch.uint8), torch.zeros(2, 0, dtype=torch.uint8), torch.tensor(NAN), (2, 0)
        ),
        lambda: NVFP4Operand(
            torch.zeros(1, 0, dtype=torch.uint8), torch.zeros(1, 0, dtype=torch.uint8), torch.tensor(1.0), (1, 0)
        ),
        matrix([7.0], [7.0]),
        lambda: {"alpha": -1.0, "beta": 2.0, "c": torch.full((2, 1), 3.0), "bias": torch.tensor([1.0])},
    ),
    GemmCase(
        "scale_7f_against_zero_codes_and_scales",
        operand("00" * 8 + "77" * 8, "7F 7E", 1.0, 1.0, scaling="row"),
        operand("00" * 8 + "77" * 8, "00 7E", 1.0, 1.0, scaling="row"),
        matrix([NAN, NAN], [0.0, 16.0]),
    ),
    GemmCase("cancellation_is_plus_zero", operand("77 77 77 77 FF FF FF FF", "7E", 1.0), ones(1, 16), matrix([0.0])),
    GemmCase(
        "overflow_to_inf_in_float16",
        ones(1, 16),
        ones(1, 16),
        matrix([float("inf")], dtype=torch.float16),
        lambda: {"alpha": 4096.0},
    ),
    GemmCase(
        "overflow_in_the_order_of_the_lines",
        operand("77" * 8, "7E", 3e38),
        operand("77" * 8, "7E", 1e-38),
        matrix([float("inf")]),
    ),
    GemmCase(
        "alpha_0_multiplies",
        ones(1, 16),
        ones(1, 16),
        matrix([5.0]),
        lambda: {"alpha": 0.0, "bias": torch.tensor([5.0])},
    ),
    GemmCase("alpha_0_keeps_nan", operand("77" * 8, "7F", 1.0), ones(1, 16), matrix([NAN]), lambda: {"alpha": 0.0}),
    GemmCase(
        "relu_gives_plus_zero_and_keeps_nan",
        operand("FF" * 8 + "77" * 8 + "77" * 8, "7E 7F 7E", 1.0, 1.0, 1.0, scaling="row"),
        ones(1, 16),
        matrix([0.0], [NAN], [16.0]),
        lambda: {"activation": "relu"},
    ),
    GemmCase(
        "plain_bfloat16_a",
        lambda: torch.tensor([[3.0, -0.5] * 8], dtype=torch.bfloat16),
        ones(1, 16),
        matrix([20.0]),
    ),
    GemmCase(
        "plain_a_beyond_the_grid_of_two_operands",
        lambda: torch.tensor([[2.0**-30] + [0.0] * 15], dtype=torch.bfloat16),
        ones(1, 16),
        matrix([2.0**-30]),
    ),
)
