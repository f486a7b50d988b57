# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md are made from data, never typed."""

from __future__ import annotations

from perf import readme


def test_readme_says_what_the_data_say() -> None:
    text = (readme.ROOT / "README.md").read_text()
    assert readme.rewritten(text) == text, "run python -m perf.readme"


def test_a_typed_figure_is_noticed() -> None:
    text = (readme.ROOT / "README.md").read_text()
    start = text.index("<!-- speed -->")
    typed = text[:start] + text[start:].replace("| 0.", "| 1.", 1)
    assert typed != text
    assert readme.rewritten(typed) == text
