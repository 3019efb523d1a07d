"""Renames the weights of a model of the library transformers to those of a network of `spillway`, and back:

    python3 -m spillway_torch weights model.safetensors -o w.safetensors     # for `spillway run --weights w.safetensors`
    python3 -m spillway_torch weights w.safetensors -o model.safetensors     # what `spillway run --export weights` wrote

The names in the file say which of the two it is, and of which model: GPT2LMHeadModel, BertForMaskedLM,
ViTForImageClassification or LlamaForCausalLM, whose names are those of their `state_dict()`.

- GPT-2's matrix of queries, keys and values becomes three, and its matrices are transposed.
- A last layer with the weight of the embedding is left out on the way there, and is there again on the way back.
- All weights become float32. The state of an optimizer is left out.

The networks have GELU in its exact form, no dropout and the epsilons of the models' papers. A model computes the same if its
configuration says so, too:

    GPT2Config(activation_function="gelu", embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0)      # token_type_ids: 1 in the second half, rounded down
    ViTConfig(layer_norm_eps=1e-6)
    LlamaConfig(rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})

Exit codes: 0 if written, 2 for bad usage, 3 if the file cannot be read or has other weights, 5 if safetensors is missing.
"""

from __future__ import annotations

import argparse
import importlib
import re
from typing import NamedTuple

import torch

from ..base.errors import SpillwayError
from ..base.document import written

Weights = dict[str, torch.Tensor]

# For each model, the names of its modules and of the network's layers; {} stands for the number of a block. A mark behind the
# second name says how a weight differs: "T" is transposed; "1" is a parameter, not a module, and lacks leading extents of 1.
NAMES = {
    "gpt2": """
transformer.wte wte
transformer.wpe wpe
transformer.h.{}.ln_1 h{}.ln_1
transformer.h.{}.attn.c_attn h{}.attn.q,h{}.attn.k,h{}.attn.v T
transformer.h.{}.attn.c_proj h{}.attn.proj T
transformer.h.{}.ln_2 h{}.ln_2
transformer.h.{}.mlp.c_fc h{}.mlp.fc T
transformer.h.{}.mlp.c_proj h{}.mlp.proj T
transformer.ln_f ln_f""",
    "bert": """
bert.embeddings.word_embeddings words
bert.embeddings.position_embeddings positions
bert.embeddings.token_type_embeddings segments
bert.embeddings.LayerNorm embeddings.ln
bert.encoder.layer.{}.attention.self.query h{}.attn.q
bert.encoder.layer.{}.attention.self.key h{}.attn.k
bert.encoder.layer.{}.attention.self.value h{}.attn.v
bert.encoder.layer.{}.attention.output.dense h{}.attn.proj
bert.encoder.layer.{}.attention.output.LayerNorm h{}.ln_1
bert.encoder.layer.{}.intermediate.dense h{}.mlp.fc
bert.encoder.layer.{}.output.dense h{}.mlp.proj
bert.encoder.layer.{}.output.LayerNorm h{}.ln_2
cls.predictions.transform.dense head.dense
cls.predictions.transform.LayerNorm head.ln
cls.predictions.bias head.words.bias 1""",
    "vit": """
vit.embeddings.cls_token embeddings.bias 1
vit.embeddings.position_embeddings embeddings.weight 1
vit.embeddings.patch_embeddings.projection patches
vit.layers.{}.layernorm_before h{}.ln_1
vit.layers.{}.attention.q_proj h{}.attn.q
vit.layers.{}.attention.k_proj h{}.attn.k
vit.layers.{}.attention.v_proj h{}.attn.v
vit.layers.{}.attention.o_proj h{}.attn.proj
vit.layers.{}.layernorm_after h{}.ln_2
vit.layers.{}.mlp.fc1 h{}.mlp.fc
vit.layers.{}.mlp.fc2 h{}.mlp.proj
vit.layernorm ln
classifier head""",
    "llama": """
model.embed_tokens embed
model.layers.{}.input_layernorm h{}.attn.norm
model.layers.{}.self_attn.q_proj h{}.attn.q
model.layers.{}.self_attn.k_proj h{}.attn.k
model.layers.{}.self_attn.v_proj h{}.attn.v
model.layers.{}.self_attn.o_proj h{}.attn.o
model.layers.{}.post_attention_layernorm h{}.mlp.norm
model.layers.{}.mlp.gate_proj h{}.mlp.gate
model.layers.{}.mlp.up_proj h{}.mlp.up
model.layers.{}.mlp.down_proj h{}.mlp.down
model.norm norm
lm_head lm_head"""}


