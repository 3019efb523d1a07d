"""Records steps of PyTorch programs for Spillway, with or without a GPU, and runs plans in them."""

from .base.errors import NotRecordableError, ProgramError, SpillwayError
from .fit.fit import compile, fit
from .fit.fitted import Fitted
from .fit.record import explain_compiled, record
from .plan.curve import Curve, explain
from .plan.files import read_plan, write_plan, write_step
from .plan.pipeline import simulate_pipeline
from .plan.plan import Plan
from .plan.planner import make_plan
from .plan.sharding import plan_sharding
from .run.executor import step
from .step.pretended import pretend
from .step.step import Step

__all__ = ["Curve", "Fitted", "NotRecordableError", "Plan", "ProgramError", "SpillwayError", "Step", "compile",
           "explain", "explain_compiled", "fit", "make_plan", "plan_sharding", "pretend", "read_plan", "record",
           "simulate_pipeline", "step", "write_plan", "write_step"]
__version__ = "0.1.0"
