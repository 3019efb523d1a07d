"""Tests of the library that carries out plans: how it runs operators again, how it is found, and the device of GPUs."""

import collections
import concurrent.futures
import contextlib
import gc
import io
import os
import pathlib
import sys
import tempfile
import time
import unittest
import weakref
from unittest import mock

import torch

from spillway_torch import SpillwayError, build
from spillway_torch.base.device import CpuDevice, CudaDevice, Queue, _Event
from spillway_torch.plan.planner import assemble
from spillway_torch.run import library
from spillway_torch.run.executor import EXECUTORS, Executor, executor_of, step
from stepping import MODELS, Case, Stepping, candidates, different, plan_of


class ArgumentsTest(unittest.TestCase):
    """Operators whose arguments and results are lists, have names or have other types."""

    def check(self, compute):
        """Runs `compute`, which takes a tensor of 4 x 6 numbers, between operators that save its result, and recomputes that."""
        def forward(s):
            h = torch.exp(s.a(s.x)[:4, :6])
            return torch.tanh(torch.exp(compute(h).float() * 1e-3)).sum() + h.sum()

        case = Case(forward)
        plan = plan_of(case.record(), "evict")
        for _ in range(2):
            want = case.run()
            with step(plan) as run:
                case.model.zero_grad(set_to_none=True)
                torch.manual_seed(3)
                loss = case.forward()
            loss.backward()
            self.assertEqual(different(want[1:-1], [p.grad for p in case.model.parameters() if p.grad is not None]), [])
            self.assertGreater(run.recomputed, 0)
        self.assertEqual(executor_of(plan).deviations, [])

    def test_arguments(self):
        aten, at = torch.ops.aten, torch.tensor([1, 0, 2])
        for compute in (
                lambda x: aten.cat([x[:, 1:3], x.t()[:2].t(), torch.ones(4, 1)], -1),
                lambda x: x[:, at], lambda x: x[at, at], lambda x: aten.unbind_copy(x, 1)[3],
                lambda x: aten.native_layer_norm(x, [6], torch.ones(6), None, 1e-5)[0],
                lambda x: aten.clamp(x, None, x[1]), lambda x: aten.sum(x, [0], True, dtype=torch.float64),
                lambda x: x.to(torch.bfloat16), lambda x: aten.add(x[1:3, ::2], x[0, 3:], alpha=2.5),
                lambda x: x.detach().view(torch.int32)[0] * 3 * x[0], lambda x: x.abs() ** 0.5,
                lambda x: x * torch.full_like(x, True, dtype=torch.bool), lambda x: x.clone().mul_(2.0).add_(x),
                lambda x: torch._foreach_mul([x, x * 2], 2.0)[1], lambda x: x.clone().index_put_((at,), x[:3], accumulate=True)):
            self.check(compute)


class StepsTest(unittest.TestCase):
    """Saved tensors in the library."""

    def setUp(self):
        self.stepping = Stepping(MODELS["gpt, fused dropout"])
        self.tape = self.stepping.record()
        self.actions = {s.storage: "offload" if s.chain is None else "evict" for s in candidates(self.tape)}

    def gradients(self, context, between=lambda: None, backward=contextlib.nullcontext):
        self.stepping.reset()
        with context:
            loss = self.stepping.loss()
        del context
        between()
        with backward():
            loss.backward()
        return [p.grad for p in self.stepping.model.parameters()]

    def test_operators_run_again_without_gradient_and_autocast_and_with_the_settings_of_forward(self):
        plan = assemble(self.tape, self.actions)

        @contextlib.contextmanager
        def other():
            with torch.autocast("cpu", torch.bfloat16), torch.enable_grad(), torch.device("meta"), \
                    torch.backends.mkldnn.flags(enabled=False):
                yield

        want = self.gradients(contextlib.nullcontext(), backward=other)
        self.assertEqual(different(want, self.gradients(step(plan), backward=other)), [])
        self.assertTrue(torch.backends.mkldnn.enabled)

    def test_backward_runs_when_the_plan_is_gone(self):
        want = self.gradients(contextlib.nullcontext())
        plan = assemble(self.tape, self.actions)
        context = step(plan)
        executor = weakref.ref(executor_of(plan))

        def forget():
            nonlocal plan, context
            plan = context = self.tape = None
            gc.collect()
            self.assertIsNone(executor())

        self.assertEqual(different(want, self.gradients(context, forget)), [])

    def test_a_profiler_sees_all_operators(self):
        def seen(context):
            with torch.profiler.profile(acc_events=True) as profile:
                self.gradients(context)
            return collections.Counter(event.name for event in profile.events())

        plan = assemble(self.tape, self.actions)
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
        self.assertIn("aten::exp did not run on the tensors on which it ran then", executor_of(plan).deviations[0])

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
            self.assertEqual(different(self.gradients(contextlib.nullcontext()), self.gradients(step(plan))), [])
            self.assertEqual(executor_of(plan).deviations, [])

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


