# SPDX-License-Identifier: Apache-2.0
"""What a mutant is; `mutants.py` lists them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        name: for --only, and in the report.
        file: path from the root of the repository.
        old, new: the text that is replaced. `old` occurs once.
        tests: test files of which one must notice.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def native(self) -> bool:
        """The native module must be built again."""
        return self.file.startswith("kernels/")
