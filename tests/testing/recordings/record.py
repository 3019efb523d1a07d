#!/usr/bin/env python3
"""Records memory snapshots of short training runs, small enough to keep beside the tests.

usage: PYTORCH_CUDA_ALLOC_CONF=... record.py RUN FILE.snapshot.pickle.gz

RUN is bf16 (sequences of many lengths), streams (a second stream, record_stream), empty (the cache
is emptied now and then), oom (ends out of memory) or cnn; with "-late" behind it recording begins
halfway, so that blocks of unknown extent are live at the start. Needs PyTorch, transformers,
torchvision and a GPU. Of stack frames only the innermost of this file is kept.
"""

import gzip
import io
import pickle
import random
import sys

import torch

DEVICE = "cuda"


def begin_at(step, steps, late):
    """Recording begins before the first step, which makes the model, or halfway."""
    if step == (steps // 2 if late else -1):
        torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")


def side_work(stream):
    with torch.cuda.stream(stream):
        parts = [torch.randn(random.randint(1, 3_000_000), device=DEVICE) for _ in range(5)]
        whole = torch.cat(parts)
        whole.record_stream(torch.cuda.default_stream())


def train_gpt(dtype, lengths, steps, late=False, empty=False, streams=False):
    from transformers import GPT2Config, GPT2LMHeadModel

    begin_at(-1, steps, late)
    model = GPT2LMHeadModel(GPT2Config(n_layer=6)).to(DEVICE, dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    stream = torch.cuda.Stream()
    for step in range(steps):
        begin_at(step, steps, late)
        length, batch = random.choice(lengths), random.choice([2, 4, 8])
        tokens = torch.randint(0, 50257, (batch, length), device=DEVICE)
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if streams:
            side_work(stream)
        if empty and step % 3 == 2:
            torch.cuda.empty_cache()


def train_cnn(steps, late=False):
    import torchvision

    begin_at(-1, steps, late)
    model = torchvision.models.resnet50().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        begin_at(step, steps, late)
        batch, side = random.choice([8, 16, 24, 32]), random.choice([160, 192, 224])
        model(torch.randn(batch, 3, side, side, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 2:
            torch.cuda.empty_cache()


def strip(snapshot):
    """Keeps what a replay reads, and of each stack one frame."""
    for records in [snapshot["segments"], *snapshot["device_traces"]]:
        for record in records:
            for item in [record, *record.get("blocks", [])]:
                own = [f for f in item.get("frames", []) if f["filename"].endswith("record.py")]
                item["frames"] = [{**f, "filename": "record.py"} for f in own[:1]]
                item.pop("compile_context", None)
                item.pop("user_metadata", None)
    for key in ("external_annotations", "host_segments", "host_traces"):
        snapshot.pop(key, None)
    return snapshot


def main():
    name, path = sys.argv[1], sys.argv[2]
    late = name.endswith("-late")
    random.seed(0)
    torch.manual_seed(0)
    try:
        match name.removesuffix("-late"):
            case "bf16":
                train_gpt(torch.bfloat16, list(range(64, 1025, 32)), 12, late)
            case "streams":
                train_gpt(torch.bfloat16, [128, 256, 512, 777], 8, late, streams=True)
            case "empty":
                train_gpt(torch.float32, [128, 256, 512, 1000], 9, late, empty=True)
            case "oom":
                torch.cuda.set_per_process_memory_fraction(4 / 139)
                train_gpt(torch.float32, [128, 256, 512, 1000, 1024], 40, late)
            case "cnn":
                train_cnn(8, late)
    except torch.cuda.OutOfMemoryError as error:
        print(f"{name}: {error}")
    torch.cuda.synchronize()
    snapshot = strip(torch.cuda.memory._snapshot())
    buffer = io.BytesIO()
    pickle.Pickler(buffer, 4).dump(snapshot)
    with gzip.GzipFile(path, "wb", 9, mtime=0) as file:
        file.write(buffer.getvalue())


if __name__ == "__main__":
    main()
