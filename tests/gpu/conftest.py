# SPDX-License-Identifier: Apache-2.0
"""Everything here needs a CUDA GPU: run it with -m gpu. Where launches are counted, memory is not poisoned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def no_poison() -> Iterator[None]:
    """Fresh memory without the fill of the poison: it is a kernel of its own."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True
