# SPDX-License-Identifier: Apache-2.0
"""The table of torch ops: each accepted call gives the right bytes, every other one is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal, assert_same_operand

from .samples import FORMATS, LAYOUTS, SWIZZLED, TILES, addresses, assert_holds, assert_same_tensor, random

M, K = 64, 96


def make(
    gen: torch.Generator, device: torch.device, layout: Any = bs.ScaleLayout.LINEAR, **options: Any
) -> NVFP4Tensor:
    """(64, 96), both orientations, (16, 16) blocks unless said."""
    options = options or TILES
    x = random(M, K, gen=gen, dtype=torch.bfloat16).to(device)
    return NVFP4Tensor.quantize(x, columnwise=True, layout=layout, **options)


WHOLE: dict[str, Callable[[NVFP4Tensor], Tensor]] = {
    "[:]": lambda t: t[:],
    "[...]": lambda t: t[...],
    "[0:M]": lambda t: t[0:M],
    "[-M:]": lambda t: t[-M:],
    "[:, :]": lambda t: t[:, :],
    "[:, 0:K]": lambda t: t[:, 0:K],
    "[:10**9]": lambda t: t[: 10**9],
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "alias": lambda t: torch.ops.aten.alias(t),
    "as_strided": lambda t: t.as_strided((M, K), (K, 1), 0),
    "torch.as_strided": lambda t: torch.as_strided(t, (M, K), (K, 1)),
    "view": lambda t: t.view(M, K),
    "view(-1, K)": lambda t: t.view(-1, K),
    "reshape": lambda t: t.reshape(M, -1),
    "view back": lambda t: t.view(4, 16, K).view(M, K),
    "flat and back": lambda t: t.view(-1).detach().view(M, K),
    "flatten": lambda t: t.flatten().view(M, K),
    "narrow": lambda t: t.narrow(0, 0, M),
    "narrow dim 1": lambda t: t.narrow(-1, 0, K),
    "split": lambda t: t.split(M)[0],
    "split beyond": lambda t: t.split(10 * M)[0],
    "chunk": lambda t: t.chunk(1)[0],
    "contiguous": lambda t: t.contiguous(),
    "to": lambda t: t.to(t.device),
    "view_as": lambda t: t.view_as(t),
}
"""Calls that give another object around the same bytes."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WHOLE)
def test_aliases(name: str, layout: Any, gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device, layout)
    alias = WHOLE[name](t)
    assert addresses(alias) == addresses(t)
    assert_same_tensor(alias, t)
    x = random(M, K, gen=gen).to(device)
    alias.copy_(x)
    assert_holds(t, x, **TILES)


def test_leading_sizes_and_flat(gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device)
    cube = t.view(2, 32, K)
    assert cube.shape == cube.rowwise.shape == (2, 32, K)
    assert_bits_equal(cube.dequantize(), t.dequantize().view(2, 32, K), "values")
    assert_same_operand(cube[1:].rowwise, bs.NVFP4Operand(
        t.rowwise.qdata[32:], t.rowwise.block_scale[32:], t.rowwise.amax, (1, 32, K), t.scale_layout, t.format
    ))  # fmt: skip
    flat = t.view(-1)
    assert (flat.shape, flat.numel(), flat.size(0)) == ((M * K,), M * K, M * K)
    assert "NVFP4Tensor" in repr(flat.detach())
    for refused in (flat.clone, flat.dequantize, lambda: flat[:16], lambda: flat.rowwise, lambda: flat.copy_(flat)):
        with pytest.raises(NotImplementedError):
            refused()


COPIES: dict[str, Callable[[NVFP4Tensor], Tensor]] = {
    "clone": lambda t: t.clone(),
    "clone preserve": lambda t: t.clone(memory_format=torch.preserve_format),
    "to copy": lambda t: t.to(t.device, copy=True),
    "cpu and back": lambda t: t.cpu().to(t.device, copy=True),
    "half": lambda t: t.half(),
    "float": lambda t: t.float(),
    "empty_like": lambda t: torch.empty_like(t).copy_(t),
    "new_empty": lambda t: t.new_empty(t.size()).copy_(t),
    "new_empty swapped layout": lambda t: _other_layout(t).new_empty(t.size()).copy_(t),
}


