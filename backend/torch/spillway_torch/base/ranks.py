"""The processes of a program that runs on several GPUs: which one this is, and how many its host has."""

from __future__ import annotations

import contextlib
import logging
import os

import torch
import torch.distributed as dist


def rank() -> int | None:
    """Returns the number of this process; None if there is no other one."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.get_rank() if several else None


def local_ranks() -> int:
    """Returns how many processes of the program this host has: as the variable LOCAL_WORLD_SIZE says, or else one for each of its GPUs."""
    if rank() is None:
        return 1
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    if given.isdecimal() and int(given):
        return int(given)
    return max(1, min(dist.get_world_size(), torch.cuda.device_count()))


def collectives_made() -> int:
    """Returns how many collectives this process has begun, in the groups that count them, as those of NCCL and gloo do."""
    made = 0
    for group in dist.distributed_c10d._world.pg_map if rank() is not None else ():
        with contextlib.suppress(RuntimeError):
            made += getattr(group, "_get_sequence_number_for_group")()
    return made


class _NamesRank(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        number, text = rank(), str(record.msg)
        if number is not None and text.startswith("spillway: ") and not text.startswith("spillway: rank "):
            record.msg = f"spillway: rank {number}: {text.removeprefix('spillway: ')}"
        return True


logging.getLogger("spillway_torch").addFilter(_NamesRank())
