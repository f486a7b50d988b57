# SPDX-License-Identifier: Apache-2.0
"""What an NVFP4Tensor holds: constructors, both orientations, writes in place, and what must not be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal, assert_same_operand

from .samples import FORMATS, LAYOUTS, TILES, addresses, assert_holds, random


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("options", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(48, 80), (256, 64), (4, 16, 32)], ids=str)
def test_quantize_holds_the_casts(
    shape: tuple[int, ...], options: dict[str, Any], columnwise: bool, layout: Any, gen: torch.Generator,
    device: torch.device,
) -> None:  # fmt: skip
    x = random(*shape, gen=gen, dtype=torch.bfloat16).to(device)
    t = NVFP4Tensor.quantize(x, columnwise=columnwise, layout=layout, **options)
    assert (t.shape, t.dtype, t.device, t.requires_grad) == (x.shape, torch.bfloat16, x.device, False)
    assert (t.format, t.scale_layout) == (bs.NVFP4(**options), layout)
    assert (t.has_rowwise, t.wants_columnwise) == (True, columnwise)
    assert_holds(t, x, **options)
    assert_bits_equal(t.dequantize(), bs.dequantize(t.rowwise, torch.bfloat16), "nominal dtype")
    for dtype in (torch.float32, torch.float16):
        assert_bits_equal(t.dequantize(dtype), bs.dequantize(t.rowwise, dtype), str(dtype))
    if columnwise:
        values = bs.dequantize(t.columnwise).t().reshape(shape)
        assert_bits_equal(t.dequantize(torch.float32, "columnwise"), values.contiguous(), "columnwise")


def test_given_amax_and_second_levels(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen).to(device)
    amax = torch.tensor(7.5, device=device)
    assert_holds(NVFP4Tensor.quantize(x, amax=amax, columnwise=True, **TILES), x, amax=amax, **TILES)
    pair = (bs.amax(x, "row") * 2, bs.amax(x, "column") * 3)
    t = NVFP4Tensor.quantize(x, amax=pair, columnwise=True, scaling="row")
    assert_same_operand(t.rowwise, bs.quantize(x, scaling="row", amax=pair[0]))
    assert_same_operand(t.columnwise, bs.quantize(x, scaling="row", amax=pair[1], orientation="columnwise"))


def test_constructors_share_storage(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen).to(device)
    row, column = bs.quantize_both(x, **TILES)
    for t in (
        NVFP4Tensor(row, column, dtype=torch.float16),
        NVFP4Tensor.from_operands(row, column, dtype=torch.float16),
    ):
        assert t.dtype is torch.float16
        assert addresses(t) == [p.data_ptr() for op in (row, column) for p in (op.qdata, op.block_scale, op.amax)]
    assert NVFP4Tensor(row).dtype is torch.bfloat16
    assert NVFP4Tensor(row, requires_grad=True).requires_grad


def test_bad_operands() -> None:
    x = torch.ones(32, 64)
    row, column = bs.quantize_both(x, **TILES)
    other = bs.quantize(x, orientation="columnwise")
    swizzled = bs.swizzle_scales(column)
    wrong_shape = bs.quantize(torch.ones(48, 64), orientation="columnwise", **TILES)
    for args, error, words in (
        ((None, None), ValueError, "operands must be at least one"),
        ((x,), TypeError, "rowwise must be an NVFP4Operand"),
        ((row, x), TypeError, "columnwise must be an NVFP4Operand"),
        ((column,), ValueError, "rowwise must be of orientation 'rowwise'"),
        ((row, row), ValueError, "columnwise must be of orientation 'columnwise'"),
        ((row, other), ValueError, "columnwise.format"),
        ((row, swizzled), ValueError, "columnwise.layout"),
        ((row, wrong_shape), ValueError, "columnwise must be of shape (64, 32)"),
    ):
        with pytest.raises(error) as caught:
            NVFP4Tensor(*args)
        assert words in str(caught.value) and str(caught.value).startswith("NVFP4Tensor: "), caught.value
    for dtype in (torch.float64, torch.uint8, "float32"):
        with pytest.raises(TypeError, match="dtype must be"):
            NVFP4Tensor(row, dtype=dtype)
    with pytest.raises(TypeError, match=r"NVFP4Tensor.quantize: x must be"):
        NVFP4Tensor.quantize(x.double())
    with pytest.raises(ValueError, match=r"K a multiple of 16"):
        NVFP4Tensor.quantize(torch.ones(16, 24))
    with pytest.raises(ValueError, match=r"M .* a multiple of 16"):
        NVFP4Tensor.quantize(torch.ones(17, 32), columnwise=True)


def test_bug_80_only_one_orientation(gen: torch.Generator) -> None:
    x = random(32, 64, gen=gen)
    for options in (TILES, {}):
        column = bs.quantize(x, orientation="columnwise", **options)
        t = NVFP4Tensor(None, column)
        assert t.shape == (32, 64) and not t.has_rowwise
        assert_bits_equal(t.dequantize(torch.float32, "columnwise"), bs.dequantize(column).t().contiguous(), "values")
        for read in (
            lambda t: t.rowwise,
            lambda t: t.dequantize(),
            lambda t: torch.nn.functional.linear(torch.ones(3, 64), t),
            lambda t: t.fsdp_pre_all_gather(None, torch.Size((32, 64)), (64, 1), None, None),
        ):
            with pytest.raises(ValueError, match=r"rowwise must be there.*(update_usage|1x16)|derived"):
                read(t)
        row_only = NVFP4Tensor.quantize(x, **options)
        with pytest.raises(ValueError, match=r"columnwise must be there"):
            _ = row_only.columnwise
    restored = NVFP4Tensor(None, bs.quantize(x, orientation="columnwise", **TILES))
    restored.update_usage(rowwise=True)
    assert_same_operand(restored.rowwise, bs.quantize(x, **TILES))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_update_usage(layout: Any, gen: torch.Generator, device: torch.device) -> None:
    x = random(48, 64, gen=gen).to(device)
    t = NVFP4Tensor.quantize(x, layout=layout, **TILES)
    t.update_usage(columnwise=True)
    assert_holds(t, x, **TILES)
    assert t.wants_columnwise
    t.update_usage(rowwise=False)
    assert not t.has_rowwise
    assert_same_operand(t.columnwise, bs.quantize(x, orientation="columnwise", layout=layout, **TILES))
    with pytest.raises(ValueError, match="one orientation at least"):
        t.update_usage(columnwise=False)
    t.update_usage(rowwise=True, columnwise=False)
    assert t.has_rowwise and not t.wants_columnwise
    assert_same_operand(t.rowwise, bs.quantize(x, layout=layout, **TILES))
    with pytest.raises(ValueError, match="block \\(16, 16\\)"):
        NVFP4Tensor.quantize(x).update_usage(columnwise=True)
    with pytest.raises(ValueError, match="rows a multiple of 16"):
        NVFP4Tensor.quantize(x[:17], **TILES).update_usage(columnwise=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columnwise", [False, True])
@pytest.mark.parametrize("options", FORMATS, ids=str)
def test_bug_70_writes_in_place(
    options: dict[str, Any], columnwise: bool, layout: Any, gen: torch.Generator, device: torch.device
) -> None:
    x = random(3, 16, 64, gen=gen).to(device)
    t = NVFP4Tensor.quantize(x, columnwise=columnwise, layout=layout, **options)
    before, version = addresses(t), t._version
    t.quantize_(3 * x)
    assert_holds(t, 3 * x, **options)
    t.copy_((x / 4).half())
    assert_holds(t, (x / 4).half(), **options)
    t.copy_(x.cpu().transpose(0, 1).contiguous().transpose(0, 1))
    assert_holds(t, x, **options)
    assert t.dtype is torch.float32
    t.zero_()
    assert all(not part.reshape(-1).view(torch.uint8).any() for part in t._held.tensors())
    t.copy_(NVFP4Tensor.quantize(5 * x, columnwise=columnwise, **options))
    assert_holds(t, 5 * x, **options)
    assert addresses(t) == before
    assert t._version == version + 5


def test_bug_32_three_dimensions(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 4, 64, gen=gen, dtype=torch.bfloat16).to(device)
    t = NVFP4Tensor(*bs.quantize_both(x))
    assert t.shape == (32, 4, 64) and t.columnwise.qdata.shape == (64, 64)
    t.copy_(x * 2)
    assert_holds(t, x * 2)
    w = bs.quantize(random(16, 64, gen=gen).to(device))
    assert bs.gemm(t.rowwise, w).shape == (32, 4, 16)


def test_writes_refuse_other_shapes_and_dtypes() -> None:
    t = NVFP4Tensor.quantize(torch.ones(32, 64), **TILES)
    for write in (t.quantize_, t.copy_):
        with pytest.raises(ValueError, match=r"of shape \(32, 64\); got \(64,\)\. Nothing is broadcast"):
            write(torch.ones(64))
        with pytest.raises(TypeError, match="float32, bfloat16 or float16"):
            write(torch.ones(32, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match="finite with nonfinite"):
        t.quantize_(torch.full((32, 64), torch.inf), nonfinite="raise")
    leaf = torch.nn.Parameter(t)
    with pytest.raises(NotImplementedError, match="no_grad"):
        leaf.quantize_(torch.ones(32, 64))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        leaf.copy_(torch.ones(32, 64))
    with torch.no_grad():
        leaf.quantize_(torch.full((32, 64), 2.0))
    assert torch.equal(t.dequantize(), torch.full((32, 64), 2.0)), "a parameter shares its bytes"


def test_bug_57_stale_columnwise(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen).to(device)
    new = bs.quantize(2 * x, **TILES)

    def changed(manual: bool) -> NVFP4Tensor:
        t = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
        alias = t.detach()
        for part in ("qdata", "block_scale", "amax"):  # as the primary-weight kernels write
            getattr(t.rowwise, part).copy_(getattr(new, part))
        t.mark_columnwise_stale(manual)
        assert t.columnwise_is_stale and alias.columnwise_is_stale
        return alias

    automatic = changed(False)
    before = addresses(automatic)
    assert_holds(automatic, 2 * x, **TILES)
    assert not automatic.columnwise_is_stale and addresses(automatic) == before

    manual = changed(True)
    for read in (lambda: manual.columnwise, lambda: manual.dequantize(orientation="columnwise")):
        with pytest.raises(ValueError, match="post_all_gather_processing"):
            read()
    assert manual.rowwise is not None, "rowwise data stays readable"
    manual.rebuild_columnwise()
    manual.rebuild_columnwise()
    assert_holds(manual, 2 * x, **TILES)

    other = changed(True)
    bs.transpose(other.rowwise, out=other.columnwise_buffer())
    other.mark_columnwise_current()
    assert_holds(other, 2 * x, **TILES)

    none = NVFP4Tensor.quantize(x, **TILES)
    none.mark_columnwise_stale(manual=True)
    assert not none.wants_columnwise
    none.rebuild_columnwise()
    assert_holds(none, x, **TILES)


def test_stale_data_of_1x16_blocks_cannot_be_derived(gen: torch.Generator) -> None:
    t = NVFP4Tensor.quantize(random(32, 64, gen=gen), columnwise=True)
    t.mark_columnwise_stale()
    with pytest.raises(ValueError, match="1x16 data, from which columnwise cannot be derived"):
        _ = t.columnwise
    x = random(32, 64, gen=gen)
    t.quantize_(x)
    assert_holds(t, x)


def test_bug_58_meta_and_unwritten(gen: torch.Generator, device: torch.device) -> None:
    with torch.device("meta"):
        t = NVFP4Tensor.quantize(torch.empty(64, 64), columnwise=True, **TILES)
    assert t.is_meta and t.rowwise.qdata.shape == (64, 32) and t.columnwise.block_scale.shape == (64, 4)
    with pytest.raises(ValueError, match="meta"):
        t.dequantize()
    r = torch.empty_like(t, device=device)
    assert type(r) is NVFP4Tensor and r.device == device and "not filled" in repr(r)
    for read in (
        lambda: r.dequantize(),
        lambda: r.rowwise,
        lambda: r.columnwise,
        lambda: torch.empty_like(t, device=device).copy_(r),
        lambda: r.__reduce_ex__(2),
    ):
        with pytest.raises(ValueError, match="no values in rows 0:64 of 64"):
            read()
    with pytest.raises(ValueError, match="no values"):
        r.clone().dequantize()
    with pytest.raises(NotImplementedError, match="meta"):
        t.to(device)
    x = random(64, 64, gen=gen).to(device)
    r.copy_(x)
    assert_holds(r, x, **TILES)


def test_a_parameter(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen, dtype=torch.bfloat16).to(device)
    t = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
    p = torch.nn.Parameter(t)
    assert isinstance(p, torch.nn.Parameter) and isinstance(p, NVFP4Tensor) and p.is_leaf and p.requires_grad
    assert addresses(p) == addresses(t) == addresses(p.data) and not p.data.requires_grad
    p.dequantize(torch.float32).sum().backward()
    assert type(p.grad) is torch.Tensor and p.grad.dtype is torch.bfloat16
    assert torch.equal(p.grad, torch.ones_like(p.grad)), "the gradient of dequantize is that of the identity"
    torch.optim.SGD([p], lr=0.1).zero_grad()
    assert p.grad is None
    with pytest.raises(NotImplementedError, match=r"\.data is not supported"):
        p.data = t

    layer = torch.nn.Linear(64, 32, device=device)
    layer.weight = p
    layer.to(torch.float16)
    assert layer.weight is p and p.dtype is torch.float16
    assert_holds(p.detach(), x, **TILES)
    layer.to("meta")
    assert p.is_meta
    layer.to_empty(device=device)
    with pytest.raises(ValueError, match="no values"):
        layer.weight.dequantize()


def test_repr_names_what_it_is() -> None:
    t = NVFP4Tensor.quantize(torch.ones(32, 64), columnwise=True, **TILES)
    t.mark_columnwise_stale(manual=True)
    text = repr(torch.nn.Parameter(t))
    for word in ("(32, 64)", "float32", "block=(16, 16)", "LINEAR", "stale until rebuilt", "cpu", "requires_grad"):
        assert word in text, text


def test_bug_53_sizes_count_elements_and_bytes_apart() -> None:
    t = NVFP4Tensor.quantize(torch.ones(64, 64), **TILES)
    last = t[48:]
    assert (t.numel(), t.rowwise.qdata.numel()) == (4096, 2048)
    assert last.numel() == 1024 and last.stride() == (64, 1)
    offset = last.rowwise.qdata.data_ptr() - t.rowwise.qdata.data_ptr()
    assert (48 * 64, offset) == (3072, 1536)


def test_freed_storage_is_an_error_not_a_crash() -> None:
    t = NVFP4Tensor.quantize(torch.ones(32, 64), **TILES)
    t.rowwise.qdata.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="storage that FSDP2 freed"):
        t.dequantize()


def test_inference_mode(gen: torch.Generator, device: torch.device) -> None:
    x = random(32, 64, gen=gen).to(device)
    outside = NVFP4Tensor.quantize(x, columnwise=True, **TILES)
    with torch.inference_mode():
        for t in (outside, NVFP4Tensor.quantize(x, columnwise=True, **TILES)):
            assert_holds(t, x, **TILES)
            assert_holds(t.detach()[:], x, **TILES)
            assert_bits_equal(t.clone().dequantize(), t.dequantize(), "values")
            bits = torch.nn.functional.linear(x, t)
            assert_bits_equal(bits, bs.gemm(bs.quantize(x, scaling="row"), t.rowwise, out_dtype=torch.float32), "y")
        t.quantize_(2 * x)
        assert_holds(t, 2 * x, **TILES)
        parts, metadata = t.fsdp_pre_all_gather(None, torch.Size((32, 64)), (64, 1), None, None)
        outputs = tuple(part.clone() for part in parts)
        whole, _ = t.fsdp_post_all_gather(outputs, metadata, None)
        t.fsdp_post_all_gather(outputs, metadata, None, out=whole)
        assert_holds(whole, 2 * x, **TILES)
