# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests: the device, seeds that are printed, memory that is poisoned until it is written."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.memory import Guards

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="added to the seed of every random test")


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"blockscale tests: --seed {config.getoption('--seed')}, hypothesis profile {settings().max_examples} examples"
    )


@functools.cache
def why_no_cuda() -> str:
    """Why CUDA tensors cannot be tested here; empty if they can."""
    if not torch.cuda.is_available():
        return "needs a CUDA GPU and a CUDA build of torch; run there with -m gpu"
    import blockscale as bs

    try:
        bs._native.cuda_library().probe(torch.cuda.current_device())
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each backend in turn; "cuda" with -m gpu."""
    if request.param == "cuda" and why_no_cuda():
        pytest.skip(why_no_cuda())
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    """The CUDA device, for tests of streams, graphs and memory; mark them ``gpu``."""
    if why_no_cuda():
        pytest.skip(why_no_cuda())
    return torch.device("cuda", 0)


@pytest.fixture
def gen(request: pytest.FixtureRequest) -> torch.Generator:
    """A CPU generator whose seed depends on the test's name and --seed; printed, with the command that repeats it."""
    base = request.config.getoption("--seed")
    name = request.node.nodeid
    seed = zlib.crc32(name.encode()) + base
    print(f"seed {seed}; repeat with: pytest '{name}' --seed {base}")
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Every new torch allocation holds NaN, or 0xFF in bytes, so that a byte that is not written is seen."""
    fill = torch.utils.deterministic.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One CPU thread: the reference works with one, and switching costs much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def guards() -> Iterator[Guards]:
    """Buffers with guard bytes on both sides; compared when the test ends."""
    made = Guards()
    yield made
    made.check()
