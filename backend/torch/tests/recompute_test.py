"""Tests that the library runs operators again as Python does, and that Python takes over where it cannot be used."""

import collections
import contextlib
import dataclasses
import gc
import io
import os
import pathlib
import sys
import tempfile
import unittest
import weakref
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import execute_autograd_test
import execute_changes_test
import execute_steps_test
import execute_test
from spillway_torch import SpillwayError, build
from spillway_torch.base.device import CpuDevice, CudaDevice, Queue, _Event
from spillway_torch.plan.planner import assemble
from spillway_torch.run import recompute
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from spillway_torch.run.recompute import Recompute
from stepping import MODELS, Stepping, candidates, different

LIBRARY = recompute._library()


def in_python():
    return mock.patch.multiple(recompute, _library=lambda: None, steps_library=lambda: None)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def without_headers():
    return mock.patch.object(recompute, "steps_library", lambda: None)


class EqualityInPythonTest(execute_test.EqualityTest):
    def setUp(self):
        for patch in (in_python(), mock.patch.object(execute_test, "PLANS", 3)):
            patch.start()
            self.addCleanup(patch.stop)


class EqualityWithoutHeadersTest(execute_test.EqualityTest):
    """The library compares steps and runs chains, and Python handles saved tensors, as without the headers of Python."""

    def setUp(self):
        for patch in (without_headers(), mock.patch.object(execute_test, "PLANS", 3)):
            patch.start()
            self.addCleanup(patch.stop)


class InPython(unittest.TestCase):
    def setUp(self):
        super().setUp()
        patch = in_python()
        patch.start()
        self.addCleanup(patch.stop)


class MemoryInPythonTest(InPython, execute_test.MemoryTest):
    pass


class StepsInPythonTest(InPython, execute_steps_test.StepsTest):
    pass


class ChangesInPythonTest(InPython, execute_changes_test.ChangesTest):
    pass


class AutogradInPythonTest(InPython, execute_autograd_test.AutogradTest):
    pass


def recomputes(stepping):
    """Runs a step that recomputes all it can; returns each recompute that ran with the arguments of its `run`."""
    tape = stepping.record()
    plan = assemble(tape, {s.storage: "evict" for s in candidates(tape) if s.chain is not None})
    ran, run = [], Recompute.run

    def note(self, device, storages, marks):
        ran.append((self, device, dict(storages), marks))
        return run(self, device, storages, marks)

    with without_headers(), mock.patch.object(Recompute, "run", note):
        stepping.reset()
        with step(plan):
            loss = stepping.loss()
        loss.backward()
    return ran


