# SPDX-License-Identifier: Apache-2.0
"""`checkpoint.from_parts`: bytes of other systems, each convention by name; `decode_scale` and `encode_scale` back."""

from __future__ import annotations

import inspect
import io
import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale.checkpoint import decode_scale, encode_scale, from_parts
from blockscale.reference import scales as reference_scales

from ..bits import assert_bits_equal, assert_same_operand, from_bits

SWIZZLED = bs.ScaleLayout.SWIZZLED_128X4
FORMATS: list[dict[str, Any]] = [
    {},
    {"scaling": "row"},
    {"block": (16, 16)},
    {"e4m3_max": 256},
    {"scaling": "row", "e4m3_max": 256},
]


def made(rows: int = 48, k: int = 80, **options: Any) -> bs.NVFP4Operand:
    generator = torch.Generator().manual_seed(rows + k)
    return bs.quantize(torch.randn(rows, k, generator=generator), **options)


def parts(op: bs.NVFP4Operand, **changes: Any) -> bs.NVFP4Operand:
    arguments: dict[str, Any] = {"amax": op.amax, "layout": op.layout, "format": op.format}
    arguments.update(changes)
    return from_parts(op.qdata, op.block_scale, **arguments)


@pytest.mark.parametrize("options", FORMATS, ids=str)
@pytest.mark.parametrize("layout", bs.ScaleLayout)
def test_own_bytes_come_back(options: dict[str, Any], layout: bs.ScaleLayout) -> None:
    op = made(layout=layout, **options)
    assert_same_operand(parts(op), op)
    as_bytes = from_parts(op.qdata, op.block_scale.view(torch.uint8), amax=op.amax, layout=layout, format=op.format)
    assert_same_operand(as_bytes, op)
    columnwise = parts(op, orientation="columnwise")
    assert columnwise.orientation == "columnwise"


@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_bug_18_encode_and_decode_scales(options: dict[str, Any]) -> None:
    op = made(64, 64, **options)
    n = op.format.second_level_range
    # FP64, then one rounding: a product of 24 and 12 bits is exact there, and the quotient cannot fall on a tie.
    encode = (n / op.amax.double()).float()
    decode = (op.amax.double() / n).float()
    by_encode = parts(op, amax=None, encode_scale=encode)
    by_decode = parts(op, amax=None, decode_scale=decode)
    assert_bits_equal(by_encode.amax, (n / encode.double()).float(), "amax of encode_scale")
    assert_bits_equal(by_decode.amax, (n * decode.double()).float(), "amax of decode_scale")
    values = bs.dequantize(op)
    for other in (by_encode, by_decode):
        # Two roundings of the second level away: 2 ulp. A mix-up would be off by orders of magnitude.
        torch.testing.assert_close(bs.dequantize(other), values, rtol=2 * 2.0**-23, atol=0)
        assert_bits_equal(other.qdata, op.qdata, "qdata")


def test_bug_18_a_second_level_without_its_kind_is_refused() -> None:
    op = made()
    with pytest.raises(TypeError):
        from_parts(op.qdata, op.block_scale, op.amax)  # type: ignore[misc]
    for name in ("scale", "global_scale", "second_level"):
        with pytest.raises(TypeError, match=name):
            from_parts(op.qdata, op.block_scale, **{name: op.amax})
    with pytest.raises(ValueError, match="exactly one of amax, decode_scale and encode_scale; got none"):
        from_parts(op.qdata, op.block_scale)
    with pytest.raises(ValueError, match="got amax and encode_scale"):
        from_parts(op.qdata, op.block_scale, amax=op.amax, encode_scale=op.amax)
    parameters = inspect.signature(from_parts).parameters
    assert [name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY] == ["qdata", "block_scale"]


def test_one_fp32_operation() -> None:
    """Values for which a reciprocal and a product give another number than the quotient."""
    op = made()
    generator = torch.Generator().manual_seed(0)
    different = 0
    for value in torch.rand(200, generator=generator) * 100 + 0.01:
        exact = (2688.0 / value.double()).float()
        assert_bits_equal(parts(op, amax=None, encode_scale=value).amax, exact, "2688 / encode")
        different += int(value.reciprocal() * 2688.0 != exact)
    assert different > 10


def test_floats_are_taken_as_fp32() -> None:
    op = made()
    assert_bits_equal(parts(op, amax=0.1).amax, torch.tensor(0.1), "amax")
    assert_bits_equal(parts(op, amax=None, decode_scale=0.5).amax, torch.tensor(1344.0), "amax of decode_scale")
    assert_bits_equal(parts(op, amax=None, encode_scale=0.5).amax, torch.tensor(5376.0), "amax of encode_scale")
    one = parts(op, amax=op.amax.reshape(1))
    assert one.amax.shape == ()


