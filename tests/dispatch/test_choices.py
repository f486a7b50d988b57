# SPDX-License-Identifier: Apache-2.0
"""What is chosen for shapes that people run, each with a reason that does not come from the code.

"published" stands for tuned tables of other libraries on that GPU. A row that changes is not wrong for that; the change
says in its commit why the new choice is the better guess.
"""

from __future__ import annotations

from typing import Any

import pytest

from .kernels import ALL, BY_NAME, CORE, FLOAT32, KERNELS, QUANTIZED, chosen

Choice = tuple[int, tuple[int, int, int], dict[str, Any], tuple[str, int, int], str]

CHOICES: tuple[Choice, ...] = (
    (100, (8192, 8192, 8192), {}, ("sm100_256x256x256_b16", 2, 1), "published: 256x256 on 2x1 for all large squares"),
    (100, (16384, 16384, 16384), {}, ("sm100_256x256x256_b16", 2, 1), "published, the same"),
    (100, (512, 14336, 4096), {}, ("sm100_256x256x256_b16", 2, 1), "published"),
    (100, (1024, 7168, 4608), {}, ("sm100_256x256x256_b16", 2, 1), "published: 256x256 from M 512 where N is wide"),
    (100, (256, 8192, 8192), {}, ("sm100_256x128x256_b16", 2, 2), "published: 256x128 on 2x2; 256x256 leaves SMs idle"),
    (100, (1, 57344, 8192), {}, ("sm100_128x64x256_swapped_b16", 1, 1), "DRAM: the plan that does least work"),
    (100, (16, 28672, 8192), {}, ("sm100_128x64x256_swapped_b16", 1, 1), "the same"),
    (100, (64, 57344, 8192), {}, ("sm100_128x64x256_swapped_b16", 1, 1), "64 tokens fill its N tile"),
    (100, (16, 4096, 4096), {"built": CORE}, ("sm100_128x64x256_swapped_b16", 1, 1), "half the MMA work of 128x128"),
    (100, (1, 4096, 4096), {}, ("sm100_128x64x256_b16", 1, 1), "64 SMs pull weights; swapped, 32 would"),
    (100, (8192, 8192, 8192), {"built": CORE}, ("sm100_256x256x256_b16", 2, 1), "in CORE for this"),
    (100, (1, 16, 16), {"built": CORE}, ("sm100_128x64x256_swapped_b16", 1, 1), "one tile: the smallest, no cluster"),
    (100, (8192, 8192, 8192), {"output": FLOAT32}, ("sm100_256x256x256_f32", 2, 1), "as for 16 bits"),
    (100, (8192, 8192, 8192), {"output": QUANTIZED}, ("sm100_256x256x256_nvfp4", 2, 1), "K is long"),
    (100, (8192, 8192, 2048), {"output": QUANTIZED}, ("sm100_256x128x256_nvfp4", 2, 1), "K is short: a quantizing "
     "epilogue must hide behind the next tile, which takes two accumulators"),
    (103, (8192, 8192, 8192), {}, ("sm103_256x192x768_b16", 2, 1), "published: K 768 and 192 columns win on B300"),
    (103, (1024, 4096, 16384), {}, ("sm103_256x256x768_b16", 4, 2), "published: K 768 for long K"),
    (103, (512, 512, 512), {}, ("sm103_128x64x256_swapped_b16", 1, 1), "published: K 768 loses for short K"),
    (103, (1, 4096, 1024), {"built": CORE}, ("sm103_128x128x256_b16", 1, 1), "published: K 256 for M 1 and short K"),
    (120, (8192, 8192, 8192), {}, ("sm120_128x128x128_b16", 1, 1), "published: cooperative is 5 % ahead for long K, "
     "and 256x128 no better"),
    (120, (4096, 4096, 512), {}, ("sm120_128x128x128_pingpong_b16", 1, 1), "short K: epilogues hide behind main loops"),
    (120, (16, 4096, 4096), {}, ("sm120_128x128x128_b16", 1, 1), "one tile an SM: nothing to overlap"),
    (90, (4096, 4096, 4096), {}, ("sm90_128x256x64_b16", 2, 1), "decoding A is shared by twice the columns"),
    (90, (16, 4096, 4096), {}, ("sm90_128x128x64_b16", 2, 1), "the narrow tile keeps more SMs busy"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "shape", "options", "expected", "reason"),
    CHOICES,
    ids=[f"sm{arch}-{'x'.join(map(str, shape))}-{number}" for number, (arch, shape, *_) in enumerate(CHOICES)],
)
def test_choice(
    arch: int, shape: tuple[int, int, int], options: dict[str, Any], expected: tuple[str, int, int], reason: str
) -> None:
    assert chosen(arch, *shape, **options) == expected, reason


def test_decoding_swaps_where_memory_is_the_bound() -> None:
    """Tokens along the N tile, for every M of a decode step and every weight that fills the device."""
    for m in (1, 2, 8, 16, 32, 64):
        for n, k in ((28672, 4096), (57344, 8192), (32768, 16384)):
            assert BY_NAME[chosen(100, m, n, k)[0]].swapped, (m, n, k)
            assert BY_NAME[chosen(100, m, n, k, built=CORE)[0]].swapped
            assert not BY_NAME[chosen(100, m, n, k, batch_invariant=True)[0]].swapped


def test_large_problems_use_pairs_of_sms() -> None:
    for arch in (100, 103):
        for built in (ALL, CORE):
            for shape in ((4096, 4096, 8192), (8192, 8192, 8192), (16384, 8192, 4096), (8192, 28672, 8192)):
                assert BY_NAME[chosen(arch, *shape, built=built)[0]].sms == 2, (arch, shape)


def test_short_k_is_not_given_to_k_768() -> None:
    for k in (16, 256, 512, 1024):
        for m, n in ((16, 4096), (512, 4096), (4096, 4096)):
            assert BY_NAME[chosen(103, m, n, k)[0]].tile_k == 256, (m, n, k)


def test_a_small_device_gets_no_cluster_that_it_cannot_hold() -> None:
    for arch in (100, 103):
        assert chosen(arch, 8192, 8192, 8192, sms=1)[1:] == (1, 1)
    assert KERNELS  # the grid of test_heuristic.py has the rest
