# SPDX-License-Identifier: Apache-2.0
"""NVFP4 output and returned amaxes: the bytes of quantizing the FP32 t, padding and second level included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.bits import assert_bits_equal, assert_same_operand, from_bits
from tests.gemm.operands import A_FORMATS, DTYPES, PAIRS, SWIZZLED, epilogue, exact_accumulator, exact_operand, on
from tests.memory import Guards, padding_bytes

F32 = torch.float32
INF, NAN = float("inf"), float("nan")
OUT_FORMATS: dict[str, dict[str, Any]] = {
    "tensor": {},
    "tensor_256": {"e4m3_max": 256},
    "row": {"scaling": "row"},
    "row_256": {"scaling": "row", "e4m3_max": 256},
}
EVERY_OUT = pytest.mark.parametrize("fmt", OUT_FORMATS.values(), ids=OUT_FORMATS)
RETURNS = pytest.mark.parametrize("kind", ["tensor", "row"])


def all_terms(m: int, n: int, gen: torch.Generator) -> dict[str, Any]:
    return {
        "alpha": 0.07,
        "beta": 0.4,
        "c": torch.randn(m, n, generator=gen).bfloat16(),
        "bias": torch.randn(n, generator=gen),
    }


def second_level(fmt: dict[str, Any], m: int, gen: torch.Generator, around: float = 4.0) -> torch.Tensor:
    shape = (m,) if fmt.get("scaling") == "row" else ()
    return torch.rand(shape, generator=gen) * around + 0.1


@pytest.mark.parametrize(("left", "right"), PAIRS)
@EVERY_OUT
def test_bytes_of_exact_operands(
    fmt: dict[str, Any], left: str, right: str, device: torch.device, gen: torch.Generator
) -> None:
    """Against the integer accumulator, the epilogue by lines and the reference's quantize, on every backend."""
    for m, n in ((1, 16), (33, 48), (129, 80), (5, 272)):
        a, b = exact_operand(m, 80, gen, A_FORMATS[left], SWIZZLED), exact_operand(n, 80, gen, A_FORMATS[right])
        keywords = all_terms(m, n, gen)
        out_amax = second_level(fmt, m, gen)
        t = epilogue(exact_accumulator(a, b), a, b, activation="relu", **keywords)
        want = ref.quantize(t, amax=out_amax, layout=SWIZZLED, **fmt)
        got, r = bs.gemm(
            on(device, a),
            on(device, b),
            out_format=bs.NVFP4(**fmt),
            out_amax=out_amax.to(device),
            activation="relu",
            return_amax="row",
            **on(device, keywords),
        )
        assert_same_operand(got, want)
        assert (padding_bytes(got) == 0).all()
        assert_bits_equal(r, t.abs().amax(dim=1), "max |t| of each row")
        assert got.qdata.count_nonzero() > 0


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu", "gelu_tanh"])
@EVERY_OUT
def test_equals_the_float32_output_quantized(
    fmt: dict[str, Any], activation: Any, device: torch.device, gen: torch.Generator
) -> None:
    """Nothing is narrowed to 16 bits in between: t of one call, quantized by another."""
    x, w = torch.randn(130, 144, generator=gen), torch.randn(112, 144, generator=gen)
    a = bs.quantize(x.to(device), scaling="row", layout=SWIZZLED)
    b = bs.quantize(w.to(device), block=(16, 16), layout=SWIZZLED)
    keywords = on(device, all_terms(130, 112, gen))
    out_amax = second_level(fmt, 130, gen).to(device)
    t, of_d = bs.gemm(a, b, out_dtype=F32, activation=activation, return_amax="tensor", **keywords)
    got, r = bs.gemm(
        a, b, out_format=bs.NVFP4(**fmt), out_amax=out_amax, activation=activation, return_amax="tensor", **keywords
    )
    assert_same_operand(got, bs.quantize(t, amax=out_amax, layout=SWIZZLED, **fmt))
    assert (got.shape, got.layout, got.orientation) == ((130, 112), SWIZZLED, "rowwise")
    assert_bits_equal(r, of_d, "max |t|")


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, 1e-36, 3e38, -2.0, INF, NAN])
@EVERY_OUT
def test_second_levels_at_the_edges(
    fmt: dict[str, Any], value: float, device: torch.device, gen: torch.Generator
) -> None:
    a, b = exact_operand(7, 48, gen), exact_operand(32, 48, gen)
    out_amax = second_level(fmt, 7, gen)
    if out_amax.dim():
        out_amax[3] = value
    else:
        out_amax.fill_(value)
    t = epilogue(exact_accumulator(a, b), a, b)
    got = bs.gemm(on(device, a), on(device, b), out_format=bs.NVFP4(**fmt), out_amax=out_amax.to(device))
    assert_same_operand(got, ref.quantize(t, amax=out_amax, layout=SWIZZLED, **fmt))


