"""Records steps of PyTorch programs for Spillway, with or without a GPU, and runs plans in them."""

from .errors import NotRecordableError, ProgramError, SpillwayError
from .execute import Curve, Fitted, Plan, explain, fit, make_plan, read_plan, record_tape, step, write_plan, write_step
from .ledger import Storage
from .modules import find_blocks
from .operators import record_operators
from .pretended import Pretended, pretend
from .program import find_program, run_program
from .recorder import Operand, Operator, Saved
from .recording import Recording, record
from .target import Target
from .verdict import FitRow, Holder, LargestRow

__all__ = ["Curve", "FitRow", "Fitted", "Holder", "LargestRow", "NotRecordableError", "Operand", "Operator", "Plan", "Pretended",
           "ProgramError", "Recording", "Saved", "SpillwayError", "Storage", "Target", "explain", "find_blocks", "find_program", "fit",
           "make_plan", "pretend", "read_plan", "record", "record_operators", "record_tape", "run_program", "step",
           "write_plan", "write_step"]
__version__ = "0.1.0"
