"""Memory of the host for a recording, which does not know how much of it saved tensors will take."""

from __future__ import annotations

import concurrent.futures

import torch

from ..base.device import CudaDevice, Device, Host

HOST_PIECE = {"cuda": 1 << 30, "cpu": 1 << 20}  # bytes of the host that a recording takes at a time
_MAKER = concurrent.futures.ThreadPoolExecutor(1, "spillway-host")  # its thread starts with the first piece


class HostPieces:
    """Takes memory of the host in pieces. For a GPU, where this takes time, another thread makes the next piece meanwhile."""

    def __init__(self, device: Device) -> None:
        self._device, self._least = device, HOST_PIECE[device.type]
        self._pieces: list[Host] = []
        self._taken = 0  # bytes of the last one
        self._coming = self._next()

    def take(self, size: int) -> torch.Tensor:
        """Returns memory of the host. Raises `SpillwayError` if the host has no room."""
        if not self._pieces or self._taken + size > self._pieces[-1].bytes.numel():
            if self._coming is None or size > self._least:
                piece = self._device.host(max(size, self._least))
            else:
                piece = self._coming.result()
                self._coming = self._next()
            self._pieces.append(piece)
            self._taken = 0
        start = self._taken
        self._taken += -(-size // 4096) * 4096
        return self._pieces[-1].bytes[start:start + size]

    def hand_over(self) -> list[Host]:
        """Returns the pieces that were taken, which then belong to the caller."""
        if self._coming is not None and not self._coming.cancel() and self._coming.exception() is None:
            self._coming.result().close()
        pieces, self._pieces, self._coming = self._pieces, [], None
        return pieces

    def _next(self) -> concurrent.futures.Future[Host] | None:
        return _MAKER.submit(self._device.host, self._least) if isinstance(self._device, CudaDevice) else None
