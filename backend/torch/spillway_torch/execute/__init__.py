"""Executes memory plans inside a program's own step of training."""

from .curve import Curve, explain
from .device import CpuDevice, CudaDevice, Device, Queue
from .executor import Executor, step
from .files import read_plan, write_plan, write_step
from .fit import Fitted, fit
from .plan import Floor, Plan
from .planner import assemble, learn_host_speed, make_plan
from .tape import Tape
from .tape_recorder import record_tape

__all__ = ["CpuDevice", "CudaDevice", "Curve", "Device", "Executor", "Fitted", "Floor", "Plan", "Queue", "Tape", "assemble",
           "explain", "fit", "learn_host_speed", "make_plan", "read_plan", "record_tape", "step", "write_plan", "write_step"]
