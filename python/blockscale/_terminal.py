# SPDX-License-Identifier: Apache-2.0
"""What commands print with: lines, tables and progress, by rich where it is installed, else as plain text."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 140
"""Columns where nothing says how wide the reader's screen is: wide enough that no table wraps."""


class UsageError(Exception):
    """A command that cannot be carried out as given: one line for the user, exit status 2."""


class Terminal:
    """Prints to standard output. Without a terminal there are no colours and no progress, and lines do not wrap."""

    def __init__(self) -> None:
        self._console = _console(stderr=False)
        self._error_console = _console(stderr=True)

    def line(self, text: str = "", style: str = "") -> None:
        """One line of plain text; `style` is a style of rich."""
        if self._console is None:
            print(text)
        else:
            self._console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that starts a part."""
        self.line()
        self.line(text, style="bold")

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> None:
        """A table of text cells; `numbers` are the columns that are set to the right."""
        if self._console is None:
            print("\n".join(_plain_table(titles, rows, numbers)))
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, title in enumerate(titles):
            table.add_column(title, justify="right" if index in numbers else "left")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self._console.print(table)

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[str], None]]:
        """A progress bar on standard error while the block runs; what it gives is called once a step, with a name."""
        console = self._error_console
        if console is None or not console.is_terminal:
            yield lambda name: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}", style="dim", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(label, total=total, step="")
            yield lambda name: bar.update(task, advance=1, step=name)


def _console(stderr: bool) -> Console | None:
    if importlib.util.find_spec("rich") is None:
        return None
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_WIDTH)


def _plain_table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
    lines = []
    for row in [titles, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
