"""What each table of measurements by others asks of Spillway, row by row.

Each reader takes a row, as text by column, and returns a `Question`, or a `Refusal` with the reason why there is none.
A reader is chosen by the columns of the file. It treats every row by the same rules, and raises `ValueError` for a
value that it cannot read.
"""

import dataclasses
import json
import math
import re


MIB, GIB = 1 << 20, 1 << 30

REASONS = {
    "kernels": "kernels of a library for GPUs replace PyTorch's operators (Triton, FP8, and the like)",
    "compiled": "the step is compiled",
    "several": "other GPUs take part, and their share is in the number",
    "quantised": "weights or optimizer states are quantised",
    "offloaded": "the program moves tensors to the host",
    "lengths": "the row does not say how many tokens a step has",
    "model": "the row does not describe the model or the program, or this folder has no builder for it",
    "experts": "the model sends tokens to experts, as many to each as data decides",
    "card": "no device file describes the card",
    "contradiction": "weights, gradients and optimizer states alone exceed the number, so that it is not one GPU's",
    "quantity": "the number is not a peak or a time of one step",
}


@dataclasses.dataclass
class Question:
    """One step to record, and what was measured of it.

    build, options, target: the key of the recording (models).
    device: of Spillway.
    assumptions: sentences; none if the row says all that the prediction needs.
    bytes, ms, fits: what was measured, each None if it is not to be judged.
    metric: the predicted quantity that `bytes` is compared with: allocated, requested, reserved or resident.
    workspace: bytes of libraries, in place of those that the recording assumes.
    steps: number of repetitions of the part that options with one `micro_batches` more add to the time.
    also: options of the other stages of a pipeline; the largest counts, and the slowest, which waits for the others.
    peer_bytes, peer_ms: what the table says that another simulator predicted.
    """

    id: str
    build: str
    options: dict
    target: str
    device: str
    assumptions: list = dataclasses.field(default_factory=list)
    bytes: float | None = None
    ms: float | None = None
    fits: bool | None = None
    metric: str = "allocated"
    workspace: int | None = None
    steps: int = 1
    also: list = dataclasses.field(default_factory=list)
    peer_bytes: float | None = None
    peer_ms: float | None = None
    family: str = ""


@dataclasses.dataclass
class Refusal:
    id: str
    reason: str
    detail: str = ""


# ---- cards ----

# Words of a card's name, the device and the compute capability; the first row that matches counts.
CARDS = (
    ("H100 96", None, 90), ("GH200", "gh200", 90), ("H100", "h100", 90), ("H200", "h200", 90), ("B200", "b200", 100),
    ("A100 40", "a100_40gb", 80), ("A100", "a100", 80), ("A10", "a10", 86), ("A6000", "a6000", 86),
    ("L40S", "l40s", 89), ("L4", "l4", 89), ("4090", "rtx4090", 89), ("3090", "rtx3090", 86),
    ("5090", "rtx5090", 120), ("V100", "v100", 70))


def card(name):
    """Returns (device or None, target) of a card by its name."""
    for words, device, capability in CARDS:
        if all(word in name.upper() for word in words.split()):
            return device, f"cuda:sm_{capability}"
    return None, ""


def number(row, column, kind=int, default=None):
    """Returns the number in a column. An empty one is `default`.

    Raises `ValueError` if there is none or if it is too small: below 0, or below 1 for a whole number whose default
    is not 0.
    """
    text, least = row[column].strip(), 0 if default == 0 or kind is float else 1
    if not text and default is not None:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value < math.inf:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{column} is '{text}'; expected {what} of at least {least}")
    return value


# ---- models ----

