"""Records the operators, the memory and the time of a training step on a GPU by PyTorch's own profilers.

`profile` writes these files in this order, where NAME is the recording's name:

    NAME.snapshot.pickle   the allocator's events in the first 3 steps          torch.cuda.memory._snapshot
    NAME.kineto.json.gz    kernels, copies, operators, allocations of one step  torch.profiler
    NAME.et.json.gz        operands of the operators of the same step           ExecutionTraceObserver
    NAME.manifest.json     versions, GPU, settings, the step's time without profiler, peaks, SHA-256 of the files

If recording starts before the first step, the snapshot also holds memory that is allocated only once: the
optimizer's state and the workspaces of the libraries. Steps are timed after the snapshot, without any observer. If the
step runs out of memory, the snapshot ends there and the manifest says so. Without a GPU there are no kernels, no
snapshot and no peaks, and the manifest's "device" is "cpu". A PyTorch built without Kineto (Debian's) writes no
NAME.kineto.json.gz. `spillway trace import` reads the files.
"""

import contextlib
import gzip
import hashlib
import json
import os
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

import torch

from ..base.document import written
from .modules import find_blocks

SNAPSHOT_STEPS = 3
WARM_UP_STEPS = 2  # run before the timed steps
MAX_EVENTS = 1000000
BLOCK_PREFIX = "block: "  # prefix of the profiler's ranges that name the model's blocks


def compress(source, path):
    """Compresses the file `source` to `path` with gzip. The same content gives the same bytes."""
    with written(path) as part:
        with open(source, "rb") as plain, open(part, "wb") as file:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                shutil.copyfileobj(plain, packed)


def take_snapshot(step, path):
    """Runs the first steps and writes the snapshot. Returns the text of an out-of-memory error, or None without one."""
    memory = torch.cuda.memory
    memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=MAX_EVENTS)
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
        memory._record_memory_history(enabled=None)
    return failure


def time_steps(step, count):
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
def named_blocks(blocks):
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


def profile_step(step, kineto_path, trace_path, blocks=()):
    """Runs one step under the profiler and the execution observer, after one step whose profile is discarded."""
    profiler = torch.profiler
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
    with tempfile.TemporaryDirectory() as folder, named_blocks(blocks):
        observer = profiler.ExecutionTraceObserver()
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
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits",
               *(["-i", visible] if visible else [])]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
                              timeout=20).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def versions():
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
             "cudnn": torch.backends.cudnn.version(), "driver": gpu_query("driver_version")}
    for name in ("torchvision", "transformers", "triton"):
        if name in sys.modules:
            found[name] = getattr(sys.modules[name], "__version__", None)
    return found


def settings():
    return {"matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""}


def gpu_facts():
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"name": properties.name, "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count}


def peaks():
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    return {"peak_requested_bytes": stats.get("requested_bytes.all.peak"),
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


def profile(step, name, out_dir, *, iterations=20, model=None, observe=True, facts=None):
    """Records step() into files in out_dir and returns the manifest as a dictionary.

    model: the step's torch.nn.Module; if given, the profile names its repeated blocks.
    observe: if False, no profile and no execution trace are made.
    facts: a dictionary whose entries are added to the manifest unchanged.
    """
    os.makedirs(out_dir, exist_ok=True)
    paths = {what: os.path.join(out_dir, f"{name}.{suffix}") for what, suffix in
             (("snapshot", "snapshot.pickle"), ("kineto", "kineto.json.gz"), ("execution_trace", "et.json.gz"))}
    gpu = torch.cuda.is_available()
    manifest = {"format": "spillway-pytorch-recording", "schema_version": 1, "name": name,
                "device": "gpu" if gpu else "cpu", "outcome": "ok", **(facts or {})}
    if gpu:
        manifest["gpu"] = gpu_facts()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        failure = take_snapshot(step, paths["snapshot"])
        if failure is not None:
            manifest.update(outcome="out of memory", error=failure)
        manifest.update(peaks())
        if failure is None:
            torch.cuda.reset_peak_memory_stats()
            times = time_steps(step, iterations)
            steady = peaks()
            manifest["step_ms"] = {"median": statistics.median(times), "shortest": min(times), "longest": max(times),
                                   "all": times}
            manifest["steady"] = {key: steady[key] for key in steady if key.startswith("peak_")}
    else:
        manifest["note"] = ("recorded on a CPU: operators and sizes are those of the step; kernels, times, "
                            "workspaces and peaks are not in it")
    if observe and manifest["outcome"] == "ok":
        blocks = find_blocks(model) if model is not None else ()
        profile_step(step, paths["kineto"], paths["execution_trace"], blocks)
    manifest["files"] = {what: describe_file(path) for what, path in paths.items() if os.path.exists(path)}
    manifest["versions"] = versions()
    manifest["settings"] = settings()
    with written(os.path.join(out_dir, f"{name}.manifest.json")) as part:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.write("\n")
    return manifest
