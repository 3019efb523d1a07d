#!/usr/bin/env python3
"""Times training iterations of the same networks in PyTorch and in Spillway, on one GPU, in one run.

Each network is built from Spillway's own trace, so both sides compute the same thing: forward, backward and a step
of the optimizer, in fp32 without TF32 (or with TF32 on both sides). The text of a workload has its options, as in
gpt2@1024:8,precision=bf16,optimizer=adamw. With precision=bf16, each tensor has the type that it has in the trace: the operands
of an op are cast to the type of its output, and the optimizer works on parameters of float32, which are copied to those of
bfloat16. The attention of a transformer is scaled_dot_product_attention, and with attention=math two products and a softmax.
The methods are:

PyTorch   eager; eager with cuDNN's autotuner; torch.autograd.graph.save_on_cpu(pin_memory=True);
          checkpoint_sequential (chains only); torch.utils.checkpoint for each block; torch.compile with each
          activation_memory_budget.
Spillway  in-core; offloading by vdnn-dyn; superneurons, also in the memory that save_on_cpu took; joint in the memory
          that checkpoints and torch.compile took.

A peak is the most memory that a side's allocator took from the device. The CUDA context is outside of both peaks.

A block ends where only one activation is passed on, after a sum, a concatenation or a pooling together with the
normalisation or activation that follows it. Blocks are for example a residual block, an inception module, a dense
block, or the layers before a pooling.

Columns of the CSV file: workload; side (pytorch, spillway); method; iteration_ms, shortest_iteration_ms and
longest_iteration_ms (median and extremes of the timed iterations); peak_bytes (most bytes allocated in them);
time_over_eager (iteration_ms divided by the iteration_ms of PyTorch eager); note (Spillway's prediction).

Needs a CUDA build of PyTorch, a GPU, and a spillway with the CUDA backend.
"""

import argparse
import csv
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

FIELDS = ["workload", "side", "method", "iteration_ms", "shortest_iteration_ms",
          "longest_iteration_ms", "peak_bytes", "time_over_eager", "note"]
WARM_UP = 5
PER_BLOCK = "checkpoint per block"
COMPILED = "compile, budget "


class OpTable:
    """The operands of each op type, from `spillway list ops`."""

    def __init__(self, document):
        self.rows = {(row["type"], row["phase"]): row for row in document["rows"]}

    def operands(self, op, side):
        """Returns the names of op[side] ("inputs", "outputs") by role. A role that repeats has a list of names."""
        words = [word.partition("?") for word in self.rows[op["type"], op["phase"]][side].split()]
        roles = [role for role, _, when in words if role != "..." and self.holds(op, when)]
        if words[-1][0] == "...":
            return {role: op[side][i::len(roles)] for i, role in enumerate(roles)}
        return dict(zip(roles, op[side]))

    @staticmethod
    def holds(op, when):
        flags = [flag for flag in when.split("&") if flag]
        return all(bool(op["attributes"].get(flag.lstrip("!"))) != flag.startswith("!") for flag in flags)