def _other_layout(t: NVFP4Tensor) -> NVFP4Tensor:
    change = bs.unswizzle_scales if t.scale_layout is SWIZZLED else bs.swizzle_scales
    return NVFP4Tensor(change(t.rowwise), change(t.columnwise), dtype=t.dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", FORMATS, ids=str)
@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str, options: dict[str, Any], layout: Any, gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device, layout, **(options or {"scaling": "tensor"}))
    if name.startswith(("empty", "new")) and t.format.block == (1, 16):
        t.update_usage(columnwise=False)
        if name.endswith("layout"):
            return
    copied = COPIES[name](t)
    assert not set(addresses(copied)) & set(addresses(t))
    assert copied.dtype is {"half": torch.float16, "float": torch.float32}.get(name, torch.bfloat16)
    for orientation in ("rowwise", "columnwise") if t.wants_columnwise else ("rowwise",):
        theirs = bs.unswizzle_scales(getattr(copied, orientation))
        assert_same_operand(theirs, bs.unswizzle_scales(getattr(t, orientation)))


def test_new_tensors(gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device, SWIZZLED)
    for zeros in (t.new_zeros((33, 32)), t.new_zeros(33, 32, dtype=torch.float16), t.new_zeros((33, 2, 32))):
        assert (zeros.format, zeros.scale_layout, zeros.device) == (t.format, SWIZZLED, t.device)
        assert not any(part.reshape(-1).view(torch.uint8).any() for part in zeros._held.tensors())
        assert_bits_equal(zeros.dequantize(torch.float32), torch.zeros(zeros.shape), "zeros")
    like = torch.zeros_like(t)
    assert_same_operand(like.columnwise, bs.transpose(like.rowwise))
    assert not like.columnwise.qdata.any() and not like.columnwise.amax.any()
    assert t.new_empty(0).shape == (0,)
    assert t.new_empty((0, K)).rowwise.rows == 0
    for refused in (
        lambda: t.new_zeros(32, 17),
        lambda: t.new_empty(()),
        lambda: t.new_zeros(32, 32, dtype=torch.uint8),
        lambda: torch.zeros_like(t, dtype=torch.float64),
        lambda: torch.ones_like(t),
        lambda: t.new_full((32, 32), 1.0),
        lambda: torch.empty_like(t, memory_format=torch.channels_last),
    ):
        with pytest.raises(NotImplementedError, match="NVFP4Tensor: aten"):
            refused()


PARTS: dict[str, tuple[Callable[[NVFP4Tensor], Tensor], int, int]] = {
    "[16:]": (lambda t: t[16:], 16, M),
    "[:16]": (lambda t: t[:16], 0, 16),
    "[-16:]": (lambda t: t[-16:], 48, M),
    "[16:-16]": (lambda t: t[16:-16], 16, 48),
    "[16:][16:]": (lambda t: t[16:][16:32], 32, 48),
    "[:, :] of rows": (lambda t: t[16:, :], 16, M),
    "narrow": (lambda t: t.narrow(0, 16, 32), 16, 48),
    "narrow negative": (lambda t: t.narrow(-2, -32, 16), 32, 48),
    "split": (lambda t: t.split(32)[1], 32, M),
    "split uneven": (lambda t: t.split(48)[1], 48, M),
    "split sizes": (lambda t: t.split([16, 32, 16])[1], 16, 48),
    "chunk": (lambda t: t.chunk(4)[2], 32, 48),
    "chunk dim": (lambda t: t.chunk(2, dim=-2)[1], 32, M),
    "tensor_split": (lambda t: torch.tensor_split(t, 2)[1], 32, M),
    "empty": (lambda t: t[32:32], 32, 32),
}


