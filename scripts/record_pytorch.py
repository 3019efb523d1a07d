#!/usr/bin/env python3
"""Records the operators, the memory and the time of a PyTorch training step for Spillway.

As a library, for any step:

    from record_pytorch import record
    record(step, "gpt2", "recordings")       # step() takes no argument and runs one iteration, data included

As a program, for a model with random weights (nothing is downloaded):

    record_pytorch.py resnet50 --batch 32 --autotune -o recordings
    record_pytorch.py llama --layers 8 --width 1024 --sequence 1024 --batch 4 -o recordings

It writes these files in this order, where NAME is the recording's name:

    NAME.snapshot.pickle   the allocator's events in the first 3 steps          torch.cuda.memory._snapshot
    NAME.kineto.json.gz    kernels, copies, operators, allocations of one step  torch.profiler
    NAME.et.json.gz        operands of the operators of the same step           ExecutionTraceObserver
    NAME.manifest.json     versions, GPU, settings, the step's time without profiler, peaks, SHA-256 of the files

If recording starts before the first step, the snapshot also holds memory that is allocated only once: the
optimizer's state and the workspaces of the libraries. Steps are timed after the snapshot, without any observer. If the
step runs out of memory, the snapshot ends there and the manifest says so. Without a GPU there are no kernels, no
snapshot and no peaks, and the manifest's "device" is "cpu". A PyTorch built without Kineto (Debian's) writes no
NAME.kineto.json.gz.

--plan records the model under one of PyTorch's own plans for too little memory: torch.utils.checkpoint around each
block, torch.autograd.graph.save_on_cpu, or torch.compile with an activation_memory_budget. With a budget, the manifest
also lists the values that the compiler decided to keep ("saved_values").

Works with PyTorch 1.13 to 2.11. Exit codes: 0 if recorded, 1 if recorded up to an out-of-memory error, 2 for bad usage,
5 if PyTorch or the model is missing.
"""

import argparse
import contextlib
import gzip
import hashlib
import importlib
import json
import os
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SNAPSHOT_STEPS = 3
WARM_UP_STEPS = 2  # run before the timed steps
MAX_EVENTS = 1000000
BLOCK_PREFIX = "block: "  # prefix of the profiler's ranges that name the model's blocks


class MissingError(Exception):
    """A program or library that is not installed or is too old."""


def import_torch():
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingError("PyTorch is missing (python3 -c 'import torch')") from error


# ---- recording ----


@contextlib.contextmanager
def written(path):
    """Yields the name of a file to write, which is renamed to `path` on success and removed on failure."""
    part = path + ".part"
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


def compress(source, path):
    """Compresses the file `source` to `path` with gzip. The same content gives the same bytes."""
    with written(path) as part:
        with open(source, "rb") as plain, open(part, "wb") as file:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                shutil.copyfileobj(plain, packed)


def start_history(memory):
    """Makes the allocator keep its events. PyTorch has changed the arguments for this twice."""
    for arguments in ({"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": MAX_EVENTS},  # 2.1
                      {"enabled": True, "trace_alloc_max_entries": MAX_EVENTS, "trace_alloc_record_context": True},
                      {"enabled": True}):  # 1.13 keeps only the final state
        try:
            memory._record_memory_history(**arguments)
            return
        except TypeError:
            pass
    raise MissingError("this PyTorch's allocator keeps no history")


def stop_history(memory):
    try:
        memory._record_memory_history(enabled=None)
    except (TypeError, RuntimeError):  # before 2.1
        memory._record_memory_history(enabled=False)


def take_snapshot(torch, step, path):
    """Runs the first steps and writes the snapshot. Returns the text of an out-of-memory error, or None without one."""
    memory = torch.cuda.memory
    start_history(memory)
    failure = None
    try:
        for _ in range(SNAPSHOT_STEPS):
            step()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        failure = str(error)
    try:
        with written(path) as part, open(part, "wb") as file:
            pickle.dump(memory._snapshot(), file, protocol=4)
    finally:
        stop_history(memory)
    return failure


def time_steps(torch, step, count):
    """Returns the times of `count` steps, in ms."""
    times = []
    for i in range(WARM_UP_STEPS + count):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        if i >= WARM_UP_STEPS:
            times.append(start.elapsed_time(end))
    return times