def test_a_number_as_second_level(device: torch.device, gen: torch.Generator) -> None:
    a, b = on(device, exact_operand(7, 48, gen)), on(device, exact_operand(32, 48, gen))
    tensor = bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=torch.tensor([2.5], device=device))
    assert_same_operand(bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=2.5), tensor)
    assert tuple(tensor.amax.shape) == ()


@EVERY_OUT
def test_the_stored_amax_is_a_fresh_copy(fmt: dict[str, Any], device: torch.device, gen: torch.Generator) -> None:
    """Delayed scaling updates out_amax at once: the operand must keep the level that its bytes were made with."""
    a, b = on(device, exact_operand(7, 48, gen)), on(device, exact_operand(32, 48, gen))
    out_amax = second_level(fmt, 7, gen).to(device)
    before = out_amax.clone()
    op = bs.gemm(a, b, out_format=bs.NVFP4(**fmt), out_amax=out_amax)
    out_amax.fill_(1e6)
    assert_bits_equal(op.amax, before, "amax")
    assert op.amax.data_ptr() != out_amax.data_ptr()
    assert_same_operand(op, bs.gemm(a, b, out_format=bs.NVFP4(**fmt), out_amax=before))


@EVERY_OUT
@pytest.mark.parametrize(("m", "n"), [(5, 48), (128, 64), (129, 16)])
def test_into_out(
    fmt: dict[str, Any], m: int, n: int, guards: Guards, device: torch.device, gen: torch.Generator
) -> None:
    """Every byte of a stale operand is written, and none around it."""
    a, b = on(device, exact_operand(m, 80, gen)), on(device, exact_operand(n, 80, gen))
    out_amax = second_level(fmt, m, gen).to(device)
    form = bs.NVFP4(**fmt)
    want = bs.gemm(a, b, out_format=form, out_amax=out_amax)
    out = guards.operand((m, n), SWIZZLED, form, device=device)
    assert bs.gemm(a, b, out_format=form, out_amax=out_amax, out=out) is out
    assert_same_operand(out, want)


def test_out_must_fit(device: torch.device, gen: torch.Generator) -> None:
    a, b = on(device, exact_operand(7, 48, gen)), on(device, exact_operand(32, 48, gen))
    for wrong, field in (
        (bs.quantize(torch.ones(7, 32, device=device)), "layout"),
        (bs.quantize(torch.ones(8, 32, device=device), layout=SWIZZLED), "shape"),
        (bs.quantize(torch.ones(7, 32, device=device), layout=SWIZZLED, e4m3_max=256), "format"),
    ):
        with pytest.raises(ValueError, match=f"^gemm: out.{field} must be"):
            bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=1.0, out=wrong)
    with pytest.raises(TypeError, match=r"^gemm: out must be an NVFP4Operand"):
        bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=1.0, out=torch.empty(7, 32, device=device))
    with pytest.raises(TypeError, match=r"^gemm: out_dtype must be None with out_format"):
        bs.gemm(a, b, out_format=bs.NVFP4(), out_amax=1.0, out_dtype=F32)


@pytest.mark.parametrize(("m", "n"), [(0, 32), (3, 0), (0, 0)])
@EVERY_OUT
def test_empty_output(fmt: dict[str, Any], m: int, n: int, device: torch.device, gen: torch.Generator) -> None:
    a, b = on(device, exact_operand(m, 48, gen)), on(device, exact_operand(n, 48, gen))
    out_amax = second_level(fmt, m, gen).to(device)
    for kind, shape in (("tensor", ()), ("row", (m,))):
        op, r = bs.gemm(a, b, out_format=bs.NVFP4(**fmt), out_amax=out_amax, return_amax=kind)
        assert op.shape == (m, n)
        assert_bits_equal(op.amax, out_amax, "amax")
        assert_bits_equal(r, torch.zeros(shape), "returned")


def test_no_k(device: torch.device, gen: torch.Generator) -> None:
    """t is the bias."""
    a, b = on(device, exact_operand(5, 0, gen)), on(device, exact_operand(32, 0, gen))
    bias = torch.randn(32, generator=gen)
    op, r = bs.gemm(a, b, bias=bias.to(device), out_format=bs.NVFP4(), out_amax=2.0, return_amax="tensor")
    assert_same_operand(op, ref.quantize(bias.expand(5, 32).contiguous(), amax=2.0, layout=SWIZZLED))
    assert_bits_equal(r, bias.abs().max(), "returned")