class Plan:
    """The forward half of a trace, as steps that PyTorch can execute."""

    def __init__(self, trace, ops):
        self.ops = ops
        self.tensors = {t["name"]: t for t in trace["tensors"]}
        self.steps = [op for op in trace["ops"] if op["phase"] == "forward"]
        self.batch = trace["batch"]
        self.precision = "bf16" if any(t.get("dtype") == "bfloat16" for t in trace["tensors"]) else "fp32"
        self.update = next((op for op in trace["ops"] if op["phase"] == "update"), None)

    def parameters(self):
        return [t for t in self.tensors.values() if t["kind"] == "parameter"]

    def inputs(self):
        return [t for t in self.tensors.values() if t["kind"] == "input"]

    def is_chain(self):
        """Returns True if each step reads only the output of the previous step, parameters and inputs."""
        previous = None
        for op in self.steps:
            activations = [n for n in op["inputs"] if self.tensors[n]["kind"] == "activation"]
            if any(n != previous for n in activations):
                return False
            previous = self.output(op)
        return True

    def blocks(self):
        """Returns the steps before the loss, in blocks that read only one activation of the blocks before them."""
        last_use = {name: i for i, op in enumerate(self.steps) for name in op["inputs"]}
        blocks, alive, ends = [[]], set(), False
        for i, op in enumerate(self.steps[:-1]):
            blocks[-1].append(op)
            ends = ends or op["type"] in ("add", "concat", "maxpool2d", "avgpool2d")
            alive = {name for name in alive | {self.output(op)} if last_use.get(name, -1) > i}
            if ends and alive == {self.output(op)} and self.steps[i + 1]["type"] not in ("relu", "batchnorm", "lrn"):
                blocks.append([])
                ends = False
        return [block for block in blocks if block]

    def operands(self, op):
        return self.ops.operands(op, "inputs")

    def read(self, op):
        """Returns the name of the first input of a step that is no parameter."""
        return next(name for name in op["inputs"] if self.tensors[name]["kind"] != "parameter")

    def dtype(self, name):
        return self.tensors[name].get("dtype", "float32")

    def output(self, op):
        return self.ops.operands(op, "outputs")["y"]


def needs_ceil(a, axis):
    """Returns True if a pooling step's extent along `axis` ("height", "width") was rounded up."""
    letter = axis[0]
    span = a[f"in_{axis}"] + 2 * a[f"pad_{letter}"] - a[f"kernel_{letter}"]
    return a[f"out_{axis}"] > span // a[f"stride_{letter}"] + 1


