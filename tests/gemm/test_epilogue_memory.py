# SPDX-License-Identifier: Apache-2.0
"""Where gemm reads and writes: views, aliases, guards, memory that must not be read, shapes that are empty or 3-D."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from tests.bits import assert_bits_equal
from tests.gemm.operands import A_FORMATS, DTYPES, SWIZZLED, exact_operand, on
from tests.memory import Guards

F32 = torch.float32
NAN = float("nan")
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture
def pair(device: torch.device, gen: torch.Generator) -> tuple[Any, Any]:
    """Operands (7, 48) row-scaled and (33, 48)."""
    return on(device, exact_operand(7, 48, gen, {"scaling": "row"}, SWIZZLED)), on(device, exact_operand(33, 48, gen))


@EVERY_DTYPE
def test_out_with_guards(dtype: Any, pair: Any, guards: Guards, device: torch.device) -> None:
    a, b = pair
    out = guards.empty((7, 33), dtype, device)
    assert bs.gemm(a, b, out=out) is out
    assert_bits_equal(out, bs.gemm(a, b, out_dtype=dtype), "out")


@EVERY_DTYPE
@pytest.mark.parametrize(("row_stride", "offset"), [(34, 0), (33, 3), (40, 7), (66, 1)])
def test_out_is_a_strided_view(
    dtype: Any, row_stride: int, offset: int, pair: Any, guards: Guards, device: torch.device
) -> None:
    """Elements between the rows keep their bytes."""
    a, b = pair
    whole = guards.empty((7 * row_stride + 8,), dtype, device)
    view = whole.as_strided((7, 33), (row_stride, 1), whole.storage_offset() + offset)
    inside = torch.zeros_like(whole, dtype=torch.bool)
    inside.as_strided((7, 33), (row_stride, 1), offset).fill_(True)
    before = whole.clone()
    bs.gemm(a, b, out=view, bias=torch.ones(33, device=device))
    expected = bs.gemm(a, b, out_dtype=dtype, bias=torch.ones(33, device=device))
    assert_bits_equal(view, expected, "view")
    assert_bits_equal(whole[~inside], before[~inside], "between the rows")


@EVERY_DTYPE
def test_c_is_out(dtype: Any, pair: Any, device: torch.device, gen: torch.Generator) -> None:
    a, b = pair
    c = torch.randn(7, 33, generator=gen).to(dtype).to(device)
    expected = bs.gemm(a, b, out_dtype=dtype, c=c, beta=0.5, alpha=0.3)
    same = c.clone()
    assert bs.gemm(a, b, c=same, beta=0.5, alpha=0.3, out=same) is same
    assert_bits_equal(same, expected, "aliased")
    wide = torch.zeros(7, 40, dtype=dtype, device=device)
    wide[:, 3:36] = c
    bs.gemm(a, b, c=wide[:, 3:36], beta=0.5, alpha=0.3, out=wide[:, 3:36])
    assert_bits_equal(wide[:, 3:36], expected, "aliased view")
    assert wide[:, :3].count_nonzero() + wide[:, 36:].count_nonzero() == 0


@EVERY_DTYPE
def test_c_is_a_strided_view(dtype: Any, pair: Any, device: torch.device, gen: torch.Generator) -> None:
    a, b = pair
    wide = torch.full((14, 50), NAN, dtype=dtype, device=device)
    view = wide[1::2, 5:38]
    view.copy_(torch.randn(7, 33, generator=gen).to(device))
    expected = bs.gemm(a, b, out_dtype=F32, c=view.contiguous(), beta=-2.0)
    assert_bits_equal(bs.gemm(a, b, out_dtype=F32, c=view, beta=-2.0), expected, "view")


@pytest.mark.parametrize("out_dtype", DTYPES, ids=str)
@EVERY_DTYPE
def test_beta_0_does_not_read_c(dtype: Any, out_dtype: Any, pair: Any, device: torch.device) -> None:
    a, b = pair
    plain = bs.gemm(a, b, out_dtype=out_dtype)
    for value in (NAN, float("inf")):
        c = torch.full((7, 33), value, dtype=dtype, device=device)
        for beta in (0.0, -0.0, 0):
            assert_bits_equal(bs.gemm(a, b, out_dtype=out_dtype, c=c, beta=beta), plain, f"beta {beta}")
    out = torch.full((7, 33), NAN, dtype=out_dtype, device=device)
    assert_bits_equal(bs.gemm(a, b, c=out, beta=0.0, out=out), plain, "aliased")


def test_bias_is_a_view(pair: Any, device: torch.device) -> None:
    a, b = pair
    bias = torch.arange(99.0, device=device)
    expected = bs.gemm(a, b, out_dtype=F32, bias=bias[33:66].clone())
    assert_bits_equal(bs.gemm(a, b, out_dtype=F32, bias=bias[33:66]), expected, "offset")
    with pytest.raises(ValueError, match=r"^gemm: bias must be contiguous"):
        bs.gemm(a, b, bias=bias[::3])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_alpha_is_a_number_or_a_tensor(shape: tuple[int, ...], pair: Any, device: torch.device) -> None:
    a, b = pair
    for value in (0.0, 1.0, -0.3, 1e-30, 3e38, -0.0):
        number = bs.gemm(a, b, out_dtype=F32, alpha=value)
        tensor = bs.gemm(a, b, out_dtype=F32, alpha=torch.full(shape, value, device=device))
        assert_bits_equal(tensor, number, f"alpha {value}")
    assert_bits_equal(bs.gemm(a, b, alpha=2), bs.gemm(a, b, alpha=2.0), "an int")
    for value in (NAN, float("inf")):  # a device value is not looked at
        d = bs.gemm(a, b, out_dtype=F32, alpha=torch.full(shape, value, device=device))
        assert not d.isfinite().any()


@pytest.mark.parametrize("m", [0, 1, 9])
@pytest.mark.parametrize("n", [0, 1, 9])
@pytest.mark.parametrize("k", [0, 48])
def test_empty_sizes(m: int, n: int, k: int, device: torch.device, gen: torch.Generator) -> None:
    for left in A_FORMATS.values():
        a, b = on(device, exact_operand(m, k, gen, left, SWIZZLED)), on(device, exact_operand(n, k, gen))
        c, bias = torch.full((m, n), 2.0, device=device), torch.arange(float(n), device=device)
        d, r = bs.gemm(a, b, out_dtype=F32, c=c, beta=1.5, bias=bias, return_amax="row")
        assert tuple(d.shape) == (m, n)
        assert tuple(r.shape) == (m,)
        _, whole = bs.gemm(a, b, out_dtype=F32, return_amax="tensor")
        assert tuple(whole.shape) == ()
        if k == 0:
            assert_bits_equal(d, (3.0 + bias).expand(m, n).contiguous(), "d")
            assert float(whole) == 0
        if m == 0 or n == 0:
            assert float(whole) == 0
            assert r.count_nonzero() == 0
        out = torch.full((m, n), NAN, device=device)
        bs.gemm(a, b, out=out)
        assert not out.isnan().any()
    plain = torch.ones(m, k, dtype=torch.bfloat16, device=device)
    assert tuple(bs.gemm(plain, b).shape) == (m, n)


@pytest.mark.parametrize("lead", [(2, 3), (6, 1), (1, 6), (1, 2, 3), (3, 0)])
def test_leading_sizes(lead: tuple[int, ...], device: torch.device, gen: torch.Generator) -> None:
    x = torch.randn(*lead, 64, generator=gen).to(device)
    w = bs.quantize(torch.randn(24, 64, generator=gen).to(device), block=(16, 16))
    c = torch.randn(*lead, 24, generator=gen).to(device)
    m = x.numel() // 64
    for a, flat in (
        (bs.quantize(x, scaling="row"), bs.quantize(x.view(m, 64), scaling="row")),
        (bs.quantize(x, layout=SWIZZLED), bs.quantize(x.view(m, 64), layout=SWIZZLED)),
        (x.bfloat16(), x.view(m, 64).bfloat16()),
    ):
        d = bs.gemm(a, w, c=c, out_dtype=F32)
        expected = bs.gemm(flat, w, c=c.view(m, 24), out_dtype=F32)
        assert_bits_equal(d, expected.view(*lead, 24), "d")
        out = torch.full((*lead, 24), NAN, device=device)
        assert bs.gemm(a, w, c=c, out=out) is out
        assert_bits_equal(out, d, "out")
    vector = bs.gemm(x.reshape(m, 64)[:1].reshape(-1)[:64].bfloat16(), w) if m else None
    if vector is not None:
        assert tuple(vector.shape) == (24,)


@pytest.mark.parametrize("name", ["bias", "c", "alpha"])
def test_gradients_are_refused(name: str, pair: Any, device: torch.device) -> None:
    a, b = pair
    shape = {"bias": (33,), "c": (7, 33), "alpha": ()}[name]
    tensor = torch.ones(shape, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match=f"^gemm: {name} must be free of requires_grad.*requires_grad=True"):
        bs.gemm(a, b, **{name: tensor})
    with torch.no_grad():
        d = bs.gemm(a, b, **{name: tensor}, out_dtype=F32)
    assert not d.requires_grad
    assert_bits_equal(d, bs.gemm(a, b, **{name: tensor.detach()}, out_dtype=F32), name)
    out = torch.zeros(7, 33, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^gemm: out must be free of requires_grad"):
        bs.gemm(a, b, out=out)


def test_out_fixes_the_dtype(pair: Any, device: torch.device) -> None:
    a, b = pair
    assert bs.gemm(a, b).dtype is torch.bfloat16
    out = torch.empty(7, 33, dtype=torch.float16, device=device)
    with pytest.raises(TypeError, match=r"^gemm: out_dtype must be torch.float16, that of out; got torch.float32"):
        bs.gemm(a, b, out=out, out_dtype=F32)
    with pytest.raises(ValueError, match=r"^gemm: out must be of shape \(7, 33\); got \(33, 7\)"):
        bs.gemm(a, b, out=torch.empty(33, 7, device=device))
    with pytest.raises(ValueError, match=r"^gemm: out must be free of overlapping rows"):
        bs.gemm(a, b, out=torch.empty(1, 33, device=device).expand(7, 33))
    with pytest.raises(ValueError, match=r"^gemm: out must be contiguous in its last dimension"):
        bs.gemm(a, b, out=torch.empty(33, 7, device=device).t())
