"""Training steps that the rows of the tables name, built from PyTorch's own operators.

Each builder runs inside `spillway_torch.pretend` and returns the step, a function without arguments. Options are plain
values, so that they are the key under which a recording is kept.

No step holds data. Functions that stand for fused kernels, or for what other GPUs send, allocate, read and write as
those do, and compute something else.
"""

from .decoders import decoder
from .liger import operator
from .litgpt import litgpt
from .megatron import megatron

BUILDERS = {function.__name__: function for function in (operator, megatron, litgpt, decoder)}
