"""The device that a recording is made for."""

from __future__ import annotations

import dataclasses
import re

import torch

from .errors import SpillwayError


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device, with data (`real`) or only pretended.

    `shown` is the device that the program under recording sees. `capability` is the compute capability of a CUDA
    device, as ten times the major plus the minor number (90 is Hopper), and 0 for a CPU.
    """

    name: str
    real: bool
    shown: torch.device
    capability: int = 0

    @property
    def cuda(self) -> bool:
        return self.shown.type == "cuda"


def parse_target(text: str) -> Target:
    """Returns the target that `text` names.

    "cuda:sm_90" is a pretended GPU of compute capability 9.0, and "cpu:pretended" a pretended CPU. "cuda" and "cpu" are
    the devices of this machine, on which the step really runs. Raises `SpillwayError` for any other text, and for
    "cuda" without a GPU.
    """
    gpu = re.fullmatch(r"cuda:sm_(\d{2,3})", text)
    if gpu:
        return Target(text, False, torch.device("cuda", 0), int(gpu[1]))
    if text == "cpu:pretended":
        return Target(text, False, torch.device("cpu"))
    if text == "cpu":
        return Target(text, True, torch.device("cpu"))
    if text == "cuda":
        if not torch.cuda.is_available():
            raise SpillwayError("target 'cuda': this machine has no GPU; name one to pretend, such as 'cuda:sm_90'")
        major, minor = torch.cuda.get_device_capability()
        return Target(text, True, torch.device("cuda", torch.cuda.current_device()), 10 * major + minor)
    raise SpillwayError(
        f"target '{text}' is not known (valid: cuda:sm_NN such as cuda:sm_90, cuda, cpu, cpu:pretended)")