@RETURNS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_step_dynamic_mode(kind: Any, dtype: Any, device: torch.device, gen: torch.Generator) -> None:
    """With a float output r is the maximum of D as stored: quantize(D, amax=r) is quantize(D)."""
    for m, n in ((33, 80), (1, 16), (300, 272)):
        a = on(device, exact_operand(m, 80, gen, {"scaling": "row"}, SWIZZLED))
        b = on(device, exact_operand(n, 80, gen))
        d, r = bs.gemm(a, b, out_dtype=dtype, alpha=0.1, bias=torch.ones(n, device=device), return_amax=kind)
        assert_bits_equal(r, bs.amax(d, kind), "the stored maximum")
        assert_bits_equal(d, bs.gemm(a, b, out_dtype=dtype, alpha=0.1, bias=torch.ones(n, device=device)), "d")
        given = bs.quantize(d, scaling=kind, amax=r, layout=SWIZZLED)
        assert_same_operand(given, bs.quantize(d, scaling=kind, layout=SWIZZLED))


def test_the_returned_amax_follows_the_rounding(device: torch.device) -> None:
    """1 + 2^-9 is stored as 1 in bfloat16, and 65520 as inf in float16; of t it would be neither."""
    zero = on(device, ref.quantize(torch.zeros(1, 16)))
    weight = on(device, ref.quantize(torch.zeros(16, 16)))
    bias = torch.full((16,), 1 + 2.0**-9, device=device)
    assert float(bs.gemm(zero, weight, bias=bias, return_amax="tensor")[1]) == 1.0
    assert float(bs.gemm(zero, weight, bias=bias, return_amax="tensor", out_dtype=F32)[1]) == 1 + 2.0**-9
    op = bs.gemm(zero, weight, bias=bias, return_amax="tensor", out_format=bs.NVFP4(), out_amax=0.5)
    assert float(op[1]) == 1 + 2.0**-9  # of t, independent of out_amax
    bias.fill_(-65520.0)
    assert float(bs.gemm(zero, weight, bias=bias, return_amax="row", out_dtype=torch.float16)[1]) == INF


@RETURNS
def test_returned_amax_keeps_nan_and_inf(kind: Any, device: torch.device, gen: torch.Generator) -> None:
    a, b = on(device, exact_operand(40, 48, gen)), on(device, exact_operand(48, 48, gen))
    c = torch.zeros(40, 48)
    c[0, 3], c[39, 2], c[39, 47] = -INF, -NAN, INF
    bits = from_bits(0x7F800000, 0x7FC00000)
    for keywords in ({"out_dtype": F32}, {}, {"out_format": bs.NVFP4(), "out_amax": 1.0}):
        _, r = bs.gemm(a, b, c=c.to(device), return_amax=kind, **keywords)
        if kind == "tensor":
            assert_bits_equal(r, bits[1], "tensor")
        else:
            assert_bits_equal(r[[0, 39]], bits, "rows")
            assert r[1:39].isfinite().all()


def test_returned_amax_is_not_accumulated(device: torch.device, gen: torch.Generator) -> None:
    a, b = on(device, exact_operand(20, 48, gen)), on(device, exact_operand(48, 48, gen))
    large = bs.gemm(a, b, alpha=100.0, out_dtype=F32, return_amax="tensor")[1]
    small = bs.gemm(a, b, out_dtype=F32, return_amax="tensor")[1]
    assert small < large
    assert_bits_equal(small, bs.gemm(a, b, out_dtype=F32).abs().max(), "small")


def test_the_next_gemm_takes_it(device: torch.device, gen: torch.Generator) -> None:
    """A chain: the output of one layer is the operand of the next, without a cast between."""
    x = bs.quantize(torch.randn(2, 5, 64, generator=gen).to(device), scaling="row")
    w1 = bs.quantize(torch.randn(48, 64, generator=gen).to(device))
    w2 = bs.quantize(torch.randn(24, 48, generator=gen).to(device))
    h = bs.gemm(x, w1, activation="relu", out_dtype=F32)
    op = bs.gemm(x, w1, activation="relu", out_format=bs.NVFP4(), out_amax=h.abs().max())
    assert op.shape == (2, 5, 48)
    direct = bs.gemm(bs.quantize(h, layout=SWIZZLED), w2, out_dtype=F32)
    assert_bits_equal(bs.gemm(op, w2, out_dtype=F32), direct, "second layer")