@pytest.mark.parametrize("options", [TILES, {"e4m3_max": 448}, {"scaling": "row"}], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_bug_56_parts_are_those_rows(
    name: str, options: dict[str, Any], gen: torch.Generator, device: torch.device
) -> None:
    t = make(gen, device, **options)
    view, start, stop = PARTS[name]
    part = view(t)
    assert type(part) is NVFP4Tensor and part.shape == (stop - start, K)
    assert_same_operand(part.rowwise, t.rowwise[start:stop])
    assert_bits_equal(part.dequantize(), t.dequantize()[start:stop], "values")
    if start < stop:
        assert part.rowwise.qdata.data_ptr() == t.rowwise.qdata[start:].data_ptr(), "a view"
    if options == TILES and start < stop:
        columnwise = bs.transpose(t.rowwise[start:stop])
        assert_same_operand(part.columnwise, columnwise)


def test_parts_of_other_layouts(gen: torch.Generator, device: torch.device) -> None:
    x = random(300, K, gen=gen).to(device)
    linear = NVFP4Tensor.quantize(x)
    assert_same_operand(linear[3:7].rowwise, linear.rowwise[3:7])
    for options in ({}, TILES):
        t = NVFP4Tensor.quantize(x, layout=SWIZZLED, **options)
        assert_same_operand(t[128:].rowwise, t.rowwise[128:300])
        with pytest.raises(NotImplementedError, match="128"):
            _ = t[16:]


REFUSED: dict[str, Callable[[NVFP4Tensor], Any]] = {
    "[::2]": lambda t: t[::2],
    "[5:]": lambda t: t[5:],
    "[:17]": lambda t: t[:17],
    "[-5:]": lambda t: t[-5:],
    "[:, 16:]": lambda t: t[:, 16:],
    "[0]": lambda t: t[0],
    "[None]": lambda t: t[None],
    "[mask]": lambda t: t[torch.ones(M, dtype=torch.bool, device=t.device)],
    "[list]": lambda t: t[[0, 1]],
    "as_strided offset": lambda t: t.as_strided((M, K), (K, 1), 64),
    "as_strided strides": lambda t: t.as_strided((M, K), (1, M), 0),
    "as_strided part": lambda t: t.as_strided((16, K), (K, 1), 0),
    "narrow": lambda t: t.narrow(0, 5, 16),
    "narrow columns": lambda t: t.narrow(1, 0, 16),
    "split columns": lambda t: t.split(32, dim=1),
    "split sizes": lambda t: t.split([10, 54]),
    "view": lambda t: t.view(K, M),
    "view of K": lambda t: t.view(2 * M, K // 2),
    "view dtype": lambda t: t.view(torch.uint8),
    "t": lambda t: t.t(),
    "transpose": lambda t: t.transpose(0, 1),
    "mT": lambda t: t.mT,
    "permute": lambda t: t.permute(1, 0),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "expand": lambda t: t.expand(2, M, K),
    "add": lambda t: t + 1,
    "mul": lambda t: 2 * t,
    "matmul": lambda t: torch.ones(3, M, device=t.device) @ t.float(),
    "mm": lambda t: torch.mm(t, t),
    "sum": lambda t: t.sum(),
    "isnan": lambda t: torch.isnan(t),
    "equal": lambda t: torch.equal(t, t),
    "eq": lambda t: t == t,
    "cat": lambda t: torch.cat([t, t]),
    "stack": lambda t: torch.stack([t, t]),
    "add_": lambda t: t.add_(1),
    "mul_": lambda t: t.mul_(2),
    "fill_": lambda t: t.fill_(1),
    "normal_": lambda t: torch.nn.init.normal_(t),
    "index_put_": lambda t: t.__setitem__(0, 1.0),
    "setitem part": lambda t: t.__setitem__((slice(0, 5),), torch.ones(5, K)),
    "foreach": lambda t: torch._foreach_add_([t], [torch.ones(M, K, device=t.device)]),
    "double": lambda t: t.double(),
    "long": lambda t: t.long(),
    "out of plain": lambda t: torch.empty(M, K, device=t.device).copy_(t),
    "quantize": lambda t: bs.quantize(t),
    "amax": lambda t: bs.amax(t),
    "where": lambda t: torch.where(torch.ones(M, K, dtype=torch.bool, device=t.device), t, t),
    "set_": lambda t: t.set_(torch.ones(M, K, dtype=t.dtype, device=t.device)),
    "resize_": lambda t: t.resize_(2, 2),
    "share_memory_": lambda t: t.share_memory_(),
    "dlpack": lambda t: torch.from_dlpack(t),
    "storage": lambda t: t.storage(),
    "data": lambda t: setattr(t, "data", t),
    "linear input": lambda t: torch.nn.functional.linear(t, torch.ones(8, K, dtype=t.dtype, device=t.device)),
    "clone channels_last": lambda t: t.view(1, 4, 16, K).clone(memory_format=torch.channels_last),
    "zero_ of a part": lambda t: t[16:].zero_(),
    "update_usage of a part": lambda t: t[16:].update_usage(columnwise=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device)
    before = t.clone()
    with pytest.raises(NotImplementedError) as caught, torch.no_grad():
        REFUSED[name](t)
    assert "NVFP4Tensor" in str(caught.value)
    assert_same_tensor(t, before)


def test_the_message_names_op_and_arguments(gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device)
    with pytest.raises(NotImplementedError) as caught:
        _ = t[3::2]
    for word in ("aten.slice.Tensor", "NVFP4Tensor(64, 96)", "start=3", "step=2", "dequantize()"):
        assert word in str(caught.value)
    with pytest.raises(TypeError, match=r"gemm: b must be an NVFP4Operand; got NVFP4Tensor\. Pass its \.rowwise"):
        bs.gemm(t.rowwise, t)
    for read in (t.numpy, t.tolist, lambda: memoryview(t)):
        with pytest.raises((RuntimeError, TypeError)):
            read()


def test_pieces_that_cut_tiles_are_a_value_error(gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device)
    for cut in (lambda: t.chunk(3), lambda: t.split(22)):
        with pytest.raises(ValueError, match=r"64 rows in 3 pieces of 22.*multiple of 16 rows.*are 48 and 96"):
            cut()
    ragged = NVFP4Tensor.quantize(torch.ones(61, K, device=device), **TILES)
    for cut in (lambda: ragged.chunk(4), lambda: torch.chunk(ragged, 4, dim=-2)):
        with pytest.raises(ValueError, match=r"61 rows in 4 pieces of 16"):
            cut()
    assert [piece.shape[0] for piece in ragged.split(16)] == [16, 16, 16, 13]
    assert [piece.shape[0] for piece in make(gen, device, e4m3_max=448).chunk(3)] == [22, 22, 20]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_writes_into_the_whole(layout: Any, gen: torch.Generator, device: torch.device) -> None:
    """One amax for all: the whole then equals the cast of the whole, in both orientations."""
    x = random(256, K, gen=gen).to(device)
    amax = bs.amax(x)
    pieces = [NVFP4Tensor.quantize(x[i : i + 128], amax=amax, **TILES) for i in (0, 128)]
    whole = NVFP4Tensor.quantize(random(256, K, gen=gen).to(device), columnwise=True, layout=layout, **TILES)
    before = addresses(whole)
    for start, piece in zip((0, 128), pieces, strict=True):
        whole.narrow(0, start, 128).copy_(piece)
    assert addresses(whole) == before
    assert_holds(whole, x, amax=amax, **TILES)
    whole[128:].quantize_(2 * x[128:], amax=amax)
    expected = torch.cat([x[:128], 2 * x[128:]])
    assert_holds(whole, expected, amax=amax, **TILES)

    empty = torch.empty_like(whole)
    empty[:128].copy_(pieces[0])
    with pytest.raises(ValueError, match="no values in rows 128:256"):
        empty.dequantize()
    assert_same_operand(bs.unswizzle_scales(empty[:128].rowwise), pieces[0].rowwise)
    empty[128:].copy_(pieces[1])
    assert_holds(empty, x, amax=amax, **TILES)

    zeros = torch.zeros_like(whole)
    zeros[:128].copy_(pieces[0])
    assert_bits_equal(zeros.dequantize(torch.float32)[128:], torch.zeros(128, K), "zeros under another amax")


def test_bug_50_an_amax_of_its_own_takes_the_other_rows_values(gen: torch.Generator, device: torch.device) -> None:
    ones, eights = (NVFP4Tensor.quantize(torch.full((16, 64), v, device=device), **TILES) for v in (1.0, 8.0))
    whole = NVFP4Tensor.quantize(torch.ones(32, 64, device=device), columnwise=True, **TILES)
    whole[16:].copy_(eights)
    for read in (whole.dequantize, lambda: whole.columnwise, lambda: whole[:16].rowwise):
        with pytest.raises(ValueError, match=r"no values in rows 0:16.*an earlier amax"):
            read()
    assert torch.equal(whole[16:].dequantize(), torch.full((16, 64), 8.0, device=device))
    whole[:16].copy_(ones)
    with pytest.raises(ValueError, match="no values in rows 16:32"):
        whole.dequantize()
    rows = NVFP4Tensor.quantize(torch.ones(32, 64, device=device), scaling="row")
    rows[16:].copy_(NVFP4Tensor.quantize(torch.full((16, 64), 8.0, device=device), scaling="row"))
    assert rows.dequantize()[:, 0].tolist() == [1.0] * 16 + [8.0] * 16


def test_copy_refuses_what_differs(gen: torch.Generator, device: torch.device) -> None:
    t = make(gen, device)
    x = t.dequantize()
    for source, field in (
        (NVFP4Tensor.quantize(x[:16], **TILES), "of shape (64, 96)"),
        (NVFP4Tensor.quantize(x), "src.format"),
        (NVFP4Tensor.quantize(x, e4m3_max=256, **TILES), "src.format"),
        (NVFP4Tensor(None, t.columnwise), "src.has_rowwise"),
    ):
        with pytest.raises(ValueError) as caught:
            t.copy_(source)
        assert field in str(caught.value), caught.value
    one = NVFP4Tensor.quantize(x, columnwise=True)
    with pytest.raises(ValueError, match="columnwise must be in the source too"):
        one.copy_(NVFP4Tensor.quantize(x))
    with pytest.raises(ValueError, match="columnwise must be in the source too"):
        one[16:].copy_(NVFP4Tensor.quantize(x[16:]))


@pytest.mark.gpu
def test_devices_and_pinning(gen: torch.Generator, cuda: torch.device) -> None:
    t = make(gen, torch.device("cpu"))
    assert not t.is_pinned()
    pinned = t.pin_memory()
    assert pinned.is_pinned()
    moved = pinned.to(cuda, non_blocking=True)
    moved.record_stream(torch.cuda.current_stream())
    assert_same_tensor(moved.cpu(), t)
    assert_same_tensor(torch.empty_like(t).copy_(moved), t)
