# SPDX-License-Identifier: Apache-2.0
"""Tuned choices do not leave a test; a device that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from blockscale import dispatch
from blockscale.dispatch import choice

from .fakes import B200, KEY


@pytest.fixture(autouse=True)
def no_tuned_choices() -> Iterator[None]:
    dispatch.forget_tuned()
    yield
    dispatch.forget_tuned()


@pytest.fixture
def b200(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """cuda:0, as the choice sees it, is a B200 for which everything is built."""
    monkeypatch.setattr(choice, "device_facts", lambda device: B200 if device.type == "cuda" else None)
    monkeypatch.setattr(choice, "device_key", lambda device: KEY)
    return torch.device("cuda", 0)
