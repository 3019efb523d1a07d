"""A memory budget for the `Trainer` of the library transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from transformers import TrainerCallback

from ..base.errors import SpillwayError
from ..fit.fit import fit
from ..fit.fitted import Fitted
from ..plan.plan import parse_bytes

if TYPE_CHECKING:
    from ..fit.compiled import CompiledFitted


class FitCallback(TrainerCallback):
    """Makes the steps of a `Trainer` stay within a budget: `Trainer(..., callbacks=[FitCallback("8GiB")])`.

    All from the model's first call to the backward is planned, in each process that torchrun starts. Training raises `SpillwayError`
    for arguments that a plan does not allow, and for a budget below the floor. What the Trainer logs has the numbers of `Fitted.stats`,
    as "spillway/most_bytes"; so have its `log_history` and the callbacks behind this one, while those of `report_to` have run before.
    """

    def __init__(self, memory: Union[str, int], policy: str | None = None, report_every: int = 0, verify: int = 0,
                 allow: Union[str, Sequence[str]] = ()) -> None:
        """memory, policy, report_every, verify, allow: as `spillway_torch.fit` takes them. Raises `SpillwayError` if `memory` is none."""
        self.memory = parse_bytes(memory)
        self.policy, self.report_every, self.verify, self.allow = policy, report_every, verify, allow
        self.fitted: Fitted | CompiledFitted | None = None  # while `train` runs, and after it ended with an error

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_train_end(args, state, control)
        if args.n_gpu > 1:
            raise SpillwayError("a Trainer with several GPUs in one process is not planned: start a process for each by torchrun")
        if args.deepspeed:
            raise SpillwayError("a Trainer with deepspeed is not planned: give it FSDP2, or leave FitCallback out")
        optimizer = kwargs["optimizer"]
        self.fitted = fit(kwargs["model"], getattr(optimizer, "optimizer", optimizer), self.memory,  # accelerate wraps it
                          policy=self.policy, report_every=self.report_every, verify=self.verify, allow=self.allow,
                          compiled=bool(args.torch_compile))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.fitted is not None and logs is not None:
            numbers = {f"spillway/{name}": value for name, value in self.fitted.stats().items()}
            logs.update(numbers)
            if state.log_history:
                state.log_history[-1].update(numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.fitted is not None:
            self.fitted.remove()
            self.fitted = None
