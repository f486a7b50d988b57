# SPDX-License-Identifier: Apache-2.0
"""The registry is its source text, in order; a name says what the fields say; clusters are legal where they launch."""

from __future__ import annotations

import re

import pytest

from blockscale._native import _C

from .kernels import ARCHS, BY_NAME, KERNELS, OUTPUTS, lines

_NAME = re.compile(r"sm(\d+)_(\d+)x(\d+)x(\d+)(_swapped)?(_pingpong)?_(b16|f32|nvfp4)")


def test_the_registry_is_the_definitions_in_order() -> None:
    expected = lines()
    assert len(expected) == len(KERNELS) >= 30
    for index, (line, kernel) in enumerate(zip(expected, KERNELS, strict=True)):
        assert kernel.index == index
        assert kernel.name == line.name and kernel.core is (line.group == "CORE")
        assert line.group in ("CORE", "FULL")
        assert (kernel.arch, (kernel.tile_m, kernel.tile_n, kernel.tile_k)) == (line.arch, line.tile)
        assert (kernel.sms, kernel.swapped, kernel.output, kernel.schedule) == (
            line.sms,
            line.swapped,
            line.output,
            line.schedule,
        )


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(KERNELS)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_name_says_what_the_fields_say(name: str) -> None:
    match = _NAME.fullmatch(name)
    assert match, name
    kernel = BY_NAME[name]
    arch, m, n, k, swapped, pingpong, output = match.groups()
    assert (kernel.arch, kernel.tile_m, kernel.tile_n, kernel.tile_k) == (int(arch), int(m), int(n), int(k))
    assert kernel.swapped is (swapped is not None)
    assert kernel.schedule == (pingpong is not None)
    assert kernel.output == OUTPUTS[output]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_fields_are_what_the_hardware_has(kernel: _C.GemmKernel) -> None:
    assert kernel.arch in ARCHS
    if kernel.arch in (100, 103):  # tcgen05: M is 128 a CTA; a pair has 256. N up to 256
        assert kernel.tile_m == 128 * kernel.sms
        assert kernel.tile_n in (64, 128, 192, 256)
        assert kernel.tile_k in ((256,) if kernel.arch == 100 else (256, 768))
    else:
        assert kernel.sms == 1 and not kernel.swapped
    assert kernel.schedule == 0 or kernel.arch == 120
    assert kernel.tile_k % kernel.instruction_k == 0
    expected = {90: 16, 100: 64, 120: 64}.get(kernel.arch, 96 if kernel.tile_k == 768 else 64)
    assert kernel.instruction_k == expected


def test_every_architecture_has_every_output_in_core() -> None:
    for arch in ARCHS:
        unswapped = {k.output for k in KERNELS if k.arch == arch and k.core and not k.swapped}
        assert unswapped == set(OUTPUTS.values()), arch


SIDES = (-1, 0, 1, 2, 3, 4, 5, 8, 16)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_legal_clusters(kernel: _C.GemmKernel) -> None:
    legal = {(m, n) for m in SIDES for n in SIDES if _C.GemmPlan(kernel.index, m, n).legal}
    if kernel.arch == 90:
        assert legal == {(2, 1)}
    elif kernel.arch == 120:
        assert legal == {(1, 1)}
    elif kernel.sms == 2:
        assert legal == {(2, 1), (2, 2), (2, 4), (4, 1), (4, 2)}
    else:
        assert legal == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)}


def test_a_plan_of_no_kernel_is_not_legal() -> None:
    for index in (-1, len(KERNELS), 1 << 30):
        assert not _C.GemmPlan(index, 1, 1).legal
    assert repr(_C.GemmPlan(KERNELS[4].index, 2, 1)) == "<GemmPlan sm100_128x128x256_b16 2x1>"