class FoundTest(unittest.TestCase):
    def reason(self, **variables):
        """Returns why there is no library, and what the log says."""
        library.steps_library.cache_clear()
        self.addCleanup(library.steps_library.cache_clear)
        with self.assertLogs("spillway_torch", "DEBUG") as logs, mock.patch.dict(os.environ, variables):
            library.log.debug("a line that there is in any case")
            with self.assertRaises(SpillwayError) as raised:
                library.steps_library()
        return str(raised.exception), [record.getMessage() for record in logs.records[1:]]

    def test_reasons(self):
        with tempfile.TemporaryDirectory() as cache, mock.patch.object(torch, "__version__", "2.99.0+cu999"):
            text, lines = self.reason(CXX="/no/compiler -O2", XDG_CACHE_HOME=cache)
            self.assertEqual(lines, [])
            self.assertIn("steps under a plan need the library of the package: no library was built for PyTorch 2.99.0+cu999", text)
            self.assertIn("there is no C++ compiler (/no/compiler)", text)

            path = library.library_path(pathlib.Path(cache, "spillway_torch"))
            text, lines = self.reason(CXX="false", XDG_CACHE_HOME=cache)
            self.assertIn("building the library for PyTorch 2.99.0+cu999", lines[0])
            self.assertIn(str(path.with_suffix(".log")), text)
            self.assertEqual(self.reason(CXX="false", XDG_CACHE_HOME=cache), (text, []))  # it is not tried again
            path.write_bytes(b"no library")
            self.assertIn(path.name, self.reason(XDG_CACHE_HOME=cache)[0])

    def test_processes_wait_for_the_one_that_builds_it(self):
        with tempfile.TemporaryDirectory() as cache, mock.patch.object(torch, "__version__", "2.99.0"), \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache, "CXX": "true"}), concurrent.futures.ThreadPoolExecutor(2) as pool:
            path = library.library_path(pathlib.Path(cache, "spillway_torch"))
            built = []

            def build_slowly(*_, **__):
                built.append(path)
                time.sleep(0.2)
                path.touch()

            with mock.patch.object(library.subprocess, "run", build_slowly):
                self.assertEqual([found.result() for found in [pool.submit(library.found_library) for _ in range(2)]], [path, path])
            self.assertEqual(built, [path])

    def test_it_is_built_when_it_is_first_needed(self):
        with tempfile.TemporaryDirectory() as cache, mock.patch.object(torch, "__version__", "2.99.0"), \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache, "CXX": "true"}):
            path = library.library_path(pathlib.Path(cache, "spillway_torch"))
            with mock.patch.object(library.subprocess, "run", lambda *_, **__: path.touch()), self.assertLogs("spillway_torch") as logs:
                self.assertEqual(library.found_library(), path)
            self.assertIn("takes a minute, once", logs.output[0])
            self.assertEqual(list(path.parent.iterdir()), [path])  # and no output of the compiler

    def test_other_sources_and_versions_have_other_names(self):
        names = {library.library_path().name}
        with mock.patch.object(torch, "__version__", "2.99.0"):
            names.add(library.library_path().name)
        with mock.patch.object(torch, "compiled_with_cxx11_abi", lambda: None):
            names.add(library.library_path().name)
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(library, "SOURCES", (pathlib.Path(folder, "a.cc"),)):
            library.SOURCES[0].write_text("int main() {}", encoding="utf-8")
            names.add(library.library_path().name)
        with mock.patch.object(sys.implementation, "cache_tag", "cpython-999"):
            names.add(library.library_path().name)
        self.assertEqual(len(names), 5)
        with mock.patch.object(torch, "__version__", torch.__version__.split("+")[0] + "+cu999"):
            self.assertIn(library.library_path().name, names)

    def test_a_build_that_fails_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            for compiler in ("false", "/no/compiler"):
                with mock.patch.dict(os.environ, {"CXX": compiler}), mock.patch("sys.argv", ["build", folder]), \
                        contextlib.redirect_stderr(io.StringIO()) as error, mock.patch("shutil.which", lambda _: None):
                    self.assertEqual(build.main(), 5)
                self.assertIn("the library is not built", error.getvalue())
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
