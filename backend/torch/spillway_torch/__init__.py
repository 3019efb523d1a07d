"""Records steps of PyTorch programs for Spillway, with or without a GPU, and runs plans in them."""

from .errors import NotRecordableError, ProgramError, SpillwayError
from .execute import Fitted, Plan, fit, make_plan, read_plan, record_tape, step
from .ledger import Storage
from .modules import find_blocks
from .pretended import Pretended, pretend
from .program import find_program, run_program
from .recorder import Operand, Operator, Saved
from .recording import Recording, record
from .target import Target

__all__ = ["Fitted", "NotRecordableError", "Operand", "Operator", "Plan", "Pretended", "ProgramError", "Recording", "Saved",
           "SpillwayError", "Storage", "Target", "find_blocks", "find_program", "fit", "make_plan", "pretend", "read_plan", "record",
           "record_tape", "run_program", "step"]
__version__ = "0.1.0"
