"""Tests the attributes of operators, the measurement of times on a made-up GPU, and tables of operators."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

import cases
from spillway_torch import SpillwayError, operators, pretend, record
from spillway_torch.operators import record_operators
from spillway_torch.operators.__main__ import main
from spillway_torch.step import recording
from spillway_torch.step.meter import Measured, Meter

GPU = "cuda:sm_90"


def attributes(step):
    """Returns the attributes of each operator of a step, by packet; of the last one of that name."""
    return {o.packet: o.attributes for o in record(step, GPU, warm_up=0).operators}


def ones(*shape, **options):
    return torch.ones(*shape, device="cuda", **options)


class AttributesTest(unittest.TestCase):
    def assert_attributes(self, step, **expected):
        found = attributes(step)
        for packet, text in expected.items():
            with self.subTest(packet):
                self.assertEqual(" ".join(f"{key}={value}" for key, value in found[packet].items()), text)

    def test_products(self):
        def linear():
            x, w, b = ones(5, 7, requires_grad=True), ones(3, 7, requires_grad=True), ones(3, requires_grad=True)
            F.linear(x, w, b).sum().backward()
            torch.baddbmm(ones(2, 4, 6), ones(2, 4, 4), ones(2, 6, 4).mT)
            ones(4, 3).mv(ones(3))
            ones(2, 8, 64)[:, :, :16].bmm(ones(2, 16, 32))

        self.assert_attributes(
            linear, addmm="batches=1 rows=5 columns=3 depth=7 transposed_a=0 transposed_b=1 alignment=1",
            mm="batches=1 rows=3 columns=7 depth=5 transposed_a=1 transposed_b=0 alignment=1",
            baddbmm="batches=2 rows=4 columns=6 depth=4 transposed_a=0 transposed_b=1 alignment=2",
            mv="batches=1 rows=4 columns=1 depth=3 transposed_a=0 transposed_b=0 alignment=1",
            bmm="batches=2 rows=8 columns=32 depth=16 transposed_a=0 transposed_b=0 alignment=16")

    def test_convolutions(self):
        def forward(x, w, **options):
            return lambda: F.conv2d(x(), w(), **options)

        def backward():
            x, w, b = ones(2, 4, 8, 6, requires_grad=True), ones(6, 2, 3, 1), ones(6, requires_grad=True)
            F.conv2d(x, w, b, stride=2, groups=2).sum().backward()

        sizes = ("batch=2 in_channels=4 out_channels=6 in_height=8 in_width=6 out_height=3 out_width=3 kernel_h=3 "
                 "kernel_w=1 groups=2 ")
        self.assert_attributes(
            backward, convolution=sizes + "channels_last=0 transposed=0 bias=1",
            convolution_backward=sizes + "channels_last=0 transposed=0 needs_dx=1 needs_dw=0 bias=1")
        self.assert_attributes(
            forward(lambda: ones(2, 4, 8, 6).to(memory_format=torch.channels_last), lambda: ones(6, 2, 3, 1), stride=2,
                    groups=2),
            convolution=sizes + "channels_last=1 transposed=0 bias=0")
        self.assert_attributes(
            lambda: F.conv2d(ones(2, 4, 9, 9), ones(5, 4, 3, 3), dilation=(1, 4)),
            convolution="batch=2 in_channels=4 out_channels=5 in_height=9 in_width=9 out_height=7 out_width=1 kernel_h=3 "
            "kernel_w=3 groups=1 channels_last=0 transposed=0 dilation=4 bias=0")
        self.assert_attributes(
            lambda: F.conv1d(ones(2, 4, 9), ones(5, 4, 3)),
            convolution="batch=2 in_channels=4 out_channels=5 in_height=1 in_width=9 "
            "out_height=1 out_width=7 kernel_h=1 kernel_w=3 groups=1 channels_last=0 transposed=0 bias=0")
        self.assert_attributes(
            lambda: F.conv_transpose3d(ones(1, 4, 2, 3, 4), ones(4, 5, 2, 2, 2)),
            convolution="batch=1 in_channels=4 out_channels=5 in_height=6 in_width=4 out_height=12 out_width=5 "
            "kernel_h=4 kernel_w=2 groups=1 channels_last=0 transposed=1 bias=0")

    def test_planes_in_parts_of_others(self):
        for form, part, last in ((torch.channels_last, lambda x: x[:, 2:6], 1), (torch.channels_last, lambda x: x[:1], 1),
                                 (torch.channels_last, lambda x: x[:, :, 1:], 0), (torch.contiguous_format, lambda x: x[:, 2:6], 0)):
            made = attributes(lambda form=form, part=part: F.interpolate(part(ones(2, 8, 5, 7).to(memory_format=form)), (10, 9)))
            self.assertEqual((made["upsample_nearest2d"]["channels_last"], made["upsample_nearest2d"]["plane"]), (last, 90))

    def test_means_over_windows(self):
        for pool, row, window in ((lambda x: F.avg_pool2d(x, (3, 2), 1), 1, 6), (lambda x: F.avg_pool2d(x, 2), 4, 4),
                                  (lambda x: F.adaptive_avg_pool2d(x, 3), 6, None)):
            made = attributes(lambda pool=pool: pool(ones(2, 4, 9, 6, requires_grad=True)).sum().backward())
            self.assertEqual([(a["row"], a.get("window")) for name, a in made.items() if "avg_pool" in name], [(row, window)] * 2)

    def test_attention(self):
        def step(masked=False, **options):
            options["attn_mask"] = ones(2, 1, 5, 7, dtype=torch.bool) if masked else None
            q, k, v = (ones(2, n, heads, 16, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
                       for n, heads in ((5, 4), (7, 2), (7, 2)))
            F.scaled_dot_product_attention(q, k, v, **options, enable_gqa=True).sum().backward()

        text = "batch=2 heads=4 kv_heads=2 queries=5 keys=7 head_dim=16 "
        for options, more in (({}, "causal=0 dropout=0 mask=0"), ({"masked": True}, "causal=0 dropout=0 mask=1"),
                              ({"is_causal": True, "dropout_p": 0.1}, "causal=1 dropout=1 mask=0")):
            self.assert_attributes(lambda options=options: step(**options),
                                   _scaled_dot_product_cudnn_attention=text + more,
                                   _scaled_dot_product_cudnn_attention_backward=text + more)

    def test_operations_of_groups(self):
        def step(key_heads, groups):
            x, w = ones(2, 4, 8, 6, requires_grad=True), ones(6, 4 // groups, 3, 1, requires_grad=True)
            F.conv2d(x, w, stride=2, groups=groups).sum().backward()
            F.conv_transpose2d(x, w.reshape(4, 6 // groups, 3, 1), groups=groups)
            q, k, v = (ones(2, heads, 5, 16, dtype=torch.bfloat16, requires_grad=True)
                       for heads in (4, key_heads, key_heads))
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward()

        plain, grouped = ({(o.packet, o.attributes.get("transposed")): o.flops for o in record(
            lambda sizes=sizes: step(*sizes), GPU, warm_up=0).operators if o.flops} for sizes in ((4, 1), (2, 2)))
        self.assertEqual(len(plain), 5)
        self.assertEqual(grouped, {key: flops // (1 if "attention" in key[0] else 2) for key, flops in plain.items()})

    def test_rows(self):
        def step():
            x = ones(4, 6, 8)
            x.sum((0, 1))
            x.mean(-1)
            torch.linalg.vector_norm(x)
            F.softmax(x, 1)
            F.layer_norm(x, (6, 8))
            F.group_norm(x, 3)
            F.batch_norm(x, None, None, training=True)
            F.embedding(ones(3, 5, dtype=torch.int64), ones(9, 8))

        self.assert_attributes(
            step, sum="elements=192 operands=1 row=24 strided=1", mean="elements=192 operands=1 row=8 strided=0",
            linalg_vector_norm="elements=192 operands=1 row=192 strided=0",
            _softmax="elements=192 operands=2 row=6 strided=0",
            native_layer_norm="elements=192 operands=2 row=48 strided=0 channels_last=0",
            native_group_norm="elements=192 operands=2 row=16 strided=0 channels_last=0",
            native_batch_norm="elements=192 operands=2 row=32 strided=0 channels_last=0",
            embedding="elements=120 operands=1 row=8 strided=0 indices=15")

        def planes():
            x = ones(2, 4, 4, 4).to(memory_format=torch.channels_last)
            F.max_pool2d(F.batch_norm(x, None, None, training=True), 2)

        self.assert_attributes(
            planes,
            native_batch_norm="elements=128 operands=2 row=32 strided=0 channels_last=1",
            max_pool2d_with_indices="elements=128 operands=1 row=1 strided=0 broadcast=0 channels_last=1")

    def test_orders_of_dimensions(self):
        for call, *expected in (
                (lambda x: x + x, 3, 1, 0, 0), (lambda x: x + 1, 2, 1, 0, 0), (lambda x: x.mT + x.mT, 3, 1, 0, 0),
                (lambda x: x[:6] + x[:6].mT, 3, 1, 1, 0), (lambda x: x[:, ::2] + 1, 2, 1, 1, 0),
                (lambda x: x[:, :4] + 1, 2, 4, 1, 0), (lambda x: x + x[:1], 2, 1, 0, 2),
                (lambda x: x + x[0], 2, 1, 0, 2),
                (lambda x: x + x[:, :1], 2, 1, 0, 1), (lambda x: x + x[:1].expand(8, 6), 3, 1, 0, 2),
                (lambda x: x.add_(x), 3, 1, 0, 0), (lambda x: x[None, :, :1] + 1, 2, 1, 1, 0),
                (lambda x: x[:, None] + 1, 2, 1, 0, 0), (lambda x: x + x[0, 0], 2, 1, 0, 0),
                (lambda x: x.view(2, 4, 3, 2).transpose(1, 2).contiguous() + 1, 2, 1, 0, 0)):
            found = attributes(lambda call=call: call(ones(8, 6)))
            one = found.get("add", found.get("add_"))
            self.assertEqual([one[key] for key in ("operands", "row", "strided", "broadcast")], expected)
        for call, row in ((lambda x: x.transpose(1, 2).contiguous(), 2), (lambda x: x.transpose(2, 3).contiguous(), 1),
                          (lambda x: x.transpose(0, 1).contiguous(), 6)):
            self.assertEqual(attributes(lambda call=call: call(ones(2, 4, 3, 2)))["clone"]["row"], row)

    def test_lists(self):
        def step():
            torch._foreach_add_([ones(3), ones(2, 4)], [ones(3), ones(2, 4)])
            torch._foreach_mul_([ones(3), ones(2, 4), ones(1)], 0.5)
            torch.cat([ones(3, 4), ones(2, 4)])

        self.assert_attributes(step, _foreach_add_="elements=11 operands=3 tensors=2 strided=0",
                               _foreach_mul_="elements=12 operands=2 tensors=3 strided=0",
                               cat="elements=20 operands=2 tensors=2 strided=0 row=8")

    def test_operators_of_other_libraries(self):
        library = torch.library.Library("spillway_other", "DEF")
        names = ("attention", "convolution", "group_norm", "batch_norm", "layer_norm")
        for name in names:
            library.define(f"{name}(Tensor q, Tensor[] more, int dim=0) -> Tensor")
            library.impl(name, lambda q, more, dim=0: q * 2, "CPU")

        def step():
            for name in names:
                getattr(torch.ops.spillway_other, name)(torch.ones(3, 4), [])
                getattr(torch.ops.spillway_other, name)(torch.ones(3, 4), [torch.ones(2)])

        self.assertEqual({o.attributes["elements"] for o in record(step, "cpu").operators if o.packet in names}, {12})
        library._destroy()

    def test_every_operator_of_a_trace_has_them_and_types_that_fit(self):
        bytes_of = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "bool": 1, "uint8": 1,
                    "float64": 8}
        for name, case in {**cases.CASES, **cases.GPU_CASES}.items():
            with self.subTest(name), pretend(GPU):
                model, step = case("cuda")
                trace = record(step, GPU, model=model).trace()
                for op in trace["ops"]:
                    if op["slots"][0]["signature"] != "aten::empty":
                        values = op["attributes"].values()
                        self.assertTrue(all(isinstance(value, int) and value >= 0 for value in values), op)
                for tensor in trace["tensors"]:
                    if tensor["name"] != "unused":
                        count = torch.Size(tensor["shape"]).numel()
                        self.assertEqual(count * bytes_of[tensor.get("dtype", "float32")], tensor["size"], tensor)


class MadeUpGpu:
    """A GPU whose clock only instructions move. An event takes 2 us, and a call of `work` as long as it says."""

    def __init__(self, host_ns=0, synchronizes=False):
        self.now = 0
        self.host_ns, self.host, self.synchronizes = host_ns, 0, synchronizes

    def work(self, time):
        self.now += time

    def event(self, enable_timing):
        assert enable_timing
        gpu = self

        class Event:
            def record(self):
                gpu.now += 2000
                self.at = gpu.now

            def elapsed_time(self, other):
                return (other.at - self.at) / 1e6

        return Event()

    def sleep(self, cycles):
        self.now += cycles * 2

    def stats(self, _):
        return {"requested_bytes": {"all": {"peak": 700, "current": 300}}}

    def tick(self):
        self.host += self.host_ns
        return self.host

    @contextlib.contextmanager
    def present(self):
        with contextlib.ExitStack() as stack:
            for name, value in {"Event": self.event, "_sleep": self.sleep, "synchronize": lambda _: None,
                                "get_device_name": lambda _: "Made-up",
                                "reset_peak_memory_stats": lambda _: None, "max_memory_reserved": lambda _: 1 << 20,
                                "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda _: None}.items():
                stack.enter_context(mock.patch.object(torch.cuda, name, value))
            stack.enter_context(mock.patch.object(torch._C, "_cuda_memoryStats", self.stats))
            stack.enter_context(mock.patch("time.perf_counter_ns", self.tick))
            yield Meter(torch.device("cuda", 0))


class MeterTest(unittest.TestCase):
    def test_a_time_is_that_between_the_events_without_them(self):
        gpu = MadeUpGpu()
        with gpu.present() as meter:
            begun = gpu.now
            result, scratch, mark = meter.run(lambda time: gpu.work(time) or "result", (7000,), {}, True)
            self.assertEqual((result, scratch, meter.elapsed([mark])), ("result", 400, [7000]))
            self.assertAlmostEqual(gpu.now - begun, 200_000 + 2000 + 7000 + 2000, delta=1000)
            self.assertIsNone(meter.run(gpu.work, (1,), {}, False)[2])
            begun = gpu.now  # the host needs longer for lists
            meter.run(lambda _: None, ([0] * 120,), {}, True)
            self.assertAlmostEqual(gpu.now - begun, 4 * 200_000 + 2 * 2000, delta=4000)

    def test_plain_steps(self):
        for host_ns, warns, expected in ((1000, False, 1000), (9500, False, 0), (1000, True, 0)):
            gpu = MadeUpGpu(host_ns)

            def step():
                gpu.work(8000)
                if warns:
                    import warnings
                    warnings.warn("called a synchronizing CUDA operation")

            with self.subTest(host_ns=host_ns, warns=warns), gpu.present() as meter:
                self.assertEqual(meter.steps(step), Measured("Made-up", 10_000, expected, 1 << 20))


class MadeUpMeter:
    """Takes the place of a GPU's meter for a CPU: the n-th operator takes n us."""

    name = "Made-up"

    def __init__(self):
        self.count = 0

    def run(self, func, args, kwargs, timed):
        self.count += timed
        return func(*args, **kwargs), 24, self.count if timed else None

    def elapsed(self, marks):
        return [mark * 1000 for mark in marks]

    def steps(self, step):
        step()
        return Measured(self.name, 5_000_000, 1_000_000, 1 << 30)

    def peak(self, call):
        call()
        return 1 << 20

    def release(self, _):
        pass


