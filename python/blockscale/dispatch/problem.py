# SPDX-License-Identifier: Apache-2.0
"""What of a GEMM matters for the choice of its kernel, and the classes for which a tuned choice is kept."""

from __future__ import annotations

from typing import NamedTuple

from .._codes import ACTIVATION_CODE

_ACTIVATION_NAME = {code: name for name, code in ACTIVATION_CODE.items()}

ANY_M = 0
"""The bucket of a batch-invariant problem, whose plan must not depend on M."""

_SMALLEST_BUCKET = 16


class GemmFacts(NamedTuple):
    """A GEMM as the choice sees it; hashable, cheap to make on each call."""

    m: int
    n: int
    k: int
    output: int
    """Index of `OUTPUT_NAMES`."""
    has_c: bool
    """Whether C is read, so not with beta = 0."""
    activation: int
    """Code of the activation (`ACTIVATION_CODE`)."""
    returns_amax: bool
    batch_invariant: bool


class ProblemClass(NamedTuple):
    """Problems that share a tuned choice. Bias and alpha are not in it: they cost the same on every kernel."""

    m_bucket: int
    n: int
    k: int
    output: int
    epilogue: str
    batch_invariant: bool


def row_bucket(m: int) -> int:
    """The bucket of M: the smallest power of two that is not below M, and at least 16.

    So 1 to 16 share a choice, as do 17 to 32, 33 to 64 and so on. N and K are exact: they are the sizes of a weight.
    """
    return max(_SMALLEST_BUCKET, 1 << (m - 1).bit_length())


def epilogue_class(facts: GemmFacts) -> str:
    """What makes an epilogue dearer, as "c+gelu+amax"; "plain" if nothing does."""
    parts = ["c"] if facts.has_c else []
    activation = _ACTIVATION_NAME[facts.activation]
    if activation is not None:
        parts.append(activation)
    if facts.returns_amax:
        parts.append("amax")
    return "+".join(parts) or "plain"


def class_of(facts: GemmFacts) -> ProblemClass:
    """The class of a problem."""
    bucket = ANY_M if facts.batch_invariant else row_bucket(facts.m)
    return ProblemClass(bucket, facts.n, facts.k, facts.output, epilogue_class(facts), facts.batch_invariant)
