# SPDX-License-Identifier: Apache-2.0
"""`gemm_candidates`: the heuristic's ranking as objects that print themselves, for any GPU, also without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch

from .._codes import FLOAT_INPUTS
from .._native import _C
from ..errors import type_error, value_error
from ..formats import NVFP4
from .config import KERNELS, NVFP4_OUTPUT, TARGETS, GemmConfig, config_of, output_code
from .device import TYPICAL_MULTIPROCESSORS, DeviceFacts, device_facts
from .problem import GemmFacts

_NAME = "gemm_candidates"

ALL_KERNELS = sum(1 << kernel.index for kernel in KERNELS)
CORE_KERNELS = sum(1 << kernel.index for kernel in KERNELS if kernel.core)


@dataclass(frozen=True)
class Candidate:
    """A plan and what the heuristic thinks of it. An estimate from published figures, not a measurement.

    Attributes:
        config: kernel and cluster.
        clocks: the score; smaller is better. It orders candidates and predicts no time.
        waves: clusters of work over clusters that are resident at once.
        padding: share of the products that are computed for rows, columns or K beyond the problem.
        bound: the resource that needs most clocks.
    """

    config: GemmConfig
    clocks: float
    waves: float
    padding: float
    bound: str


class Candidates(Sequence[Candidate]):
    """A ranking, best first; `str()` is a table of the first ten."""

    def __init__(self, title: str, items: Sequence[Candidate]) -> None:
        self.title = title
        self._items = tuple(items)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | Sequence[Candidate]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._items)

    def explain(self, limit: int | None = 10) -> str:
        """The ranking as text, `limit` lines of it; None for all."""
        shown = self._items[:limit]
        lines = [self.title, f"{'kernel':<34} cluster  waves  padding      clocks  bound by"]
        lines += [
            f"{c.config.kernel:<34} {c.config.plan[1]}x{c.config.plan[2]:<5} {c.waves:>6.2f} {100 * c.padding:>6.1f} % "
            f"{c.clocks:>11,.0f}  {c.bound}"
            for c in shown
        ]
        if len(shown) < len(self._items):
            lines.append(f"and {len(self._items) - len(shown)} more")
        return "\n".join([*lines, "clocks: an estimate from published figures, not a measurement"])

    def __str__(self) -> str:
        return self.explain()


def gemm_candidates(
    m: int,
    n: int,
    k: int,
    *,
    arch: int | None = None,
    multiprocessors: int | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out_format: NVFP4 | None = None,
    c: bool = False,
    batch_invariant: bool = False,
    kernels: Literal["built", "core", "full"] | None = None,
) -> Candidates:
    """Every way to run D[M, N] = A[M, K] @ B[N, K].T on a GPU, the heuristic's favourite first.

    Needs no GPU. `print` it for a table.

    Args:
        m, n, k: sizes of the problem; K a multiple of 16.
        arch: 90, 100, 103 or 120; None is that of the current CUDA device.
        multiprocessors: SMs of the device; None is those of the current device, or, with `arch`, of H200, B200, B300
            or RTX 5090.
        out_dtype, out_format: of the output, as for `gemm`.
        c: whether D reads a C.
        batch_invariant: only the plans that `gemm(..., batch_invariant=True)` considers, in its order.
        kernels: "built", those of this installation; "core" or "full", the sets of gemm_kernels.def. None is "full"
            with `arch` and "built" without.

    Raises:
        TypeError: a size that is no int, an output of another kind. ValueError: a size, arch or set that there is not.
        RuntimeError: arch is None or kernels "built", and there is no CUDA device that blockscale can use.
    """
    facts = _checked_facts(m, n, k, out_dtype, out_format, c, batch_invariant)
    device = _checked_device(arch, multiprocessors, kernels)
    kind = "NVFP4" if out_format is not None else str(out_dtype).removeprefix("torch.")
    title = (
        f"{m} x {n} x {k} to {kind} on {TARGETS[device.arch]} with {device.multiprocessors} SMs"
        f"{', with C' if c else ''}{', batch invariant' if batch_invariant else ''}"
    )
    return Candidates(title, ranked(facts, device))


def ranked(facts: GemmFacts, device: DeviceFacts) -> list[Candidate]:
    """The ranking of a problem on a device."""
    return [
        Candidate(config_of(e.plan), e.clocks, e.waves, e.padding, e.bound)
        for e in _C.rank_gemm(*question(facts, device))
    ]


def question(facts: GemmFacts, device: DeviceFacts) -> tuple[int, int, int, int, int, int, int, bool, bool]:
    """The arguments of the native heuristic."""
    return (*device, facts.m, facts.n, facts.k, facts.output, facts.has_c, facts.batch_invariant)


def _checked_facts(
    m: object, n: object, k: object, out_dtype: object, out_format: object, c: bool, batch_invariant: bool
) -> GemmFacts:
    for arg, size in (("m", m), ("n", n), ("k", k)):
        if type(size) is not int:
            raise type_error(_NAME, arg, "an int", type(size).__name__)
        if size < 1:
            raise value_error(_NAME, arg, "positive", size)
    sizes = [size for size in (m, n, k) if isinstance(size, int)]
    if sizes[2] % 16:
        raise value_error(_NAME, "k", "a multiple of 16", k)
    if out_format is not None and not isinstance(out_format, NVFP4):
        raise type_error(_NAME, "out_format", "an NVFP4", type(out_format).__name__)
    if out_format is None and out_dtype not in FLOAT_INPUTS:
        raise type_error(_NAME, "out_dtype", "torch.float32, torch.bfloat16 or torch.float16", out_dtype)
    if out_format is not None and sizes[1] % 16:
        raise value_error(_NAME, "n", "a multiple of 16 (for an NVFP4 output)", n)
    output = NVFP4_OUTPUT if isinstance(out_format, NVFP4) else output_code(out_dtype)  # type: ignore[arg-type]
    return GemmFacts(sizes[0], sizes[1], sizes[2], output, bool(c), 0, False, bool(batch_invariant))


def _checked_device(arch: int | None, multiprocessors: int | None, kernels: str | None) -> DeviceFacts:
    if kernels not in (None, "built", "core", "full"):
        raise value_error(_NAME, "kernels", 'None, "built", "core" or "full"', repr(kernels))
    if arch is not None and arch not in TARGETS:
        raise value_error(_NAME, "arch", f"one of {', '.join(map(str, TARGETS))}", arch)
    if multiprocessors is not None and (type(multiprocessors) is not int or multiprocessors < 1):
        raise value_error(_NAME, "multiprocessors", "a positive int", multiprocessors)
    here = _current_device() if arch is None or kernels == "built" else None
    if here is not None and arch not in (None, here.arch):
        raise value_error(_NAME, "arch", f"{here.arch}, that of this device, with kernels='built'", arch)
    chosen = here.arch if here is not None else arch
    if chosen is None:
        raise RuntimeError(f"{_NAME}: no CUDA device is here to take arch from. Pass arch=100 for a B200.")
    sets = {"built": here.built if here is not None else 0, "core": CORE_KERNELS, "full": ALL_KERNELS}
    built = sets[kernels or ("full" if arch is not None else "built")]
    count = multiprocessors or (here.multiprocessors if here is not None else TYPICAL_MULTIPROCESSORS[chosen])
    return DeviceFacts(chosen, count, built)


def _current_device() -> DeviceFacts:
    if not torch.cuda.is_available():
        hint = "Pass arch=100 for a B200, and leave kernels out."
        raise RuntimeError(f"{_NAME}: no CUDA device is here to take arch or kernels from. {hint}")
    facts = device_facts(torch.device("cuda", torch.cuda.current_device()))
    if facts is None:
        raise RuntimeError(
            f"{_NAME}: no kernel is written for {torch.cuda.get_device_name()}. Pass arch=100 for a B200."
        )
    return facts
