"""Records a training step of a model with random weights for Spillway (nothing is downloaded), or explains its memory:

    python3 -m spillway_torch llama --layers 8 --width 1024 --batch 4 --target cuda:sm_90 -o recordings   # without a GPU
    python3 -m spillway_torch resnet50 --batch 32 --autotune -o recordings                                # on this GPU
    python3 -m spillway_torch explain --help
    python3 -m spillway_torch plan-sharding --help             # which ways to train on many GPUs fit
    python3 -m spillway_torch calibrate-host -o host.json      # how long this machine's host takes for an operator
    python3 -m spillway_torch weights --help    # turns weights into those of `spillway run --weights`, and back

With --target, the step is recorded on a GPU that is pretended, and NAME.json is the trace. Otherwise, PyTorch's profilers
record the step on this machine's GPU, or without one on the CPU, for `spillway trace import`. They write these files, where
NAME is the recording's name:

    NAME.snapshot.pickle   the allocator's events in the first 3 steps
    NAME.kineto.json.gz    kernels, copies, operators, allocations of one step
    NAME.et.json.gz        operands of the operators of the same step
    NAME.manifest.json     versions, GPU, settings, the step's time without profiler, peaks, SHA-256 of the files

--plan records the model under one of PyTorch's own plans for too little memory: torch.utils.checkpoint around each
block, torch.autograd.graph.save_on_cpu, or torch.compile with an activation_memory_budget. With a budget, the manifest
also lists the values that the compiler decided to keep ("saved_values").

Exit codes: 0 if recorded, 1 if recorded up to an out-of-memory error, 2 for bad usage, 3 if the step cannot be recorded
without a GPU, 5 if the model is missing.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import sys

import torch

from .base.errors import ProgramError, SpillwayError
from .base.stepfile import guarded, load_function, load_step
from .base.target import parse_target
from .fit.record import explain_compiled, record
from .plan.curve import explain
from .plan.files import write_step
from .plan.plan import parse_bytes
from .plan.sharding import plan_sharding
from .step.host_times import main as host_main
from .step.modules import find_blocks
from .step.pretended import pretend
from .step.profile import gpu_query, profile
from .step.weights import main as weights_main


class MissingError(Exception):
    """A library that is not installed or is too old."""


# ---- models ----


class Trainee:
    """A model with its data and optimizer. `step` runs one iteration of training."""

    def __init__(self, model, batch, loss, optimizer):
        self.model, self.batch, self.loss = model, batch, loss
        self.forward = model  # or the compiled model
        self.around_forward = contextlib.nullcontext
        if optimizer == "sgd":
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self):
        batch = self.batch()
        self.optimizer.zero_grad(set_to_none=True)
        with self.around_forward():
            loss = self.loss(self.forward, batch)
        loss.backward()
        self.optimizer.step()


def transformers_model(arguments, device):
    """Returns (model, batch, loss) of a model of the library transformers."""
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingError(f"model '{arguments.model}': torchvision does not know it and transformers is missing"
                           ) from error

    def asked(**values):
        return {name: value for name, value in values.items() if value is not None}

    name, width = arguments.model, arguments.width
    if name == "vit":
        config = transformers.ViTConfig(num_labels=1000, **asked(
            hidden_size=width, num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads,
            intermediate_size=4 * width if width else None))
        shape = (arguments.batch, 3, config.image_size, config.image_size)

        def images():
            return {"pixel_values": torch.randn(shape, device=device),
                    "labels": torch.randint(1000, shape[:1], device=device)}

        return transformers.ViTForImageClassification(config), images, transformers_loss
    if name == "gpt2":
        config = transformers.GPT2Config(n_positions=max(1024, arguments.sequence), **asked(
            n_embd=width, n_layer=arguments.layers, n_head=arguments.heads, vocab_size=arguments.vocabulary))
        model_type = transformers.GPT2LMHeadModel
    elif name == "llama":
        config = transformers.LlamaConfig(max_position_embeddings=max(2048, arguments.sequence), **asked(
            hidden_size=width, num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads,
            num_key_value_heads=arguments.heads, vocab_size=arguments.vocabulary,
            intermediate_size=-(-width * 8 // 3 // 256) * 256 if width else None))  # 8/3 of it, rounded up to 256
        model_type = transformers.LlamaForCausalLM
    else:
        try:
            config = transformers.AutoConfig.for_model(name, **asked(
                hidden_size=width, num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads,
                num_key_value_heads=arguments.heads, vocab_size=arguments.vocabulary))
        except (KeyError, ValueError) as error:
            raise MissingError(
                f"model '{name}': neither torchvision nor transformers knows it: {str(error).partition('.')[0]}") from error
        if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            raise MissingError(f"model '{name}': transformers has no causal language model of this kind")
        model_type = transformers.AutoModelForCausalLM.from_config
    config.use_cache = False  # a cache of keys is only for generation
    shape, words = (arguments.batch, arguments.sequence), config.vocab_size

    def tokens():
        drawn = torch.randint(words, shape, device=device)
        return {"input_ids": drawn, "labels": drawn}

    return guarded(name, lambda: model_type(config)), tokens, transformers_loss


def transformers_loss(forward, batch):
    return forward(**batch).loss


def torchvision_model(torchvision, arguments, device):
    model = torchvision.models.get_model(arguments.model, weights=None)
    side = 299 if arguments.model == "inception_v3" else 224
    shape = (arguments.batch, 3, side, side)

    def loss(forward, batch):
        scores = forward(batch[0])
        return torch.nn.functional.cross_entropy(getattr(scores, "logits", scores), batch[1])

    return model, lambda: (torch.randn(shape, device=device), torch.randint(1000, shape[:1], device=device)), loss


def build(arguments, device):
    torch.manual_seed(1)
    try:
        torchvision = importlib.import_module("torchvision")
        images = arguments.model in torchvision.models.list_models(module=torchvision.models)
    except (ImportError, AttributeError):  # torchvision before 0.14
        images = False
    if images:
        model, batch, loss = torchvision_model(torchvision, arguments, device)
    else:
        model, batch, loss = transformers_model(arguments, device)
    model = (model if {p.device.type for p in model.parameters()} == {device} else model.to(device)).train()
    return Trainee(model, batch, loss, arguments.optimizer or ("sgd" if images else "adamw"))


# ---- PyTorch's own plans ----


def checkpoint_blocks(model):
    """Puts torch.utils.checkpoint around each of the model's blocks and returns their names."""
    checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
    blocks = find_blocks(model)
    if not blocks:
        raise MissingError("the model has no list of blocks of one class to checkpoint")

    def checkpointed(forward):
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    for _, block in blocks:
        block.forward = checkpointed(block.forward)
    return [name for name, _ in blocks]