def test_amax_is_a_copy() -> None:
    op, second = made(), torch.tensor(3.0)
    imported = parts(op, amax=second)
    second.fill_(7.0)
    assert_bits_equal(imported.amax, torch.tensor(3.0), "amax")


@pytest.mark.parametrize(
    ("arg", "value"),
    [("amax", -1.0), ("amax", torch.tensor(-1.0)), ("decode_scale", torch.tensor(-1e-3)), ("encode_scale", 0.0),
     ("encode_scale", torch.tensor(0.0)), ("decode_scale", torch.tensor(3e38)), ("encode_scale", torch.tensor(-2.0)),
     ("amax", math.nan), ("amax", math.inf), ("decode_scale", 1e-60)],
)  # fmt: skip
def test_second_levels_that_are_refused(arg: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"from_parts: {arg} must be"):
        parts(made(), **{"amax": None, arg: value})


def test_non_finite_second_level_propagates() -> None:
    op = made()
    assert_bits_equal(parts(op, amax=from_bits(0xFFC00123)[0]).amax, from_bits(0x7FC00000)[0], "canonical NaN")
    assert_bits_equal(parts(op, amax=torch.tensor(math.inf)).amax, torch.tensor(math.inf), "inf")
    assert_bits_equal(parts(op, amax=None, encode_scale=torch.tensor(math.inf)).amax, torch.tensor(0.0), "N / inf")
    assert bs.dequantize(parts(op, amax=torch.tensor(math.nan))).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("arg", ["amax", "decode_scale", "encode_scale"])
def test_second_level_of_another_dtype(arg: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"from_parts: {arg} must be float32"):
        parts(made(), **{"amax": None, arg: torch.ones((), dtype=dtype)})


def test_row_scaling_needs_a_value_for_each_row() -> None:
    op = made(scaling="row")
    for value in (1.0, torch.tensor(1.0), torch.ones(47)):
        with pytest.raises(ValueError, match=r"decode_scale must be .*\(48,\)"):
            parts(op, amax=None, decode_scale=value)


def test_bug_25_layout_is_said_once_and_kept() -> None:
    q = bs.quantize(torch.randn(128, 64, generator=torch.Generator().manual_seed(0)), layout=SWIZZLED)
    r = from_parts(q.qdata, q.block_scale, amax=q.amax, layout=SWIZZLED)
    assert bs.swizzle_scales(r) is r
    assert_same_operand(r, q)
    linear = bs.unswizzle_scales(r)
    # The shapes agree for 128 rows, the bytes do not: the flag decides.
    assert linear.block_scale.shape == r.block_scale.shape
    assert not torch.equal(linear.block_scale.view(torch.uint8), r.block_scale.view(torch.uint8))
    assert_bits_equal(bs.dequantize(linear), bs.dequantize(r), "values")
    with pytest.raises(AttributeError):
        r.layout = bs.ScaleLayout.LINEAR  # type: ignore[misc]
    buffer = io.BytesIO()
    torch.save(r, buffer)
    buffer.seek(0)
    for other in (r.clone(), torch.load(buffer, weights_only=True), r[0:128]):
        assert_same_operand(other, q)


def test_bug_25_padding_of_swizzled_scales_becomes_zero() -> None:
    op = made(40, 80, layout=SWIZZLED)
    ones = from_parts(op.qdata, torch.full((40, 5), 0x38, dtype=torch.uint8), amax=1.0)
    inside = bs.swizzle_scales(ones).block_scale.view(torch.uint8) != 0
    dirty = torch.where(inside, op.block_scale.view(torch.uint8), torch.tensor(0xFF, dtype=torch.uint8))
    assert int(inside.sum()) == 200 and dirty.shape == (128, 8)
    assert_same_operand(from_parts(op.qdata, dirty, amax=op.amax, layout=SWIZZLED), op)


