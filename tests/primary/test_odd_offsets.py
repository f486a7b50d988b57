# SPDX-License-Identifier: Apache-2.0
"""Shards that begin or end between the two elements of a byte: which nibbles are written, typed by hand.

A 16 x 16 weight whose code is i & 15: codes 0 .. 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and 8 .. 15 their negatives.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import blockscale as bs
from blockscale import reference as ref
from tests.inputs import DTYPES

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

# start, length, fragment: bytes as (high nibble, low nibble); "_" is left as it was.
ORACLE = (
    (0, 4, "10 32"),
    (2, 5, "32 54 _6"),
    (1, 4, "1_ 32 _4"),
    (3, 1, "3_"),
    (5, 6, "5_ 76 98 _A"),
    (15, 1, "F_"),
    (15, 3, "F_ 10"),
    (0, 5, "10 32 _4"),
    (256, 0, ""),
    (0, 0, ""),
    (255, 1, "F_"),
    (254, 2, "FE"),
)


def weight(dtype: Any) -> torch.Tensor:
    row = torch.tensor([*VALUES, *(-value for value in VALUES)])
    return row.repeat(16).view(16, 16).to(dtype)


@pytest.mark.parametrize("api", [bs, ref], ids=["kernels", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("start", "length", "expected"), ORACLE)
def test_bug_45_nibbles(start: int, length: int, expected: str, dtype: Any, api: Any, device: torch.device) -> None:
    w = weight(dtype)
    scale = torch.full((1, 1), 0x7E, dtype=torch.uint8, device=device)  # 448, and amax 6: codes are the values
    shard = w.flatten()[start : start + length].to(device)
    words = expected.split()
    for filler in (0x00, 0xFF, 0xA6):
        out = torch.full((len(words),), filler, dtype=torch.uint8, device=device)
        api.partial_cast(shard, out, scale, 6.0, (16, 16), start)
        stale = f"{filler:02X}"
        want = ["".join(stale[i] if digit == "_" else digit for i, digit in enumerate(word)) for word in words]
        assert [f"{byte:02X}" for byte in out.tolist()] == want


def test_bug_45_the_codes_are_those_of_the_full_cast() -> None:
    full = bs.quantize(weight(torch.float32), block=(16, 16))
    assert bytes(full.qdata[0].tolist()).hex() == "1032547698badcfe"
    assert full.block_scale.view(torch.uint8).unique().tolist() == [0x7E]
    assert float(full.amax) == 6.0


def test_bug_45_two_shards_of_one_byte(device: torch.device) -> None:
    w, scale = weight(torch.float32).flatten(), torch.full((1, 1), 0x7E, dtype=torch.uint8, device=device)
    left, right = (torch.full((size,), 0xCC, dtype=torch.uint8, device=device) for size in (3, 4))
    bs.partial_cast(w[0:5].to(device), left, scale, 6.0, (16, 16), 0)
    bs.partial_cast(w[5:11].to(device), right, scale, 6.0, (16, 16), 5)
    merged = bs.merge_fragments([left, right], [0, 5], [5, 6], (16, 16))
    assert bytes(merged.flatten()[:6].tolist()).hex() == "10325476980a"  # element 11 belongs to nobody yet


def test_bug_45_the_example(device: torch.device) -> None:
    w = torch.arange(16.0).remainder(7).view(1, 16).to(device)
    full = bs.quantize(w, block=(16, 16), amax=torch.tensor(6.0, device=device))
    out = torch.zeros(4, dtype=torch.uint8, device=device)
    arguments = {"tile_scales": full.block_scale, "amax": full.amax, "shape": (1, 16)}
    bs.partial_cast(w.flatten()[5:11], out, start=5, **arguments)
    whole = full.qdata.flatten()[2:6].cpu()
    want = torch.stack((whole[0] & 0xF0, whole[1], whole[2], whole[3] & 0x0F))
    assert torch.equal(out.cpu(), want)
    with pytest.raises(ValueError, match="partial_cast: out must be of 4 bytes"):
        bs.partial_cast(w.flatten()[5:11], torch.zeros(8, dtype=torch.uint8, device=device), start=5, **arguments)