def watch_partitioner(torch, saved_values):
    """Makes the partitioner of torch.compile append the values that it keeps for backward to saved_values."""
    try:
        partitioners = importlib.import_module("torch._functorch.partitioners")
        choose = partitioners.choose_saved_values_set
    except (ImportError, AttributeError):
        return

    def describe(node):
        value = node.meta.get("val")
        tensor = isinstance(value, torch.Tensor)
        source = node.args[0] if str(node.target).endswith("getitem>") and node.args else None
        return {"name": node.name, "operator": str(node.target), "input": node.op == "placeholder",
                "item_of": getattr(source, "name", None),  # the operator, if it has several results
                "shape": [str(extent) if not isinstance(extent, int) else extent for extent in value.shape]
                         if tensor else None,
                "dtype": str(value.dtype) if tensor else None,
                "bytes": int(value.numel()) * value.element_size() if tensor else None}

    def watched(*args, **kwargs):
        chosen = choose(*args, **kwargs)
        try:
            saved_values.append([describe(node) for node in chosen])
        except Exception as error:  # pylint: disable=broad-except
            saved_values.append([{"error": str(error)}])  # a failed description must not end the recording
        return chosen

    partitioners.choose_saved_values_set = watched


def apply_plan(trainee, plan):
    """Makes the trainee follow the plan and returns the plan's entries of the manifest."""
    if plan == "checkpoint":
        return {"plan": plan, "checkpointed": checkpoint_blocks(trainee.model)}
    if plan == "save_on_cpu":
        trainee.around_forward = lambda: torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())
        return {"plan": plan}
    if plan.startswith("budget="):
        try:
            config = importlib.import_module("torch._functorch.config")
        except ImportError:
            config = None
        if not hasattr(config, "activation_memory_budget"):
            raise MissingError("--plan budget: this PyTorch has no activation_memory_budget; PyTorch 2.4 has it")
        config.activation_memory_budget = float(plan[len("budget="):])
        saved_values = []
        watch_partitioner(torch, saved_values)
        trainee.forward = torch.compile(trainee.model)
        return {"plan": plan, "saved_values": saved_values}
    return {"plan": plan}


