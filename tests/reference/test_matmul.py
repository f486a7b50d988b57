# SPDX-License-Identifier: Apache-2.0
"""`gemm` of the reference: the accumulator against Python integers, the epilogue, the outputs. numerics, 11, 12."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from blockscale import reference as ref
from blockscale.formats import NVFP4, ScaleLayout
from blockscale.operand import NVFP4Operand
from blockscale.reference.codes import E2M1_MAGNITUDES, E4M3_MAGNITUDES, pack, unpack
from blockscale.reference.matmul import accumulate, epilogue
from tests.bits import assert_bits_equal, assert_same_operand, from_bits
from tests.cases import EPILOGUE_CASES, GemmCase

gemm: Any = ref.gemm  # its result type depends on the call

INF = float("inf")
NAN = float("nan")


def operand(codes: torch.Tensor, scales: torch.Tensor, amax: float | torch.Tensor = 1.0) -> NVFP4Operand:
    """An operand of codes (rows, K) and LINEAR scale bytes; row-scaled if amax has a dimension."""
    second = torch.as_tensor(amax, dtype=torch.float32)
    fmt = NVFP4(scaling="row" if second.dim() else "tensor")
    return NVFP4Operand(pack(codes).contiguous(), scales, second, tuple(codes.shape), format=fmt)


def random_operand(rows: int, k: int, seed: int, row_scaled: bool = False, top: int = 0x7F) -> NVFP4Operand:
    """Any codes, any scale bytes below ``top``."""
    gen = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, k), generator=gen, dtype=torch.uint8)
    scales = torch.randint(0, top, (rows, k // 16), generator=gen, dtype=torch.uint8)
    return operand(codes, scales, torch.rand(rows, generator=gen) + 0.5 if row_scaled else 1.5)


def exact_rows(op: NVFP4Operand) -> list[list[Fraction]]:
    """val(code) * val(block_scale) as fractions."""
    codes = unpack(op.qdata).tolist()
    scales = ref.unswizzle_scales(op).block_scale.view(torch.uint8).tolist()
    value = [Fraction(v) for v in E2M1_MAGNITUDES]
    value += [-v for v in value]
    scale = [Fraction(v) for v in E4M3_MAGNITUDES]
    return [[value[c] * scale[s[i // 16]] for i, c in enumerate(row)] for row, s in zip(codes, scales, strict=True)]


def rounded_to_fp32(exact: Fraction) -> float:
    """Nearest FP32 value, ties to even, of a number whose magnitude is 0 or a normal one; no float on the way."""
    if exact == 0:
        return 0.0
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    ulp = Fraction(2) ** (exponent - 23)
    return float(round(exact / ulp) * ulp)  # round() of a Fraction: ties to even


def exact_product(a: NVFP4Operand, b: NVFP4Operand) -> torch.Tensor:
    dot = [[sum((p * q for p, q in zip(x, y, strict=True)), Fraction(0)) for y in exact_rows(b)] for x in exact_rows(a)]
    return torch.tensor([[rounded_to_fp32(value) for value in row] for row in dot]).view(a.rows, b.rows)


@pytest.mark.parametrize("k", [16, 48, 512])
@pytest.mark.parametrize("top", [0x7F, 0x10])
def test_accumulator_is_the_exact_sum_rounded_once(k: int, top: int) -> None:
    a, b = random_operand(5, k, seed=k, top=top), random_operand(7, k, seed=k + 1, top=top)
    expected = exact_product(a, b)
    assert_bits_equal(accumulate(a, b), expected, "acc")
    assert_bits_equal(accumulate(ref.swizzle_scales(a), ref.swizzle_scales(b)), expected, "acc of swizzled scales")


def test_accumulator_is_not_rounded_twice() -> None:
    """2^56 + 2^32 + 1 units lies just above the middle of two FP32 values; an FP64 sum would lose the 1."""
    k = 2**16 + 32
    codes = torch.full((1, k), 6, dtype=torch.uint8)  # 4 = 2^3 half units; 256 = 2^17 units of 2^-9
    scales = torch.full((1, k // 16), 0x78, dtype=torch.uint8)
    codes[0, -32:] = 0
    codes[0, -32], scales[0, -2] = 4, 0x60  # 2 = 2^2 half units; 32 = 2^14 units
    codes[0, -16], scales[0, -1] = 1, 0x01  # 1 half unit, 1 unit
    op = operand(codes, scales)
    assert float(accumulate(op, op)) == (2**56 + 2**33) / 2**20
    codes[0, -16] = 0
    op = operand(codes, scales)
    assert float(accumulate(op, op)) == 2**56 / 2**20


def test_largest_sum() -> None:
    k = 2**20
    op = operand(torch.full((1, k), 7, dtype=torch.uint8), torch.full((1, k // 16), 0x7E, dtype=torch.uint8))
    assert float(accumulate(op, op)) == 2688.0**2 * k


def test_scale_7f_makes_its_row_and_column_nan() -> None:
    a, b = random_operand(4, 64, seed=1), random_operand(6, 64, seed=2)
    clean = accumulate(a, b)
    a.block_scale.view(torch.uint8)[2, 3] = 0x7F
    b.block_scale.view(torch.uint8)[5, 0] = 0x7F
    a.qdata.zero_()
    acc = accumulate(a, b)
    expected = torch.zeros_like(clean)
    expected[2], expected[:, 5] = NAN, NAN
    assert_bits_equal(acc, expected, "acc", nan_equal=True)


@pytest.mark.parametrize("case", [case for case in EPILOGUE_CASES if case.acc], ids=str)
def test_accumulator_of_the_vectors(case: GemmCase) -> None:
    a = case.a()
    assert_bits_equal(accumulate(a, case.b()).flatten(), from_bits(*case.acc), "acc")


def test_epilogue_line_by_line() -> None:
    case = next(case for case in EPILOGUE_CASES if case.name == "every_term_rounded_separately")
    a, b, acc = case.a(), case.b(), from_bits(*case.acc).view(1, 1)
    one = NVFP4Operand(b.qdata, b.block_scale, torch.tensor(2688.0), b.shape)  # its decode scale is 1
    keywords = case.keywords()
    lines: list[tuple[NVFP4Operand, dict[str, Any], int]] = [
        (one, {}, 0x46574AA3),
        (b, {}, 0x4065A4F3),
        (b, {"alpha": 1.7}, 0x40C3329C),
        (b, {key: keywords[key] for key in ("alpha", "beta", "c")}, 0xBF933590),
        (b, keywords, 0xBFB99BF6),
    ]
    for operand_b, given, bits in lines:
        assert_bits_equal(epilogue(acc, a, operand_b, **given), from_bits(bits).view(1, 1), f"{sorted(given)}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_plain_a_in_the_exact_case(dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(3)
    a = torch.randint(-8, 9, (5, 64), generator=gen).to(dtype)
    b = random_operand(7, 64, seed=4, top=0x7F)
    weights = exact_rows(b)
    expected = [
        [sum((Fraction(x) * w for x, w in zip(row, column, strict=True)), Fraction(0)) for column in weights]
        for row in a.tolist()
    ]
    assert_bits_equal(accumulate(a, b), torch.tensor([[rounded_to_fp32(v) for v in row] for row in expected]), "acc")
    d = gemm(a, b, out_dtype=torch.float32)
    assert_bits_equal(d, accumulate(a, b) * (b.amax * torch.tensor(1 / 2688)), "no decode scale for a")


def test_plain_a_with_non_finite_values() -> None:
    a = torch.tensor([[1.0] * 16, [INF] + [1.0] * 15, [NAN] + [0.0] * 15], dtype=torch.bfloat16)
    b = operand(torch.full((2, 16), 2, dtype=torch.uint8), torch.tensor([[0x38], [0x7F]], dtype=torch.uint8), 2688.0)
    expected = torch.tensor([[16.0, NAN], [INF, NAN], [NAN, NAN]])
    assert_bits_equal(gemm(a, b, out_dtype=torch.float32), expected, "d", nan_equal=True)


@pytest.mark.parametrize("row_a", [False, True])
@pytest.mark.parametrize("row_b", [False, True])
def test_product_of_the_dequantized_operands(row_a: bool, row_b: bool) -> None:
    a, b = random_operand(9, 80, 5, row_scaled=row_a), random_operand(11, 80, 6, row_scaled=row_b)
    wide_a, wide_b = ref.dequantize(a).double(), ref.dequantize(b).double()
    exact = wide_a @ wide_b.T
    # Per element: 2 roundings in each decode, 1 of acc, 2 + 2 in the decode scales of gemm and their products.
    bound = 12 * 2.0**-24 * (wide_a.abs() @ wide_b.abs().T)
    d = gemm(a, b, out_dtype=torch.float32)
    assert ((d.double() - exact).abs() <= bound).all()
    assert (exact.abs() > 100 * bound).any()


def test_needle_finds_its_place() -> None:
    for row, column, position in ((0, 0, 0), (3, 1, 15), (129, 5, 16), (31, 130, 79), (64, 33, 64)):
        codes_a, codes_b = (torch.zeros(131, 80, dtype=torch.uint8) for _ in range(2))
        codes_a[row, position], codes_b[column, position] = 2, 11  # 1 and -1.5
        scales = torch.full((131, 5), 0x38, dtype=torch.uint8)
        a, b = operand(codes_a, scales, 2688.0), operand(codes_b, scales, 2688.0)
        d = gemm(ref.swizzle_scales(a), b, out_dtype=torch.float32)
        assert d.nonzero().tolist() == [[row, column]]
        assert float(d[row, column]) == -1.5


def test_zero_blocks_at_the_end_change_nothing() -> None:
    a, b = random_operand(3, 48, 7), random_operand(4, 48, 8)

    def extended(op: NVFP4Operand) -> NVFP4Operand:
        codes = torch.nn.functional.pad(unpack(op.qdata), (0, 16))
        scales = torch.nn.functional.pad(op.block_scale.view(torch.uint8), (0, 1))
        return operand(codes, scales, op.amax)

    assert_bits_equal(gemm(extended(a), extended(b)), gemm(a, b), "d")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_output_is_rounded_once(dtype: torch.dtype) -> None:
    a, b = random_operand(9, 32, 9, top=0x40), random_operand(8, 32, 10, top=0x40)
    t = gemm(a, b, out_dtype=torch.float32, alpha=0.3)
    assert t.dtype is torch.float32
    assert_bits_equal(gemm(a, b, out_dtype=dtype, alpha=0.3), t.to(dtype), "d")
    assert gemm(a, b).dtype is torch.bfloat16


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (0, 0)])
def test_empty_output(m: int, n: int) -> None:
    a, b = random_operand(m, 32, 11), random_operand(n, 32, 12)
    d, r = gemm(a, b, return_amax="row")
    assert d.shape == (m, n)
    assert r.tolist() == [0.0] * m
    assert float(gemm(a, b, return_amax="tensor")[1]) == 0


def test_leading_sizes_of_a() -> None:
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(13))
    b = random_operand(16, 32, 14, top=0x40)
    flat = gemm(ref.quantize(x.view(6, 32)), b)
    assert_bits_equal(gemm(ref.quantize(x), b), flat.view(2, 3, 16), "operand")
    c = torch.ones(2, 3, 16)
    with_c = gemm(ref.quantize(x), b, c=c, out_format=NVFP4(), out_amax=8.0)
    assert with_c.shape == (2, 3, 16)
    plain = gemm(x.bfloat16(), b)
    assert_bits_equal(plain, gemm(x.bfloat16().view(6, 32), b).view(2, 3, 16), "plain")


def silu(t: float) -> float:
    return t / (1 + math.exp(-t)) if t > -700 else 0.0


def gelu(t: float) -> float:
    return 0.5 * t * math.erfc(-t / math.sqrt(2))


def gelu_tanh(t: float) -> float:
    return 0.5 * t * (1 + math.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)))


@pytest.mark.parametrize(("name", "function"), [("silu", silu), ("gelu", gelu), ("gelu_tanh", gelu_tanh)])
def test_activations(name: Any, function: Callable[[float], float]) -> None:
    t = torch.cat((torch.linspace(-120, 120, 4801), torch.linspace(-1, 1, 999), torch.tensor([1e30, -1e30, 1e-40])))
    a = operand(torch.zeros(1, 16, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))
    b = operand(torch.zeros(len(t), 16, dtype=torch.uint8), torch.zeros(len(t), 1, dtype=torch.uint8))
    d = gemm(a, b, out_dtype=torch.float32, bias=t, activation=name)[0].double()
    exact = torch.tensor([function(v) for v in t.tolist()], dtype=torch.float64)
    assert ((d - exact).abs() <= 2.0**-21 * t.double().abs()).all()
    special = gemm(a, b[:3], out_dtype=torch.float32, bias=torch.tensor([INF, -INF, NAN]), activation=name)[0]
    assert special[0] == INF
    assert special[1] == 0 or special[1].isnan()
    assert special[2].isnan()


OUTPUTS: tuple[tuple[dict[str, Any], Any], ...] = (
    ({}, 40.0),
    ({}, torch.tensor(-3e-5)),
    ({"e4m3_max": 256}, torch.tensor([7.0])),
    ({"scaling": "row"}, torch.linspace(0.0, 9.0, 5)),
    ({}, torch.tensor(NAN)),
    ({}, torch.tensor(0.0)),
)


@pytest.mark.parametrize(("fmt", "out_amax"), OUTPUTS, ids=str)
def test_nvfp4_output_is_the_float32_one_quantized(fmt: dict[str, Any], out_amax: Any) -> None:
    a, b = random_operand(5, 64, 15, row_scaled=True, top=0x30), random_operand(32, 64, 16, top=0x30)
    keywords: dict[str, Any] = {"alpha": 1.1, "bias": torch.linspace(-1, 1, 32), "activation": "silu"}
    t = gemm(a, b, out_dtype=torch.float32, **keywords)
    op, r = gemm(a, b, out_format=NVFP4(**fmt), out_amax=out_amax, return_amax="row", **keywords)
    assert_same_operand(op, ref.quantize(t, amax=out_amax, layout=ScaleLayout.SWIZZLED_128X4, **fmt))
    assert_bits_equal(r, t.abs().amax(dim=1), "amax of t")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_returned_amax_is_that_of_the_stored_output(dtype: torch.dtype, scaling: Any) -> None:
    a, b = random_operand(5, 64, 17, top=0x30), random_operand(32, 64, 18, top=0x30)
    d, r = gemm(a, b, out_dtype=dtype, alpha=1.3, return_amax=scaling)
    assert_bits_equal(r, ref.amax(d, scaling), "amax")
    assert_same_operand(ref.quantize(d, scaling=scaling, amax=r), ref.quantize(d, scaling=scaling))


def test_returned_amax_keeps_nan_and_inf() -> None:
    a, b = random_operand(3, 16, 19, top=0x30), random_operand(16, 16, 20, top=0x30)
    c = torch.zeros(3, 16)
    c[0, 3], c[1, 2], c[1, 5] = -INF, NAN, INF
    _, rows = gemm(a, b, c=c, return_amax="row")
    assert_bits_equal(rows[:2], from_bits(0x7F800000, 0x7FC00000), "rows")
    assert rows[2].isfinite()
    _, whole = gemm(a, b, c=c, return_amax="tensor")
    assert_bits_equal(whole, from_bits(0x7FC00000).view(()), "tensor")


def test_any_format_and_orientation_is_a_plain_operand() -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(21))
    w = torch.randn(48, 32, generator=torch.Generator().manual_seed(22))
    # x^T (64, 32) times w (48, 32) transposed, in formats of different second levels
    a = ref.quantize(x, orientation="columnwise", e4m3_max=256, scaling="row", layout=ScaleLayout.SWIZZLED_128X4)
    b = ref.quantize(w, block=(16, 16))
    d = gemm(a, b, out_dtype=torch.float32)
    exact = ref.dequantize(a).double() @ ref.dequantize(b).double().T
    torch.testing.assert_close(d.double(), exact, rtol=1e-5, atol=1e-5)