def test_bug_35_k_counts_elements() -> None:
    q = made(128, 256)
    with pytest.raises(ValueError) as caught:
        from_parts(q.qdata, q.block_scale[:, :8].contiguous(), amax=q.amax)
    for text in ("(128, 256)", "(128, 16)", "(128, 8)"):
        assert text in str(caught.value)
    assert from_parts(q.qdata, q.block_scale, amax=q.amax).shape == (128, 256)
    assert "(128, 256)" in repr(q)
    for layout, shape in ((bs.ScaleLayout.LINEAR, (128, 32)), (SWIZZLED, (128, 12)), (SWIZZLED, (256, 16))):
        scales = torch.zeros(shape, dtype=torch.uint8)
        with pytest.raises(ValueError, match=rf"\(128, 16\).*\(128, 256\).*\({shape[0]}, {shape[1]}\)"):
            from_parts(q.qdata, scales, amax=q.amax, layout=layout)
    for shape in ((128, 128), (64, 256), (256,), ()):
        with pytest.raises(ValueError, match="from_parts: shape must be"):
            from_parts(q.qdata, q.block_scale, amax=q.amax, shape=shape)


def test_leading_dimensions() -> None:
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(1))
    op = bs.quantize(x)
    assert_same_operand(from_parts(op.qdata, op.block_scale, amax=op.amax, shape=(2, 3, 32)), op)
    stacked = from_parts(op.qdata.view(2, 3, 16), op.block_scale.view(2, 3, 2), amax=op.amax)
    assert_same_operand(stacked, op)
    empty = bs.quantize(torch.empty(0, 32))
    assert_same_operand(from_parts(empty.qdata, empty.block_scale, amax=empty.amax), empty)


def test_bug_38_nibble_order() -> None:
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 1] = 6.0, -0.5
    q = bs.quantize(x)
    assert int(q.qdata[0, 0]) == 0x97
    high_first = ((q.qdata & 15) << 4) | (q.qdata >> 4)
    assert int(high_first[0, 0]) == 0x79
    swapped = from_parts(high_first, q.block_scale, amax=q.amax, nibble_order="high_first")
    assert_same_operand(swapped, q)
    assert not torch.equal(bs.dequantize(from_parts(high_first, q.block_scale, amax=q.amax)), bs.dequantize(q))
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    scales = torch.full((16, 2), 0x38, dtype=torch.uint8)
    low = from_parts(every, scales, amax=1.0)
    high = from_parts(every, scales, amax=1.0, nibble_order="high_first")
    pairs = bs.dequantize(low).view(16, 16, 2)
    assert_bits_equal(bs.dequantize(high).view(16, 16, 2), pairs.flip(2), "all 256 bytes")
    for wrong in ("high", True, None):
        with pytest.raises(ValueError, match="from_parts: nibble_order must be"):
            from_parts(every, scales, amax=1.0, nibble_order=wrong)  # type: ignore[arg-type]