# ---- the program ----


def plan_name(text):
    """Parses the value of --plan."""
    if text in ("none", "checkpoint", "save_on_cpu"):
        return text
    with contextlib.suppress(ValueError):
        if text.startswith("budget=") and 0 <= float(text[len("budget="):]) <= 1:
            return text
    raise argparse.ArgumentTypeError(f"'{text}' is not none, checkpoint, save_on_cpu or budget=SHARE (from 0 to 1)")


def pretended_target(text):
    """Parses the value of --target."""
    with contextlib.suppress(SpillwayError):
        if not parse_target(text).real:
            return text
    raise argparse.ArgumentTypeError(f"'{text}' is not a pretended device, such as cuda:sm_90")


def memory_size(text):
    """Parses the value of --memory."""
    try:
        return parse_bytes(text)
    except SpillwayError as error:
        raise argparse.ArgumentTypeError(error) from error


def lengths_of(text):
    """Parses the value of --lengths: the dimension that is the length, or None, and lengths."""
    with contextlib.suppress(ValueError):
        dimension, found, lengths = text.rpartition(":")
        numbers = [int(dimension) if found else 1, *map(int, lengths.split(","))]
        if min(numbers) > 0:
            return numbers[0] if found else None, numbers[1:]
    raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers above 0, such as 256,512 or 8:4,16")


def positive(text):
    with contextlib.suppress(ValueError):
        if int(text) > 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")


@contextlib.contextmanager
def turn(path, alone):
    """Implements --turns: recordings prepare side by side, but while one measures, all others wait."""
    if not path:
        yield
        return
    fcntl = importlib.import_module("fcntl")
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def add_model(parser, others):
    parser.add_argument("model", help=f"gpt2, llama, vit, any classifier of torchvision (such as resnet50), or any causal language "
                                      f"model of transformers{others}")
    parser.add_argument("--batch", type=positive, default=4, help="samples per step (default: %(default)s)")
    parser.add_argument("--sequence", type=positive, default=512,
                        help="tokens per sample of a language model (default: %(default)s)")
    parser.add_argument("--layers", type=positive, help="layers of a transformers model (default: the library's)")
    parser.add_argument("--width", type=positive, help="width of its hidden states")
    parser.add_argument("--heads", type=positive, help="its heads of attention")
    parser.add_argument("--vocabulary", type=positive, help="the number of its tokens")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"),
                        help="SGD with momentum 0.9, or AdamW (default: sgd for torchvision, adamw for transformers)")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="spillway_torch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser, "")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--name", help="name of the recording (default: MODEL-bBATCH, and the plan if there is one)")
    parser.add_argument("--autotune", action="store_true", help="enable torch.backends.cudnn.benchmark")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 (default: only fp32)")
    parser.add_argument("--plan", type=plan_name, default="none",
                        help="none, checkpoint, save_on_cpu or budget=SHARE (default: %(default)s)")
    parser.add_argument("--target", type=pretended_target,
                        help="record without a GPU as on this one, such as cuda:sm_90")
    parser.add_argument("--host", metavar="FILE", help="with --target: the host times of calibrate-host")
    parser.add_argument("--iterations", type=positive, default=20, help="number of timed steps (default: %(default)s)")
    parser.add_argument("--turns", metavar="FILE", help="a lock file: of several recordings that share FILE, only "
                                                        "one measures at a time")
    parsed = parser.parse_args(arguments)
    if parsed.target and parsed.plan.startswith("budget="):
        parser.error("--plan budget compiles the model, which only a real device can record; omit --target")
    return parsed


