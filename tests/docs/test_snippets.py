# SPDX-License-Identifier: Apache-2.0
"""The documentation as code: every Python block runs, every link, path and section that is mentioned exists.

A block opened with ```` ```python no-run ```` is shown but not run: it needs a GPU, a network or minutes.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(page for name in ("README.md", "CONTRIBUTING.md") if (page := ROOT / name).exists()),
    ]
)

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FOLDERS = r"(?:\.ci|docs|kernels|perf|python|scripts|tests|third_party)"
_PATH = re.compile(rf"(?:{_FOLDERS}(?:/[\w.-]+)+/?|[\w-]+\.(?:md|toml)|CMakeLists\.txt|Makefile|LICENSE)")
_PATH_IN_COMMAND = re.compile(rf"(?<![\w/.-]){_FOLDERS}/[\w./-]+\.(?:cmake|cpp|cu|h|md|py|sh)\b")

_NUMBER = r"\d+(?:\.\d+)?"
_CITATION = re.compile(rf"numerics(?:\.md)?[,)]? (?:sections? )?({_NUMBER}(?:(?:, and |, | and | to ){_NUMBER})*)")
_SOURCES = ("kernels", "python", "tests", "scripts", "perf")
_SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".py", ".pyi", ".sh", ".md"}


@dataclass(frozen=True)
class Snippet:
    """A Python block: the page, the line of its opening fence, its code, and whether it runs."""

    page: Path
    line: int
    code: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """The Python blocks of a page."""
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        language, *words = fence[1].split() or [""]
        if language == "python":
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Snippet(page, line, fence[2], "no-run" not in words))
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets(page)]


@pytest.mark.parametrize("snippet", [snippet for snippet in SNIPPETS if snippet.runs], ids=str)
def test_snippet_runs(snippet: Snippet) -> None:
    # Blank lines in front: a traceback then names the line of the page.
    code = compile("\n" * snippet.line + snippet.code, str(snippet.page), "exec")
    exec(code, {"__name__": "snippet"})


@pytest.mark.parametrize("page", sorted({snippet.page for snippet in SNIPPETS}), ids=lambda page: page.name)
def test_a_page_with_snippets_runs_at_least_one(page: Path) -> None:
    assert any(snippet.runs for snippet in snippets(page))


def test_there_are_pages_and_snippets() -> None:
    """The patterns above still find something."""
    assert len(PAGES) >= 10
    assert len(SNIPPETS) >= 10
    assert {"0", "2.1", "6", "11.2"} <= _sections()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target in _LINK.findall(_prose(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            missing.append(target)
    assert not missing, f"{page.name} links to {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """Names in backticks that look like paths of the repository, and files in commands."""
    text = page.read_text()
    named = [code.partition("::")[0] for code in _CODE.findall(_prose(page))]
    commands = [*named, *(fence[2] for fence in _FENCE.finditer(text))]
    paths = {name for name in named if _PATH.fullmatch(name)}
    paths |= {path for command in commands for path in _PATH_IN_COMMAND.findall(command)}
    missing = sorted(path for path in paths if not (ROOT / path).exists() and not (page.parent / path).exists())
    assert not missing, f"{page.name} names {missing}"


def test_cited_sections_exist() -> None:
    """Every "numerics.md section X" in the sources is a heading of docs/numerics.md."""
    sections = _sections()
    cited, missing = 0, []
    for file in _source_files():
        for number in _cited(file.read_text()):
            cited += 1
            if number not in sections:
                missing.append(f"{file.relative_to(ROOT)}: section {number}")
    assert cited > 20
    assert not missing, missing


def test_cited_pages_exist() -> None:
    """Every docs/<page>.md that a source names exists."""
    missing = []
    for file in _source_files():
        for name in re.findall(r"docs/[\w-]+\.md", file.read_text()):
            if not (ROOT / name).exists():
                missing.append(f"{file.relative_to(ROOT)}: {name}")
    assert not missing, missing


def test_citations_are_read() -> None:
    """The forms that comments use, also broken over two lines."""
    text = "docs/numerics.md section 2.1 and 6 stand\n// (docs/numerics.md\n// sections 2 to 5): numerics, 11.2, 12."
    assert _cited(text) == ["2.1", "6", "2", "3", "4", "5", "11.2", "12"]


@functools.cache
def _sections() -> frozenset[str]:
    text = (ROOT / "docs" / "numerics.md").read_text()
    return frozenset(re.findall(rf"^#+ ({_NUMBER}) ", text, re.MULTILINE))


def _cited(text: str) -> list[str]:
    """Numbers of the sections that a source cites; "2 to 5" is four of them."""
    joined = re.sub(r"\s*\n\s*(?://+|#+|\*)?\s*", " ", text)
    numbers: list[str] = []
    for listed in _CITATION.findall(joined):
        words = re.findall(rf"{_NUMBER}|to", listed)
        for before, word in zip(["", *words], words, strict=False):
            if before == "to":
                numbers += [str(number) for number in range(int(float(numbers[-1])) + 1, int(float(word)))]
            if word != "to":
                numbers.append(word)
    return numbers


def _source_files() -> list[Path]:
    files = [file for folder in _SOURCES for file in sorted((ROOT / folder).rglob("*"))]
    return [file for file in files if file.suffix in _SUFFIXES and file != Path(__file__).resolve()]


def _prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


@functools.cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
