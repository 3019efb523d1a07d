#!/usr/bin/env python3
"""Writes what PyTorch does with each tensor that backward reads, as a list for the policy `saved-tensors`.

usage: export_saved_tensors.py save_on_cpu MODEL.json -o LIST.json
       export_saved_tensors.py checkpoint MODEL.json -o LIST.json [--block NAME ...]
       export_saved_tensors.py budget MODEL.json --manifest PLAN.manifest.json -o LIST.json

MODEL.json[.zst] is what `spillway trace import` made of a recording without a plan. What the list is of:

save_on_cpu   torch.autograd.graph.save_on_cpu around forward: each operator's own copy of all that it saves, parameters
              included. All that an operator of backward reads of forward counts as saved; what autograd saves and
              backward does not read is not in a recording.
checkpoint    torch.utils.checkpoint around blocks (all, or those named): what is made within a block is computed again
              when backward comes to it; what it reads from outside is kept. The recording says which block an operator
              is of if it was made with `record(..., model=...)`, as record_pytorch.py does for its own models.
budget        torch.compile with an activation_memory_budget, from the manifest of a recording with --plan budget=SHARE:
              what its partitioner kept. Convolutions, matrix products and attention are found by their order; of
              elementwise operators, which the compiler fuses, nothing can be said one by one: a tensor of theirs counts
              as kept where the compiler kept one of the same size, first come first served. What was kept and not
              found is printed.
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
        sys.exit(f"export_saved_tensors: {path}: no trace of Spillway")
    return model


class Model:
    """The storages that backward reads of what forward has left, and who made them."""

    def __init__(self, model):
        self.name = model["name"]
        self.tensors = {tensor["name"]: tensor for tensor in model["tensors"]}
        self.forward = [op for op in model["ops"] if op["phase"] == "forward"]
        backward = [op for op in model["ops"] if op["phase"] == "backward"]
        self.maker = {}  # of a storage: the first op of forward that writes it
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
    """An op's layer is "BLOCK/NAME" where the recording says in which block it ran."""
    return op["layer"].rpartition("/")[0]


def checkpoint(model, chosen):
    blocks = list(dict.fromkeys(block_of(op) for op in model.forward if block_of(op)))
    if not blocks:
        sys.exit("export_saved_tensors: the recording does not say which block an operator is of: record with model=...")
    for name in chosen:
        if name not in blocks:
            sys.exit(f"export_saved_tensors: no block '{name}' (valid: {', '.join(blocks)})")
    chosen = set(chosen or blocks)
    kept = {}  # what is read outside of the block that has made it
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


# What is found by its order: FX's name of an operator, and how the recording's begin.
BY_ORDER = {"addmm": "addmm", "mm": "mm", "bmm": "bmm", "convolution": ("cudnn_convolution", "convolution"),
            "_scaled_dot_product_efficient_attention": "_efficient_attention_forward",
            "_scaled_dot_product_flash_attention": "_flash_attention_forward"}


def occurrence(fx_name):
    """("addmm", 3) of "addmm_3"; FX counts from nothing."""
    match = re.fullmatch(r"(.*?)(?:_(\d+))?", fx_name)
    return match[1], int(match[2] or 0)


def budget(model, manifest):
    try:
        with open(manifest, encoding="utf-8") as file:
            graphs = json.load(file).get("saved_values")
    except (OSError, ValueError) as error:
        sys.exit(f"export_saved_tensors: {manifest}: {error}")
    if not graphs:
        sys.exit(f"export_saved_tensors: {manifest}: says of no values that a compiler saved: record with --plan budget=SHARE")
    by_order = collections.defaultdict(list)
    for op in model.forward:
        for fx_name, starts in BY_ORDER.items():
            if re.sub(r"\.\d+$", "", op["name"].rpartition("/")[2]) in ((starts,) if isinstance(starts, str) else starts):
                by_order[fx_name].append(op)
    kept, unfound = set(), []
    sizes = collections.defaultdict(list)  # of what is not found by its order
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
    print(f"{sum(value['bytes'] for value in unfound)} bytes in {len(unfound)} values that the compiler kept are none "
          f"that the recording has", file=sys.stderr)
    return {}, [{"tensor": root, "fate": "save" if root in kept else "recompute"}
                for root in model.saved if root in model.maker and model.tensors[root]["kind"] not in LEFT_BY_FORWARD]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=("save_on_cpu", "checkpoint", "budget"))
    parser.add_argument("model", metavar="MODEL.json")
    parser.add_argument("-o", "--output", required=True, metavar="LIST.json")
    parser.add_argument("--block", action="append", default=[], help="checkpoint: one of those to checkpoint")
    parser.add_argument("--manifest", help="budget: of the recording with that plan")
    arguments = parser.parse_args(argv)
    if (arguments.plan == "budget") != (arguments.manifest is not None):
        parser.error("--manifest belongs to budget, and to nothing else")
    if arguments.block and arguments.plan != "checkpoint":
        parser.error("--block belongs to checkpoint")
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