def name_of(arguments):
    return arguments.name or f"{arguments.model}-b{arguments.batch}" + (
        "" if arguments.plan == "none" else "-" + arguments.plan.replace("=", "-"))


def set_precision(arguments):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.tf32
    torch.backends.cudnn.benchmark = arguments.autotune


def pretended_step(arguments, target, plan="none", host=None):
    """Returns the recorded step of a model without data."""
    with pretend(target):
        trainee = build(arguments, parse_target(target).shown.type)
        apply_plan(trainee, plan)
        return record(functools.partial(guarded, arguments.model, trainee.step), target, model=trainee.model, name=arguments.model,
                      batch=arguments.batch, host=host)


def record_without_gpu(arguments):
    """Writes the trace and returns the line to print."""
    set_precision(arguments)
    recording = pretended_step(arguments, arguments.target, arguments.plan, arguments.host)
    os.makedirs(arguments.output, exist_ok=True)
    path = os.path.join(arguments.output, f"{name_of(arguments)}.json")
    recording.write(path)
    return (f"{path}: {len(recording.operators)} operators, peak {recording.peak_requested} bytes requested, "
            f"{recording.peak_allocated} allocated")


def profile_here(arguments):
    """Writes the profilers' files. Returns the manifest and the line to print."""
    gpu = torch.cuda.is_available()
    used_before = gpu_query("memory.used")  # MiB, before this process has a context
    set_precision(arguments)
    compiled = arguments.plan.startswith("budget=")
    with turn(arguments.turns, alone=False):
        trainee = build(arguments, "cuda" if gpu else "cpu")
        facts = apply_plan(trainee, arguments.plan)
        if compiled:  # compilation is not part of the step
            for _ in range(2):
                trainee.step()
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    facts["model"] = {key: value for key, value in vars(arguments).items()
                      if key not in ("output", "turns", "plan", "name", "iterations", "target") and value is not None}
    facts["gpu_used_before_bytes"] = int(used_before) << 20 if (used_before or "").isdigit() else None
    with turn(arguments.turns, alone=True):
        manifest = profile(trainee.step, name_of(arguments), arguments.output, iterations=arguments.iterations,
                           model=trainee.model, observe=not compiled, facts=facts)
    line = f"{manifest['name']}: {manifest['outcome']}"
    if "step_ms" in manifest:
        line += f", {manifest['step_ms']['median']:.2f} ms"
    if gpu:
        line += (f", peak {manifest['peak_allocated_bytes']} bytes allocated, {manifest['peak_reserved_bytes']} reserved, "
                 f"{manifest['gpu']['name']}")
    else:
        line += ", on the CPU: only operators and sizes"
    return manifest, line


