# SPDX-License-Identifier: Apache-2.0
"""How a case of `tests/cases` or `tests/golden` is run against an implementation.

``api`` is any object with the functions of `blockscale` as attributes: `blockscale` itself, or `blockscale.reference`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockscale.formats import NVFP4, ScaleLayout
from blockscale.operand import NVFP4Operand

from .bits import assert_bits_equal, from_bits, from_hex
from .cases import CastCase, GemmCase, RefusalCase, ShapeCase
from .cases.refusals import Inputs
from .golden import GoldenCase

Device = torch.device | str


def check_cast(api: Any, case: CastCase, device: Device = "cpu") -> None:
    """`quantize`, `amax` and `dequantize` of a case, in both scale layouts."""
    x = case.x().to(device)
    given = case.given() if case.given is not None else None
    given = given.to(device) if isinstance(given, torch.Tensor) else given
    row_scaled = case.format.get("scaling") == "row"
    amax = from_bits(*case.amax).view(-1 if row_scaled else ())
    for layout in ScaleLayout:
        op = api.quantize(x, amax=given, layout=layout, **case.format)
        assert (op.layout, op.format, op.orientation) == (layout, NVFP4(**case.format), "rowwise")
        linear = api.unswizzle_scales(op).block_scale.view(torch.uint8)
        assert_bits_equal(op.amax, amax, "amax")
        assert_bits_equal(linear, from_hex(case.scales, len(x), -1), "block_scale")
        assert_bits_equal(op.qdata, from_hex(case.codes, len(x), -1), "qdata")
        if case.decode is not None:
            _check_values(api.dequantize(op), torch.tensor(case.decode).view(x.shape), case.decode_rtol)
    if given is None:
        assert_bits_equal(api.amax(x, "row" if row_scaled else "tensor"), amax, "amax()")


def check_golden(api: Any, case: GoldenCase, device: Device = "cpu") -> None:
    """Both orientations of a golden cast by `quantize`, with its own amax and with the stored one."""
    x = case.x.to(device)
    for orientation in ("rowwise", "columnwise"):
        expected = case.expected(orientation)
        if expected is None:
            continue
        data, scale, amax = expected
        for given in (None, amax.to(device)):
            op = api.quantize(x, orientation=orientation, amax=given, **case.format)
            what = f"{case} {orientation}"
            assert_bits_equal(op.amax, amax, f"{what} amax")
            assert_bits_equal(op.block_scale.view(torch.uint8), scale, f"{what} block_scale")
            assert_bits_equal(op.qdata, data, f"{what} qdata")


def check_gemm(api: Any, case: GemmCase, device: Device = "cpu") -> None:
    """`gemm` of a case against the bits of D; any NaN for NaN."""
    keywords = {key: _moved(value, device) for key, value in case.keywords().items()}
    expected = case.d()
    d = api.gemm(_moved(case.a(), device), _moved(case.b(), device), out_dtype=expected.dtype, **keywords)
    assert_bits_equal(d, expected, case.name, nan_equal=True)


def check_shape(api: Any, case: ShapeCase, device: Device = "cpu") -> None:
    """The shapes of `quantize` of ones, and that the result decodes to ones."""
    op = api.quantize(torch.ones(case.x, device=device), **case.keywords)
    shapes = (op.qdata.shape, op.block_scale.shape, op.amax.shape, op.shape)
    assert tuple(map(tuple, shapes)) == (case.qdata, case.block_scale, case.amax, case.operand)
    assert_bits_equal(api.dequantize(op), torch.ones(case.operand), "dequantize")
    empty = 0 in case.x
    assert_bits_equal(op.amax, torch.full(case.amax, 0.0 if empty else 1.0), "amax")


def check_refusal(api: Any, case: RefusalCase, device: Device = "cpu") -> None:
    """The exact exception type, and how its message starts."""
    with pytest.raises(case.error) as caught:
        case.call(Inputs(api, device))
    assert type(caught.value) is case.error, f"{type(caught.value).__name__}: {caught.value}"
    assert str(caught.value).startswith(case.start), caught.value


def _check_values(actual: torch.Tensor, expected: torch.Tensor, rtol: float) -> None:
    if rtol == 0:
        assert_bits_equal(actual, expected, "dequantize", nan_equal=True)
    else:
        torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=0)


def _moved(value: Any, device: Device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor | NVFP4Operand) else value