def program(*arguments):
    return subprocess.run([os.environ["SPILLWAY"], *map(str, arguments)], capture_output=True, text=True, check=False)


class MeasuredRecordingTest(unittest.TestCase):
    def test_times_stand_in_the_trace(self):
        meter = MadeUpMeter()
        with mock.patch.object(recording, "meter_of", lambda _: meter), tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(1)
            model, step = cases.mlp("cpu")
            measured = record(step, "cpu", model=model)
            plain = [(o.name, o.attributes) for o in measured.operators]
            trace = measured.trace()
            count = len(measured.operators)
            self.assertEqual(trace["recording"] | {"framework": "", "allocated": 0},
                             {"framework": "", "device": "Made-up", "step_ns": 5_000_000, "plain_step_ns": 5_000_000,
                              "allocated": 0, "reserved": 1 << 30})
            # Views run, too, but are not recorded.
            times = [op["recorded"]["time_ns"] for op in trace["ops"]]
            self.assertEqual(sorted(times), times)
            # Two steps are timed, of which the first is faster.
            self.assertTrue(all(0 < time <= 1000 * meter.count // 2 for time in times))
            for op in trace["ops"]:
                self.assertEqual(op["recorded"] | {"time_ns": 0},
                                 {"time_ns": 0, "gap_ns": 0, "host_ns": 1_000_000 // count, "workspace": 24})
                self.assertEqual(op["attributes"]["operators"], 1)
            path = pathlib.Path(folder) / "t.json"
            measured.write(path)
            ran = program("run", path, "--policy", "as-recorded", "--device", "h200", "--format", "json")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertEqual(json.loads(ran.stdout)["rows"][0]["peak_requested_bytes"], measured.peak_requested)
        torch.manual_seed(1)
        model, step = cases.mlp("cpu")
        again = record(step, "cpu", model=model)
        self.assertEqual([(o.name, o.attributes) for o in again.operators], plain)
        self.assertEqual((again.measured, again.operators[0].time_ns), (Measured(), 0))


class TableTest(unittest.TestCase):
    def table(self, *arguments, meter=None, **options):
        said = io.StringIO()
        with mock.patch.object(operators, "meter_of", lambda _: meter), contextlib.redirect_stderr(said):
            made = record_operators(*arguments, **options)
        return made, said.getvalue()

    def test_each_operator_stands_once_with_the_median_of_its_times(self):
        made, said = self.table(["norms", "reductions"], small=True, meter=MadeUpMeter())
        self.assertIn("norms: ", said)
        keys = [operators.key_of(o) for o in made.operators]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertTrue(all(o.time_ns > 0 for o in made.operators))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json.zst"
            made.write(path)
            self.assertEqual(program("trace", "info", path).returncode, 0)

    def test_types_of_all_inputs_tell_operators_apart(self):
        made, _ = self.table(["elementwise"], small=True)
        types = {(*(str(i.dtype)[6:] for i in o.inputs), str(o.outputs[0].dtype)[6:])
                 for o in made.operators if o.packet == "add" and o.attributes["operands"] == 3}
        self.assertEqual(types, {("float32", "float32", "float32"), ("float32", "bfloat16", "float32")})

    def test_long_lists_are_one_operand(self):
        made, _ = self.table(["optimizers"], small=True)
        trace = made.trace()
        shapes = {tensor["name"]: tensor["shape"] for tensor in trace["tensors"]}
        ops = {op["name"].partition(".")[0]: op for op in reversed(trace["ops"])
               if op["attributes"].get("tensors") == 10}
        # a += b * c; a root; the steps of AdamW count in tensors of one number each
        for name, inputs, outputs, traffic in (("_foreach_addcmul_", [1, 2], [1], 4), ("_foreach_sqrt", [1], [1], 2),
                                               ("_fused_adamw_", [4], [4], 8)):
            op, elements = ops[name], ops[name]["attributes"]["elements"]
            read, written = ([shapes[tensor][0] for tensor in op[side]] for side in ("inputs", "outputs"))
            self.assertEqual([size // elements for size in read if size > 10], inputs)
            self.assertEqual([size // elements for size in written], outputs)
            self.assertEqual(op["slots"][0]["traffic"] // (4 * elements), traffic)

    def test_the_whole_grid_runs_but_for_what_is_named(self):
        made, said = self.table(small=True)
        refused = [line for line in said.splitlines() if line.startswith("not recorded")]
        self.assertTrue(all("scaled_dot_product_attention" in line or "_grouped_mm" in line for line in refused), said)
        self.assertLessEqual({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution_backward",
                              "aten::native_layer_norm", "aten::_foreach_addcdiv_", "aten::_fused_adamw_",
                              "aten::embedding_dense_backward"},
                             {o.name for o in made.operators})
        self.assertEqual((made.measured.device, {o.time_ns for o in made.operators}), ("", {0}))

    def test_an_operator_that_fails_is_named(self):
        with mock.patch.object(F, "mse_loss", side_effect=RuntimeError("no kernel\nlong story")):
            made, said = self.table(["losses"], small=True)
        self.assertIn("not recorded: mse_loss: no kernel\n", said)
        self.assertTrue(made.operators)

    def test_wrong_arguments(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json"
            for text, content, options in (
                    ("no family of operators 'product' .valid: products, ", "", {"families": ["product"]}),
                    ("t.json: it is not a trace", "{}", {"like": [path]}),
                    ("t.json: it is not a trace", "[", {"like": [path]}),
                    ("none.json: .*No such file", "", {"like": [path.with_name("none.json")]}),
                    ("have no attributes; record the step again", '{"tensors": [], "ops": [{}]}', {"like": [path]}),
                    ("no operator was recorded", "", {"families": []})):
                path.write_text(content, encoding="utf-8")
                with self.subTest(text), self.assertRaisesRegex(SpillwayError, text):
                    self.table(small=True, **options)
            with self.assertRaisesRegex(SpillwayError, "this machine has no GPU"):
                self.table(["norms"])

    def test_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json"

            def run(*arguments):
                said = io.StringIO()
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
                    try:
                        return main([*map(str, arguments)]), said.getvalue()
                    except SystemExit as stop:
                        return stop.code, ""

            made = run("-o", path, "--family", "reductions", "--small")
            table = json.loads(path.read_text())
            self.assertEqual(made, (0, f"{path}: {len(table['ops'])} operators\n"))
            more = path.with_name("more.json")
            count = len(table["ops"])
            self.assertEqual(run("-o", more, "--family", "reductions", "--family", "planes", "--small", "--add-to", path)[0], 0)
            both = json.loads(more.read_text())
            self.assertEqual(both["ops"][:count], table["ops"])
            self.assertEqual({op["name"].rpartition(".")[0] for op in both["ops"][count:]} & {"nll_loss2d_forward", "add_", "sum"},
                             {"nll_loss2d_forward", "add_"})
            self.assertEqual([op["name"].rpartition(".")[2] for op in both["ops"]], [*map(str, range(len(both["ops"])))])
            subprocess.run([os.environ["SPILLWAY"], "trace", "validate", more], stdout=subprocess.PIPE, check=True)
            said = io.StringIO()
            path.write_text(path.read_text().replace('"PyTorch 2', '"PyTorch 1'))
            with contextlib.redirect_stderr(said):
                self.assertEqual(main(["-o", str(more), "--family", "reductions", "--small", "--add-to", str(path)]), 3)
            self.assertRegex(said.getvalue(), "t.json: its framework is 'PyTorch 1.*'; expected 'PyTorch 2.*', which the new operators have")
            path.write_text("{}")
            self.assertEqual(run("-o", more, "--family", "reductions", "--small", "--add-to", path)[0], 3)
            for code, arguments in ((5, ["-o", path]), (2, []), (2, ["-o", path, "--family", "none"]),
                                    (3, ["-o", path, "--small", "--like", path.with_name("none")]),
                                    (3, ["-o", path / "under" / "a file", "--small", "--family", "reductions"])):
                self.assertEqual(run(*arguments)[0], code, arguments)

    def test_the_operators_of_a_recorded_step(self):
        def dilated(_):
            model = torch.nn.Conv2d(4, 6, 3, stride=2, padding=3, dilation=3, groups=2)
            return model, lambda: model(torch.ones(2, 4, 9, 12, requires_grad=True)).sum().backward()

        for name in ("transformer", "convolutions", "mlp, momentum", "dilated"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model, step = cases.CASES.get(name, dilated)("cpu")
                path = pathlib.Path(folder) / "t.json"
                wanted = record(step, "cpu", model=model)
                wanted.write(path)
                made, said = self.table(like=[path], small=True)
                keys = {operators.key_of(o): o.name for o in wanted.operators}
                missing = {keys[key] for key in keys.keys() - {operators.key_of(o) for o in made.operators}}
                named = {line.split()[2] for line in said.splitlines() if line.startswith("not recorded")}
                self.assertEqual(missing, named)
                # A trace does not say how large the windows of pooling are, which numbers were added, nor all orders of
                # dimensions.
                self.assertLessEqual({name.rstrip("_").partition("_with")[0] for name in missing},
                                     {"aten::max_pool2d", "aten::add", "aten::div", "aten::cat"})


if __name__ == "__main__":
    unittest.main()