def test_bug_64_scales_of_another_dtype() -> None:
    q = made(16, 64)
    for wrong in (q.block_scale.float(), q.block_scale.to(torch.int32), q.block_scale.view(torch.int8),
                  q.block_scale.to(torch.bfloat16), q.block_scale.to(torch.float8_e5m2)):  # fmt: skip
        with pytest.raises(TypeError, match="from_parts: block_scale must be float8_e4m3fn"):
            from_parts(q.qdata, wrong, amax=q.amax)
    for dtype in (torch.int8, torch.int32, torch.float32):
        with pytest.raises(TypeError, match="from_parts: qdata must be uint8"):
            from_parts(q.qdata.to(dtype), q.block_scale, amax=q.amax)
    with pytest.raises(TypeError, match="from_parts: format must be an NVFP4"):
        from_parts(q.qdata, q.block_scale, amax=q.amax, format="nvfp4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="from_parts: layout must be a ScaleLayout"):
        from_parts(q.qdata, q.block_scale, amax=q.amax, layout="linear")  # type: ignore[arg-type]


def test_scale_bytes_above_7f_are_refused() -> None:
    q = made(16, 64)
    for byte in (0x80, 0xB8, 0xFF):
        scales = q.block_scale.view(torch.uint8).clone()
        scales[3, 2] = byte
        with pytest.raises(ValueError, match=f"0x{byte:02X} at offset 14"):
            from_parts(q.qdata, scales, amax=q.amax)
    nan = q.block_scale.view(torch.uint8).clone()
    nan[3, 2] = 0x7F
    values = bs.dequantize(from_parts(q.qdata, nan, amax=q.amax))
    assert values[3, 32:48].isnan().all() and int(values.isnan().sum()) == 16


def test_strided_parts_are_refused() -> None:
    q = made(16, 64)
    with pytest.raises(ValueError, match="qdata must be contiguous"):
        from_parts(q.qdata.t().contiguous().t(), q.block_scale, amax=q.amax)
    with pytest.raises(ValueError, match="block_scale must be contiguous"):
        from_parts(q.qdata, q.block_scale.t().contiguous().t(), amax=q.amax)


def test_tiles_have_one_scale() -> None:
    op = made(40, 64, block=(16, 16))
    assert_same_operand(parts(op), op)
    scales = op.block_scale.view(torch.uint8).clone()
    scales[33, 1] ^= 1
    with pytest.raises(ValueError, match="row 33, block 1"):
        from_parts(op.qdata, scales, amax=op.amax, format=op.format)
    one_row = bs.NVFP4(block=(1, 16))
    assert from_parts(op.qdata, scales, amax=op.amax, format=one_row).format == one_row


@pytest.mark.parametrize("n", [2688, 1536])
def test_exported_second_levels_are_the_contracts(n: int) -> None:
    patterns = [0, 1, 0x00800000, 0x05280000, 0x05280001, 0x3F800000, 0x3DCCCCCD, 0x45280000, 0x7F7FFFFF,
                0x7F800000, 0x7FC00000]  # fmt: skip
    amax = torch.cat([from_bits(*patterns), torch.rand(500, generator=torch.Generator().manual_seed(2)) * 50])
    fmt = bs.NVFP4(scaling="row", e4m3_max=n // 6)
    rows = len(amax)
    codes, scales = torch.zeros(rows, 8, dtype=torch.uint8), torch.zeros(rows, 1, dtype=torch.uint8)
    op = from_parts(codes, scales, amax=amax, format=fmt)
    decode, encode = decode_scale(op), encode_scale(op)
    assert_bits_equal(decode, reference_scales.decode_scale(amax, n), "decode", nan_equal=True)
    assert_bits_equal(encode, reference_scales.encode_scale(amax, n), "encode", nan_equal=True)
    assert float(encode[0]) == 1.0 and bool(encode[9:11].isnan().all())
    assert float(encode[1]) == torch.finfo(torch.float32).max
    if n == 2688:
        unit = from_parts(codes[:1], scales[:1], amax=1.0)
        assert_bits_equal(decode_scale(unit), from_bits(0x39C30C31)[0], "1/2688")
        assert_bits_equal(encode_scale(unit), from_bits(0x45280000)[0], "2688")
    for function in (decode_scale, encode_scale):
        with pytest.raises(TypeError, match="must be an NVFP4Operand"):
            function(amax)  # type: ignore[arg-type]


LOADER = """
import sys, torch, blockscale as bs
operands = torch.load(sys.argv[1], weights_only=True, map_location="cpu")
for op in operands:
    print(repr(op.shape), op.layout.name, op.orientation, op.format, int(op.qdata.sum()), float(op.amax.sum()))
"""


def test_bug_73_save_and_load_keep_every_field(tmp_path: Any) -> None:
    x = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(3))
    operands = [
        bs.quantize(x, scaling="row", layout=SWIZZLED),
        bs.quantize(x, block=(16, 16), e4m3_max=256),
        bs.quantize(x, orientation="columnwise"),
        bs.NVFP4Operand(torch.zeros(16, 8, dtype=torch.uint8), torch.zeros(16, 1, dtype=torch.uint8), torch.tensor(1.0),
                        (16, 16), format=bs.NVFP4(rht=0xD7E8), orientation="columnwise"),
        bs.quantize(x[:0]),
    ]  # fmt: skip
    path = tmp_path / "operands.pt"
    torch.save(operands, path)
    loaded = torch.load(path, weights_only=True, map_location="cpu")
    for got, want in zip(loaded, operands, strict=True):
        assert_same_operand(got, want)
    fresh = subprocess.run([sys.executable, "-c", LOADER, str(path)], capture_output=True, text=True, check=True)
    expected = [
        f"{op.shape!r} {op.layout.name} {op.orientation} {op.format} {int(op.qdata.sum())} {float(op.amax.sum())}"
        for op in operands
    ]
    assert fresh.stdout.splitlines() == expected


def test_bug_73_a_state_of_another_version_is_refused() -> None:
    restore, (version, state) = made().__reduce__()
    with pytest.raises(ValueError, match="state version"):
        restore(version + 1, state)


@pytest.mark.gpu
def test_check_reads_a_cuda_tensor_only_when_asked(cuda: torch.device) -> None:
    q = made(16, 64).to(cuda)
    scales = q.block_scale.view(torch.uint8).clone()
    scales[3, 2] = 0x80
    with pytest.raises(ValueError, match="0x80 at offset 14"):
        from_parts(q.qdata, scales, amax=q.amax)
    torch.cuda.set_sync_debug_mode("error")
    try:
        unchecked = from_parts(q.qdata, scales, decode_scale=q.amax, nibble_order="high_first", check=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert unchecked.amax.is_cuda
