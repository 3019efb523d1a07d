"""`fit`: a memory budget for a training script that stays as it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import torch

from ..base.errors import SpillwayError
from ..plan.files import read_compiled_plan
from ..plan.plan import parse_bytes
from ..run.library import steps_library
from .accepted import allowed_of, check_compiler, device_type, is_compiled_whole, models_of, optimizers_of, repeated_blocks
from .fitted import Fitted
from .host import host_costs

if TYPE_CHECKING:
    from .compiled import CompiledFitted


def fit(model: Union[torch.nn.Module, Sequence[torch.nn.Module]],
        optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None] = None, memory: Union[str, int] = "8GiB",
        hook_forward: bool = True, policy: str | None = None, report_every: int = 0, verify: int = 0,
        early_updates: bool = False, compiled: bool | None = None, compile: str | None = None,
        plan: str | os.PathLike[str] | None = None, allow: Union[str, Sequence[str]] = (),
        device: Union[str, torch.device, None] = None) -> Union[Fitted, CompiledFitted]:
    """Makes training steps of `model` stay within a budget; the script stays as it is. `Step.fit` and the verb `spillway fit` predict instead.

    The first step records, its optimizer's step plans, and later steps run under the plan, also where their inputs have other sizes: a
    larger one gets a plan of its own. On a GPU, plans are made in the background; until then, and wherever a step differs from what is
    planned, saved tensors go to the host as soon as memory comes near the budget.

    A step lasts from the first call of the model until a backward reads what it saved. So it includes a loss function on the result,
    further calls of the model before the backward, and a backward that makes a graph for another one, such as that of a penalty on
    gradients. Where gradients add up over several backwards, each of them ends such a step.

    On a GPU, state of the optimizer and weights may be on the host while nothing needs them, if the budget takes it (STEPS.md). Trained
    weights need `optimizer`.

    model: a module, or a list of all modules that a step calls, such as an encoder and a decoder. Under DistributedDataParallel or
        `fully_shard`, each process calls `fit` for its own.
    optimizer: the one that updates the model, or a list of them; by default all that have parameters of it.
    memory: most bytes of the device that tensors may take, such as "8GiB".
    hook_forward: otherwise the caller encloses the part of a step that is planned in the result's `begin` and `end`.
    policy: as for `make_plan`.
    report_every: after so many steps, the log "spillway_torch" has a line about them, at level INFO; 0 for none.
    verify: in each step of so many, the bits of what is recomputed are compared with what autograd saved, of which the host keeps a copy;
        the backward raises RuntimeError where they differ. 0 for none.
    early_updates: whether parameters are updated on a GPU as soon as backward has made their gradients, which are then given up, so that
        the optimizer's state comes and goes while backward runs. It needs `optimizer`, an SGD, Adam or AdamW, and is for programs that do
        not look at gradients, clip them or add them up: what uses a gradient that was given up raises `SpillwayError`.
    compiled: whether what torch.compile finds is planned, in place of the steps of PyTorch itself; by default, it is where a whole model
        is compiled. It takes none of the five options above, no `allow` and no `device`.
    compile: "blocks" compiles the model's repeated blocks first, until `remove`: three or more modules of one class, not of PyTorch
        itself, in one list. What runs between them is as it was, and counts.
    plan: the file of a plan for the same compiled step, which `write_plan` has written; nothing is planned then but what it lacks.
    allow: what `fit` may do although it changes the last bits of results, a name or a list of names. "chunked_loss": a cross entropy of the
        result of a linear layer, of more than 256 MiB of float32, is computed in chunks of rows, so that the logits never exist as a whole.
        Where the program reads them otherwise, the loss is an ordinary one, and the log says so once (STEPS.md).
    device: "cuda" moves what is on the CPU of the models, and of the optimizer's state, to the current GPU, as `model.to` does. But frozen
        weights, and trained ones that take more than half of `memory`, are there only when operators need them, until a plan has room for
        them, so that a model may be larger than the GPU's memory.

    Raises `SpillwayError` for a model that cannot be planned, and if the library of the package is missing; for a budget below the
    floor, the optimizer's step raises it, or a later step on a GPU.
    """
    budget = parse_bytes(memory)
    if not isinstance(early_updates, bool) or early_updates and optimizer is None:
        raise SpillwayError(f"early_updates is {early_updates!r}, and the optimizer {type(optimizer).__name__}; expected False, or True with "
                            "an optimizer: fit(model, optimizer, ...)")
    given = list(model) if isinstance(model, (list, tuple)) else [model]
    if compile not in (None, "blocks") or compile and compiled is False:
        raise SpillwayError(f"compile is {compile!r}, and compiled {compiled}; expected compile='blocks', without compiled=False, or None")
    if compiled is None:
        compiled = bool(compile) or any(isinstance(one, torch.nn.Module) and is_compiled_whole(one) for one in given)
    allowed = allowed_of(allow)
    models, optimizers = models_of(model, compiled, early_updates), optimizers_of(optimizer)
    kind = device_type(models, device)
    for name, value in (("report_every", report_every), ("verify", verify)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SpillwayError(f"{name} is {value!r}; expected a number of steps, or 0")
    if compiled:
        if not hook_forward or policy is not None or report_every or verify or early_updates or allowed or device:
            raise SpillwayError("a compiled model has a budget without hook_forward, policy, report_every, verify, early_updates, allow and "
                                "device: leave them out")
        check_compiler()
        from .compiled import CompiledFitted  # PyTorch's compiler takes seconds to load
        return CompiledFitted(models, optimizers, budget, kind, repeated_blocks(models) if compile else (),
                              read_compiled_plan(plan) if plan is not None else None)
    if plan is not None:
        raise SpillwayError("plan is for compiled models; `read_plan` reads the plan of another step, and `step` runs it")
    steps_library()  # it may have to be built, which takes longer than a step
    host_costs(kind)
    fitted = Fitted(models, optimizers, budget, kind, hook_forward, policy, report_every, verify, early_updates, allowed)
    if device is not None:
        fitted.bring(optimizers)
    return fitted


def compile(model: torch.nn.Module, memory: Union[str, int] = "8GiB",
            optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None] = None, **options: Any) -> torch.nn.Module:
    """Compiles a model in place and gives its steps a budget, as `model.compile(**options)` and `fit(model, optimizer, memory)` do.

    Returns the model. Raises `SpillwayError` as `fit` does.
    """
    model.compile(**options)
    fit(model, optimizer, memory)
    return model
