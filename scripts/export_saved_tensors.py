#!/usr/bin/env python3
"""Writes the fate that a plan of PyTorch gives to each tensor that backward reads, as a list for `saved-tensors`.

usage: export_saved_tensors.py save_on_cpu MODEL.json -o LIST.json
       export_saved_tensors.py checkpoint MODEL.json -o LIST.json [--block NAME ...]
       export_saved_tensors.py budget MODEL.json --manifest PLAN.manifest.json -o LIST.json

MODEL.json[.zst] is the trace that `spillway trace import` made of a recording without a plan. The plans are:

save_on_cpu   torch.autograd.graph.save_on_cpu around forward. Each operator copies every tensor that it saves,
              parameters included. Every tensor of forward that an operator of backward reads counts as saved. Tensors
              that autograd saves but backward does not read are not in a recording.
checkpoint    torch.utils.checkpoint around blocks (all blocks, or the blocks named by --block). Tensors made within a
              block are recomputed when backward reaches the block. Tensors that the block reads from outside are
              kept. The recording knows the block of each operator if it was made with `record(..., model=...)`, as
              spillway_torch does for its own models.
budget        torch.compile with an activation_memory_budget. The tensors that its partitioner kept come from the
              manifest of a recording with --plan budget=SHARE. Convolutions, matrix products and attention are matched
              by their order. The compiler fuses elementwise operators, so they cannot be matched one by one: their
              tensors count as kept if the compiler kept a tensor of the same size, in the order of backward. The
              script prints how many kept values it could not match.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

LEFT_BY_FORWARD = ("parameter", "input")


def read_model(path):
    if path.endswith(".zst"):
        try:
            data = subprocess.run(["zstd", "-dc", path], stdout=subprocess.PIPE, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"export_saved_tensors: {path}: cannot be decompressed with zstd: {error}")
    else:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            sys.exit(f"export_saved_tensors: {error}")
    try:
        model = json.loads(data)
    except ValueError as error:
        sys.exit(f"export_saved_tensors: {path}: {error}")
    if not isinstance(model, dict) or model.get("format") != "spillway-trace":
        sys.exit(f"export_saved_tensors: {path}: not a Spillway trace")
    return model


class Model:
    """The storages that forward leaves and backward reads, and the operators that made them."""

    def __init__(self, model):
        self.name = model["name"]
        self.tensors = {tensor["name"]: tensor for tensor in model["tensors"]}
        self.forward = [op for op in model["ops"] if op["phase"] == "forward"]
        backward = [op for op in model["ops"] if op["phase"] == "backward"]
        self.maker = {}  # storage -> the first op of forward that writes it
        for op in self.forward:
            for output in op["outputs"]:
                self.maker.setdefault(self.root(output), op)
        changed = {self.root(output) for op in backward for output in op["outputs"]}
        read = dict.fromkeys(self.root(name) for op in backward for name in op["inputs"])
        self.saved = [root for root in read  # storages, in the order of backward
                      if (root in self.maker or self.tensors[root]["kind"] in LEFT_BY_FORWARD) and root not in changed]

    def root(self, name):
        while "alias_of" in self.tensors[name]:
            name = self.tensors[name]["alias_of"]
        return name


def save_on_cpu(model):
    return {"copies": "each_reader"}, [{"tensor": name, "fate": "offload"} for name in model.saved]


def block_of(op):
    """Returns the block of an op, or "". An op's layer is "BLOCK/NAME" if the recording knows the block."""
    return op["layer"].rpartition("/")[0]


def checkpoint(model, chosen):
    blocks = list(dict.fromkeys(block_of(op) for op in model.forward if block_of(op)))
    if not blocks:
        sys.exit("export_saved_tensors: the recording does not name the blocks of operators: record with model=...")
    for name in chosen:
        if name not in blocks:
            sys.exit(f"export_saved_tensors: no block '{name}' (valid: {', '.join(blocks)})")
    chosen = set(chosen or blocks)
    kept = {}  # storages that are read outside of the block that made them
    for op in model.forward:
        for root in map(model.root, op["inputs"]):
            if root in model.maker and block_of(model.maker[root]) != block_of(op):
                kept[root] = True
    entries = [{"tensor": root, "fate": "save"} for root in kept]
    for root in model.saved:
        block = block_of(model.maker[root]) if root in model.maker else ""
        if block in chosen and root not in kept:
            entries.append({"tensor": root, "fate": "recompute", "group": block})
    return {}, entries