EXPLAIN = """Prints what memory costs in time: plans for budgets between the floor, below which no plan can go, and the peak of a step
as it is. "knee" marks the budget from which less memory costs much more time.

    python3 -m spillway_torch explain train.py:step          # a function of yours that runs a forward and a backward
    python3 -m spillway_torch explain resnet50 --batch 32

--compile explains the step under torch.compile: for each budget, the predicted peak, the time of the graphs as a multiple of that of
PyTorch's own cut, and what each graph saves. A model that is named here then needs no memory, because its tensors have no data. A
function of yours compiles what it runs, and runs twice, operator by operator, with what autograd saves of the graphs on the host.

    python3 -m spillway_torch explain gpt2 --compile

With --compile, --export-step FILE writes the step as it runs without torch.compile, with what it takes compiled, so that `spillway fit`
says how it fits on a GPU with either. Your function runs at least twice more for this, and has to fit as it is; a model that is named is
recorded without data, as on a Hopper GPU if the device is a CPU.

    python3 -m spillway_torch explain train.py --compile --export-step step.json

--memory 8GiB adds a table of lengths: memory and time of steps whose inputs are shorter or longer, and the longest that fits.

    python3 -m spillway_torch explain train.py:step --memory 8GiB --lengths 256,512,1024

Without --compile, --export-step FILE writes the step as a trace, on which `spillway run` tries other policies and explains them.
Policies may move what a plan in PyTorch can move, and `spillway plan` writes plans of the step that `spillway_torch.read_plan` reads.

The step runs twice, with all saved tensors on the host, so that it need not fit as it is; the second time is explained. A step
that also updates the weights counts its optimizer's state. On a GPU, times are measured; those of a CPU are estimates.

The program `spillway` makes the plans.

Exit codes: 0 if explained, 2 for bad usage, 3 if the step fails or cannot be planned, 5 if the model or the program is missing.
"""


