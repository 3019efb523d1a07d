#!/usr/bin/env python3
"""Tests run --weights and --images: inferences on the contents of files, with and without a policy that slices ops.

usage: weights_test.py PATH_OF_SPILLWAY [OnTheGpu]     OnTheGpu: tests that need a GPU
"""

import array
import json
import math
import pathlib
import random
import re
import struct
import tempfile

from harness import CommandTest, main, run

NETWORK = "densenet(2,2,2,2,k=8)@64:1"
RUN = ("run", f"{NETWORK},mode=inference")
CPU = ("--backend", "cpu")


def write_safetensors(path, tensors):
    """Writes the tensors {name: (shape, numbers)} to a safetensors file: labels as I32, all others as F32."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        kind, dtype = ("i", "I32") if name == "labels" else ("f", "F32")
        numbers = array.array(kind, values).tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Files(CommandTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        self.trace = json.loads(self.ok("trace", "build", f"{NETWORK},mode=inference"))
        self.draw = random.Random(5)
        self.weights = {tensor["name"]: (tensor["shape"], self.contents(tensor))
                        for tensor in self.trace["tensors"]
                        if tensor["kind"] in ("parameter", "optimizer_state")}
        (image,) = (t for t in self.trace["tensors"] if t["name"] == "data.y")
        self.images = {"images": (image["shape"], self.uniform(math.prod(image["shape"])))}

    def uniform(self, count, centre=0.0):
        return [centre + self.draw.uniform(-0.5, 0.5) for _ in range(count)]

    def contents(self, tensor):
        positive = tensor["name"].endswith("running_var") or ".bn" in tensor["name"]
        return self.uniform(math.prod(tensor["shape"]), centre=1.0 if positive else 0.0)

    def files(self):
        write_safetensors(self.directory / "w.safetensors", self.weights)
        write_safetensors(self.directory / "i.safetensors", self.images)
        return ("--weights", self.directory / "w.safetensors", "--images", self.directory / "i.safetensors")

    def top1(self, *args, backend="cpu"):
        text = self.ok(*RUN, "--backend", backend, *args)
        return re.search(r"^top-1 ([\d ]+)$", text, re.MULTILINE).group(1).split()

    def prefer(self, wanted):
        """Makes the last layer choose one class for every image."""
        bias = next(name for name in reversed(self.weights) if name.endswith(".bias"))
        shape, values = self.weights[bias]
        self.weights[bias] = (shape, [1e30 if i == wanted else 0.0 for i in range(len(values))])


class WeightsTest(Files):
    def test_the_classes_do_not_depend_on_the_policy(self):
        files = self.files()
        classes = self.top1(*files)
        self.assertEqual(len(classes), 1)
        for policy in ("mmcnn:limit=60KiB", "mmcnn:limit=47KiB", "inference-vdnn"):  # the image has 48 KiB
            text = self.ok(*RUN, *CPU, *files, "--policy", policy, "--against", "inference-normal")
            self.assertIn(f"top-1 {' '.join(classes)}\n", text)
            self.assertIn(f"top-1 {' '.join(classes)} with inference-normal\nsame bits as inference-normal", text)

    def test_the_contents_of_the_files_count(self):
        classes = self.top1(*self.files())
        for wanted in range(3):
            self.prefer(wanted)
            self.assertEqual(self.top1(*self.files()), [str(wanted)], classes)

    def test_files_of_another_network_are_refused(self):
        name = next(iter(self.weights))
        shape, values = self.weights[name]
        self.weights[name] = ([*shape, 1], values)
        self.fails(3, f"tensor '{name}': is F32", *RUN, *CPU, *self.files())
        del self.weights[name]
        self.fails(3, f"there is no tensor '{name}'", *RUN, *CPU, *self.files())
        self.weights |= {name: (shape, values), "more": ([1], [0.0])}
        self.fails(3, "has no tensor 'more'", *RUN, *CPU, *self.files())
        del self.weights["more"]
        self.images["more"] = ([1], [0.0])
        self.fails(3, "has 2 tensors, expected one", *RUN, *CPU, *self.files())

    def test_a_truncated_file_is_refused(self):
        files = self.files()
        whole = files[1].read_bytes()
        files[1].write_bytes(whole[:-4])
        self.fails(3, "expected data_offsets", *RUN, *CPU, *files)
        files[1].write_bytes(whole[:100])
        self.fails(3, "it was cut off", *RUN, *CPU, *files)

    def test_training_starts_from_them(self):
        files = self.files()
        losses = set()
        for seed in ("1", "2"):  # of the labels, unless they are given
            text = self.ok("run", NETWORK, *CPU, "--seed", seed, *files)
            losses.add(re.search("loss (.*) after", text)[1])
        self.assertEqual(len(losses), 2)
        (shape, _), = self.images.values()
        for labels, code in (([shape[0]], 0), ([shape[0], 1], 3)):
            self.images["labels"] = (labels, [1] * shape[0])
            result = run("run", NETWORK, *CPU, "--seed", "1", *self.files())
            self.assertEqual(result.returncode, code, result.stderr)

    def test_batches_are_read_in_turn(self):
        (shape, values), = self.images.values()
        other = self.uniform(len(values))
        self.images = {"images": (shape, other), "labels": ([shape[0]], [0] * shape[0])}
        of_the_other = self.ok(*RUN, *CPU, *self.files())
        self.images = {"images": ([2 * shape[0], *shape[1:]], values + other), "labels": ([2 * shape[0]], [0] * (2 * shape[0]))}
        for iterations, same in (("1", False), ("2", True), ("4", True)):
            text = self.ok(*RUN, *CPU, *self.files(), "--iterations", iterations)
            self.assertEqual(re.search("loss (.*) after", text)[1] == re.search("loss (.*) after", of_the_other)[1], same)
        self.images["labels"] = ([3 * shape[0]], [0] * (3 * shape[0]))
        self.fails(3, f"tensor 'labels': is I32 [{3 * shape[0]}], expected I32 [{2 * shape[0]}]", *RUN, *CPU, *self.files())

    def test_only_a_run_on_real_bytes_takes_them(self):
        files = self.files()
        self.fails(2, "only with --backend cpu or cuda", *RUN, *files)


class ExportTest(CommandTest):
    GPT = ("run", "gpt(8,1,2,256)@5:2,optimizer=adamw", *CPU)

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        self.text = self.directory / "text"
        self.text.write_bytes(bytes(range(20)))  # two batches

    def digest(self, *args, mode="training"):
        verb, workload, *backend = self.GPT
        return re.search("weights (.*)", self.ok(verb, f"{workload},mode={mode}", *backend, "--text", self.text, *args))[1]

    def test_training_goes_on_from_exported_weights(self):
        for policy in ("liveness", "vdnn-all"):
            path = self.directory / f"{policy}.safetensors"
            self.digest("--iterations", "2", "--policy", policy, "--memory", policy, "--export", f"weights:{path}")
            self.assertEqual(self.digest("--iterations", "3", "--weights", path), self.digest("--iterations", "5"))

    def test_weights_of_inference_are_those_that_were_given(self):
        first, second = (self.directory / name for name in ("1", "2"))
        self.digest("--export", f"weights:{first}", mode="inference")
        self.digest("--weights", first, "--export", f"weights:{second}", mode="inference")
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_a_text_gives_tokens_and_the_next_ones_as_labels(self):
        shape, images = [6, 5], self.directory / "i.safetensors"
        tokens = [i % 20 for i in range(30)]
        labels = tokens[1:] + [(tokens[-1] + 1) % 20]
        header = {name: {"dtype": "I32", "shape": shape, "data_offsets": [120 * i, 120 * i + 120]}
                  for i, name in enumerate(("tokens", "labels"))}
        text = json.dumps(header).encode()
        images.write_bytes(struct.pack("<Q", len(text)) + text + array.array("i", tokens + labels).tobytes())
        by_file = self.ok(*self.GPT, "--images", images, "--iterations", "3")
        self.assertEqual(self.digest("--iterations", "3"), re.search("weights (.*)", by_file)[1])

    def test_wrong_input(self):
        fails = self.fails
        fails(2, "--text cannot be given with --images", *self.GPT, "--text", self.text, "--images", self.text)
        fails(2, "only with --backend cpu or cuda", "run", "gpt(8,1,2,256):1", "--text", self.text)
        fails(2, "only with --backend cpu or cuda", "run", "gpt(8,1,2,256):1", "--export", f"weights:{self.directory}/w")
        fails(3, "byte 10 is 10, but the vocabulary of gpt(8,1,2,10):1 has only 10 tokens", "run", "gpt(8,1,2,10):1", *CPU,
              "--text", self.text)
        fails(3, "reads images, not text", "run", NETWORK, *CPU, "--text", self.text)
        self.text.write_bytes(b"")
        fails(3, "the file is empty", *self.GPT, "--text", self.text)
        fails(3, "cannot write", *self.GPT, "--export", f"weights:{self.directory}/none/w")


class OnTheGpu(Files):
    def setUp(self):
        super().setUp()
        result = run(*RUN, "--backend", "cuda")
        if result.returncode == 5:
            self.skip(result.stderr)

    def test_the_classes_are_those_of_the_cpu(self):
        files = self.files()
        classes = self.top1(*files)
        for policy in ("inference-normal", "mmcnn:limit=60KiB", "mmcnn:limit=47KiB", "inference-vdnn"):
            self.assertEqual(self.top1(*files, "--policy", policy, backend="cuda"), classes, policy)
        for wanted in range(3):
            self.prefer(wanted)
            self.assertEqual(self.top1(*self.files(), backend="cuda"), [str(wanted)])


if __name__ == "__main__":
    main()