# The operators that are matched by their order: FX's name -> the names with which a recording's
# operators begin.
BY_ORDER = {"addmm": "addmm", "mm": "mm", "bmm": "bmm", "convolution": ("cudnn_convolution", "convolution"),
            "_scaled_dot_product_efficient_attention": "_efficient_attention_forward",
            "_scaled_dot_product_flash_attention": "_flash_attention_forward"}


def occurrence(fx_name):
    """Splits "addmm_3" into ("addmm", 3). FX gives the first occurrence no number, so "addmm" gives ("addmm", 0)."""
    match = re.fullmatch(r"(.*?)(?:_(\d+))?", fx_name)
    return match[1], int(match[2] or 0)


def budget(model, manifest):
    try:
        with open(manifest, encoding="utf-8") as file:
            graphs = json.load(file).get("saved_values")
    except (OSError, ValueError) as error:
        sys.exit(f"export_saved_tensors: {manifest}: {error}")
    if not graphs:
        sys.exit(f"export_saved_tensors: {manifest}: no saved values of a compiler: record with --plan budget=SHARE")
    by_order = collections.defaultdict(list)
    for op in model.forward:
        for fx_name, starts in BY_ORDER.items():
            if re.sub(r"\.\d+$", "", op["name"].rpartition("/")[2]) in ((starts,) if isinstance(starts, str) else starts):
                by_order[fx_name].append(op)
    kept, unfound = set(), []
    sizes = collections.defaultdict(list)  # size -> storages, for values that are not matched by order
    for root in model.saved:
        if root in model.maker:
            sizes[model.tensors[root]["size"]].append(root)
    for value in (value for graph in graphs for value in graph):
        if value.get("input") or not value.get("bytes"):
            continue
        kind, number = occurrence(value.get("item_of") or value["name"])
        ops = by_order.get(kind, [])
        same = [root for root in map(model.root, ops[number]["outputs"] if number < len(ops) else [])
                if model.tensors[root]["size"] == value["bytes"] and root not in kept]
        if not same:
            same = [root for root in sizes[value["bytes"]] if root not in kept]
        if same:
            kept.add(same[0])
        else:
            unfound.append(value)
    print(f"{sum(value['bytes'] for value in unfound)} bytes in {len(unfound)} values that the compiler kept "
          f"do not occur in the recording", file=sys.stderr)
    return {}, [{"tensor": root, "fate": "save" if root in kept else "recompute"}
                for root in model.saved if root in model.maker and model.tensors[root]["kind"] not in LEFT_BY_FORWARD]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=("save_on_cpu", "checkpoint", "budget"))
    parser.add_argument("model", metavar="MODEL.json")
    parser.add_argument("-o", "--output", required=True, metavar="LIST.json")
    parser.add_argument("--block", action="append", default=[],
                        help="checkpoint: a block to checkpoint; may be repeated (default: all blocks)")
    parser.add_argument("--manifest", help="budget: the manifest of the recording with that plan")
    arguments = parser.parse_args(argv)
    if (arguments.plan == "budget") != (arguments.manifest is not None):
        parser.error("--manifest is required with budget and invalid with any other plan")
    if arguments.block and arguments.plan != "checkpoint":
        parser.error("--block is valid only with checkpoint")
    model = Model(read_model(arguments.model))
    if arguments.plan == "save_on_cpu":
        more, entries = save_on_cpu(model)
    elif arguments.plan == "checkpoint":
        more, entries = checkpoint(model, arguments.block)
    else:
        more, entries = budget(model, arguments.manifest)
    document = {"format": "spillway-saved-tensors", "version": 1, "workload": model.name,
                "source": f"PyTorch's {arguments.plan}", **more, "tensors": entries}
    part = arguments.output + ".part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(part, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