SHAPES = {name: dict(zip(("layers", "width", "heads", "groups", "ffn", "vocabulary"), numbers)) for name, *numbers in (
    ("falcon-7b", 32, 4544, 71, 1, 18176, 65024), ("gemma-2b", 18, 2048, 8, 1, 16384, 256000),
    ("gemma-7b", 28, 3072, 16, 16, 24576, 256000), ("gemma-2-2b", 26, 2304, 8, 4, 9216, 256000),
    ("gemma-2-9b", 42, 3584, 16, 8, 14336, 256000), ("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    ("llama-3-8b", 32, 4096, 32, 8, 14336, 128256), ("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
    ("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256), ("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256),
    ("llama-3-70b", 80, 8192, 64, 8, 28672, 128256), ("llama-3-405b", 126, 16384, 128, 16, 53248, 128256),
    ("mistral-7b", 32, 4096, 32, 8, 14336, 32000), ("phi-2", 32, 2560, 32, 32, 10240, 51200),
    ("phi-3", 32, 3072, 32, 32, 8192, 32064), ("stablelm-base-alpha-3b", 16, 4096, 32, 32, 16384, 50688),
    ("tiny-llama", 22, 2048, 32, 4, 5632, 32000))}


def shape_of(name):
    """Returns the shape of the model that a text names, however it writes "llama-3.1-8b"; None if it is not known."""
    name = re.sub(r"\(.*", "", name.lower()).strip()
    name = re.sub(r"[-_ ]+", "-", re.sub(r"(llama|gemma)(?=\d)", r"\1-", name))
    name = name.removesuffix("-v0.1").removesuffix("-v0.2")
    return (name, SHAPES[name]) if name in SHAPES else None


# ---- megatron_golden.csv ----

CUBLAS_WORKSPACE = 32 * MIB  # CUBLAS_WORKSPACE_CONFIG=:4096:8, for each of two threads


def megatron(row):
    name = f"{row['case']} {row['hw']} {row['env']}"
    if number(row, "agree_within_1pct", int, 0) < 1:
        return Refusal(name, "quantity", "no other row of the case agrees with it")
    device, target = card(row["hw"])
    if device is None:
        return Refusal(name, "card")
    if not row["case"].startswith("gpt/") or not row["layers"]:
        return Refusal(name, "model", "a model of several parts, which the row does not describe")
    if any(number(row, axis, int, 1) > 1 for axis in ("tp", "pp", "cp", "ep")) or row["fsdp"] == "True":
        return Refusal(name, "several")
    if row["fp8"]:
        return Refusal(name, "kernels", "FP8")
    if row["offload"] == "True" or row["optimizer_offload"] == "True":
        return Refusal(name, "offloaded")
    if row["experts"] or row["recompute"] not in ("", "full"):
        return Refusal(name, "model", "experts, or a part of the layers recomputed")
    assumptions = ["PyTorch's operators in place of Megatron's and Transformer Engine's, as fused as theirs",
                   "cuBLAS has the workspace of Megatron's tests, 32 MiB for each of two threads"]
    width, heads = number(row, "hidden"), number(row, "heads")
    if width % heads:
        raise ValueError(f"hidden is {width}, which is no multiple of heads, {heads}")
    gpus = number(row, "nodes", int, 0) * number(row, "gpus_per_node", int, 0)
    if not gpus:
        gpus = 8
        assumptions.append("8 GPUs, as the other cases have")
    vocabulary = number(row, "vocab", int, 0)
    if not vocabulary:
        vocabulary = 50257
        assumptions.append("the vocabulary of GPT-2, padded to a multiple of 128")
    engine = row["transformer_impl"] != "local"
    fused = engine and row["attention_backend"] != "unfused"
    hopper = target == "cuda:sm_90"
    workspace = 2 * CUBLAS_WORKSPACE
    if engine:
        workspace += (32 if hopper else 4) * MIB
        assumptions.append("Transformer Engine has a workspace of its own, 32 MiB on Hopper and 4 MiB elsewhere")
    if fused and not hopper:
        assumptions.append("flash attention's result is copied into Megatron's order of dimensions")
    batch = number(row, "mbs")
    half = row["fp16"] == "True"
    options = {
        "batch": batch, "length": number(row, "seq"), "layers": number(row, "layers"), "width": width, "heads": heads,
        "groups": number(row, "kv_groups", int, heads), "ffn": number(row, "ffn", int, 4 * width),
        "vocabulary": -(-vocabulary // 128) * 128, "tied": row["untie"] != "True", "gated": row["swiglu"] == "True",
        "dtype": "float16" if half else "bfloat16" if row["bf16"] == "True" else "float32",
        "gradients": "float16" if half else "float32", "dp": gpus if row["dist_opt"] == "True" else 1, "replicas": gpus,
        "dropout": 0.1, "attention_dropout": 0.1, "fused": fused, "copies": fused and not hopper,
        "keeps_scores": not engine, "recompute": row["recompute"] == "full"}
    steps = max(number(row, "gbs") // (batch * gpus), 1)
    return Question(name, "megatron", options, target, device, assumptions, number(row, "peak_allocated_bytes"),
                    1000 * number(row, "iter_s_median_late", float), workspace=workspace, steps=steps,
                    family=f"{row['layers']} layers, width {width}")


# ---- liger_ops.csv ----

SMALL_WORKSPACE = 2 * 4 * MIB + 8 * 16 * 1024  # of cuBLAS, before Hopper, for each of two threads
PLAIN = ("huggingface", "torch")
KERNELS = {
    "cross_entropy": ("B", "T", "V"), "fused_linear_cross_entropy": ("BT", "H", "V"), "embedding": ("B", "T", "D", "V"),
    "geglu": ("bsz", "T", "hidden_size", "intermediate_size", "hidden_act"),
    "swiglu": ("B", "T", "hidden_size", "intermediate_size", "hidden_act"), "layer_norm": ("M", "N", "eps"),
    "rms_norm": ("M", "H", "eps"), "rope": ("num_q_heads", "num_kv_heads")}


def liger(row):
    kernel, mode, metric = row["kernel_name"], row["kernel_operation_mode"], row["metric_name"]
    name = f"{kernel} {row['kernel_provider']} {mode} {metric} {row['x_name']}={row['x_value']}"
    if row["kernel_provider"] not in PLAIN:
        return Refusal(name, "kernels", "Triton")
    try:
        options = json.loads(row["extra_benchmark_config_str"] or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"extra_benchmark_config_str is no JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError("extra_benchmark_config_str is no object of JSON")
    options[row["x_name"]] = number(row, "x_value")
    options.pop("mode", None)
    device, target = card(row["gpu_name"])
    if device is None:
        return Refusal(name, "card")
    if mode not in ("forward", "backward", "full") or not all(key in options for key in KERNELS.get(kernel, ("none",))):
        return Refusal(name, "model", "an operator or a shape that the script has no builder for")
    if metric not in ("speed", "memory"):
        return Refusal(name, "quantity", metric)
    value, assumptions, workspace = number(row, "y_value_50", float), [], None
    if kernel in ("embedding", "fused_linear_cross_entropy"):
        assumptions.append("the benchmark makes the modules of both providers, of which one has nothing to do")
    if kernel == "rope" and metric == "memory":
        assumptions.append("cuBLAS has its workspace from the product that makes the angles before the measurement")
        workspace = SMALL_WORKSPACE
    if kernel in ("geglu", "swiglu") and metric == "memory":
        assumptions.append("forward and backward ran products before the measurement, and hold cuBLAS's workspaces")
        workspace = 2 * SMALL_WORKSPACE
    memory = metric == "memory"
    options.update(kernel=kernel, mode=mode, keep_gradients=memory)
    return Question(name, "operator", options, target, device, assumptions, value * MIB if memory else None,
                    None if memory else value, workspace=workspace, family=kernel)


# ---- litgpt_finetune_a10g.csv ----

_NEOX = {"rms": False, "gated": False, "activation": "gelu", "parallel": True}
_GEMMA = {"unit": True, "activation": "gelu_pytorch_tanh", "scaled": True, "size": 256}
LITGPT = {  # what sets a model apart from Llama
    "falcon": {**_NEOX, "shared_norm": True}, "stablelm": {**_NEOX, "bias": True, "rotary": 0.25},
    "phi-2": {**_NEOX, "activation": "gelu_pytorch_tanh", "shared_norm": True, "bias": True, "head_bias": True,
              "rotary": 0.4},
    "gemma-2-": {**_GEMMA, "softcap": True, "post_norms": True}, "gemma": _GEMMA, "": {}}


def weights(o):
    """Returns the least number of weights of a decoder, without biases and norms; words and head share a matrix."""
    heads = (2 * o["heads"] + 2 * o["groups"]) * o.get("size", o["width"] // o["heads"])
    return o["width"] * (o["layers"] * (heads + o["ffn"] * (3 if o.get("gated", True) else 2)) + o["vocabulary"])


def litgpt(row):
    name = row["config"]
    family, _, kind = name.lower().removesuffix(".yaml").partition("/")
    if kind not in ("full", "lora", "qlora"):
        return Refusal(name, "model", f"fine-tuning by {kind}")
    if kind == "qlora":
        return Refusal(name, "quantised", "QLoRA")
    known = shape_of(family)
    if known is None:
        return Refusal(name, "model", family)
    model, shape = known
    shape = {**shape, **next(more for start, more in LITGPT.items() if model.startswith(start))}
    count, _, kind_of_card = row["machine"].partition("x")
    device, target = card(kind_of_card)
    if device is None:
        return Refusal(name, "card")
    if row["precision"] != "bf16-true":
        return Refusal(name, "model", row["precision"])
    assumptions = [f"the longest sample has {row['max_seq']} tokens, and a batch of such samples makes the peak",
                   "litgpt's model from PyTorch's operators", "the A10G has the A10's memory and rates"]
    if int(count) > 1:
        if kind == "full":
            return Refusal(name, "several", "sharded by FSDP")
        assumptions.append("one of the machine's GPUs is used, as litgpt's configuration says")
    options = {**shape, "batch": number(row, "micro_batch"), "length": number(row, "max_seq")}
    if kind == "lora":
        everywhere = model.startswith(("gemma", "phi", "tiny"))
        rank = 8 if model.startswith(("gemma", "phi")) else 32
        options.update(rank=rank, rank_everywhere=everywhere, dropout=0.1 if "gemma" in model else 0.05)
        assumptions.append(f"matrices of rank {rank} at {'all products' if everywhere else 'queries and values'}")
    if shape.get("softcap"):
        assumptions.append("logits in chunks are not capped, as in the litgpt of the measurement")
    peak = row["peak_memory"]
    fits = peak != "OOM"
    size = None
    if fits:
        found = re.fullmatch(r"([0-9.]+) GB", peak)
        if not found:
            raise ValueError(f"peak_memory is '{peak}'; expected OOM or a number of GB")
        size = float(found.group(1)) * 1e9
    if kind == "full" and size is not None and 8 * weights(shape) > size:
        return Refusal(name, "contradiction", f"{8 * weights(shape) / 1e9:.1f} GB in bf16, with two moments")
    return Question(name, "litgpt", options, target, device, assumptions, size, fits=fits, family=kind)


# ---- simumax_b200.csv ----

def simumax(row):
    name = row["case"]
    device, target = card(row["gpu"])
    if device is None:
        return Refusal(name, "card")
    if number(row, "ep", int, 1) > 1:
        return Refusal(name, "experts")
    found = re.match(r"llama\d+_\d+b", name)
    known = found and shape_of(found.group())
    if not known:
        return Refusal(name, "model")
    model, shape = known
    tp, pp, dp, cp = (number(row, axis, int, 1) for axis in ("tp", "pp", "dp", "cp"))
    layers, batches, length = number(row, "layers"), number(row, "micro_batches"), re.match(r"\d+", row["seq"])
    if not length:
        return Refusal(name, "lengths")
    length = int(length.group())
    if layers % pp or length % (tp * cp) or shape["groups"] % (tp * cp):
        return Refusal(name, "several", "the parts are not equal")
    assumptions = ["PyTorch's operators in place of Transformer Engine's, as fused as theirs",
                   "micro-batches of one sequence",
                   "cuBLAS and Transformer Engine have three workspaces of 32 MiB"]
    if tp > 1:
        assumptions.append("one rank's slice of the widths, between products a slice of the sequence")
    if pp > 1:
        assumptions.append(f"one of {pp} stages, with as many micro-batches in flight as stages follow; "
                           "what they send each other takes no time")
    if cp > 1:
        assumptions.append("a slice of the sequence, which attention exchanges for a slice of the heads")
    unit = 128 * tp
    options = {
        **shape, "vocabulary": -(-shape["vocabulary"] // unit) * unit, "layers": layers // pp, "batch": 1,
        "length": length // cp, "tp": tp, "sp": tp, "cp": cp, "dp": dp * cp, "dtype": "bfloat16",
        "gradients": "float32", "fused_sums": True, "fused": True, "fused_loss": True, "rope": True, "rms": True,
        "gated": True, "bias": False, "tied": False, "mask": False}
    stages = [{**options, "first": at == 0, "last": at == pp - 1, "flight": min(pp - at, batches),
               "micro_batches": min(pp - at, batches)} for at in range(pp)]
    real, peer = (number(row, f"{whose}_alloc_GiB", float) * GIB for whose in ("real", "simumax"))
    return Question(name, "megatron", stages[0], target, device, assumptions, real, number(row, "real_ms", float),
                    workspace=3 * 32 * MIB, steps=batches, also=stages[1:], peer_bytes=peer,
                    peer_ms=number(row, "simumax_ms", float), family=model)


# ---- frameworks.csv ----

# Words in a row, and the reason for which it cannot be answered; the first that occurs counts.
OBSTACLES = {
    "delta": "quantity", "incremental": "quantity", "deepcompile": "compiled", "torch.compile": "compiled",
    "compile activation": "compiled", "graph_trainer": "compiled", "single thunder": "kernels", "triton": "kernels",
    "lc-ce": "kernels", "float8": "kernels", "mxfp8": "kernels", "8-bit": "quantised", "4-bit": "quantised",
    "nf4": "quantised", "qlora": "quantised", "offload": "offloaded"}
CHECKPOINTS = {"": "none", "none": "none", "full": "full", "every 2nd layer": "second", "selective": "products"}


def frameworks(row):
    name = f"{row['id']} {row['framework']} {row['model']}"
    columns = ("framework", "model", "dtype", "optimizer", "activation", "extra", "mem_metric")
    text = " | ".join(row[column] for column in columns).lower()
    if row["compile"] == "yes" or ("cumulative:" in text and not re.search(r"baseline|packed dataset", text)):
        return Refusal(name, "compiled", "or adds to a row that is" if row["compile"] != "yes" else "")
    for word, reason in OBSTACLES.items():
        if word in text and not re.search(f"no {word}|{word} disabled", text):
            return Refusal(name, reason, word)
    known = shape_of(row["model"])
    if known is None:
        return Refusal(name, "model", row["model"])
    shards = re.fullmatch(r"FSDP2?( dp=)? ?(\d*)", row["parallelism"] or re.sub(r"^(?!FSDP).*", "", row["extra"]))
    gpus = number(row, "gpus", int, 1)
    if (row["parallelism"] or gpus > 1) and not shards:
        return Refusal(name, "several")
    batch, length = row["micro_batch"].rstrip("?"), row["seq"]
    if not (batch.isdigit() and length.isdigit()) or "unpacked" in text:
        return Refusal(name, "lengths")
    device, target = card(row["gpu"])
    if device is None and target:
        device = "h100"  # of the same compute capability
    if device is None:
        return Refusal(name, "card", row["gpu"])
    activation = "full" if "gradient checkpointing" in row["extra"] else row["activation"]
    if activation not in CHECKPOINTS or "LoRA" in text or not row["optimizer"].startswith("AdamW"):
        return Refusal(name, "model", f"{row['activation']} {row['optimizer']}")
    titan, automodel = "torchtitan" in row["framework"], "Automodel" in row["framework"]
    assumptions = ["the framework's model from PyTorch's operators, its loss in float32"]
    if titan:
        assumptions.append("the number is torchtitan's: GiB that the allocator reserved")
    if "?" in row["micro_batch"]:
        assumptions.append(f"micro-batches of {batch}")
    if row["gpu"].find("96") >= 0:
        assumptions.append("a recording for Hopper; the card has no device file")
    if automodel:
        assumptions.append("norms and SwiGLU keep their inputs alone, as Liger's kernels do, Automodel's default")
    if shards:
        assumptions.append("FSDP2 as PyTorch has it, a group for each layer")
    options = {**known[1], "tied": known[0].startswith("llama-3.2-"), "batch": int(batch), "length": int(length),
               "shards": gpus if shards else 1, "recompute": CHECKPOINTS[activation],
               "optimizer": "foreach" if titan else "fused", "turns_in_float": not automodel, "fused": automodel}
    size, rate = (number(row, column, float, 0) for column in ("peak_mem", "time_or_rate"))
    unit = {"GB": 1e9, "GiB": GIB, "MB": 1e6, "MiB": MIB}.get("GiB" if titan else row["mem_unit"])
    if size and unit is None:
        raise ValueError(f"mem_unit is '{row['mem_unit']}'; expected GB, GiB, MB or MiB")
    if "tokens/s" not in row["rate_unit"] or "96" in row["gpu"]:
        rate = 0
    return Question(name, "decoder", options, target, device, assumptions, size * unit if size else None,
                    1000 * int(batch) * int(length) / rate if rate else None,
                    metric="reserved" if titan else "allocated", family="sharded" if shards else "one GPU")


# ---- modded_nanogpt.csv ----


def nanogpt(row):
    return Refusal(row["record"], "compiled" if row["compiled"] == "True" else "several")


# ---- nanotron_llama1b.csv ----


def nanotron(row):
    name = "dp{dp} tp{tp} pp{pp} micro-batch {micro_batch}".format(**row)
    tp, dp, batch, length = (number(row, column) for column in ("tp", "dp", "micro_batch", "seq"))
    if number(row, "pp") > 1:
        return Refusal(name, "several", "the row does not say whose memory it is, of the stages of a pipeline")
    found = re.match(r"llama-1B: hidden (\d+), (\d+) layers, (\d+) heads \(MHA\), ffn (\d+), vocab (\d+), tied, "
                     "no recompute; bf16", row["model"])
    if not found:
        return Refusal(name, "model", row["model"])
    if "Hopper" not in row["gpu"]:
        return Refusal(name, "card", row["gpu"])
    width, layers, heads, ffn, vocabulary = map(int, found.groups())
    if any(n % tp for n in (heads, ffn, length)):
        return Refusal(name, "several", "the parts are not equal")
    assumptions = ["nanotron's layers from PyTorch's operators",
                   "one rank's slice of the widths, between products a slice of the sequence",
                   "products keep their inputs as gathered, as rows of this table say",
                   "the loss has three copies of the logits in float32, as rows of this table say"]
    options = {"layers": layers, "width": width, "heads": heads, "groups": heads, "ffn": ffn, "batch": batch,
               "length": length, "vocabulary": -(-vocabulary // tp) * tp, "tp": tp, "sp": tp, "dp": dp,
               "dtype": "bfloat16", "gradients": "float32", "rope": True, "rms": True, "gated": True, "bias": False,
               "fused": True, "copies": True, "mask": False, "keeps_gathered": True, "plain": True}
    size = number(row, "peak_allocated_MiB", float) * MIB
    return Question(name, "megatron", options, "cuda:sm_90", "h100", assumptions, size)


# Columns that tell a table, and its reader.
TABLES = {
    "megatron": ({"case", "peak_allocated_bytes", "iter_s_median_late", "agree_within_1pct"}, megatron),
    "liger": ({"kernel_name", "kernel_provider", "x_value", "extra_benchmark_config_str"}, liger),
    "litgpt": ({"config", "max_seq", "micro_batch", "machine", "peak_memory"}, litgpt),
    "simumax": ({"case", "real_ms", "real_alloc_GiB", "simumax_ms"}, simumax),
    "frameworks": ({"id", "framework", "parallelism", "peak_mem", "rate_unit"}, frameworks),
    "nanogpt": ({"record", "compiled", "step_avg_ms"}, nanogpt),
    "nanotron": ({"dp", "tp", "pp", "global_batch_tokens", "iter_ms"}, nanotron),
}
