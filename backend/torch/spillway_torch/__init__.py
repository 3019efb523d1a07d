"""Records steps of PyTorch programs for Spillway, with or without a GPU."""

from .errors import NotRecordableError, ProgramError, SpillwayError
from .ledger import Storage
from .modules import find_blocks
from .pretended import Pretended, pretend
from .program import find_program, run_program
from .recorder import Operand, Operator, Saved
from .recording import Recording, record
from .target import Target

__all__ = ["NotRecordableError", "Operand", "Operator", "Pretended", "ProgramError", "Recording", "Saved", "SpillwayError",
           "Storage", "Target", "find_blocks", "find_program", "pretend", "record", "run_program"]
__version__ = "0.1.0"
