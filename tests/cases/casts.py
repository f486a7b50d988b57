# SPDX-License-Identifier: Apache-2.0
"""Casts whose every byte is known: edge cases (numerics, section 15) and golden vectors (section 16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..bits import from_bits

NAN = float("nan")
INF = float("inf")
BF16_MAX = 3.3895313892515355e38
NAN_BITS = 0x7FC00000


@dataclass(frozen=True, eq=False)
class CastCase:
    """One `quantize` call and the bytes it must write.

    Attributes:
        name: test id.
        x: makes the input, (M, K).
        codes: hex text of qdata, row after row.
        scales: hex text of the LINEAR block scales, row after row.
        amax: FP32 bits of the stored amax: one word for scaling="tensor", one a row for "row".
        decode: what `dequantize` must give, flat; None where the table does not say.
        decode_rtol: 0, decode is compared as bits after rounding to FP32 (any NaN for NaN); else a relative bound.
        given: makes the ``amax`` argument, or None for the own amax of x.
        format: keywords of `quantize` and of `NVFP4`.
        steps: FP32 bits of the intermediate Se, d, e for the first block, where the table has them ("Se", "d", "e").
    """

    name: str
    x: Callable[[], torch.Tensor]
    codes: str
    scales: str
    amax: tuple[int, ...]
    decode: tuple[float, ...] | None = None
    decode_rtol: float = 0.0
    given: Callable[[], torch.Tensor | float] | None = None
    format: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def row(*values: float, pad_to: int = 16, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    """Makes one row: the values, then zeros."""
    return lambda: torch.tensor([[*values, *[0.0] * (pad_to - len(values))]], dtype=dtype)


def rows(*values: list[float]) -> Callable[[], torch.Tensor]:
    """Makes a float32 matrix of these rows."""
    return lambda: torch.tensor(values, dtype=torch.float32)


def tensor(*words: int) -> Callable[[], torch.Tensor | float]:
    """Makes a float32 tensor () from FP32 bits."""
    return lambda: from_bits(*words).view(())


def number(value: float) -> Callable[[], torch.Tensor | float]:
    """Makes a Python number."""
    return lambda: value


def zeros(count: int) -> tuple[float, ...]:
    return (0.0,) * count


RAMP = tuple(float(i - 8) for i in range(16))
"""Input A of the golden vectors."""

_ROW = {"scaling": "row"}
_TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0)
_TIES_DECODED = (0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0)
_FOUR_OVER_SIX: tuple[dict[str, Any], ...] = ({}, {"four_over_six": "mae"}, {"four_over_six": "mse"})

EDGE_CASES: tuple[CastCase, ...] = (
    CastCase("zeros", row(), "00" * 8, "00", (0,), zeros(16)),
    CastCase(
        "row_scaling_with_a_zero_row",
        rows([1.0] * 16, [0.0] * 16, [-3.0] * 16),
        "77" * 8 + "00" * 8 + "FF" * 8,
        "7E 00 7E",
        (0x3F800000, 0, 0x40400000),
        (1.0,) * 16 + zeros(16) + (-3.0,) * 16,
        format=_ROW,
    ),
    CastCase(
        "zero_block_before_small_block",
        row(*zeros(16), *(1e-3,) * 16, pad_to=32),
        "00" * 8 + "77" * 8,
        "00 7E",
        (0x3A83126F,),
        zeros(16) + (1e-3,) * 16,
    ),
    CastCase(
        "block_underflow",
        row(2e-6, -1e-6, *zeros(14), 1.0, pad_to=32),
        "F7" + "00" * 7 + "07" + "00" * 7,
        "00 7E",
        (0x3F800000,),
        (0.0, -0.0, *zeros(14), 1.0, *zeros(15)),
        given=number(1.0),
    ),
    CastCase(
        "block_just_above_underflow",
        row(2.2e-6, -1.1e-6, *zeros(14), 1.0, pad_to=32),
        "B5" + "00" * 7 + "07" + "00" * 7,
        "01 7E",
        (0x3F800000,),
        (2.1798e-6, -1.0899e-6, *zeros(14), 1.0, *zeros(15)),
        decode_rtol=1e-4,
        given=number(1.0),
    ),
    CastCase(
        "last_underflow", lambda: from_bits(*[0x36124925] * 16)[None], "77" * 8, "00", (0x3F800000,), given=number(1.0)
    ),
    CastCase(
        "first_scale", lambda: from_bits(*[0x36124926] * 16)[None], "55" * 8, "01", (0x3F800000,), given=number(1.0)
    ),
    CastCase("subnormal_row", row(*(1e-40,) * 16), "00" * 8, "03", (0x000116C2,), zeros(16), format=_ROW),
    CastCase("smallest_subnormal", row(*(2.0**-149,) * 16), "00" * 8, "00", (1,), zeros(16)),
    CastCase(
        "second_level_saturates",
        row(*(1e-36,) * 16),
        "77" * 8,
        "66",
        (0x03AA2425,),
        (1.25e-37,) * 16,
        decode_rtol=1e-6,
    ),
    CastCase(
        "nan_takes_the_tensor", row(*(1.0,) * 20, NAN, *(1.0,) * 11), "77" * 16, "7F 7F", (NAN_BITS,), (NAN,) * 32
    ),
    *(
        CastCase(
            f"{value}_takes_its_block_{fmt.get('four_over_six')}",
            row(1.0, 1.0, 1.0, value, *(1.0,) * 28),
            "77" * 16,
            "7F 7E",
            (0x3F800000,),
            (NAN,) * 16 + (1.0,) * 16,
            given=number(1.0),
            format=fmt,
        )
        for value in (NAN, INF)
        for fmt in _FOUR_OVER_SIX
    ),
    CastCase("all_nan", row(*(NAN,) * 16), "77" * 8, "7F", (NAN_BITS,), (NAN,) * 16),
    CastCase("negative_nan", row(*(-NAN,) * 16), "77" * 8, "7F", (NAN_BITS,), (NAN,) * 16),
    CastCase("inf_takes_the_tensor", row(INF, *(1.0,) * 31), "77" * 16, "7F 7F", (0x7F800000,), (NAN,) * 32),
    CastCase(
        "inf_takes_its_row",
        rows([INF] + [1.0] * 31, [1.0] * 32),
        "77" * 32,
        "7F 7F 7E 7E",
        (0x7F800000, 0x3F800000),
        (NAN,) * 32 + (1.0,) * 32,
        format=_ROW,
    ),
    CastCase("given_nan", row(*(1.0,) * 16), "77" * 8, "7F", (NAN_BITS,), (NAN,) * 16, given=tensor(NAN_BITS)),
    CastCase(
        "given_negative_nan_with_payload",
        row(*(1.0,) * 16),
        "77" * 8,
        "7F",
        (NAN_BITS,),
        (NAN,) * 16,
        given=tensor(0xFFC01234),
    ),
    CastCase("given_inf", row(*(1.0,) * 16), "77" * 8, "7F", (0x7F800000,), (NAN,) * 16, given=tensor(0x7F800000)),
    CastCase("given_negative", row(*(1.0,) * 16), "77" * 8, "7E", (0x3F800000,), (1.0,) * 16, given=tensor(0xBF800000)),
    CastCase("given_zero", row(*(1.0,) * 16), "77" * 8, "23", (0,), zeros(16), given=tensor(0)),
    CastCase("given_too_small", row(*(10.0,) * 16), "77" * 8, "7E", (0x3F800000,), (1.0,) * 16, given=number(1.0)),
    CastCase(
        "signed_zeros",
        row(-0.0, -0.01, 1.0),
        "88 07" + "00" * 6,
        "7E",
        (0x3F800000,),
        (-0.0, -0.0, 1.0, *zeros(13)),
    ),
    CastCase(
        "ties",
        row(*_TIES, *(-v for v in _TIES), 2688.0, pad_to=32),
        "20 42 64 76 A8 CA EC FE 07" + "00" * 7,
        "38 7E",
        (0x45280000,),
        (*_TIES_DECODED, *(-v for v in _TIES_DECODED), 2688.0, *zeros(15)),
    ),
    CastCase(
        "reciprocal_not_division",
        row(0.02392577938735485, 0.08203125, *zeros(14), 2688.0, pad_to=32),
        "74" + "00" * 7 + "07" + "00" * 7,
        "07 7E",
        (0x45280000,),
    ),
    CastCase(
        "block_scale_operation_order",
        row(0.0172119140625, *zeros(15), 1.46875, pad_to=32),
        "07" + "00" * 7 + "07" + "00" * 7,
        "4B 7E",
        (0x3FBC0000,),
    ),
    CastCase(
        "largest_bfloat16",
        row(*(BF16_MAX,) * 16, dtype=torch.bfloat16),
        "77" * 8,
        "7E",
        (0x7F7F0000,),
        (BF16_MAX,) * 16,
    ),
)
"""numerics, section 15."""


def _alternating_tenths() -> torch.Tensor:
    sign = torch.tensor([1.0, -1.0] * 8)
    return (sign * torch.tensor([0.1 * (i + 1) for i in range(16)]))[None].bfloat16()


def _two_spikes() -> torch.Tensor:
    x = torch.zeros(1, 16, dtype=torch.bfloat16)
    x[0, 0], x[0, 5] = 1e-4, -1e-4
    return x


def _ramp_with(index: int, value: float) -> Callable[[], torch.Tensor]:
    return row(*RAMP[:index], value, *RAMP[index + 1 :])


VECTOR_CASES: tuple[CastCase, ...] = (
    CastCase(
        "A",
        row(*RAMP),
        "FF EE CD AB 20 43 65 76",
        "7E",
        (0x41000000,),
        steps={"Se": 0x43A80000, "d": 0x43E00000, "e": 0x3F400000},
    ),
    CastCase(
        "B",
        row(*RAMP),
        "FF EE CD 9B 10 43 65 76",
        "61",
        (0x42C80000,),
        given=number(100.0),
        steps={"Se": 0x41D70A3D, "d": 0x420F5C29, "e": 0x3F3F258C},
    ),
    CastCase(
        "C",
        _alternating_tenths,
        "91 B2 C4 D5 E5 E6 F6 F7",
        "77",
        (0x40400000,),
        given=number(3.0),
        steps={"Se": 0x44600000, "d": 0x436F2AAC, "e": 0x406EEEEE},
    ),
    CastCase(
        "D",
        row(0.0, 0.0, 0.0, -0.0),
        "00 80 00 00 00 00 00 00",
        "00",
        (0,),
        (0.0, 0.0, 0.0, -0.0, *zeros(12)),
        steps={"Se": 0x3F800000, "d": 0, "e": 0x7F7FFFFF},
    ),
    CastCase(
        "E",
        _two_spikes,
        "07 00 F0 00 00 00 00 00",
        "00",
        (0x43E00000,),
        given=number(448.0),
        steps={"Se": 0x40C00000, "d": 0x38D20000, "e": 0x7F7FFFFF},
    ),
    CastCase(
        "F", _ramp_with(2, NAN), "77" * 8, "7F", (0x41000000,), (NAN,) * 16, given=number(8.0), steps={"Se": 0x43A80000}
    ),
    CastCase("G", _ramp_with(7, INF), "77" * 8, "7F", (0x7F800000,), (NAN,) * 16),
    CastCase(
        "H",
        row(*(2.0**-130 * v for v in RAMP)),
        "BC AB 9A 89 00 11 22 33",
        "2B",
        (0x00400000,),
        steps={"Se": 0x7F7FFFFF, "d": 0x3EAAAAAA, "e": 0x7F7FFFFF},
    ),
    CastCase(
        "I",
        row(*(BF16_MAX,) * 16, dtype=torch.bfloat16),
        "77" * 8,
        "7E",
        (0x7F7F0000,),
        steps={"Se": 0x0528A8A9, "d": 0x43E00001, "e": 0x00C0C0C1},
    ),
    CastCase(
        "A_256",
        row(*RAMP),
        "FF EE CD AB 20 43 65 76",
        "78",
        (0x41000000,),
        format={"e4m3_max": 256},
        steps={"Se": 0x43400000, "d": 0x43800000, "e": 0x3F400000},
    ),
)
"""numerics, section 16, first table: one block of 16."""


def _near_tie(seed: int, bits: int) -> Callable[[], torch.Tensor]:
    """Makes a tile whose two errors differ by their rounding alone: small integers / 1024, and one tuned element."""

    def make() -> torch.Tensor:
        state, values = seed, []
        for _ in range(256):
            state = (state * 1103515245 + 12345) % 2**31
            values.append(float((state >> 12) % 4001 - 2000))
        x = torch.tensor(values).view(16, 16) / 1024
        x[5, 7] = from_bits(bits)[0]
        return x

    return make


FOUR_OVER_SIX_CASES: tuple[CastCase, ...] = (
    CastCase(
        "mae_448_chooses_6",
        row(*RAMP),
        "FF EE CD AB 20 43 65 76",
        "7E",
        (0x41000000,),
        format={"four_over_six": "mae"},
    ),
    *(
        CastCase(
            f"{measure}_448_chooses_4",
            row(*RAMP),
            "EE DD BC 9A 10 32 54 65",
            "65",
            (0x42C80000,),
            given=number(100.0),
            format={"four_over_six": measure},
        )
        for measure in ("mae", "mse")
    ),
    CastCase(
        "mae_256_chooses_4",
        row(*RAMP),
        "EE CD BC 9A 10 32 44 65",
        "7C",
        (0x41000000,),
        format={"four_over_six": "mae", "e4m3_max": 256},
    ),
    CastCase(
        "mse_256_chooses_6",
        row(*RAMP),
        "FF EE CD AB 20 43 65 76",
        "78",
        (0x41000000,),
        format={"four_over_six": "mse", "e4m3_max": 256},
    ),
    # Adding the errors of the rows one after the other, or of neighbouring rows first, makes the other choice.
    CastCase(
        "mae_tree_of_rows_chooses_4",
        _near_tie(25, 0xBFB5755D),
        "46 00 A4 AB 1C 8A D5 40"
        "C6 34 22 29 A0 13 65 2A"
        "4B CB D6 B2 BC B9 46 51"
        "31 C0 0D 5E 14 CB 4B 62"
        "52 95 95 4C 48 11 ED 65"
        "63 C3 CE D9 C3 4D 6D DC"
        "85 52 1D 41 4D 22 BD 08"
        "E5 E2 55 CB 98 E2 BD 56"
        "DD 6D A5 D9 3C 98 5C 41"
        "5C 26 BC D4 06 E6 85 45"
        "9E D5 2C 5A 41 AE 15 3C"
        "4C CC 45 A1 55 C5 23 94"
        "CD BA A3 AC 92 DC E2 85"
        "D9 15 0E 95 64 31 22 15"
        "12 EB 3E 12 95 5E 91 D0"
        "24 53 DE 60 33 42 D2 A5",
        "7C" * 16,
        (0x3FFA0000,),
        format={"four_over_six": "mae", "e4m3_max": 256, "block": (16, 16)},
    ),
    CastCase(
        "mse_tree_of_rows_chooses_6",
        _near_tie(133, 0xBFA0065B),
        "FF 66 2C E4 5D 69 EA 21"
        "FD 57 DC 5F FD 47 AC CB"
        "A7 FF 15 46 66 EE 9C 1A"
        "0C 5C 26 AB 77 4F 9D 67"
        "F6 2D 77 AE 5F ED 66 E6"
        "1C F8 D2 E6 16 7E 49 F7"
        "4E B7 99 E3 47 17 CC 2F"
        "99 DF 74 8F 8A 5E 98 55"
        "B6 E6 5E 6B 3E 6D F8 DE"
        "CF EF BE F2 FE F7 14 E9"
        "F6 3C 17 61 CC 59 EE D9"
        "67 2E 05 FF C7 61 5F 6B"
        "D9 AB 74 DE 71 32 E4 5D"
        "B7 65 97 3E 5F F4 E9 F5"
        "FB F0 E0 D1 2F 67 2B 36"
        "69 8C BE E8 66 02 54 FF",
        "78" * 16,
        (0x3FF9A000,),
        format={"four_over_six": "mse", "e4m3_max": 256, "block": (16, 16)},
    ),
)
"""numerics, section 16, second table; the last two are ours, for the order of the sums in section 7."""
