# SPDX-License-Identifier: Apache-2.0
"""The demo's figure: the error of each layer, grouped by kind and ordered by depth, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .compare import LayerError

_SAME_INPUT = "#0b7a75"
_PROPAGATED = "#e07a1f"
_INK = "#24292f"
_MUTED = "#6b7280"
_MAX_LABELS = 90
"""Rows above which the numbers of blocks are thinned out."""


def draw(layers: Sequence[LayerError], title: str, subtitle: str, path: Path) -> None:
    """Saves the figure as PNG: one row a layer, two dots for its two errors.

    Args:
        layers: at least one.
        title, subtitle: the lines above the figure.
        path: where to save it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    kinds: dict[str, list[LayerError]] = {}
    for layer in layers:
        kinds.setdefault(layer.kind, []).append(layer)
    rows: list[tuple[float, LayerError]] = []
    bands: list[tuple[float, float, str]] = []
    y = 0.0
    for kind, members in kinds.items():
        start = y
        for layer in members:
            rows.append((y, layer))
            y += 1
        bands.append((start - 0.5, y - 0.5, kind))
        y += 0.6

    height = min(max(3.2, 1.7 + 0.19 * y), 24)
    figure = Figure(figsize=(9.5, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    positions = [place for place, _ in rows]
    same = [layer.same_input for _, layer in rows]
    propagated = [layer.propagated for _, layer in rows]

    for index, (top, bottom, _) in enumerate(bands):
        axes.axhspan(top, bottom, color="#f3f5f7" if index % 2 == 0 else "#fafbfc", zorder=0)
    axes.hlines(positions, same, propagated, color="#c5cbd3", linewidth=1.6, zorder=2)
    size = 34 if len(rows) <= _MAX_LABELS else 12
    axes.scatter(same, positions, s=size, color=_SAME_INPUT, zorder=3, label="same input as in FP32 (this layer alone)")
    axes.scatter(propagated, positions, s=1.9 * size, facecolor="none", edgecolor=_PROPAGATED, linewidth=1.6, zorder=3,
                 label="its own input (with all layers before)")  # fmt: skip

    low, high = _limits([*same, *propagated])
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [mantissa * 10.0**power for power in range(-6, 3) for mantissa in (1, 2, 5)]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.set_xlabel(r"relative error of the layer's output, $\|y_{NVFP4} - y_{FP32}\|\,/\,\|y_{FP32}\|$", color=_INK)
    axes.set_ylim(positions[-1] + 0.8, -0.8)

    step = -(-len(rows) // _MAX_LABELS)
    labelled = [(place, str(layer.depth)) for place, layer in rows[::step] if layer.depth is not None]
    axes.set_yticks([place for place, _ in labelled], [text for _, text in labelled], fontsize=7.5, color=_MUTED)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.tick_params(axis="x", colors=_MUTED)
    for top, bottom, kind in bands:
        axes.annotate(kind, xy=(0, (top + bottom) / 2), xycoords=("axes fraction", "data"), xytext=(-26, 0),
                      textcoords="offset points", ha="right", va="center", fontsize=9.5, color=_INK)  # fmt: skip
    axes.grid(axis="x", color="#dfe3e8", linewidth=0.8, zorder=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c5cbd3")

    axes.set_title(title, loc="left", fontsize=13.5, fontweight="bold", color=_INK, pad=62)
    note: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": _MUTED}
    axes.annotate(subtitle, xy=(0, 1), xytext=(0, 28), fontsize=9.5, **note)
    axes.annotate("block", xy=(0, 1), xytext=(-4, 2), ha="right", fontsize=7.5, **note)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2, frameon=False, fontsize=9,
                handletextpad=0.3, columnspacing=2.0)  # fmt: skip
    try:
        figure.savefig(path)
    except OSError as error:
        from .._terminal import UsageError

        raise UsageError(f"the figure cannot be written to {path}: {error.strerror}") from error


def _limits(errors: Sequence[float]) -> tuple[float, float]:
    """An axis with a margin on both sides, of a decade at least half."""
    positive = [error for error in errors if error > 0] or [1.0]
    low, high = min(positive) / 1.25, max(positive) * 1.25
    while high / low < 4:
        low, high = low / 1.1, high * 1.1
    return low, high