@functools.lru_cache(maxsize=None)
def rotation(torch, rows, half, theta, device):
    """Returns the factors of rotary embedding, complex numbers of shape [rows, 1, half]."""
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(rows)[:, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(device)


def by_heads(x, a, heads):
    """Returns a sequence of shape [batch, rows, heads * head_dim] as [batch, heads, rows, head_dim]."""
    return x.unflatten(2, (int(heads), int(a["head_dim"]))).transpose(1, 2)


def for_queries(x, a):
    """Returns keys or values, as `by_heads` returns them, with a copy of each head for all queries that it serves."""
    x = by_heads(x, a, a["kv_heads"])
    return x if a["heads"] == a["kv_heads"] else x.repeat_interleave(int(a["heads"] // a["kv_heads"]), 1)


def apply_to_sequence(torch, op, v, x):
    """Executes one forward step of a type that only transformers have. Returns its output y, or None for another type."""
    functional = torch.nn.functional
    a, kind = op["attributes"], op["type"]
    rows = int(a.get("rows", 0))
    if kind == "gelu":
        return functional.gelu(x)
    if kind == "silu":
        return functional.silu(x)
    if kind == "layernorm":
        return functional.layer_norm(x, (int(a["features"]),), v["weight"], v["bias"], a["epsilon"])
    if kind == "rmsnorm":
        return functional.rms_norm(x, (int(a["features"]),), v["weight"], a["epsilon"])
    if kind == "embedding":
        return functional.embedding(v["indices"], v["weight"])
    if kind == "position_embedding" and a["class_token"]:
        token = v["bias"].expand(x.shape[0], 1, -1)
        return torch.cat((token, x.flatten(2).transpose(1, 2)), 1) + v["weight"]
    if kind == "position_embedding":
        return x + v["weight"].repeat_interleave(int(a["span"]), 0)[:rows]
    if kind == "rotary":
        factors = rotation(torch, rows, int(a["head_dim"]) // 2, a["theta"], x.device)
        pairs = x.float().unflatten(2, (int(a["heads"]), 2, -1))
        turned = torch.complex(pairs[..., 0, :], pairs[..., 1, :]) * factors
        return torch.stack((turned.real, turned.imag), -2).flatten(2).to(x.dtype)
    if kind == "attention_scores":
        return by_heads(x, a, a["heads"]) @ for_queries(v["x2"], a).transpose(2, 3) / math.sqrt(a["head_dim"])
    if kind == "softmax":
        if a["causal"]:
            positions = torch.arange(int(a["columns"]), device=x.device)
            x = x.masked_fill(positions[:, None] < positions, -math.inf)
        return x.softmax(-1)
    if kind == "attention_values":
        return (x @ for_queries(v["x2"], a)).transpose(1, 2).flatten(2)
    if kind == "attention":
        y = functional.scaled_dot_product_attention(by_heads(x, a, a["heads"]), for_queries(v["x2"], a),
                                                    for_queries(v["x3"], a), is_causal=bool(a["causal"]))
        return y.transpose(1, 2).flatten(2)
    if kind == "select":
        return x[:, int(a["index"])]
    if kind == "mul":
        return x * v["x2"]
    return None


def apply(torch, plan, op, values, parameters, in_place=True):
    """Executes one forward step; returns its output y."""
    functional = torch.nn.functional
    a = op["attributes"]

    def value(name):
        if isinstance(name, list):
            return [value(n) for n in name]
        return parameters[name] if name in parameters else values[name]

    v = {role: value(name) for role, name in plan.operands(op).items()}
    if plan.precision == "bf16":
        def cast(operand):
            if isinstance(operand, list):
                return [cast(o) for o in operand]
            return operand.to(getattr(torch, plan.dtype(plan.output(op)))) if operand.is_floating_point() else operand
        v = {role: cast(operand) for role, operand in v.items()}
    x = v.get("x")
    kind = op["type"]
    if kind == "conv2d":
        return functional.conv2d(x, v["weight"], v.get("bias"),
                                 (a["stride_h"], a["stride_w"]), (a["pad_h"], a["pad_w"]),
                                 groups=int(a["groups"]))
    if kind == "linear":
        return functional.linear(x if "rows" in a else x.flatten(1), v["weight"], v.get("bias"))
    if kind == "relu":
        shares = "alias_of" in plan.tensors[plan.output(op)]
        return functional.relu(x, inplace=in_place and shares)
    if kind in ("maxpool2d", "avgpool2d"):
        window = ((a["kernel_h"], a["kernel_w"]), (a["stride_h"], a["stride_w"]),
                  (a["pad_h"], a["pad_w"]))
        ceil = needs_ceil(a, "height") or needs_ceil(a, "width")
        if kind == "maxpool2d":
            return functional.max_pool2d(x, *window, ceil_mode=ceil)
        return functional.avg_pool2d(x, *window, ceil_mode=ceil, count_include_pad=False)
    if kind == "concat":
        return torch.cat(x, 1)
    if kind == "add":
        return x[0] + x[1]
    if kind == "dropout":
        return functional.dropout(x, a["ratio"], training=True)
    if kind == "lrn":
        return functional.local_response_norm(x, int(a["size"]), a["alpha"], a["beta"], a["k"])
    if kind == "batchnorm":
        return functional.batch_norm(x, None, None, v["weight"], v["bias"], training=True)
    if kind == "softmax_loss":
        if "rows" in a:
            return functional.cross_entropy(x.flatten(0, 1), v["labels"].flatten())
        return functional.cross_entropy(x.flatten(1), v["labels"])
    y = apply_to_sequence(torch, op, v, x)
    if y is not None:
        return y
    raise SystemExit(f"compare_pytorch: no PyTorch counterpart of op type '{kind}'")


class Trainer:
    """One network on a device: parameters, data, and an iteration under one of the methods."""

    def __init__(self, torch, plan, method, device="cuda"):
        self.torch, self.plan, self.method = torch, plan, method
        self.last_use = {name: op for op in plan.steps for name in op["inputs"]}
        torch.manual_seed(1)
        self.parameters = {}
        for t in plan.parameters():
            fan_in = math.prod(t["shape"][1:]) if len(t["shape"]) > 1 else 1
            bound = math.sqrt(3 / fan_in) if len(t["shape"]) > 1 else 0.1
            value = torch.empty(t["shape"], device=device).uniform_(-bound, bound)
            self.parameters[t["name"]] = torch.nn.Parameter(value.to(getattr(torch, plan.dtype(t["name"]))))
        classes = {plan.operands(op)[role]: int(op["attributes"][count]) for op in plan.steps
                   for role, count in (("indices", "vocabulary"), ("labels", "elements")) if role in plan.operands(op)}
        self.data = {}
        for t in plan.inputs():
            self.data[t["name"]] = (torch.randint(classes[t["name"]], t["shape"], device=device)
                                    if t["name"] in classes
                                    else torch.empty(t["shape"], device=device).uniform_(-1, 1))
        self.graph = None  # compiled in the first iteration
        # Pairs of a bfloat16 parameter and the float32 copy that the optimizer updates.
        self.short = [(p, p.detach().float()) for p in self.parameters.values() if p.dtype == torch.bfloat16]
        copies = {id(parameter): copy for parameter, copy in self.short}
        self.optimizer = self.make_optimizer([copies.get(id(p), p) for p in self.parameters.values()])

    def make_optimizer(self, parameters):
        rule = self.plan.update or {"type": "sgd", "attributes": {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0}}
        a = rule["attributes"]
        common = {"lr": a["learning_rate"], "weight_decay": a["weight_decay"]}
        if rule["type"] == "sgd":
            return self.torch.optim.SGD(parameters, momentum=a["momentum"], **common)
        kind = self.torch.optim.Adam if rule["type"] == "adam" else self.torch.optim.AdamW
        return kind(parameters, betas=(a["beta1"], a["beta2"]), eps=a["epsilon"], **common)

    def update(self):
        for parameter, copy in self.short:
            copy.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        if self.short:
            with self.torch.no_grad():
                self.torch._foreach_copy_([p for p, _ in self.short], [copy for _, copy in self.short])

    def run(self, steps, values, parameters):
        """Runs the steps and returns the output of the last one. Removes tensors from `values` after their last use."""
        for op in steps:
            values[self.plan.output(op)] = apply(self.torch, self.plan, op, values, parameters,
                                                 in_place=op is not steps[0])
            for name in op["inputs"]:  # as a module's local variables would end after their last use
                if self.last_use[name] is op and name in values:
                    del values[name]
        return values[self.plan.output(steps[-1])]

    def forward(self):
        return self.run(self.plan.steps, dict(self.data), self.parameters)

    def forward_by_blocks(self):
        """Runs forward with torch.utils.checkpoint around each block but the last, which backward needs at once."""
        from torch.utils.checkpoint import checkpoint
        blocks = self.plan.blocks()
        name = self.plan.read(blocks[0][0])
        x = self.data[name]
        for block in blocks[:-1]:
            x = checkpoint(lambda x, block=block, name=name: self.run(block, {name: x}, self.parameters), x,
                           use_reentrant=False)
            name = self.plan.output(block[-1])
        values = {**self.data, name: x}
        return self.run(blocks[-1] + self.plan.steps[-1:], values, self.parameters)

    def compiled(self):
        """Returns the forward pass as a graph of library calls, compiled for the current activation_memory_budget."""
        trainer, torch = self, self.torch

        class Forward(torch.nn.Module):
            def __init__(self):
                super().__init__()
                for i, value in enumerate(trainer.parameters.values()):
                    self.register_parameter(f"p{i}", value)

            def forward(self, image, labels):
                parameters = {name: getattr(self, f"p{i}") for i, name in enumerate(trainer.parameters)}
                return trainer.run(trainer.plan.steps, dict(zip(trainer.data, (image, labels))), parameters)

        return torch.compile(torch.fx.symbolic_trace(Forward()))

    def forward_checkpointed(self):
        """Runs forward with checkpoint_sequential over the chain, in about sqrt(steps) segments."""
        steps = self.plan.steps[:-1]

        def layer(op):
            def run(x):
                values = dict(self.data)
                values[self.plan.operands(op)["x"]] = x
                # A segment's input is needed again, so nothing may overwrite it.
                return apply(self.torch, self.plan, op, values, self.parameters, in_place=False)
            return run

        image = self.data[self.plan.operands(steps[0])["x"]]
        from torch.utils.checkpoint import checkpoint_sequential
        segments = max(1, round(math.sqrt(len(steps))))
        scores = checkpoint_sequential([layer(op) for op in steps], segments, image,
                                       use_reentrant=False)
        values = dict(self.data)
        values[self.plan.operands(self.plan.steps[-1])["x"]] = scores
        return apply(self.torch, self.plan, self.plan.steps[-1], values, self.parameters)

    def iterate(self):
        """Runs one iteration and returns its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.method == "save_on_cpu":
            with self.torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = self.forward()
        elif self.method == "checkpoint_sequential":
            loss = self.forward_checkpointed()
        elif self.method == PER_BLOCK:
            loss = self.forward_by_blocks()
        elif self.method.startswith(COMPILED):
            if self.graph is None:
                self.graph = self.compiled()
            loss = self.graph(*self.data.values())
        else:
            loss = self.forward()
        loss.backward()
        self.update()
        return loss


def time_pytorch(torch, plan, method, iterations):
    """Returns (times in ms, peak bytes taken from the device)."""
    torch.backends.cudnn.benchmark = method == "eager, autotuned"
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if method.startswith(COMPILED):
        import torch._functorch.config
        torch._dynamo.reset()
        torch._functorch.config.activation_memory_budget = float(method[len(COMPILED):])
    trainer = Trainer(torch, plan, method)
    times = []
    for i in range(WARM_UP + iterations):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if i == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        start.record()
        trainer.iterate()
        end.record()
        torch.cuda.synchronize()
        if i >= WARM_UP:
            times.append(start.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated()
    del trainer
    torch.cuda.empty_cache()
    return times, peak


def spillway(binary, *arguments):
    """Runs the program and returns its standard output. Exit codes other than 0 and 1 are failures."""
    result = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise SystemExit(f"compare_pytorch: {binary} {' '.join(arguments)}: exit code "
                         f"{result.returncode}: {result.stderr.strip()}")
    return result.stdout


def load_plan(binary, workload):
    """Returns the plan of a workload."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        spillway(binary, "trace", "build", workload, "-o", path)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
    return Plan(trace, OpTable(json.loads(spillway(binary, "list", "ops", "--format", "json"))))


def row(workload, side, method, times, peak, note=""):
    return {"workload": workload, "side": side, "method": method,
            "iteration_ms": round(statistics.median(times), 3),
            "shortest_iteration_ms": round(min(times), 3),
            "longest_iteration_ms": round(max(times), 3), "peak_bytes": peak, "note": note}


def compare(torch, arguments, workload):
    """Yields a row for each method that fits into memory, as soon as it is timed."""
    plan = load_plan(arguments.spillway, workload)
    rows = []

    def kept(r):
        rows.append(r)
        eager = rows[0]["iteration_ms"] if rows[0]["method"] == "eager" else None
        r["time_over_eager"] = round(r["iteration_ms"] / eager, 3) if eager else ""
        return r

    methods = ["eager"]
    if not arguments.in_core:
        methods += ["eager, autotuned", "save_on_cpu"]
        if plan.is_chain():
            methods.append("checkpoint_sequential")
        methods.append(PER_BLOCK)
        methods += [f"{COMPILED}{budget:g}" for budget in arguments.budgets]
    for method in methods:
        try:
            times, peak = time_pytorch(torch, plan, method, arguments.iterations)
            yield kept(row(workload, "pytorch", method, times, peak))
        except torch.cuda.OutOfMemoryError:
            print(f"{workload} {method}: out of memory", file=sys.stderr)
    torch.cuda.empty_cache()
    runs = [("liveness", "unlimited")]
    if not arguments.in_core:
        runs += [("vdnn-dyn", "50%"), ("vdnn-dyn:adopt=fastest", "50%"), ("vdnn-dyn", "25%"), ("superneurons", "50%"),
                 ("superneurons", "25%")]
    runs = [(policy, memory, "best-fit") for policy, memory in runs]
    # So little memory leaves no room for fragmentation.
    runs += [("superneurons", f"{r['peak_bytes']}B", "stitched") for r in rows
             if r["method"] == "save_on_cpu"]
    runs += [("joint", f"{peak}B", "best-fit") for peak in
             dict.fromkeys(r["peak_bytes"] for r in rows if r["method"].startswith((PER_BLOCK, COMPILED)))]
    for policy, memory, allocator in runs:
        text = spillway(arguments.spillway, "validate", workload, "--policy", policy, "--memory",
                        memory, "--allocator", allocator, "--math", arguments.math, "--iterations",
                        str(arguments.iterations + 4), "--format", "json", "--quiet",
                        *(["--cost", arguments.cost] if arguments.cost else []),
                        *(["--any-table"] if arguments.any_table else []))
        result = json.loads(text)["rows"][0]
        if result["status"] != "ok":
            continue
        yield kept(row(workload, "spillway", f"{policy}, --memory {memory}" +
                       (f" --allocator {allocator}" if allocator != "best-fit" else ""),
                       [result["measured_iteration_ms"], result["shortest_iteration_ms"],
                        result["longest_iteration_ms"]], result["measured_peak_allocated_bytes"],
                       note=f"predicted {result['predicted_iteration_ms']:.3f} ms"))


def write(rows, path):
    temporary = path + ".part"
    with open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


def budgets(text):
    """Parses the value of --budgets."""
    shares = [float(share) for share in text.split(",") if share]
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"'{text}': each budget must be from 0 to 1")
    return shares


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="NETWORK:BATCH")
    parser.add_argument("--spillway", default="build/release/bin/spillway",
                        help="the program (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=20, help="timed iterations of each method (default: 20)")
    parser.add_argument("--math", choices=["fp32", "tf32"], default="fp32")
    parser.add_argument("--cost", metavar="FILE", help="a cost table for Spillway (default: a recorded one)")
    parser.add_argument("--in-core", action="store_true",
                        help="compare only eager with liveness in unlimited memory, which takes seconds")
    parser.add_argument("--any-table", action="store_true",
                        help="accept a cost table of another GPU, another cuDNN or other arithmetic")
    parser.add_argument("--budgets", type=budgets, default=[1, 0.7, 0.5, 0.3, 0.1], metavar="SHARE,...",
                        help="activation_memory_budget of torch.compile, each from 0 to 1 (default: 1,0.7,0.5,0.3,0.1; "
                             "'' omits torch.compile)")
    parser.add_argument("-o", "--output", help="CSV file (default: only the printed table)")
    parser.add_argument("--plan-only", action="store_true",
                        help="print the steps of each network and stop; needs no PyTorch and no GPU")
    arguments = parser.parse_args()
    if arguments.iterations < 1:
        parser.error("--iterations must be at least 1")
    if arguments.plan_only:
        for workload in arguments.workloads:
            plan = load_plan(arguments.spillway, workload)
            print(f"{workload}: {len(plan.steps)} steps, {len(plan.parameters())} parameters, "
                  f"{'a chain' if plan.is_chain() else 'no chain'}, {len(plan.blocks())} blocks")
        return 0
    try:
        import torch
    except ImportError:
        print("compare_pytorch: PyTorch is missing (python3 -c 'import torch')", file=sys.stderr)
        return 5
    if not torch.cuda.is_available():
        print("compare_pytorch: PyTorch finds no GPU", file=sys.stderr)
        return 5
    tf32 = arguments.math == "tf32" or any("precision=tf32" in workload for workload in arguments.workloads)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    rows = []
    for workload in arguments.workloads:
        for r in compare(torch, arguments, workload):
            rows.append(r)
            if arguments.output:  # later methods may run out of memory or time
                write(rows, arguments.output)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}, products of float32 in {'tf32' if tf32 else 'fp32'}")
    print(f"{'workload':14} {'side':9} {'method':40} {'ms':>9} {'x eager':>8} {'peak MiB':>9}")
    for r in rows:
        print(f"{r['workload']:14} {r['side']:9} {r['method']:40} {r['iteration_ms']:9.2f} "
              f"{r['time_over_eager']:8} {r['peak_bytes'] / 2**20:9.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
