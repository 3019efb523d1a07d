"""A device on the CPU that counts memory as an allocator of GPUs does: in blocks, and with what operators take besides tensors."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from spillway_torch.base.device import CpuDevice, Memory
from spillway_torch.step.distributed import is_taken_apart
from spillway_torch.step.recorder import tensors_in


class Counting(CpuDevice, TorchDispatchMode):
    """Counts what operators allocate while it is entered as a mode.

    scratch: bytes that operators take while they run, by name.
    stays: bytes that the first operator of a name takes for good, by name.
    waste: bytes by which each block is larger than `block` says.
    """

    def __init__(self, scratch=(), stays=(), waste=0):
        super().__init__()
        self.scratch, self.stays, self.waste = dict(scratch), dict(stays), waste
        self.sizes = {}
        self.allocated = self.most = self.requested = self.most_requested = 0
        self.peak = 0  # for tests, which reset it

    def memory(self):
        made = Memory(self.allocated, self.most, self.requested, self.most_requested)
        self.most, self.most_requested = self.allocated, self.requested
        return made

    def peak_bytes(self):
        return self.most

    def host(self, size):
        with _disable_current_modes():
            return super().host(size)

    def take(self, size, block):
        self.requested += size
        self.allocated += block
        self.most, self.most_requested = max(self.most, self.allocated), max(self.most_requested, self.requested)
        self.peak = max(self.peak, self.allocated)

    def give_back(self, key):
        size, block, _ = self.sizes.pop(key)
        self.requested -= size
        self.allocated -= block

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(map(is_taken_apart, types)):
            return NotImplemented  # its operators on tensors of this process follow
        name = func._schema.name
        self.take(self.stays.get(name, 0), self.stays.pop(name, 0))
        given = {t.untyped_storage()._cdata for t in tensors_in([args, kwargs or {}], [])}
        made = func(*args, **(kwargs or {}))
        for tensor in tensors_in([made], []):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if name != "aten::set_" and tensor.device == self.place and key not in given and key not in self.sizes:
                self.sizes[key] = (storage.nbytes(), self.block(storage.nbytes()) + self.waste,
                                   weakref.ref(storage, lambda _, key=key: self.give_back(key)))
                self.take(*self.sizes[key][:2])
        scratch = self.scratch.get(name, 0)
        self.take(scratch, scratch)
        self.take(-scratch, -scratch)
        return made
