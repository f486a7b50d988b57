# SPDX-License-Identifier: Apache-2.0
"""A table of descriptors on a device: what a kernel that serves a whole list reads to find its tensors."""

from __future__ import annotations

import torch

_captured: list[tuple[torch.Tensor, torch.Tensor]] = []
"""Pairs of buffers that graphs read at every replay. How long these live is not known here, so they stay."""


class DeviceTable:
    """Bytes on a device, replaced when the addresses in them change; nothing waits for the device.

    Copies go from pinned memory, in the order of the current stream. A pair of buffers is kept in reserve for a change
    that is met while a CUDA graph is captured (gradients that live in the graph's own memory): the copy becomes part of
    the graph, which reads the pinned bytes again at every replay: such a pair is neither written again nor freed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._current: torch.Tensor | None = None
        self._reserve: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def address(self) -> int:
        """Where the bytes are; 0 on a CPU, and before the first `write`."""
        return 0 if self._current is None else self._current.data_ptr()

    def write(self, content: bytes) -> None:
        """Replaces the bytes.

        Raises:
            RuntimeError: a graph is being captured, and no eager call with a list of this length came before it.
        """
        if self._device.type != "cuda" or not content:
            return
        if torch.cuda.is_current_stream_capturing():
            if self._reserve is None or self._reserve[0].numel() != len(content):
                raise RuntimeError("blockscale: capture needs one eager step before it, with the same tensors")
            pinned, target = self._reserve
            self._reserve = None
            _captured.append((pinned, target))
        else:
            pinned, target = self._pair(len(content))
            self._reserve = self._pair(len(content))
        pinned.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        target.copy_(pinned, non_blocking=True)
        self._current = target

    def _pair(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return pinned, torch.empty(size, dtype=torch.uint8, device=self._device)
