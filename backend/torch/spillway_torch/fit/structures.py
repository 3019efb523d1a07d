"""Steps whose operators differ: which structures have plans."""

from __future__ import annotations

import collections
from typing import Any

import torch
import torch.utils._pytree

from ..tape.scaled import Shapes
from ..tape.tape import structure
from .family import Family

MOST_STRUCTURES = 4  # steps with other operators, or inputs of other kinds, that have plans at a time
MOST_RECORDINGS = 8  # steps that are recorded, over the life of a budget; a first step may do what later ones do not

Kind = tuple[Any, ...]  # what tells structures apart before a step runs: the kinds of its inputs


def kind_of(inputs: Any) -> tuple[Kind, Shapes]:
    """Returns what tells the structures of steps apart when they begin, and the shapes of the model's inputs."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return tuple((t.dim(), t.dtype) for t in tensors), tuple(tuple(t.shape) for t in tensors)


class Structures:
    """The plans for steps of several structures."""

    def __init__(self) -> None:
        self.recordings = 0
        self._families: collections.OrderedDict[Kind, list[Family]] = collections.OrderedDict()  # the last one was used last

    def all(self) -> list[Family]:
        return [family for families in self._families.values() for family in families]

    def close(self) -> None:
        """Gives the memory of the host back."""
        for family in self.all():
            family.close()
        self._families.clear()

    def choose(self, kind: Kind) -> Family | None:
        """Returns the plans for the next step; None if it has to be recorded."""
        families = self._families.get(kind, [])
        if families:
            self._families.move_to_end(kind)
        fitting = [family for family in families if not family.deviated]
        if fitting:
            return fitting[-1]
        if self.recordings < MOST_RECORDINGS:
            return None
        return families[-1] if families else next(reversed(self.all()), None)

    def note(self, family: Family, deviated: bool) -> None:
        """Notes whether the plan could not be carried out in a step."""
        family.deviated = deviated and not family.settled

    def add(self, kind: Kind, family: Family) -> Family:
        """Adds the plans that follow from a recorded step, and returns them."""
        known = self._families.setdefault(kind, [])
        family.settled = any(structure(other.tape) == structure(family.tape) for other in known)
        known.append(family)
        self._families.move_to_end(kind)
        while len(self.all()) > MOST_STRUCTURES:
            oldest = next(iter(self._families))
            self._families[oldest].pop(0).close()
            if not self._families[oldest]:
                del self._families[oldest]
        return family
