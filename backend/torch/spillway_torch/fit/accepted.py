"""What `fit` accepts: models and optimizers."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, Union

import torch

from ..base.errors import SpillwayError
from ..step.modules import is_called_from
from ..tape.regions import is_compiled

log = logging.getLogger("spillway_torch")

CALL, STATE = "_call_impl", "__getstate__"  # what a model has of its own while it has a budget
BUDGET = "spillway_budget"  # what the hook of an optimizer has
HOOKS = "_optimizer_step_pre_hooks"  # what an optimizer has once PyTorch has made it

REFUSED = {"FullyShardedDataParallel": "its parameters are views of one that comes and goes during a step: shard by fully_shard (FSDP2)",
           "DataParallel": "its replicas run in several threads: use DistributedDataParallel"}
REDUCED = ("DistributedDataParallel", "FSDPModule")  # kinds of modules whose gradients are reduced between processes while backward runs
EARLY = "its gradients are reduced behind the hooks that would update parameters early: leave early_updates out"

PLAIN = (torch.nn.Parameter, torch.Tensor)  # torch.func.functional_call gives a module tensors that are no parameters
REMEDIES = {"DTensor": ", as tensor parallelism makes it, whose operators communicate: shard by fully_shard or DistributedDataParallel "
                       "alone",
            "UninitializedParameter": ": call the model once before, so that its lazy modules have their parameters"}

COMPILER = "2.11"  # the version of PyTorch whose compiler Spillway is made for

ALLOWED = ("chunked_loss",)  # what `fit` may do that changes the last bits of results


def allowed_of(given: Union[str, Sequence[str]]) -> frozenset[str]:
    """Returns the names of what a program allows. Raises `SpillwayError` for unknown ones."""
    names: list[Any] = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [given]
    for name in names:
        if name not in ALLOWED:
            raise SpillwayError(f"allow {name!r} (valid: {', '.join(map(repr, ALLOWED))}, or a list of them)")
    return frozenset(names)


def check_compiler() -> None:
    """Raises `SpillwayError` if compiled models cannot be planned with this PyTorch; says so in the log if that is not known."""
    if torch.__version__.startswith(f"{COMPILER}."):
        return
    try:
        from ..compiled import pytorch as _  # it takes seconds to load
    except (ImportError, AttributeError) as error:
        raise SpillwayError(f"compiled models need PyTorch {COMPILER}, and this is {torch.__version__}, whose compiler is another one "
                            f"({error}): use that version, or train without torch.compile") from error
    log.warning("spillway: compiled models are planned with what PyTorch %s has, and this is %s, with which that was not tested", COMPILER,
                torch.__version__)


def _kinds_of(module: torch.nn.Module) -> list[str]:
    return [kind.__name__ for kind in type(module).__mro__]


def replicas(model: torch.nn.Module) -> list[torch.nn.parallel.DistributedDataParallel]:
    """Returns the parts of a model whose gradients DistributedDataParallel reduces, each for itself."""
    return [module for module in model.modules() if isinstance(module, torch.nn.parallel.DistributedDataParallel)]


def is_compiled_whole(model: torch.nn.Module) -> bool:
    """Returns whether a call of a model runs under torch.compile, as itself or in a DistributedDataParallel."""
    return is_compiled(model) or isinstance(model, torch.nn.parallel.DistributedDataParallel) and is_compiled(model.module)


def are_reduced(model: torch.nn.Module) -> bool:
    """Returns whether gradients of a model are reduced between processes while backward runs."""
    return any(kind in REDUCED for module in model.modules() for kind in _kinds_of(module))


def refuse_running(early: bool) -> None:
    """Raises `SpillwayError` if the call of a model is one that a plan cannot run, which shows when it runs.

    early: whether parameters are updated while backward runs.
    """
    if early and torch.nn.parallel.DistributedDataParallel._active_ddp_module is not None:
        raise SpillwayError(f"early_updates: the model runs in a DistributedDataParallel; {EARLY}")
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    if stages is not None and is_called_from(stages):
        raise SpillwayError("the model is a stage of torch.distributed.pipelining, which is not planned: forwards and backwards of "
                            "several micro-batches alternate; call `remove` of what `fit` returned, and use checkpoints")


def refuse_kinds(model: torch.nn.Module, compiled: bool = False, early: bool = False) -> None:
    """Raises `SpillwayError` for kinds of modules and parameters that a plan cannot run, which they may also become."""
    sharded: set[int] = set()
    for name, module in model.named_modules():
        kinds = _kinds_of(module)
        for kind in kinds:
            if kind in REFUSED and not (kind == "DataParallel" and len(getattr(module, "device_ids", ())) < 2):
                raise SpillwayError(f"module '{name}' is a {kind}, which is not planned: {REFUSED[kind]}")
            if kind == "FSDPModule" and compiled:
                raise SpillwayError(f"module '{name}' is a {kind}, which has no budget where it is compiled: compile nothing of it, or use "
                                    "DistributedDataParallel")
            if kind in REDUCED and early:
                raise SpillwayError(f"early_updates: module '{name}' is a {kind}; {EARLY}")
        if "FSDPModule" in kinds:
            sharded |= _sharded_by(module, name)
    for name, parameter in model.named_parameters():
        if id(parameter) in sharded or type(parameter) in PLAIN and type(parameter.data) is torch.Tensor:
            continue
        kind = (type(parameter) if type(parameter.data) is torch.Tensor else type(parameter.data)).__name__
        remedy = REMEDIES.get(kind, "")
        raise SpillwayError(f"parameter '{name}' is a {kind}, which is not planned{remedy}")


def _sharded_by(module: Any, name: str) -> set[int]:
    """Returns the `id`s of the parameters that FSDP2 shards for a module. Raises `SpillwayError` if a plan cannot follow them."""
    group = getattr(getattr(module, "_get_fsdp_state", lambda: None)(), "_fsdp_param_group", None)
    found: set[int] = set()
    for of in group.fsdp_params if group is not None else ():
        if of.is_dtensor:
            raise SpillwayError(f"module '{name}' shards a DTensor of tensor parallelism, which is not planned: its operators communicate; "
                                "shard by fully_shard alone")
        if of.offload_to_cpu:
            raise SpillwayError(f"module '{name}' has a CPUOffloadPolicy, which is not planned: parameters are on the host; leave it out")
        found |= {id(of.sharded_param), id(getattr(of, "_unsharded_param", None))}
    return found


def _refuse_model(model: torch.nn.Module, compiled: bool, early: bool) -> None:
    refuse_kinds(model, compiled, early)
    for name, module in model.named_modules():
        if not name and not compiled and is_compiled_whole(module):
            raise SpillwayError("the whole model is compiled, and nothing is seen of what it runs: leave compiled=False out")
        if not name and isinstance(module, torch.jit.ScriptModule):
            raise SpillwayError("the whole model is a ScriptModule, on which PyTorch allows no hooks: script its blocks one by one")
        if CALL in vars(module):
            raise SpillwayError(f"module '{name}' has a budget already: call `remove` of what the earlier `fit` returned")


def models_of(given: Union[torch.nn.Module, Sequence[torch.nn.Module]], compiled: bool = False,
              early: bool = False) -> list[torch.nn.Module]:
    """Returns one or several models, compiled or not, as a list. Raises `SpillwayError` for what a plan cannot run.

    early: whether parameters are updated while backward runs.
    """
    models = list(given) if isinstance(given, (list, tuple)) and given else [given]
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise SpillwayError(f"the model is a {type(model).__name__}; expected a torch.nn.Module, or a list of them")
        _refuse_model(model, compiled, early)
    for at, model in enumerate(models):
        if any(model is module for other in (*models[:at], *models[at + 1:]) for module in other.modules()):
            raise SpillwayError(f"a {type(model).__name__} is given twice, or is a part of another model in the list: give it once")
    return models


def optimizers_of(given: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None]) -> list[torch.optim.Optimizer]:
    """Returns one or several optimizers as a list. Raises `SpillwayError` for what is none, and for those of another budget."""
    optimizers = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    wrappers = []
    for optimizer in optimizers:  # which grow meanwhile: accelerate, SAM and others have an optimizer of PyTorch do the update
        inside = [value for value in getattr(optimizer, "__dict__", {}).values() if isinstance(value, torch.optim.Optimizer)]
        optimizers += [value for value in inside if all(value is not other for other in optimizers)]
        wrappers += [optimizer] if inside and HOOKS not in vars(optimizer) else []
    optimizers = [optimizer for optimizer in optimizers if all(optimizer is not wrapper for wrapper in wrappers)]
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        if not hasattr(optimizer, HOOKS):  # also a class, and one whose `__init__` has not called PyTorch's
            raise SpillwayError(f"the optimizer is a {kind}; expected one of torch.optim, a list of them, or None for all")
        for hook in getattr(optimizer, HOOKS, {}).values():
            if getattr(hook, BUDGET, lambda: None)() is not None:
                raise SpillwayError(f"the {kind} has a budget already: give all models that a step calls to one `fit`, as in "
                                    "fit([one, other], optimizer, memory=...), or call `remove` of what the earlier `fit` returned")
    return optimizers


def device_type(models: Sequence[torch.nn.Module], wanted: Union[str, torch.device, None] = None) -> str:
    """Returns the type of the device of all parameters. Raises `SpillwayError` if it is not one that a plan can run on.

    wanted: the GPU where they are going to be; None if they are there.
    """
    devices = {p.device for model in models for p in model.parameters()}
    if wanted is not None:
        devices = {_gpu_of(wanted)} | devices - {torch.device("cpu")}
        _refuse_to_move(models)
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "no device"
        remedy = "; device='cuda' moves what is on the CPU" if wanted is None and {d.type for d in devices} == {"cpu", "cuda"} else ""
        raise SpillwayError(f"the model's parameters are on {found}; expected one device{remedy}")
    kind = next(iter(devices)).type
    if kind not in ("cpu", "cuda"):
        raise SpillwayError(f"the model is on '{kind}' (valid: cpu, cuda)")
    if kind == "cuda" and next(iter(devices)).index != torch.cuda.current_device():
        raise SpillwayError(f"the model is on {next(iter(devices))}, and the current GPU is {torch.cuda.current_device()}: call "
                            "torch.cuda.set_device before")
    return kind


def _gpu_of(wanted: Union[str, torch.device]) -> torch.device:
    """Returns the GPU that an option names, with its number. Raises `SpillwayError` if it is none of this machine."""
    device = None
    with contextlib.suppress(RuntimeError, TypeError):  # it names no device
        device = torch.device(wanted)
    if device is None or device.type != "cuda":
        raise SpillwayError(f"device is {wanted!r}; expected 'cuda', or None for models that are where their steps run")
    if not torch.cuda.is_available():
        raise SpillwayError(f"device is {wanted!r}, and PyTorch {torch.__version__} finds no GPU on this machine")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _refuse_to_move(models: Sequence[torch.nn.Module]) -> None:
    for name, module in ((name, module) for model in models for name, module in model.named_modules()):
        if any(kind in REDUCED for kind in _kinds_of(module)):
            raise SpillwayError(f"device: module '{name}' is a {type(module).__name__}, whose parameters do not move: move the model before "
                                "it is wrapped")
        if is_compiled(module):
            raise SpillwayError(f"device: module '{name}' is compiled, and its kernels cannot wait for weights: move the model by "
                                "`model.to`, and leave device out")


def repeated_blocks(models: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Returns the blocks that can be compiled one by one: at least three modules of one class in one list, outermost ones first.

    Raises `SpillwayError` if there are none, or if a part of the model is compiled already.
    """
    found: dict[torch.nn.Module, None] = {}
    for module in (module for model in models for module in model.modules()):
        if is_compiled(module):
            raise SpillwayError(f"a {type(module).__name__} is compiled already: leave compile='blocks' out, and give compiled=True")
        children = list(module.children()) if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) else []
        if not any(module in block.modules() for block in found):
            found.update((child, None) for child in children if sum(type(other) is type(child) for other in children) >= 3
                         and not type(child).__module__.startswith("torch."))
    if not found:
        raise SpillwayError("compile='blocks': the model has no repeated blocks, which are three or more modules of one class, not of "
                            "PyTorch itself, in a ModuleList or Sequential: compile the whole model, by model.compile()")
    return list(found)