@contextlib.contextmanager
def named_blocks(torch, blocks):
    """Encloses each forward pass of a block in a range of the profiler."""
    hooks, ranges = [], []

    def enter(name):
        def hook(module, arguments):
            ranges.append(torch.profiler.record_function(BLOCK_PREFIX + name))
            ranges[-1].__enter__()
        return hook

    def leave(module, arguments, output):
        ranges.pop().__exit__(None, None, None)

    for name, module in blocks:
        hooks += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def profile_step(torch, step, kineto_path, trace_path, blocks=()):
    """Runs one step under the profiler and the execution observer, after one step whose profile is discarded."""
    profiler = torch.profiler
    observer_type = getattr(profiler, "ExecutionTraceObserver", None) or profiler.ExecutionGraphObserver  # 1.13
    activities = [profiler.ProfilerActivity.CPU]
    gpu = torch.cuda.is_available()
    if gpu:
        activities.append(profiler.ProfilerActivity.CUDA)

    def profiled():
        return profiler.profile(activities=activities, profile_memory=True, record_shapes=True)

    def whole_step():
        step()
        if gpu:
            torch.cuda.synchronize()

    with profiled():
        whole_step()
    with tempfile.TemporaryDirectory() as folder, named_blocks(torch, blocks):
        observer = observer_type()
        observer.register_callback(os.path.join(folder, "et.json"))
        try:
            with profiled() as profile:
                observer.start()
                whole_step()
                observer.stop()
        finally:
            observer.unregister_callback()
        if profiler.kineto_available():  # without Kineto, the exported format differs
            profile.export_chrome_trace(os.path.join(folder, "kineto.json"))
            compress(os.path.join(folder, "kineto.json"), kineto_path)
        compress(os.path.join(folder, "et.json"), trace_path)


def gpu_query(what):
    """Returns the answer of nvidia-smi for this process's first GPU, or None if there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", *(["-i", visible] if visible else [])]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
                              timeout=20).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def versions(torch):
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
             "cudnn": torch.backends.cudnn.version(), "driver": gpu_query("driver_version")}
    for name in ("torchvision", "transformers", "triton"):
        if name in sys.modules:
            found[name] = getattr(sys.modules[name], "__version__", None)
    return found


def settings(torch):
    return {"matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""}


def gpu_facts(torch):
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"name": properties.name, "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count}


def peaks(torch):
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {"peak_requested_bytes": stats.get("requested_bytes.all.peak"),  # from 2.0 on
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            # The memory that contexts and libraries of all processes hold on this GPU, without
            # PyTorch's own reserve.
            "outside_allocator_bytes": total - free - torch.cuda.memory_reserved()}


def describe_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return {"file": os.path.basename(path), "bytes": os.path.getsize(path), "sha256": digest.hexdigest()}


def record(step, name, out_dir, *, iterations=20, model=None, profile=True, facts=None):
    """Records step() into files in out_dir and returns the manifest as a dictionary.

    model: the step's torch.nn.Module; if given, the profile names its repeated blocks.
    profile: if False, no profile and no execution trace are made.
    facts: a dictionary whose entries are added to the manifest unchanged.
    """
    torch = import_torch()
    os.makedirs(out_dir, exist_ok=True)
    paths = {what: os.path.join(out_dir, f"{name}.{suffix}") for what, suffix in
             (("snapshot", "snapshot.pickle"), ("kineto", "kineto.json.gz"), ("execution_trace", "et.json.gz"))}
    gpu = torch.cuda.is_available()
    manifest = {"format": "spillway-pytorch-recording", "schema_version": 1, "name": name,
                "device": "gpu" if gpu else "cpu", "outcome": "ok", **(facts or {})}
    if gpu:
        manifest["gpu"] = gpu_facts(torch)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        failure = take_snapshot(torch, step, paths["snapshot"])
        if failure is not None:
            manifest.update(outcome="out of memory", error=failure)
        manifest.update(peaks(torch))
        if failure is None:
            torch.cuda.reset_peak_memory_stats()
            times = time_steps(torch, step, iterations)
            steady = peaks(torch)
            manifest["step_ms"] = {"median": statistics.median(times), "shortest": min(times), "longest": max(times),
                                   "all": times}
            manifest["steady"] = {key: steady[key] for key in steady if key.startswith("peak_")}
    else:
        manifest["note"] = ("recorded on a CPU: operators and sizes are those of the step; kernels, times, "
                            "workspaces and peaks are not in it")
    if profile and manifest["outcome"] == "ok":
        blocks = find_blocks(model) if model is not None else ()
        profile_step(torch, step, paths["kineto"], paths["execution_trace"], blocks)
    manifest["files"] = {what: describe_file(path) for what, path in paths.items() if os.path.exists(path)}
    manifest["versions"] = versions(torch)
    manifest["settings"] = settings(torch)
    with written(os.path.join(out_dir, f"{name}.manifest.json")) as part:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.write("\n")
    return manifest


# ---- models ----


def find_blocks(model):
    """Returns (name, module) of each block: the members of the outermost lists of two or more modules of one class."""
    found = []

    def visit(name, module):
        children = list(module.named_children())
        compound = [child for _, child in children if any(True for _ in child.children())]
        if (type(module).__name__ in ("ModuleList", "Sequential") and len(children) > 1 and
                len(compound) == len(children) and len({type(child) for child in compound}) == 1):
            found.extend((f"{name}{key}", child) for key, child in children)
            return
        for key, child in children:
            visit(f"{name}{key}.", child)

    visit("", model)
    return found


class Trainee:
    """A model with its data and optimizer. `step` runs one iteration of training."""

    def __init__(self, torch, model, batch, loss, optimizer):
        self.torch, self.model, self.batch, self.loss = torch, model, batch, loss
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


def transformers_model(torch, arguments, device):
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
                vocab_size=arguments.vocabulary))
            model_type = transformers.AutoModelForCausalLM.from_config
        except (KeyError, ValueError) as error:
            raise MissingError(f"model '{name}': neither torchvision nor transformers knows it: {error}") from error
    config.use_cache = False  # a cache of keys is only for generation
    shape, words = (arguments.batch, arguments.sequence), config.vocab_size

    def tokens():
        drawn = torch.randint(words, shape, device=device)
        return {"input_ids": drawn, "labels": drawn}

    return model_type(config), tokens, transformers_loss


def transformers_loss(forward, batch):
    return forward(**batch).loss


def torchvision_model(torch, torchvision, arguments, device):
    model = torchvision.models.get_model(arguments.model, weights=None)
    side = 299 if arguments.model == "inception_v3" else 224
    shape = (arguments.batch, 3, side, side)

    def loss(forward, batch):
        scores = forward(batch[0])
        return torch.nn.functional.cross_entropy(getattr(scores, "logits", scores), batch[1])

    return model, lambda: (torch.randn(shape, device=device), torch.randint(1000, shape[:1], device=device)), loss


def build(torch, arguments, device):
    torch.manual_seed(1)
    try:
        torchvision = importlib.import_module("torchvision")
        images = arguments.model in torchvision.models.list_models(module=torchvision.models)
    except (ImportError, AttributeError):  # torchvision before 0.14
        images = False
    if images:
        model, batch, loss = torchvision_model(torch, torchvision, arguments, device)
    else:
        model, batch, loss = transformers_model(torch, arguments, device)
    model = model.to(device).train()
    return Trainee(torch, model, batch, loss, arguments.optimizer or ("sgd" if images else "adamw"))


# ---- PyTorch's own plans ----


def checkpoint_blocks(torch, model):
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


def apply_plan(torch, trainee, plan):
    """Makes the trainee follow the plan and returns the plan's entries of the manifest."""
    if plan == "checkpoint":
        return {"plan": plan, "checkpointed": checkpoint_blocks(torch, trainee.model)}
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


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="gpt2, llama, vit, any classifier of torchvision (such as resnet50), or any "
                                      "causal language model of transformers")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument("--name", help="name of the recording (default: MODEL-bBATCH, and the plan if there is one)")
    parser.add_argument("--batch", type=positive, default=4, help="samples per step (default: %(default)s)")
    parser.add_argument("--sequence", type=positive, default=512,
                        help="tokens per sample of a language model (default: %(default)s)")
    parser.add_argument("--layers", type=positive, help="layers of a transformers model (default: the library's)")
    parser.add_argument("--width", type=positive)
    parser.add_argument("--heads", type=positive)
    parser.add_argument("--vocabulary", type=positive)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"),
                        help="SGD with momentum 0.9, or AdamW (default: sgd for torchvision, adamw for transformers)")
    parser.add_argument("--autotune", action="store_true", help="enable torch.backends.cudnn.benchmark")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 (default: only fp32)")
    parser.add_argument("--plan", type=plan_name, default="none",
                        help="none, checkpoint, save_on_cpu or budget=SHARE (default: %(default)s)")
    parser.add_argument("--iterations", type=positive, default=20, help="number of timed steps (default: %(default)s)")
    parser.add_argument("--turns", metavar="FILE", help="a lock file: of several recordings that share FILE, only "
                                                        "one measures at a time")
    return parser.parse_args(arguments)