def explain_main(argv):
    parser = argparse.ArgumentParser(prog="spillway_torch explain", description=EXPLAIN,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model(parser, ", or FILE.py:FUNCTION, a step of your own (FUNCTION is step if it is left out); options of models do not apply")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu",
                        help="where the step's tensors are (default here: %(default)s)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="form of the output (default: %(default)s)")
    parser.add_argument("--memory", type=memory_size, help="also plan the step for several lengths of its inputs in this memory, such as 8GiB")
    parser.add_argument("--lengths", type=lengths_of, metavar="LIST",
                        help="these lengths, such as 256,512,1024: the longest dimension of what the first module is given that no "
                             "parameter has; 8:4,16 are other sizes of the dimension 8 (default: 1/4 to 4 times the recorded one)")
    parser.add_argument("--compile", action="store_true", help="explain the graphs of torch.compile")
    parser.add_argument("--export-step", metavar="FILE", help="also write the step as a trace, with its sizes for --lengths; .zst compresses it")
    arguments = parser.parse_args(argv)
    if arguments.compile and (arguments.memory or arguments.lengths):
        parser.error("--compile: it has no --memory and --lengths")
    dimension, lengths = arguments.lengths or (None, ())
    if lengths and arguments.memory is None and not arguments.export_step:
        parser.error("--lengths: they need --memory, or --export-step")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise MissingError("--device cuda: this machine has no GPU that PyTorch can use")
    own = ".py" in arguments.model
    with contextlib.ExitStack() as without:
        if own:
            step = load_step(arguments.model)
        elif arguments.compile:
            without.enter_context(importlib.import_module(".compiled.pytorch", __package__).no_data())
            with torch.device(arguments.device):
                trainee = build(arguments, arguments.device)
            trainee.forward = torch.compile(trainee.model)
        else:
            trainee = build(arguments, arguments.device)
        step = step if own else functools.partial(guarded, arguments.model, trainee.step)
        if arguments.compile:
            curve = explain_compiled(step, arguments.device)
        else:
            recorded = record(step, arguments.device, values=True)  # after one that makes what it finds, such as the optimizer's state
            if arguments.export_step:
                write_step(recorded, arguments.export_step, lengths=lengths, dimension=dimension)
            curve = explain(recorded, memory=arguments.memory, lengths=lengths, dimension=dimension)
    if arguments.compile and arguments.export_step:
        if own:
            with torch.compiler.set_stance("force_eager"):
                recorded = record(step, arguments.device)
        else:
            capability = parse_target("cuda").capability if arguments.device == "cuda" else 90
            recorded = pretended_step(arguments, f"cuda:sm_{capability}")
        try:
            recorded.write(arguments.export_step, compiled=curve.cuts)
        except OSError as error:
            raise SpillwayError(f"{arguments.export_step}: {error.strerror}") from error
    print(json.dumps(curve.object(), indent=1) if arguments.format == "json" else curve.text().rstrip())


SHARDING = """Prints which ways to shard a model over many GPUs fit, and how long a step takes; those that fit come first, and of these the
fastest. Each way is recorded without a GPU, as one process of a fake process group, and simulated by the program `spillway`.

    python3 -m spillway_torch plan-sharding build.py --world 64 --device h100 --memory 80GB --layers 80

A function of yours makes the model and its step: build(mesh, micro_batch, checkpoint). MANY_GPUS.md has an example.

Exit codes: 0 if a way fits, 1 if none does, 2 for bad usage, 3 if the function or its step fails, 5 if the program is missing or refuses.
"""


def whole_numbers(text):
    """Parses lists of numbers above 0."""
    return [positive(part) for part in text.split(",")]


def sharding_main(argv):
    parser = argparse.ArgumentParser(prog="spillway_torch plan-sharding", description=SHARDING,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="FILE.py:FUNCTION, which returns a model and its step (FUNCTION is build if it is left out)")
    parser.add_argument("--world", type=positive, required=True, help="number of GPUs")
    parser.add_argument("--device", default="h100", help="as `spillway run` takes it (default: %(default)s)")
    parser.add_argument("--memory", help="of each GPU, such as 80GB (default: the device's)")
    parser.add_argument("--layers", type=positive, help="depth of the model, for a function with this parameter; a deeper one than 12 is "
                                                        "composed of recordings of 4 and 12 layers")
    parser.add_argument("--shards", type=whole_numbers, default=(), metavar="LIST",
                        help="numbers of GPUs that share a copy of the model (default: all that fill a host, a part of it or several)")
    parser.add_argument("--tensor", type=whole_numbers, default=(), metavar="LIST",
                        help="numbers of GPUs that share each layer, for a function with this parameter (default: parts of a host)")
    parser.add_argument("--micro-batches", type=whole_numbers, default=(), metavar="LIST",
                        help="samples of a step (default: 1, 2, 4 and so on, until one does not fit)")
    parser.add_argument("--checkpoints", choices=("no", "yes", "both"), default="both",
                        help="what the function gets (default: %(default)s)")
    parser.add_argument("--gpus", type=positive, default=8, help="GPUs of a host (default: %(default)s)")
    parser.add_argument("--target", type=pretended_target, default="cuda:sm_90", help="the GPU that is pretended (default: %(default)s)")
    arguments = parser.parse_args(argv)
    _, build_model = load_function(arguments.build, "build")
    found = plan_sharding(build_model, arguments.world, arguments.device, arguments.memory, layers=arguments.layers,
                          shards=arguments.shards, tensor=arguments.tensor, micro_batches=arguments.micro_batches, gpus=arguments.gpus,
                          target=arguments.target, checkpoints={"no": [False], "yes": [True], "both": [False, True]}[arguments.checkpoints])
    print(found.text())
    return 0 if found.rows[0].status != "no" else 1


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["explain"]:
        return exit_code("spillway_torch explain", lambda: explain_main(argv[1:]))
    if argv[:1] == ["plan-sharding"]:
        return exit_code("spillway_torch plan-sharding", lambda: sharding_main(argv[1:]))
    if argv[:1] == ["weights"]:
        return exit_code("spillway_torch weights", lambda: weights_main(argv[1:]))
    if argv[:1] == ["calibrate-host"]:
        return exit_code("spillway_torch calibrate-host", lambda: host_main(argv[1:]))
    return exit_code("spillway_torch", lambda: record_main(argv))


def exit_code(name, run):
    """Runs a command; returns the exit code that it returns, or that its error has."""
    try:
        return run() or 0
    except (MissingError, ModuleNotFoundError, ProgramError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 5
    except SpillwayError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3


def record_main(argv):
    arguments = parse(argv)
    if arguments.target:
        print(record_without_gpu(arguments))
        return 0
    manifest, line = profile_here(arguments)
    print(line)
    return 0 if manifest["outcome"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
