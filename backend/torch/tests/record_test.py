"""Tests the recorder on small steps against PyTorch's own tracker of memory, against real runs, and against `spillway`."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import cases
from spillway_torch import NotRecordableError, SpillwayError, pretend, record
from spillway_torch.step.pretended import active

try:
    from torch.distributed._tools.mem_tracker import MemTracker
except ImportError:  # before PyTorch 2.5
    MemTracker = None

GPU = "cuda:sm_90"


def recording_of(case, target, **options):
    with contextlib.nullcontext() if target == "cpu" else pretend(target):
        torch.manual_seed(1)
        model, step = case("cuda" if target.startswith("cuda") else "cpu")
        return record(step, target, model=model, **options)


def operand(o):
    return o.storage.number, o.storage.size, o.storage.born, o.storage.died, o.offset, o.size, o.shape, o.dtype


def renumbered(recording):
    """Returns all that a recording says, with storages numbered in the order of their first use."""
    numbers = {}

    def of(o):
        return (numbers.setdefault(o.storage.number, len(numbers)), *operand(o)[1:])

    operators = [(o.name, o.module, o.phase, o.layer, o.random, o.flops, [of(i) for i in o.inputs], [of(i) for i in o.outputs])
                 for o in recording.operators]
    saved = [(numbers[s.storage.number], s.packed, s.unpacked) for s in recording.saved
             if s.storage.number in numbers]  # the others are states of the generator of random numbers
    return operators, saved, recording.peak_requested


def held_over_time(recording):
    """Returns the bytes alive while each operator runs, by hand."""
    held = []
    for now in range(len(recording.operators)):
        held.append(recording.operators[now].scratch + sum(s.size for s in recording.lives()
                        if s.born <= now and (s.died is None or s.died > now)))
    return held


def program(*arguments):
    return subprocess.run([os.environ["SPILLWAY"], *map(str, arguments)], capture_output=True, text=True, check=False)


class RecordTest(unittest.TestCase):
    def test_without_data_it_sees_what_really_runs(self):
        for name, case in cases.CASES.items():
            if name == "positions":  # copies to the host, which a CPU does not
                continue
            with self.subTest(name), sdpa_kernel(SDPBackend.MATH):
                self.assertEqual(renumbered(recording_of(case, "cpu")), renumbered(recording_of(case, "cpu:pretended")))

    @unittest.skipIf(MemTracker is None, "this PyTorch has no tracker of memory")
    def test_peak_is_that_of_the_tracker_of_pytorch(self):
        for name in ("mlp", "mlp, momentum", "convolutions", "transformer", "transformer, not tied", "two optimizers", "inference"):
            case = cases.CASES[name]
            with self.subTest(name):
                torch.manual_seed(1)
                model, step = case("cpu")
                tracker = MemTracker()
                tracker.track_external(model)
                with tracker:
                    step()
                    tracker.reset_mod_stats()
                    step()
                theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
                self.assertEqual(recording_of(case, "cpu").peak_requested, theirs)

    def test_every_trace_is_accepted_and_replayed_to_its_peak(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json"
            for name, case in {**cases.CASES, **cases.GPU_CASES}.items():
                with self.subTest(name):
                    recording = recording_of(case, GPU)
                    recording.write(path)
                    ran = program("run", path, "--policy", "as-recorded", "--device", "h100", "--cost", "roofline", "--format", "json")
                    self.assertEqual(ran.returncode, 0, ran.stderr)
                    row = json.loads(ran.stdout)["rows"][0]
                    self.assertEqual(row["peak_requested_bytes"], recording.peak_requested)
                    self.assertEqual(max(held_over_time(recording)) + recording.workspace, recording.peak_requested)

    def test_what_the_program_says_of_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "t.json"
            recording = recording_of(cases.transformer, GPU, name="tiny", batch=3)
            recording.write(path)
            peaks = {}
            for policy in ("as-recorded", "liveness"):
                ran = program("run", path, "--policy", policy, "--device", "h100", "--format", "json")
                peaks[policy] = json.loads(ran.stdout)["rows"][0]["peak_requested_bytes"]
            self.assertLessEqual(peaks["liveness"], peaks["as-recorded"])
            for verb in ("trace info", "compare"):
                self.assertEqual(program(*verb.split(), path).returncode, 0)
            fit = program("fit", path, "--device", "h100,v100")
            self.assertEqual(fit.returncode, 0, fit.stderr)
            self.assertIn("layers.*", fit.stdout)
            decisions = pathlib.Path(folder) / "decisions.csv"
            self.assertEqual(program("run", path, "--policy", "as-recorded", "--device", "h100", "--export", f"decisions:{decisions}")
                             .returncode, 0)
            self.assertEqual(program("replay", decisions).returncode, 0)

    def test_kinds_of_tensors(self):
        trace = recording_of(cases.transformer, GPU).trace()
        sizes = {}
        for tensor in trace["tensors"]:
            if "alias_of" not in tensor:
                sizes.setdefault(tensor["kind"], []).append(tensor["size"])
        with pretend(GPU):
            model, _ = cases.transformer("cuda")
        parameters = sum(p.numel() * 4 for p in model.parameters())
        self.assertEqual(sum(sizes["parameter"]), parameters)
        self.assertEqual(sum(sizes["parameter_gradient"]), parameters)
        self.assertEqual(sum(sizes["optimizer_state"]), 2 * parameters + (65 << 20))  # the workspaces of cuBLAS
        self.assertEqual(sizes["input"], [3 * 16 * 8])
        self.assertEqual({op["phase"] for op in trace["ops"]}, {"forward", "backward", "update"})
        self.assertIn("layers.0/qkv.addmm", {op["name"].rpartition(".")[0] for op in trace["ops"]})

    def test_each_thread_has_its_own_workspaces(self):
        for checkpoint, of_products_with_bias in ((None, 1), (False, 2), (True, 2)):  # a checkpoint runs layers in backward's thread
            recording = recording_of(lambda d: cases.transformer(d, checkpoint=checkpoint), GPU)
            self.assertEqual(sorted(size for _, size in recording.workspaces), [1 << 20] * of_products_with_bias + [32 << 20] * 2)

    def test_gradients_are_added_in_place_where_autograd_alone_holds_the_sum(self):
        def step_of(function):
            with pretend(GPU):
                x = torch.ones(256, device="cuda", requires_grad=True)
                return record(lambda: function(x * 1).sum().backward(inputs=[x]) or setattr(x, "grad", None), GPU)

        def kept(h):
            parts = []
            (first := h.exp()).register_hook(parts.append)
            return first.sin() + first.cos() + h

        for function, names in ((lambda h: h * 2 + h * 3, ["add_"]), (lambda h: h * 2 + h * 3 + h * 4, ["add_", "add_"]),
                                (lambda h: (h[:2] * 2).sum() + (h * 3).sum(), ["add_"]), (lambda h: h + h * 3, ["add"]),
                                (kept, ["add_", "add"])):
            made = [op.packet for op in step_of(function).operators if op.phase == "backward"]
            self.assertEqual([name for name in made if name.startswith("add")], names)

    def test_the_bias_of_a_linear_layer_is_added_in_place_where_no_product_takes_it(self):
        def step_of(shape, bias=True, strided=True, cast=False):
            with pretend(GPU):
                layer = nn.Linear(shape[-1], 32, bias=bias).to("cuda")
                x = torch.ones(shape[1], shape[0], *shape[2:], device="cuda").transpose(0, 1) if strided else torch.ones(shape, device="cuda")

                def step():
                    with torch.autocast("cuda", torch.bfloat16, enabled=cast):
                        layer(x).sum().backward()
                    layer.zero_grad()

                return record(step, GPU, model=layer)

        for options, names in (({"shape": (4, 8, 16)}, ["mm", "add_"]), ({"shape": (4, 8, 2, 16)}, ["mm", "add_"]),
                               ({"shape": (4, 8, 16), "cast": True}, ["mm", "add_"]),
                               ({"shape": (4, 8, 16), "strided": False}, ["addmm"]), ({"shape": (8, 16)}, ["addmm"]),
                               ({"shape": (4, 8, 16), "bias": False}, ["mm"])):
            made = [op.packet for op in step_of(**options).operators if op.phase == "forward"]
            self.assertEqual([name for name in made if name in ("mm", "bmm", "addmm", "add", "add_")], names, options)

    def test_recorded_twice_it_is_the_same(self):
        self.assertEqual(recording_of(cases.autocast, GPU).trace(), recording_of(cases.autocast, GPU).trace())


class DeviceTest(unittest.TestCase):
    """What a program sees of the pretended device."""

    def test_names_of_the_device(self):
        with pretend(GPU):
            shown = torch.device("cuda", 0)
            for made in (torch.zeros(2, device="cuda"), torch.zeros(2).cuda(), torch.zeros(2).to(0), torch.tensor([1, 2]).to("cuda:0"),
                         torch.zeros(2, device="cuda").new_ones(3), torch.ones_like(torch.zeros(2, device=shown)),
                         torch.as_tensor([1.0], device="cuda"), nn.Linear(2, 2).cuda().weight):
                self.assertEqual((made.device, made.is_cuda, made.is_meta, made.get_device()), (shown, True, False, 0))
            self.assertEqual(torch.tensor([1, 2], device="cuda").add(1).tolist(), [2, 3])
            self.assertEqual(torch.zeros(2).device.type, "cpu")
            torch.set_default_device("cuda")
            self.assertEqual((torch.zeros(2).device, nn.Linear(2, 2).weight.device), (shown, shown))
            torch.set_default_device(None)

    def test_generators_of_random_numbers(self):
        def step():
            for device in ("cuda", 0, torch.device("cuda:0")):
                made = torch.Generator(device).manual_seed(1)
                self.assertIsInstance(made, torch.Generator)
                torch.randn(2, device="cuda", generator=made)
            torch.randperm(4, generator=torch.Generator().manual_seed(1))

        self.assertEqual([o.packet for o in record(step, GPU).operators], ["randn"] * 3)
        self.assertIs(torch.Generator, torch._C.Generator)

    def test_what_is_made_on_the_host_takes_no_memory_before_it_moves(self):
        def layers():
            return torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))

        def on_the_gpu():
            with torch.device("cuda"):
                return layers().bfloat16()

        def emptied():
            with torch.device("meta"):
                return layers().bfloat16()

        full, half = 64 * 64 * 4, 64 * 64 * 2
        cast = [[full, 4], [full, 5], [full, 6], *[[half, -1]] * 3]
        for make, wanted in ((on_the_gpu, cast), (lambda: layers().cuda().bfloat16(), cast),
                             (lambda: layers().to("cuda").to(torch.bfloat16), cast),
                             (lambda: layers().bfloat16().cuda(), [[half, -1]] * 3),
                             (lambda: layers().to(torch.bfloat16).to("cuda:0"), [[half, -1]] * 3),
                             (lambda: layers().to("cuda", torch.bfloat16), [[half, -1]] * 3),
                             (lambda: emptied().to_empty(device="cuda"), [[half, -1]] * 3),
                             (lambda: layers().bfloat16(), [[half, -1]] * 3)):
            with pretend("cuda:sm_90"):
                model = make()
                step = record(lambda: model(torch.ones(4, 64, device="cuda", dtype=torch.bfloat16)).sum().backward(), "cuda:sm_90")
            self.assertEqual([request[:2] for request in step.requests], wanted)
            self.assertEqual(sum(tensor.get("request") is not None for tensor in step.trace()["tensors"]), 3)

    def test_what_is_made_on_meta_takes_memory_once_it_is_used(self):
        with pretend("cuda:sm_90"):
            shape, used = torch.empty(64, device="meta"), torch.empty(32, device="meta")
            kinds = torch.empty(16, device=torch.device("meta"))
            x = torch.ones(32, device="cuda")
            step = record(lambda: (x + used, shape.view(8, 8), torch.empty_like(kinds, device="cuda")), "cuda:sm_90")
        self.assertEqual(sorted(s.size for s in step.lives() if s.born < 0), [128, 128])
        self.assertEqual(step.requests, [[128, -1, 0], [128, -1, 0]])

    def test_some_losses_keep_the_memory_of_their_terms(self):
        functions = nn.functional
        for loss in (functions.mse_loss, functions.smooth_l1_loss, functions.soft_margin_loss, functions.binary_cross_entropy,
                     functions.huber_loss, functions.l1_loss):
            for reduction in "mean", "sum", "none":
                with self.subTest(loss.__name__, reduction=reduction), pretend("cuda:sm_90"):
                    x, y = torch.rand(4, 64, device="cuda"), torch.rand(4, 64, device="cuda")
                    results = record(lambda x=x, y=y, loss=loss, r=reduction: loss(x, y, reduction=r), "cuda:sm_90").operators[-1].outputs
                    size = results[0].storage.size
                real = loss(torch.rand(4, 64), torch.rand(4, 64), reduction=reduction)  # the GPU's kernels share this code
                self.assertEqual(size, real.untyped_storage().nbytes())

    @unittest.skipUnless(hasattr(torch.ops.aten, "_fused_rms_norm_backward"), "from PyTorch 2.9 on")
    def test_a_gpu_has_one_operator_for_a_norm_by_mean_squares(self):
        with pretend(GPU):
            norm = nn.RMSNorm(64, device="cuda", dtype=torch.bfloat16)
            x = torch.ones(4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            step = record(lambda: norm(x).sum().backward(), GPU)
        self.assertEqual([o.packet for o in step.operators if "norm" in o.packet or "pow" in o.packet],
                         ["_fused_rms_norm", "_fused_rms_norm_backward"])

    def test_a_model_that_moves_there_keeps_its_parameters(self):
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        model = nn.Sequential(first, second)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pretend(GPU):
            model.cuda()
            self.assertIs(first.weight, second.weight)

            def step():
                optimizer.zero_grad()
                model(torch.ones(2, 4, device="cuda")).sum().backward()
                optimizer.step()

            self.assertIn("update", {o.phase for o in record(step, GPU).operators})


class LifetimeTest(unittest.TestCase):
    """Hand counts."""

    def test_storages_end_when_they_are_freed(self):
        def step():
            a = torch.ones(100, device="cuda")  # 0
            b = a + 1  # 1
            c = b[:50]
            del a, b
            d = c * 2  # 2
            del c
            d += 1  # 3

        recording = record(step, GPU)
        lives = [(s.size, s.born, s.died) for s in recording.lives()]
        self.assertEqual(lives, [(400, 0, 2), (400, 1, 3), (200, 2, 4)])
        self.assertEqual(recording.peak_requested, 800)

    def test_memory_that_is_allocated_early(self):
        def step():
            a = torch.empty(100, device="cuda")
            b = torch.ones(50, device="cuda")
            b.mul_(2)
            torch.mul(b[0], b[1], out=a[0])

        recording = record(step, GPU)
        self.assertEqual([s.born for s in recording.lives()], [0, 0])
        ops = recording.trace()["ops"]
        self.assertEqual([op["slots"][0]["signature"].split()[0] for op in ops],
                         ["aten::empty", "aten::ones", "aten::mul_", "aten::mul"])

    def test_saved_tensors(self):
        weight = None

        def step():
            x = torch.ones(4, device="cuda")  # 0
            y = (x * weight).sin()  # 1, 2
            y.sum().backward()  # 3; backward: ones_like 4, mul by cos: 5, 6, 7

        with pretend(GPU):
            weight = torch.ones(4, device="cuda", requires_grad=True)
            recording = record(step, GPU, warm_up=0)
        self.assertEqual([(s.packed, len(s.unpacked)) for s in recording.saved], [(1, 1), (2, 1)])

    def test_saved_tensors_of_a_checkpoint_in_the_trace(self):
        """Operators, with those that take the libraries' memory: ones 0; mm 1, 2; sin 3; in the checkpoint mm 4, sin 5; sum 6;
        backward: ones_like 7; again mm 8, 9; cos 10, mul 11, mm 12, 13; and cos 14, mul 15, mm 16, add_ 17."""
        def step():
            hidden = (torch.ones(3, 4, device="cuda") @ weight).sin()
            torch.utils.checkpoint.checkpoint(lambda x: (x @ weight).sin(), hidden, use_reentrant=False).sum().backward()

        with pretend(GPU):
            weight = torch.ones(4, 4, device="cuda", requires_grad=True)
            recording = record(step, GPU, warm_up=0)
        trace = recording.trace()
        names = [op["slots"][0]["signature"].split()[0][len("aten::"):] for op in trace["ops"]]
        self.assertEqual(names, "ones empty mm sin mm sin sum ones_like empty mm cos mul mm mm cos mul mm add_".split())
        self.assertEqual((trace["version"], trace["saved"]), (6, [
            {"tensor": "ones.0", "packed": 2, "unpacked": [16]},  # for the gradient of the weight
            {"tensor": "mm.1", "packed": 3, "unpacked": [14]},
            {"tensor": "sin.2", "packed": 4, "unpacked": [9]}]))  # what the checkpoint keeps

    def test_a_tensor_saved_twice_at_one_position(self):
        def step():
            x = leaf * 2  # 0
            (x * x).sum().backward()  # 1, 2; backward: ones_like 3, then x is taken before 4
            (leaf * 3).square()  # saved, but never taken: 8, 9

        with pretend(GPU):
            leaf = torch.ones(4, device="cuda", requires_grad=True)
            recording = record(step, GPU, warm_up=0)
        self.assertEqual([(s["packed"], s["unpacked"]) for s in recording.trace()["saved"]], [(1, [4]), (9, [])])

    def test_a_part_of_a_storage_is_saved(self):
        def step():
            both = leaf * 2
            both[:3].sin().sum().backward()

        with pretend(GPU):
            leaf = torch.ones(6, device="cuda", requires_grad=True)
            trace = record(step, GPU, warm_up=0).trace()
        self.assertEqual([s["tensor"] for s in trace["saved"]], ["mul.0[0:12]"])
        self.assertIn("mul.0[0:12]", [t["name"] for t in trace["tensors"] if t.get("alias_of") == "mul.0"])

    def test_convolutions_keep_the_channels_last(self):
        with pretend("cuda:sm_90"), torch.device("cuda"):
            last, first = ({"memory_format": form} for form in (torch.channels_last, torch.contiguous_format))
            for layer, form, expected in ((torch.nn.Conv2d(4, 6, 3), last, True), (torch.nn.Conv2d(4, 6, 3), first, False),
                                          (torch.nn.Conv2d(4, 6, 1), last, True), (torch.nn.Conv2d(4, 4, 3, groups=4), last, True),
                                          (torch.nn.ConvTranspose2d(4, 6, 2, stride=2), last, True)):
                x = torch.randn(2, 4, 8, 8).to(**form).requires_grad_()
                y = layer.to(**form)(x)
                self.assertEqual(y.is_contiguous(memory_format=torch.channels_last), expected, layer)
                gradient, = torch.autograd.grad(y, x, torch.ones_like(y))
                self.assertEqual(gradient.is_contiguous(memory_format=torch.channels_last), expected, layer)

    def test_gradients_are_clipped_as_on_a_gpu(self):
        names = [o.packet for o in recording_of(cases.grad_scaling, GPU).operators]
        at = names.index("_foreach_norm")
        self.assertEqual(names[at:at + 7], ["_foreach_norm", "stack", "linalg_vector_norm", "add", "reciprocal", "mul", "clamp"])
        self.assertEqual(names[at + 7], "_foreach_mul_")


class HostileTest(unittest.TestCase):
    def assert_nothing_is_active(self):
        self.assertIsNone(active())
        self.assertEqual(torch.ones(2).device.type, "cpu")
        self.assertFalse(torch._C._dispatch_tls_is_dispatch_key_included("AutocastPrivateUse1"))
        self.assertEqual(torch.utils._python_dispatch._get_current_dispatch_mode(), None)
        self.assertEqual(torch.overrides._get_current_function_mode(), None)
        self.assertEqual(nn.Linear(2, 2).weight.device.type, "cpu")
        self.assertFalse(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            pass

    def refused(self, text, step, target=GPU):
        with self.assertRaisesRegex(NotRecordableError, text):
            with pretend(target):
                record(step, target)
        self.assert_nothing_is_active()

    def test_an_exception_leaves_nothing(self):
        def step():
            model = nn.Linear(4, 4)
            model.register_forward_hook(fail)
            with torch.autocast("cpu"):
                model(torch.ones(4) if target != GPU else torch.ones(4, device="cuda"))

        def fail(*_):
            raise KeyError("own")

        for target in ("cpu", "cpu:pretended", GPU):
            with self.subTest(target), self.assertRaisesRegex(KeyError, "own"):
                record(step, target)
            self.assert_nothing_is_active()

    def test_a_failing_write_leaves_no_file(self):
        recording = recording_of(cases.mlp, GPU)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(OSError):
                recording.write(os.path.join(folder, "none", "t.json"))
            recording.network = {1, 2}  # JSON cannot say this
            with self.assertRaises(TypeError):
                recording.write(os.path.join(folder, "t.json"))
            self.assertEqual(os.listdir(folder), [])

    def test_decisions_by_data_are_refused(self):
        x = "torch.ones(4, 4, device='cuda').normal_()"
        for text, code in {
            "a decision of the program": "if {x}.sum().item() > 0: pass",
            "a decision of the program.*": "bool({x}.sum() > 0)",
            "_local_scalar_dense": "torch.arange(100)[{x}.argmax():]",
            "nonzero": "{x}.nonzero()",
            "masked_select": "{x}.masked_select({x} > 0)",
            "selection.*by a mask": "{x}[{x} > 0]",
            "_unique2": "{x}.unique()",
            "equal": "torch.equal({x}, {x})",
            "lstm": "torch.nn.LSTM(4, 4).cuda()({x})",
            "other libraries": "torch.cuda.ExternalStream(1)",
            "CUDA graphs": "torch.cuda.CUDAGraph | None; torch.cuda.CUDAGraph()",
            "no memory of its own": "torch.cuda.memory_allocated()",
        }.items():
            with self.subTest(code):
                self.refused(text, lambda code=code: exec(code.format(x=x), {"torch": torch}))

    def test_the_module_is_named(self):
        class Inner(nn.Module):
            def __init__(self, run):
                super().__init__()
                self.run = run

            def forward(self, x):
                return self.run(x)

        for operator, run in (("index.Tensor", lambda x: x[x > 0]), ("aten::lstm", torch.nn.LSTM(4, 4).forward),
                              ("a decision of the program", lambda x: x if x.sum().item() > 0 else -x),
                              ("torch.cuda.memory_allocated", lambda x: torch.cuda.memory_allocated())):
            with self.subTest(operator):
                with self.assertRaisesRegex(NotRecordableError, f"{operator}.* in module 'inner'"):
                    with pretend(GPU):
                        model = nn.Sequential()
                        model.add_module("inner", Inner(run).cuda())
                        record(lambda: model(torch.ones(4, 4, device="cuda").normal_()), GPU, warm_up=0)
                self.assert_nothing_is_active()

    def test_custom_kernels_are_refused(self):
        library = torch.library.Library("spillway_test", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        self.refused("spillway_test::twice", lambda: torch.ops.spillway_test.twice(torch.ones(2, device="cuda")))
        library._destroy()

    def test_compiled_regions_are_refused(self):
        compiled = torch.compile(lambda x: x + 1)
        self.refused("torch.compile", lambda: compiled(torch.ones(2, device="cuda")))

    def test_what_pytorch_does_in_place_where_no_mode_is_active(self):
        table = nn.Parameter(torch.ones(5, 4))
        conv = nn.Conv2d(3, 8, 4, stride=4)

        def masked():
            q = torch.ones(2, 4, 16, 8, device="cuda", requires_grad=True)
            with sdpa_kernel(SDPBackend.MATH):
                nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(16, 16, dtype=torch.bool, device="cuda"))

        def gathered():
            table.cuda()[torch.zeros(3, dtype=torch.long, device="cuda")].sum().backward()

        def turned():  # the sum of two gradients that are not contiguous, but dense
            x = torch.ones(4, 6, device="cuda", requires_grad=True).t().sin()
            (x.exp() * x.cos()).sum().backward()

        def patches():  # the gradient of a convolution's result with the channels last
            conv.cuda()(torch.ones(2, 3, 16, 16, device="cuda")).flatten(2).transpose(1, 2).contiguous().sum().backward()

        for step, some, none in ((masked, ["scalar_tensor", "where", "add_"], ["add", "zeros", "full"]),
                                 (gathered, ["_index_put_impl_"], ["index_put", "clone"]), (turned, ["add_"], ["add"]),
                                 (patches, ["convolution_backward"], ["copy_"])):
            with pretend(GPU):
                names = {o.packet for o in record(step, GPU, warm_up=0).operators}
            self.assertLessEqual(set(some), names, step.__name__)
            self.assertFalse(names & set(none), step.__name__)

    def test_numbers_without_value_can_be_printed(self):
        def step():
            loss = torch.ones(2, device="cuda").normal_().sum()
            self.assertIn("nan", f"{loss.item():.3f} {loss.item() / 2 + 1} {loss:.2f}")

        names = [o.name for o in record(step, GPU).operators]
        self.assertEqual(names.count("aten::_local_scalar_dense"), 3)

    def test_hooks_of_others_run(self):
        seen = []
        model = nn.Linear(4, 4)
        model.register_forward_hook(lambda *_: seen.append("module"))
        hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global"))
        model.weight.register_hook(lambda grad: seen.append("gradient"))

        def step():
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append("pack"), t)[1], lambda t: t):
                model(torch.ones(4)).sum().backward()

        record(step, "cpu", warm_up=0)
        hook.remove()
        self.assertEqual(set(seen), {"module", "global", "gradient", "pack"})
        self.assert_nothing_is_active()

    def test_a_second_thread_is_its_own(self):
        found = []

        def other():
            found.append((torch.ones(2).device.type, nn.Linear(2, 2)(torch.ones(2)).device.type))

        def step():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            torch.ones(2, device="cuda").mul_(2)

        recording = record(step, GPU, warm_up=0)
        self.assertEqual([o.name for o in recording.operators], ["aten::ones", "aten::mul_"])
        self.assertEqual(found, [("cpu", "cpu")])

    def test_wrong_arguments(self):
        for text, call in {
            "target 'cuda:90' is not known": lambda: record(lambda: None, "cuda:90"),
            "tensors of the host and of the pretended device": lambda: record(
                lambda: torch.ones(4) @ torch.ones(4, device="cuda"), GPU),
            "ran no operator": lambda: record(lambda: None, GPU),
            "warm_up is -1": lambda: record(lambda: None, GPU, warm_up=-1),
            "is a device of this machine": lambda: pretend("cpu").__enter__(),
        }.items():
            with self.subTest(text), self.assertRaisesRegex(SpillwayError, text):
                call()
        with pretend(GPU):
            with self.assertRaisesRegex(SpillwayError, "is pretended already"):
                pretend("cuda:sm_80").__enter__()
            with self.assertRaisesRegex(SpillwayError, "inside pretend"):
                record(lambda: None, "cpu")
        self.assert_nothing_is_active()


if __name__ == "__main__":
    unittest.main()
