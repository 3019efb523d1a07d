"""A memory budget for the `Trainer` of Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from ..base.errors import SpillwayError
from ..fit.fit import fit
from ..fit.fitted import Fitted
from ..plan.plan import parse_bytes


class FitCallback(Callback):
    """Makes the steps of a `Trainer` stay within a budget: `Trainer(..., callbacks=[FitCallback("8GiB")])`.

    `training_step` is planned up to its first backward. Training raises `SpillwayError` for a strategy that a plan does not
    allow, and for a budget below the floor. The Trainer's loggers get the numbers of `Fitted.stats`, as "spillway/most_bytes".
    """

    def __init__(self, memory: Union[str, int], policy: str | None = None, report_every: int = 0, verify: int = 0,
                 allow: Union[str, Sequence[str]] = ()) -> None:
        """memory, policy, report_every, verify, allow: as `spillway_torch.fit` takes them. Raises `SpillwayError` if `memory` is none."""
        self.memory = parse_bytes(memory)
        self.policy, self.report_every, self.verify, self.allow = policy, report_every, verify, allow
        self.fitted: Fitted | None = None  # while training runs

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if "SingleDeviceStrategy" not in [kind.__name__ for kind in type(trainer.strategy).__mro__]:
            raise SpillwayError(f"a Trainer with {type(trainer.strategy).__name__} is not planned: give it one device")
        if pl_module._compiler_ctx is not None:
            raise SpillwayError("a module under torch.compile is not planned: give the Trainer the module itself")
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        fitted = fit(pl_module, optimizer, self.memory, hook_forward=False, policy=self.policy, report_every=self.report_every,
                     verify=self.verify, allow=self.allow, compiled=False)
        assert isinstance(fitted, Fitted)
        self.fitted = fitted

    def on_train_batch_start(self, *_: Any) -> None:
        if self.fitted is not None:
            self.fitted.begin()

    def on_before_backward(self, *_: Any) -> None:
        if self.fitted is not None:
            self.fitted.end()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.fitted is not None:
            self.fitted.before_update(optimizer)  # the optimizer's own hook runs before its closure

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.on_before_backward()  # a step may have none
        if self.fitted is not None:
            pl_module.log_dict({f"spillway/{name}": float(value) for name, value in self.fitted.stats().items()})

    def on_train_end(self, *_: Any) -> None:
        if self.fitted is not None:
            self.fitted.remove()
            self.fitted = None

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()