def main(argv=None):
    arguments = parse(argv)
    try:
        torch = import_torch()
        gpu = torch.cuda.is_available()
        device = "cuda" if gpu else "cpu"
        used_before = gpu_query("memory.used")  # MiB, before this process has a context
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.tf32
        torch.backends.cudnn.benchmark = arguments.autotune
        compiled = arguments.plan.startswith("budget=")
        with turn(arguments.turns, alone=False):
            trainee = build(torch, arguments, device)
            facts = apply_plan(torch, trainee, arguments.plan)
            if compiled:  # compilation is not part of the step
                for _ in range(2):
                    trainee.step()
            if gpu:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        facts["model"] = {key: value for key, value in vars(arguments).items()
                          if key not in ("output", "turns", "plan", "name", "iterations") and value is not None}
        facts["gpu_used_before_bytes"] = int(used_before) << 20 if (used_before or "").isdigit() else None
        name = arguments.name or f"{arguments.model}-b{arguments.batch}" + (
            "" if arguments.plan == "none" else "-" + arguments.plan.replace("=", "-"))
        with turn(arguments.turns, alone=True):
            manifest = record(trainee.step, name, arguments.output, iterations=arguments.iterations,
                              model=trainee.model, profile=not compiled, facts=facts)
    except MissingError as error:
        print(f"record_pytorch: {error}", file=sys.stderr)
        return 5
    line = f"{name}: {manifest['outcome']}"
    if "step_ms" in manifest:
        line += f", {manifest['step_ms']['median']:.2f} ms"
    if gpu:
        line += (f", peak {manifest['peak_allocated_bytes']} bytes allocated, {manifest['peak_reserved_bytes']} reserved, "
                 f"{manifest['gpu']['name']}")
    else:
        line += ", on the CPU: only operators and sizes"
    print(line)
    return 0 if manifest["outcome"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