# The second parameter of a pair shares the contents of the first, so that a file may have only one of them.
TIED = {
    "gpt2": (("transformer.wte.weight", "lm_head.weight"),),
    "bert": (("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
             ("cls.predictions.bias", "cls.predictions.decoder.bias")),
    "vit": (),
    "llama": (("model.embed_tokens.weight", "lm_head.weight"),)}

OPTIMIZER_STATE = ("_momentum", "_second_moment", "_step", "_master")


class Row(NamedTuple):
    theirs: str
    ours: tuple[str, ...]
    mark: str


def rows(model: str) -> list[Row]:
    """Returns a row for each name of a parameter, with {} for the number of a block."""
    found = []
    for line in NAMES[model].split("\n")[1:]:
        theirs, ours, mark = (line + " ").split(" ")[:3]
        for suffix in ("",) if mark == "1" else (".weight", ".bias"):
            found.append(Row(theirs + suffix, tuple(name + suffix for name in ours.split(",")), mark))
    return found


def model_of(weights: Weights, names: dict[str, str]) -> str | None:
    """Returns the model whose name begins the name of a weight."""
    return next((model for model, start in names.items() if any(name.startswith(start) for name in weights)), None)


def to_network(model: str, weights: Weights) -> Weights:
    """Returns the weights under the network's names. Raises `SpillwayError` for a weight that the network does not have."""
    weights = dict(weights)
    table = {row.theirs: row for row in rows(model)}
    for first, second in TIED[model]:
        if first not in weights and second in weights:
            weights[first] = weights.pop(second)
        elif second in weights and torch.equal(weights[first], weights[second]):
            del weights[second]
    renamed = {}
    for name, value in weights.items():
        number = next(iter(re.findall(r"\.(\d+)\.", name)), "")
        row = table.get(re.sub(r"\.\d+\.", ".{}.", name, count=1))
        if row is None:
            raise SpillwayError(f"tensor '{name}': the network has no place for it, as far as it is known for {model}")
        value = value.float()
        if row.mark == "T" and value.dim() == 2:
            value = value.T
        while row.mark == "1" and value.shape[0] == 1:
            value = value[0]
        for ours, part in zip(row.ours, value.chunk(len(row.ours))):
            renamed[ours.format(number)] = part.contiguous()
    return renamed


def to_model(model: str, weights: Weights) -> Weights:
    """Returns the weights under the model's names, without the state of an optimizer, which has more exact weights if they
    are bfloat16. Raises `SpillwayError` for a weight that the model does not have."""
    state = {name for name in weights if name.endswith(OPTIMIZER_STATE)}
    left = {name: weights.get(name + "_master", value) for name, value in weights.items() if name not in state}
    blocks = {match[1] for match in (re.match(r"h(\d+)\.", name) for name in left) if match}
    renamed = {}
    for row in rows(model):
        for number in blocks if "{}" in row.theirs else ("",):
            parts = [left.pop(name) for name in (ours.format(number) for ours in row.ours) if name in left]
            if not parts:
                continue  # a module without this parameter
            value = torch.cat(parts).float()
            if row.mark == "T" and value.dim() == 2:
                value = value.T
            if row.mark == "1" and model == "vit":
                value = value.reshape(1, -1, weights["ln.weight"].shape[0])
            renamed[row.theirs.format(number)] = value.contiguous()
    if left:
        raise SpillwayError(f"tensor '{next(iter(left))}': {model} has no such weight")
    for first, second in TIED[model]:
        renamed.setdefault(second, renamed[first].clone())
    return renamed


def convert(weights: Weights) -> Weights:
    """Returns the weights of a model as those of the network, or the weights of a network as those of the model."""
    firsts = {model: rows(model)[0] for model in NAMES}
    theirs = model_of(weights, {model: row.theirs.partition(".")[0] + "." for model, row in firsts.items()})
    if theirs is not None:
        return to_network(theirs, weights)
    ours = model_of(weights, {"vit": "patches.weight"} | {m: row.ours[0] for m, row in firsts.items() if m != "vit"})
    if ours is not None:
        return to_model(ours, weights)
    raise SpillwayError(f"these are weights neither of {', '.join(NAMES)} as transformers names them nor of such a network")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="spillway_torch weights", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="the safetensors file to read")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the safetensors file to write")
    arguments = parser.parse_args(argv)
    files = importlib.import_module("safetensors.torch")
    failures = (OSError, importlib.import_module("safetensors").SafetensorError)
    try:
        weights = files.load_file(arguments.weights)
    except failures as error:
        raise SpillwayError(f"{arguments.weights}: {error}") from error
    try:
        with written(arguments.output) as part:
            files.save_file(convert(weights), part, metadata={"format": "pt"})
    except SpillwayError as error:
        raise SpillwayError(f"{arguments.weights}: {error}") from error
    except failures as error:
        raise SpillwayError(f"{arguments.output}: {error}") from error
