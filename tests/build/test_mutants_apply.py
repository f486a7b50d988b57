# SPDX-License-Identifier: Apache-2.0
"""The list of scripts/mutants.py does not rot: each old text is in its file once, and each named test file exists."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _mutants() -> tuple[Any, ...]:
    sys.path.insert(0, str(ROOT / "scripts"))  # where a script finds the modules beside it
    spec = importlib.util.spec_from_file_location("blockscale_mutants", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    sys.path.pop(0)
    mutants: tuple[Any, ...] = module.MUTANTS
    return mutants


MUTANTS = _mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_applies(mutant: Any) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"the old text occurs {text.count(mutant.old)} times in {mutant.file}"
    assert text.replace(mutant.old, mutant.new) != text
    assert mutant.tests
    for test in mutant.tests:
        assert (ROOT / test).is_file(), test


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