@unittest.skipIf(LIBRARY is None, "there is no library")
class LibraryTest(unittest.TestCase):
    def test_both_make_the_same_tensors(self):
        drawn = 0
        for name, make in MODELS.items():
            ran = recomputes(Stepping(make))
            self.assertGreater(len(ran), 10)
            for at, (of, device, storages, marks) in enumerate(ran):
                with self.subTest(name, chain=at):
                    state = torch.get_rng_state()
                    one, other = of.native.run(device, storages, marks), of._run_in_python(device, dict(storages), marks)
                    self.assertTrue(torch.equal(one, other))
                    self.assertEqual((one.stride(), one.storage_offset(), one.dtype, one.requires_grad),
                                     (other.stride(), other.storage_offset(), other.dtype, False))
                    self.assertTrue(torch.equal(state, torch.get_rng_state()))
                    drawn += bool(of.native._drawing)
        self.assertGreater(drawn, 0)

    def test_it_runs_without_gradient_and_autocast(self):
        of, device, storages, marks = next(
            r for r in recomputes(Stepping(MODELS["vit"])) if r[0]._steps[0].name.startswith("aten::addmm"))
        want = of.run(device, storages, marks)
        storages = {s: t.detach().requires_grad_() for s, t in storages.items()}
        with torch.autocast("cpu", torch.bfloat16), torch.enable_grad(), torch.device("meta"):
            got = of.run(device, storages, marks)
            self.assertTrue(torch.is_grad_enabled() and torch.is_autocast_enabled("cpu"))
        self.assertTrue(torch.equal(want, got))
        self.assertFalse(got.requires_grad)

    def test_both_hold_the_same_memory(self):
        for name, make in MODELS.items():
            for at, (of, device, storages, marks) in enumerate(recomputes(Stepping(make))):
                peaks = []
                for run in (of.native.run, of._run_in_python):
                    with execute_test.Live({t.untyped_storage()._cdata for t in storages.values()}) as mode:
                        run(device, dict(storages), marks)
                    peaks.append(mode.peak)
                with self.subTest(name, chain=at):
                    self.assertEqual(*peaks)

    def failures(self, of, device, storages, marks):
        """Returns the errors of the library and of Python."""
        found = []
        for run in (of.run, of._run_in_python):
            with self.assertRaises(Exception) as caught:
                run(device, dict(storages), marks)
            found.append((type(caught.exception), str(caught.exception)))
        return found

    def test_errors_are_the_same(self):
        of, device, storages, marks = next(r for r in recomputes(Stepping(MODELS["vit"])) if r[0].length > 1)
        small = {s: torch.empty(1) for s in storages}
        one, other = self.failures(of, device, small, marks)
        self.assertEqual(one, other)
        self.assertIs(one[0], RuntimeError)
        self.assertIn("out of bounds for storage of size 4", one[1])

        for at, change in ((0, lambda g: dataclasses.replace(g, stride=g.stride[::-1])),
                           (-1, lambda g: dataclasses.replace(g, offset=3))):
            stepping = Stepping(MODELS["vit"])
            tape = stepping.record()
            saved = next(s for s in candidates(tape) if s.chain is not None and len(s.chain.ops) > 1)
            op = tape.ops[saved.chain.ops[at]]
            op.results = [ref and dataclasses.replace(ref, geometry=change(ref.geometry)) for ref in op.results]
            of = Recompute(tape, saved, saved.chain)
            storages = {v[0]: torch.randn(tape.storages[v[0]].size // 4) for v in saved.chain.sources}
            storages.update((p, tape.parameters[p]().detach()) for p in saved.chain.parameters)
            one, other = self.failures(of, device, storages, {})
            self.assertEqual(one, other)
            self.assertEqual(one, (SpillwayError, f"{op.place} made another layout of its result than in the recorded step"))

    def test_random_numbers_in_another_order_fail_and_leave_nothing_behind(self):
        of, device, storages, marks = next(r for r in recomputes(Stepping(MODELS["gpt, fused dropout"])) if r[0].native._drawing)
        other = {at: torch.manual_seed(at + 50).get_state() for at in marks}
        state = torch.get_rng_state()
        one, two = self.failures(of, device, storages, other)
        self.assertEqual(one, two)
        self.assertIs(one[0], SpillwayError)
        self.assertIn("in another order", one[1])
        self.assertTrue(torch.equal(state, torch.get_rng_state()))
        key = next(s for s in of.native._reads if s not in of.chain.parameters)
        storages[key] = storages[key].clone()
        copy = StorageWeakRef(storages[key].untyped_storage())
        self.failures(of, device, storages, other)
        del storages[key]
        self.assertTrue(copy.expired())


@unittest.skipIf(LIBRARY is None, "there is no library")
class ArgumentsTest(unittest.TestCase):
    """Operators whose arguments and results are lists, have names or have other types."""

    def check(self, func, *args, results=1, **kwargs):
        tensors = {}

        def place(value):
            if isinstance(value, list):
                return [place(item) for item in value]
            if not isinstance(value, torch.Tensor):
                return value
            storage = value.untyped_storage()
            base = tensors.setdefault(storage._cdata, (torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta"), value))[0]
            return torch.empty(0, dtype=value.dtype, device="meta").set_(
                base.untyped_storage(), value.storage_offset(), value.size(), value.stride())

        given, named = place(list(args)), {key: place(value) for key, value in kwargs.items()}
        want = func(*args, **kwargs)
        want = list(want) if isinstance(want, (tuple, list)) else [want]
        outputs = [torch.empty_strided(w.size(), w.stride(), dtype=w.dtype, device="meta") for w in want]
        for at in range(results):
            chain = torch.classes.spillway_recompute.Chain([base for base, _ in tensors.values()], outputs[at])
            chain.capture(True)
            try:
                func(*given, **named)
            finally:
                chain.capture(False)
            chain.complete(list(range(len(want))), outputs, [])
            got = torch.ops.spillway_recompute.run(chain.handle(), [value for _, value in tensors.values()])
            self.assertTrue(torch.equal(want[at], got), func)

    def test_arguments(self):
        aten, x, at = torch.ops.aten, torch.randn(4, 6), torch.tensor([1, 0, 2])
        self.check(aten.cat.default, [x[:, 1:3], x.t()[:2].t(), torch.randn(4, 1)], -1)
        self.check(aten.index.Tensor, x, [None, at])
        self.check(aten.index.Tensor, x, [at, at])
        self.check(aten.unbind_copy.int, x, 1, results=6)
        self.check(aten.native_layer_norm.default, x, [6], torch.randn(6), None, 1e-5, results=3)
        self.check(aten.clamp.Tensor, x, None, x[1])
        self.check(aten.sum.dim_IntList, x, [0], True, dtype=torch.float64)
        self.check(aten._to_copy.default, x, dtype=torch.bfloat16)
        self.check(aten.add.Tensor, x[1:3, ::2], x[0, 3:], alpha=2.5)
        self.check(aten.mul.Tensor, x.view(torch.int32)[0], 3)
        self.check(aten.pow.Tensor_Scalar, x.abs(), 0.5)
        self.check(aten.full_like.default, x, True, dtype=torch.bool)

    def test_nothing_runs_while_operators_are_captured(self):
        x = torch.ones(2)
        chain = torch.classes.spillway_recompute.Chain([x], x)
        chain.capture(True)
        try:
            self.assertIsNone(torch.ops.aten.zero_.default(x))
        finally:
            chain.capture(False)
        self.assertEqual(x.tolist(), [1, 1])


@unittest.skipIf(recompute.steps_library() is None, "there is no library with the headers of Python")
class StepsTest(unittest.TestCase):
    """Saved tensors in the library."""

    def setUp(self):
        self.stepping = Stepping(MODELS["gpt, fused dropout"])
        self.tape = self.stepping.record()
        self.actions = {s.storage: "offload" if s.chain is None else "evict" for s in candidates(self.tape)}

    def gradients(self, context, between=lambda: None):
        self.stepping.reset()
        with context:
            loss = self.stepping.loss()
        del context
        between()
        loss.backward()
        return [p.grad for p in self.stepping.model.parameters()]

    def test_backward_runs_when_the_plan_is_gone(self):
        want = self.gradients(contextlib.nullcontext())
        plan = assemble(self.tape, self.actions)
        context = step(plan)
        executor = weakref.ref(executor_of(plan))
        self.assertIsNotNone(executor_of(plan)._library)

        def forget():
            nonlocal plan, context
            plan = context = self.tape = None
            gc.collect()
            self.assertIsNone(executor())

        self.assertEqual(different(want, self.gradients(context, forget)), [])

    def test_python_takes_over_where_the_library_does_not_take_a_chain(self):
        want = self.gradients(contextlib.nullcontext())
        plan = assemble(self.tape, self.actions)
        with mock.patch.object(recompute.Recompute, "_in_library", lambda *_: None):
            context = step(plan)
        self.assertIsNone(executor_of(plan)._library)
        self.assertEqual(different(want, self.gradients(context)), [])
        self.assertEqual(executor_of(plan).deviations, [])

    def test_a_profiler_sees_all_operators(self):
        def seen(context):
            with torch.profiler.profile(acc_events=True) as profile:
                self.gradients(context)
            return collections.Counter(event.name for event in profile.events())

        plan = assemble(self.tape, self.actions)
        for _ in range(3):
            self.gradients(step(plan))
        self.assertTrue(executor_of(plan).hashes.known)
        self.assertEqual(seen(contextlib.nullcontext()) - seen(step(plan)), collections.Counter())
        self.assertEqual(executor_of(plan).deviations, [])

    def test_an_operator_that_runs_another_one_inside(self):
        inside = torch.exp
        library = torch.library.Library("spillway_inside", "DEF")  # pylint: disable=not-callable
        self.addCleanup(library._destroy)
        library.define("choose(Tensor x) -> Tensor")
        library.impl("choose", lambda x: inside(x.neg()), "CompositeImplicitAutograd")
        model = torch.nn.Linear(4, 4)
        self.stepping = Stepping(lambda: (model, lambda: torch.ops.spillway_inside.choose(model(torch.ones(2, 4))).tanh().sum()))
        tape = self.stepping.record()
        plan = assemble(tape, {s.storage: "evict" for s in candidates(tape) if s.chain is not None})
        for inside in (torch.exp, torch.exp, torch.exp, torch.sigmoid):
            self.assertEqual(executor_of(plan).deviations, [])
            self.assertEqual(different(self.gradients(contextlib.nullcontext()), self.gradients(step(plan))), [])
        self.assertIn("spillway_inside::choose is operator", executor_of(plan).deviations[0])

    def test_operators_after_one_that_fails(self):
        model, factor = torch.nn.Linear(4, 4), 1.0

        def loss():
            x = model(torch.ones(2, 4))
            for run, good, bad in ((x.reshape, 8, 7), (lambda n: torch.cat((x, x[:, :n])), 4, 3),
                                   (lambda n: torch.narrow_copy(x, 0, 0, n), 1, 3)):
                run(good)
                with self.assertRaises(RuntimeError):
                    run(bad)
            return (x * factor).exp().tanh().sum()

        self.stepping = Stepping(lambda: (model, loss))
        tape = self.stepping.record()
        plan = assemble(tape, {s.storage: "evict" for s in candidates(tape) if s.chain is not None})
        for factor in (1.0, 1.0, 1.0, 2.0):
            self.assertEqual(executor_of(plan).deviations, [])
            self.assertEqual(different(self.gradients(contextlib.nullcontext()), self.gradients(step(plan))), [])
        self.assertIn("aten::mul is operator", executor_of(plan).deviations[0])

    def test_the_arguments_of_plain_operators_show_what_runs_inside(self):
        x, weight, bias = torch.randn(2, 3, 4), torch.randn(4, 4, requires_grad=True), torch.randn(4)

        def inside(context):
            with context, torch.profiler.profile(acc_events=True) as profile:
                for given in ((x, weight), (x[0, 0], weight), (x, weight, bias), (x[0], weight, bias), (x.transpose(0, 1), weight, bias)):
                    F.linear(*given)
                for one, other in ((x, weight), (x, x.mT), (weight, weight), (weight, x[0, 0]), (weight, x.mT), (x[:, None], x.mT)):
                    torch.matmul(one, other)
                _ = x.reshape(6, 4), x.mT.reshape(8, 3), x.to(torch.float64), x.to(x), x.to("cpu", torch.bfloat16, copy=True)
            return [event.name for event in profile.events() if event.name != "aten::fill_"]  # of new memory

        want = inside(contextlib.nullcontext())
        self.assertIn("aten::addmm", want)
        for setting in (deterministic(), torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False),
                        sdpa_kernel(SDPBackend.MATH)):
            self.assertEqual(inside(setting), want)

    def test_an_error_of_the_device_passes(self):
        class Device(CpuDevice):
            failing = None

            def copy(self, queue, into, source):
                if queue is self.failing:
                    raise ValueError("no copy")
                super().copy(queue, into, source)

        for Device.failing in (Queue.OUT, Queue.IN):
            plan = assemble(self.tape, dict.fromkeys(self.actions, "offload"))
            EXECUTORS[plan] = Executor(plan, Device())
            with self.assertRaisesRegex(ValueError, "no copy"):
                self.gradients(step(plan))
            Device.failing = None
            self.assertEqual(different(self.gradients(contextlib.nullcontext()), self.gradients(step(plan))), [])


class FallbackTest(unittest.TestCase):
    def reason(self, **variables):
        """Returns the levels and texts of what is said where there is no library."""
        for cached in recompute._library, recompute.found_library:
            cached.cache_clear()
            self.addCleanup(cached.cache_clear)
        with self.assertLogs("spillway_torch", "DEBUG") as logs, mock.patch.dict(os.environ, variables):
            self.assertIsNone(recompute._library())
        return [(record.levelname, record.getMessage()) for record in logs.records]

    def test_reasons(self):
        ((level, text),) = self.reason(SPILLWAY_TORCH_PYTHON_RECOMPUTE="1")
        self.assertEqual(level, "DEBUG")
        self.assertIn("SPILLWAY_TORCH_PYTHON_RECOMPUTE is set", text)
        with tempfile.TemporaryDirectory() as cache, mock.patch.object(torch, "__version__", "2.99.0+cu999"):
            variables = {"SPILLWAY_TORCH_PYTHON_RECOMPUTE": "0", "XDG_CACHE_HOME": cache}
            ((level, text),) = self.reason(CXX="/no/compiler -O2", **variables)
            self.assertEqual(level, "WARNING")
            self.assertIn("no library was built for PyTorch 2.99.0+cu999", text)
            self.assertIn("there is no C++ compiler (/no/compiler)", text)

            library = recompute.library_path(pathlib.Path(cache, "spillway_torch"))
            told, failed = self.reason(CXX="false", **variables)
            self.assertIn("building the library for PyTorch 2.99.0+cu999", told[1])
            self.assertIn(str(library.with_suffix(".log")), failed[1])
            self.assertEqual(self.reason(CXX="false", **variables), [failed])  # it is not tried again
            library.write_bytes(b"no library")
            self.assertIn(library.name, self.reason(**variables)[0][1])

    def test_it_is_built_when_it_is_first_needed(self):
        self.addCleanup(recompute.found_library.cache_clear)
        recompute.found_library.cache_clear()
        with tempfile.TemporaryDirectory() as cache, mock.patch.object(torch, "__version__", "2.99.0"), \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache, "CXX": "true"}):
            library = recompute.library_path(pathlib.Path(cache, "spillway_torch"))
            with mock.patch.object(recompute.subprocess, "run", lambda *_, **__: library.touch()), self.assertLogs("spillway_torch") as logs:
                self.assertEqual(recompute.found_library(), library)
            self.assertIn("takes a minute, once", logs.output[0])
            self.assertEqual(list(library.parent.iterdir()), [library])  # and no output of the compiler

    @unittest.skipIf(LIBRARY is None, "there is no library")
    def test_a_chain_that_the_library_does_not_take_runs_in_python(self):
        def refuse(self, storages):
            raise RuntimeError("no such argument") if next(iter(storages.values())).is_meta else AssertionError

        stepping = Stepping(MODELS["vit"])
        tape = stepping.record()
        saved = next(s for s in candidates(tape) if s.chain is not None)
        with mock.patch.object(recompute._Step, "arguments", refuse), self.assertLogs("spillway_torch", "DEBUG") as logs:
            self.assertIsNone(Recompute(tape, saved, saved.chain).native)
        self.assertIn("no such argument", logs.output[0])

    def test_other_sources_and_versions_have_other_names(self):
        names = {recompute.library_path().name}
        with mock.patch.object(torch, "__version__", "2.99.0"):
            names.add(recompute.library_path().name)
        with mock.patch.object(torch, "compiled_with_cxx11_abi", lambda: None):
            names.add(recompute.library_path().name)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(recompute, "SOURCES", (pathlib.Path(folder, "a.cc"),)):
            recompute.SOURCES[0].write_text("int main() {}", encoding="utf-8")
            names.add(recompute.library_path().name)
        with mock.patch.object(sys.implementation, "cache_tag", "cpython-999"):
            names.add(recompute.library_path().name)
        self.assertEqual(len(names), 5)
        with mock.patch.object(torch, "__version__", torch.__version__.split("+")[0] + "+cu999"):
            self.assertIn(recompute.library_path().name, names)

    def test_without_headers_of_python_less_is_built(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual([source.name for source in build.compiled(pathlib.Path(folder))], ["compare_steps.cc", "recompute_chains.cc"])
            pathlib.Path(folder, "Python.h").touch()
            self.assertEqual([source.name for source in build.compiled(pathlib.Path(folder))],
                             ["compare_steps.cc", "devices.cc", "recompute_chains.cc", "run_steps.cc"])

    def test_a_library_without_steps(self):
        recompute.steps_library.cache_clear()
        self.addCleanup(recompute.steps_library.cache_clear)
        with mock.patch.object(recompute, "_library", object), tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder, "recompute.so")
            other.write_bytes(b"no library")
            with mock.patch.object(recompute, "found_library", lambda: other), self.assertLogs("spillway_torch", "DEBUG") as logs:
                self.assertIsNone(recompute.steps_library())
        self.assertIn("Python handles the tensors that autograd saves", logs.output[0])

    def test_a_build_that_fails_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for compiler in ("false", "/no/compiler"):
                with mock.patch.dict(os.environ, {"CXX": compiler}), mock.patch("sys.argv", ["build", folder]), \
                        contextlib.redirect_stderr(io.StringIO()) as error, mock.patch("shutil.which", lambda _: None):
                    self.assertEqual(build.main(), 5)
                self.assertIn("the library is not built, and Python runs the operators", error.getvalue())
                self.assertIn(compiler, error.getvalue())
                self.assertEqual(list(pathlib.Path(folder).iterdir()), [])
            with mock.patch("sys.argv", ["build", f"{folder}/none"]), contextlib.redirect_stderr(io.StringIO()) as error:
                self.assertEqual(build.main(), 5)
            self.assertIn("No such file or directory", error.getvalue())


class CudaTest(unittest.TestCase):
    """The device of GPUs, without one."""

    def test_a_copy_leaves_the_stream_and_the_device_as_they_were(self):
        class Failed(Exception):
            pass

        def fail(*_, **__):
            raise Failed

        device = CudaDevice.__new__(CudaDevice)
        device.index, device._ids = 1, {Queue.OUT: (7, 1, 1)}
        for current, failing in ((1, False), (0, False), (0, True)):
            calls = []
            into = mock.Mock()
            into.copy_ = fail if failing else lambda source, non_blocking, calls=calls: calls.append("copy")
            with mock.patch.multiple(torch._C, _cuda_getDevice=lambda current=current: current,
                                     _cuda_getCurrentStream=lambda at: (3, at, 1), create=True,
                                     _cuda_setStream=lambda *to, calls=calls: calls.append(to), _cuda_setDevice=calls.append), \
                    self.assertRaises(Failed) if failing else contextlib.nullcontext():
                device.copy(Queue.OUT, into, None)
            self.assertEqual(calls, [(7, 1, 1), *([] if failing else ["copy"]), (3, 1, 1), *([0] if current == 0 else [])])

    def test_an_event_is_used_again_when_nobody_holds_it(self):
        pool, made = [], iter(range(9))
        with mock.patch.object(torch._C, "_CudaEventBase", lambda: next(made), create=True):
            one, two = _Event(pool), _Event(pool)
            self.assertEqual((one.inner, two.inner), (0, 1))
            del one
            three, four = _Event(pool), _Event(pool)
            self.assertEqual((two.inner, three.inner, four.inner), (1, 0, 2))


if __name__ == "__main__":
    unittest.main()
