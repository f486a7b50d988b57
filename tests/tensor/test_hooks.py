# SPDX-License-Identifier: Apache-2.0
"""FSDP2's hooks in one process, on lists of shards. `tests/distributed/test_fsdp.py` runs them under FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import NVFP4Tensor
from tests.bits import assert_bits_equal

from .samples import LAYOUTS, SWIZZLED, TILES, addresses, assert_same_tensor, random


@dataclass
class Mesh:
    """What the hooks ask of a DeviceMesh."""

    sizes: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.sizes)

    def size(self, dim: int) -> int:
        return self.sizes[dim]


def pre(shard: NVFP4Tensor, world: int, whole: tuple[int, ...], stride: tuple[int, ...] | None = None) -> Any:
    stride = torch.empty(whole, device="meta").stride() if stride is None else stride
    return shard.fsdp_pre_all_gather(Mesh((world,)), torch.Size(whole), stride, None, None)


def gathered(shards: list[NVFP4Tensor], whole: tuple[int, ...]) -> tuple[tuple[torch.Tensor, ...], Any]:
    """What the all-gather makes of the pieces, and the metadata."""
    pieces = [pre(shard, len(shards), whole) for shard in shards]
    assert all(metadata == pieces[0][1] for _, metadata in pieces)
    assert all(len({part.shape for part in parts}) == 1 for parts in zip(*[p for p, _ in pieces], strict=True))
    return tuple(torch.cat(parts) for parts in zip(*[p for p, _ in pieces], strict=True)), pieces[0][1]


SHAPES = ((48, 80), (1536, 48), (96, 8, 32))
CASES = [
    (shape, options, layout, world)
    for shape in SHAPES
    for options in (TILES, {"e4m3_max": 256, **TILES}, {}, {"e4m3_max": 256})
    for layout in LAYOUTS
    for world in (1, 2, 3, 4)
    if world == 1 or torch.Size(shape[:-1]).numel() // world % (128 if layout is SWIZZLED else 16) == 0
]
"""Where the pieces can be cut out of the whole as views."""


@pytest.mark.parametrize(("shape", "options", "layout", "world"), CASES, ids=str)
def test_the_gathered_weight_is_the_unsharded_one(
    shape: tuple[int, ...], options: dict[str, Any], layout: Any, world: int, gen: torch.Generator,
    device: torch.device,
) -> None:  # fmt: skip
    columnwise = "block" in options
    weights = []
    for _ in range(3):
        x = random(*shape, gen=gen, dtype=torch.bfloat16).to(device)
        weights.append(NVFP4Tensor.quantize(x, layout=layout, columnwise=columnwise, **options))
    rows = shape[0] // world

    def gather(weight: NVFP4Tensor) -> tuple[tuple[torch.Tensor, ...], Any]:
        return gathered([weight[i * rows : (i + 1) * rows] for i in range(world)], shape)

    outputs, metadata = gather(weights[0])
    packed, scales, amaxes = outputs
    assert (packed.dtype, scales.dtype, amaxes.dtype) == (torch.uint8, torch.uint8, torch.float32)
    if columnwise and weights[0].rowwise.rows % 16 == 0:
        assert packed.numel() + scales.numel() == weights[0].numel() * (0.5 + 1 / 256)
    assert amaxes.shape == (world,)
    whole, inner_tensors = weights[0].fsdp_post_all_gather(outputs, metadata, torch.float16)
    assert whole.dtype is torch.float16
    assert_same_tensor(whole.to(torch.bfloat16), weights[0])
    assert whole.rowwise.qdata.untyped_storage().data_ptr() == packed.untyped_storage().data_ptr()
    held = {tensor.untyped_storage().data_ptr() for tensor in inner_tensors if tensor.numel()}
    assert held == {part.untyped_storage().data_ptr() for part in [*outputs, *whole._held.tensors()]}

    parameter = torch.nn.Parameter(torch.as_strided(whole, shape, whole.stride(), 0))
    before = addresses(whole)
    for weight in weights[1:]:
        again, metadata = gather(weight)
        for part in inner_tensors:
            part.view(torch.uint8).fill_(0xFF) if part.dim() else part.fill_(torch.nan)
        for part, new in zip(outputs, again, strict=True):
            part.copy_(new)
        version = [part._version for part in whole._held.tensors()]
        assert weight.fsdp_post_all_gather(outputs, metadata, torch.float16, out=parameter) is None
        assert addresses(whole) == before and addresses(parameter) == before
        assert [part._version for part in whole._held.tensors()] == version
        assert_same_tensor(parameter.detach().to(torch.bfloat16), weight)
    assert weights[0].fsdp_post_all_gather(*gather(weights[0]), None)[0].dtype is torch.bfloat16


def test_a_stale_columnwise_copy_does_not_matter(gen: torch.Generator, device: torch.device) -> None:
    t = NVFP4Tensor.quantize(random(64, 32, gen=gen).to(device), columnwise=True, **TILES)
    shards = [t[:32].clone(), t[32:].clone()]
    for shard in shards:
        shard.mark_columnwise_stale(manual=True)
    outputs, metadata = gathered(shards, (64, 32))
    assert_same_tensor(t.fsdp_post_all_gather(outputs, metadata, None)[0], t)


def _tensor(rows: int, *, columnwise: bool = False, **options: Any) -> NVFP4Tensor:
    return NVFP4Tensor.quantize(torch.ones(rows, 64), columnwise=columnwise, **options)


def _without_rowwise() -> NVFP4Tensor:
    return NVFP4Tensor(None, bs.quantize(torch.ones(32, 64), orientation="columnwise", **TILES))


REFUSED: dict[str, tuple[Any, int, tuple[int, ...], type[Exception], tuple[str, ...]]] = {
    "bug 49: tiles cut": (lambda: _tensor(17, **TILES), 8, (136, 64), ValueError,
        ("17 on each", "multiple of 16", "128 and 256")),
    "bug 51: 31 pieces of 32 and one of 16": (lambda: _tensor(32, **TILES), 32, (1008, 64), ValueError,
        ("1008", "32 ranks", "512 and 1024")),
    "bug 51: the short rank": (lambda: _tensor(16, **TILES), 32, (1008, 64), ValueError,
        ("1008", "32 ranks", "512 and 1024")),
    "bug 51: 4096 over 3": (lambda: _tensor(1366, **TILES), 3, (4096, 64), ValueError,
        ("4096", "3 ranks", "4080 and 4128")),
    "bug 51: the empty rank": (lambda: _tensor(0, **TILES), 3, (4096, 64), ValueError, ("4096", "3 ranks")),
    "1x16, not divisible": (lambda: _tensor(6), 3, (17, 64), ValueError, ("17", "3 ranks", "15 and 18")),
    "columnwise of 17 rows": (lambda: NVFP4Tensor.quantize(torch.ones(32, 64), columnwise=True, **TILES)[:17 - 1],
        1, (17, 64), ValueError, ("17", "columnwise", "16")),
    "columnwise of 1x16": (lambda: _tensor(32, columnwise=True), 2, (64, 64), ValueError, ("1x16", "(16, 16)")),
    "columnwise of 1x16, alone": (lambda: _tensor(32, columnwise=True), 1, (32, 64), ValueError, ("1x16",)),
    "scaling row": (lambda: _tensor(32, scaling="row"), 2, (64, 64), NotImplementedError, ("scaling", "row amaxes")),
    "no rowwise data": (_without_rowwise, 2, (64, 64), ValueError, ("rowwise must be there",)),
    "more rows than its part": (lambda: _tensor(48, **TILES), 2, (64, 64), ValueError, ("(32, 64)", "(48, 64)")),
    "fewer rows than its part": (lambda: _tensor(16, **TILES), 2, (64, 64), ValueError, ("(32, 64)", "(16, 64)")),
    "another K": (lambda: _tensor(32, **TILES), 2, (64, 32), ValueError, ("(32, 32)", "(32, 64)")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_before_the_gather(name: str) -> None:
    make, world, whole, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        pre(make(), world, whole)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value), caught.value
    assert "{" not in str(caught.value)


def test_strides_mesh_and_rht() -> None:
    t = _tensor(32, **TILES)
    with pytest.raises(ValueError, match=r"outer_stride must be row-major, \(64, 1\); got \(1, 32\)"):
        pre(t, 1, (32, 64), (1, 32))
    (packed, _, _), metadata = t.fsdp_pre_all_gather(None, torch.Size((32, 64)), (64, 1), None, None)
    assert packed.shape == (32, 32) and not metadata.columnwise
    parts, _ = t.fsdp_pre_all_gather(Mesh((4, 2)), torch.Size((64, 64)), (64, 1), None, None)
    assert parts[0].shape == (32, 32), "the last dimension of the mesh shards"
    column = bs.quantize(torch.ones(32, 64), orientation="columnwise")
    rotated = bs.NVFP4Operand(
        column.qdata, column.block_scale, column.amax, column.shape, column.layout, bs.NVFP4(rht=0xD7E8), "columnwise"
    )
    with pytest.raises(NotImplementedError, match=r"rht must be None; got 0xd7e8"):
        pre(NVFP4Tensor(bs.quantize(torch.ones(32, 64)), rotated), 2, (64, 64))


def test_bug_50_differing_amaxes(device: torch.device) -> None:
    shards = [NVFP4Tensor.quantize(torch.full((16, 64), v, device=device), **TILES) for v in (1.0, 8.0)]
    outputs, metadata = gathered(shards, (32, 64))
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"amax must be equal on all ranks; got \[1\.0, 8\.0\]"):
            shards[0].fsdp_post_all_gather(outputs, metadata, None)
    else:
        whole, _ = shards[0].fsdp_post_all_gather(outputs, metadata, None)
        assert whole.dequantize().isnan().all()
    nan = [NVFP4Tensor.quantize(torch.full((16, 64), torch.nan, device=device), **TILES) for _ in range(2)]
    outputs, metadata = gathered(nan, (32, 64))
    whole, _ = nan[0].fsdp_post_all_gather(outputs, metadata, None)
    assert whole.dequantize().isnan().all(), "equal NaNs are equal"


def test_one_rank_gets_the_codes_alone(gen: torch.Generator, device: torch.device) -> None:
    """torch does not gather on a mesh of one rank: it copies the first input, and drops the others."""
    t = NVFP4Tensor.quantize(random(17, 48, gen=gen).to(device), **TILES)
    outputs, metadata = gathered([t], (17, 48))
    whole, inner = t.fsdp_post_all_gather(outputs[:1], metadata, None)
    assert_same_tensor(whole, t)
    assert len(inner) == 3
    with pytest.raises(ValueError, match="all_gather_outputs"):
        t.fsdp_post_all_gather(outputs[:2], metadata, None)
    two = NVFP4Tensor.quantize(random(32, 48, gen=gen).to(device), **TILES)
    outputs, metadata = gathered([two[:16], two[16:]], (32, 48))
    with pytest.raises(ValueError, match="all_gather_outputs"):
        two[:16].fsdp_post_all_gather(outputs[:1], metadata, None)


def test_out_must_fit() -> None:
    t = _tensor(32, **TILES)
    outputs, metadata = gathered([t], (32, 64))
    with pytest.raises(TypeError, match="out must be the NVFP4Tensor of an earlier call"):
        t.fsdp_post_all_gather(outputs, metadata, None, out=torch.ones(32, 64))
    with pytest.raises(ValueError, match="out must be of shape"):
        t.fsdp_post_all_gather(outputs, metadata, None, out=_tensor(16, **TILES))
    other = _tensor(32, **TILES).zero_()
    assert t.fsdp_post_all_gather(outputs, metadata, None, out=other) is None
    assert_bits_equal(other.dequantize(), t.dequantize(), "codes that lie elsewhere are copied")
