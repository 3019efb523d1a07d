"""Records steps of PyTorch programs for Spillway, with or without a GPU, and runs plans in them."""

from .base.errors import NotRecordableError, ProgramError, SpillwayError
from .base.ledger import Storage
from .base.program import find_program, run_program
from .base.target import Target
from .fit.fit import Fitted, fit
from .fit.record import record
from .operators import record_operators
from .plan.curve import Curve, explain
from .plan.files import read_plan, write_plan, write_step
from .plan.plan import Plan
from .plan.planner import make_plan
from .run.executor import step
from .step.modules import find_blocks
from .step.pretended import Pretended, pretend
from .step.data import Operand, Operator, Saved
from .step.step import Step
from .step.verdict import FitRow, Holder, LargestRow

__all__ = ["Curve", "FitRow", "Fitted", "Holder", "LargestRow", "NotRecordableError", "Operand", "Operator", "Plan", "Pretended",
           "ProgramError", "Saved", "SpillwayError", "Step", "Storage", "Target", "explain", "find_blocks", "find_program", "fit",
           "make_plan", "pretend", "read_plan", "record", "record_operators", "run_program", "step",
           "write_plan", "write_step"]
__version__ = "0.1.0"
