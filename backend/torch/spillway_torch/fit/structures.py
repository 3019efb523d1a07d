"""Steps whose operators differ: which structures have plans, and which one comes next."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree

from ..tape.tape import Shapes, structure
from .family import Family

MOST_STRUCTURES = 4  # steps with other operators, or inputs of other kinds, that have plans at a time
MOST_RECORDINGS = 8  # steps that are recorded, over the life of a budget; a first step may do what later ones do not
FEW = 3  # recordings, after which only a structure is recorded that was seen twice
REMEMBERED = 64  # steps
LONGEST = 8  # steps before one that tell which one it is
USELESS = 2  # so many recordings that do not show what is expected are enough

# What tells structures apart before a step runs: the model that it calls first, which parameters get gradients, autocast, and the kinds of
# the model's inputs.
Kind = tuple[Any, ...]


def kind_of(first: int, model: torch.nn.Module, inputs: Any, parameters: Sequence[weakref.ref[torch.Tensor]],
            device: str) -> tuple[Kind, Shapes]:
    """Returns what tells the structures of steps apart when they begin, and the shapes of the model's inputs.

    parameters: those of all models.
    """
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    trained = hash(tuple(p is not None and p.requires_grad for p in (reference() for reference in parameters)))
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return (first, model.training, trained, autocast, *((t.dim(), t.dtype) for t in tensors)), tuple(tuple(t.shape) for t in tensors)


class Structures:
    """The plans for steps of several structures.

    What a step saves for its backward makes a signature, which tells its structure. It is known when the step has run; the order of the
    steps before tells which one comes next.
    """

    def __init__(self) -> None:
        self.recordings = 0
        self._families: collections.OrderedDict[tuple[Kind, int], Family] = collections.OrderedDict()  # the last one was used last
        self._steps: collections.deque[tuple[Kind, int]] = collections.deque(maxlen=REMEMBERED)
        self._wanted: Any = None  # what the last recording was expected to show
        self._useless: collections.Counter[Any] = collections.Counter()  # recordings that showed something else, by what was expected

    def all(self) -> list[Family]:
        return list(self._families.values())

    def close(self) -> None:
        """Gives the memory of the host back."""
        while self._families:
            self._families.popitem()[1].close()

    def choose(self, kind: Kind) -> Family | None:
        """Returns the plans for the next step; None if it has to be recorded.

        A structure is recorded that was seen twice, or if few steps were recorded yet. Other steps run under plans for another one.
        """
        expected = self._expected(kind)
        family = self._families.get(expected) if expected is not None else None
        if family is not None:
            wanted = family.deviated
        elif expected is not None:
            wanted = self.recordings < FEW or self._steps.count(expected) > 1
        else:
            wanted = True
        self._wanted = expected or kind
        if not self._families or wanted and self.recordings < MOST_RECORDINGS and self._useless[self._wanted] < USELESS:
            return None
        if expected is None or family is None:
            expected = ([key for key in self._families if key[0] == kind] or list(self._families))[-1]
        self._families.move_to_end(expected)
        return self._families[expected]

    def note(self, kind: Kind, signature: int, family: Family, deviated: bool) -> None:
        """Notes what a step was that ran under a plan of a family, and whether the plan could not be carried out."""
        self._steps.append((kind, signature))
        if family is self._families.get((kind, signature)):
            family.deviated = deviated and not family.settled

    def note_useless(self) -> None:
        """Notes that no new plan follows from the last recording."""
        self._useless[self._wanted] += 1

    def add(self, kind: Kind, family: Family) -> Family:
        """Adds the plans that follow from a recorded step; returns them, or those that there are for its structure already."""
        key = kind, family.tape.signature
        self._steps.append(key)
        known = self._families.get(key)
        if known is not None and not known.deviated:
            if self._wanted != key:
                self.note_useless()
            family.close()
            return known
        if known is not None:
            family.settled = structure(known.tape) == structure(family.tape)
            known.close()
        self._families[key] = family
        self._families.move_to_end(key)
        while len(self._families) > MOST_STRUCTURES:
            self._families.popitem(last=False)[1].close()
        return family

    def _expected(self, kind: Kind) -> tuple[Kind, int] | None:
        """Returns what the next step of a kind is expected to be; None if there was none.

        It is what came most often after as many equal steps as are before it now; more of them count if they tell more.
        """
        if self._steps and self._steps.count(self._steps[-1]) == len(self._steps):
            return self._steps[-1] if self._steps[-1][0] == kind else None
        numbers: dict[tuple[Kind, int], int] = {}
        steps = [numbers.setdefault(step, len(numbers)) for step in self._steps]
        keys = list(numbers)
        last = {step: at for at, step in enumerate(steps)}  # when it came
        came = [[0] * len(keys) for _ in range(LONGEST + 1)]  # how often, by how many steps before were equal
        for at, step in enumerate(steps):
            if keys[step][0] == kind:
                for equal in range(min(LONGEST, at) + 1):
                    if equal and steps[at - equal] != steps[-equal]:
                        break
                    came[equal][step] += 1
        best, share = None, 0.0
        for counts in came:
            if any(counts):
                step = max(last, key=lambda step: (counts[step], last[step]))
                sure = counts[step] / (sum(counts) + 0.5)
                if sure >= share:
                    best, share = keys[step], sure
        return best
