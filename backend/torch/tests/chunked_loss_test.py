"""Tests `fit(..., allow="chunked_loss")`: losses whose logits never exist as a whole."""

import contextlib
import copy
import io
import logging
import random
import unittest
from unittest import mock

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from adversary import Adversary
from counting import Counting
from spillway_torch import SpillwayError, fit
from spillway_torch.run.chunked_loss import ChunkedLosses, Logits, rows_of
from spillway_torch.run.executor import executor_of
from spillway_torch.tape import losses
from stepping import WAYS, Llama, Stepping, different, plan_of

CLASSES, ROWS = 50, 10  # of the logits of a chunk
LOSS = "chunked_loss"


class Model(nn.Module):
    def __init__(self, width=16, classes=CLASSES, bias=False, tied=False, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(classes, width)
        self.inner = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.head = nn.Linear(width, classes, bias=bias)
        if tied:
            self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens):
        return self.head(torch.tanh(self.inner(self.embed(tokens))))


class Largest(TorchDispatchMode):
    """Learns the most elements of a result of type float."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.most = max([self.most, *(t.numel() for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor) and
                                      t.is_floating_point())])
        return made


def gradients(model, loss):
    """Returns a loss and the gradients that its backward makes."""
    model.zero_grad()
    made = loss()
    made.backward()
    return [made.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def flat(model, tokens):
    return F.cross_entropy(model(tokens).view(-1, CLASSES), tokens.view(-1))


class ChunkedLossTest(unittest.TestCase):
    def setUp(self):
        patched = mock.patch.object(losses, "CHUNK", 4 * CLASSES * ROWS)
        patched.start()
        self.addCleanup(patched.stop)
        self.tokens = torch.randint(CLASSES, (4, 9), generator=torch.Generator().manual_seed(1))

    def fitted(self, model, memory=1 << 40, optimizer=None, **options):
        found = fit(model, optimizer, memory, allow=LOSS, **options)
        self.addCleanup(found.remove)
        return found

    @staticmethod
    @contextlib.contextmanager
    def chunks(model):
        """Within it, the losses of a model are computed in chunks, without a plan."""
        found = ChunkedLosses([model], vars)
        try:
            yield found
        finally:
            found.close()

    def close(self, want, got, tolerance=1e-12):
        self.assertEqual(len(want), len(got))
        for one, other in zip(want, got):
            self.assertEqual(one.dtype, other.dtype)
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance, equal_nan=True)

    def test_each_row_has_the_loss_of_its_chunk_bit_by_bit(self):
        for cast in None, torch.bfloat16, torch.float16:
            for upcast in False, True:
                model = Model(bias=True)

                def loss(model=model, cast=cast, upcast=upcast, part=slice(None)):
                    with torch.autocast("cpu", cast) if cast is not None else contextlib.nullcontext():
                        x = torch.tanh(model.inner(model.embed(self.tokens))).flatten(0, 1)
                        logits = model.head(x[part])
                        return F.cross_entropy(logits.float() if upcast else logits, self.tokens.flatten()[part], reduction="none")

                want = torch.cat([loss(part=slice(at, at + ROWS)) for at in range(0, 36, ROWS)])
                with self.subTest(f"{cast}, upcast {upcast}"), self.chunks(model) as found:
                    self.assertEqual(different([want], [loss()]), [])
                    self.assertEqual(found.chunked, 1)

    def test_drawn_losses(self):
        draw = random.Random(1)
        for at in range(60):
            batch, length, width, classes = draw.randint(1, 4), draw.randint(5, 12), draw.randint(1, 9), draw.randint(2, 60)
            reduction, bias, tied = draw.choice(["mean", "sum", "none"]), draw.random() < 0.5, draw.random() < 0.3
            way, frozen = draw.choice(["flat", "shifted", "mask", "rows"]), draw.choice(["", "", "head", "body"])
            weights = draw.random() < 0.3
            torch.manual_seed(at)
            model = Model(width, classes, bias, tied, torch.float64)
            tokens = torch.randint(classes, (batch, length))
            targets = torch.where(torch.rand(batch, length) < 0.3, -100, tokens)
            if frozen:
                for part in ([model.head] if frozen == "head" else [model.embed, model.inner]):
                    part.requires_grad_(False)
            loss_function = nn.CrossEntropyLoss(torch.rand(classes, dtype=torch.float64) if weights else None, reduction=reduction)
            if not any(p.requires_grad for p in model.parameters()):
                continue

            def loss(model=model, tokens=tokens, targets=targets, way=way, function=loss_function, classes=classes):
                logits = model(tokens)
                if way == "shifted":
                    made = function(logits[..., :-1, :].contiguous().view(-1, classes), targets[:, 1:].reshape(-1))
                elif way == "mask":
                    made = function(logits[targets != -100].float().double(), targets[targets != -100])
                elif way == "rows":
                    made = function(logits[0], targets[0])
                else:
                    made = function(logits.flatten(0, 1), targets.flatten())
                return (made * torch.linspace(1, 2, made.numel(), dtype=made.dtype).view(made.shape)).sum() / 3

            with self.subTest(f"{at}: {way}, {reduction}, {batch} x {length}, {width}, {classes}, {bias}, {tied}, {frozen}, {weights}"), \
                    mock.patch.object(losses, "CHUNK", 4 * classes * draw.randint(1, 4)):
                want = gradients(model, loss)
                with self.chunks(model) as found:
                    got = gradients(model, loss)
                self.assertEqual(found.chunked, 1)
                self.close(want, got, 1e-5 if way == "mask" else 1e-12)

    def test_the_logits_never_exist(self):
        model = Model(bias=True)
        tokens = self.tokens.repeat(40, 1)
        with Largest() as ordinary:
            gradients(model, lambda: flat(model, tokens))
        with self.chunks(model), Largest() as seen:
            gradients(model, lambda: flat(model, tokens))
        self.assertGreaterEqual(ordinary.most, tokens.numel() * CLASSES)
        self.assertLess(seen.most, tokens.numel() * CLASSES)

    def test_rows_that_do_not_count(self):
        for reduction in "mean", "sum", "none":
            for way in "ignored", "left out":
                model = Model(bias=True, dtype=torch.float64)

                def loss(model=model, reduction=reduction, way=way):
                    none = torch.full_like(self.tokens, -100)
                    logits, targets = model(self.tokens), none
                    if way == "left out":
                        logits, targets = logits[none > 0], targets[none > 0]
                    return F.cross_entropy(logits.view(-1, CLASSES), targets.view(-1), reduction=reduction).sum()

                want = gradients(model, loss)
                with self.subTest(f"{reduction}, {way}"), self.chunks(model) as found:
                    self.close(want, gradients(model, loss))
                    self.assertEqual(found.chunked, 1)

    def test_chunks_of_real_sizes(self):
        with mock.patch.object(losses, "CHUNK", 256 << 20):
            self.assertEqual([rows_of(classes) for classes in (32000, 151936, 10**6, 10**9)], [2048, 384, 67, 1])

    def test_language_models_of_transformers(self):
        config = transformers.LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                                          vocab_size=CLASSES, use_cache=False)
        labels = torch.where(self.tokens % 3 == 0, -100, self.tokens)
        for tied in False, True:
            for options in {}, {"num_items_in_batch": 11}, {"num_items_in_batch": torch.tensor(11)}, {"logits_to_keep": 5}:
                config.tie_word_embeddings = tied
                torch.manual_seed(0)
                model = transformers.LlamaForCausalLM(config).double()
                kept = labels[:, -options.get("logits_to_keep", 9):]
                loss = lambda: model(input_ids=self.tokens, labels=kept, **options).loss  # noqa: B023 pylint: disable=cell-var-from-loop
                want = gradients(model, loss)
                with self.chunks(model) as found:
                    self.assertEqual([name for name, module in model.named_modules() if "forward" in vars(module)], ["lm_head"])
                    got = gradients(model, loss)
                    self.assertEqual(found.chunked, 1)
                    self.close(want, got, 1e-5)  # the loss is one of float32
                    with torch.no_grad():
                        self.assertIs(type(model(input_ids=self.tokens).logits), torch.Tensor)

    def test_a_scaler_and_small_types(self):
        for cast in torch.float16, torch.bfloat16, None:
            model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**16)

            def loss(model=model, scaler=scaler, cast=cast):
                with torch.autocast("cpu", cast) if cast is not None else contextlib.nullcontext():
                    return scaler.scale(flat(model, self.tokens) * 1e-3)

            want = gradients(model, loss)
            with self.chunks(model) as found:
                got = gradients(model, loss)
            self.assertEqual(found.chunked, 1)
            for one, other in zip(want, got):
                self.assertLess((one - other).norm() / one.norm(), 1e-6 if cast is None else 0.01)

    def test_small_gradients_of_float16_are_not_lost(self):
        model = Model(classes=40000)  # a probability is 1/40000, and in a mean of 36 rows its gradient is a few times the least number

        def loss():
            with torch.autocast("cpu", torch.float16):
                return F.cross_entropy(model(self.tokens).flatten(0, 1), self.tokens.flatten()) * 2.0**12

        loss().backward()
        want = model.head.weight.grad[CLASSES:].clone()  # of classes that are no targets
        model.zero_grad()
        with self.chunks(model) as found, mock.patch.object(losses, "CHUNK", 4 * 40000 * 18):
            loss().backward()
        self.assertEqual(found.chunked, 1)
        self.assertLess((model.head.weight.grad[CLASSES:] - want).norm() / want.norm(), 2e-3)

    def test_a_graph_that_is_retained(self):
        for reduction in "mean", "sum":
            model = Model(bias=True, dtype=torch.float64)
            def twice(model=model, reduction=reduction):
                model.zero_grad()
                made = F.cross_entropy(model(self.tokens).flatten(0, 1), self.tokens.flatten(), reduction=reduction)
                (3 * made).backward(retain_graph=True)
                made.backward()
                return [p.grad.clone() for p in model.parameters()]

            want = twice()
            with self.chunks(model) as found:
                self.close(want, twice())
            self.assertEqual(found.chunked, 1)

    def test_a_gradient_of_a_gradient_is_refused(self):
        model = Model()
        with self.chunks(model), self.assertRaisesRegex(
                SpillwayError, "a backward with create_graph=True reads the loss of module 'head', which was computed in chunks: leave"):
            torch.autograd.grad(flat(model, self.tokens), model.inner[0].weight, create_graph=True)

    def test_evaluation_has_ordinary_logits(self):
        model = Model()
        self.fitted(model)
        for context in torch.no_grad, torch.inference_mode:
            with context():
                self.assertIs(type(model(self.tokens)), torch.Tensor)
        self.assertIs(type(model(self.tokens)), Logits)
        self.assertIs(type(model(self.tokens[:1])), torch.Tensor)  # as much as a chunk
        with self.assertRaisesRegex(RuntimeError, r"shape '\[7, 50\]' is invalid for input of size 1800"):
            model(self.tokens).view(7, CLASSES)

    def test_logits_that_are_read_otherwise(self):
        def metrics_after(model):
            logits = model(self.tokens)
            loss = F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1))
            with torch.no_grad():
                flattened = logits.view(-1, CLASSES)
                found = logits.argmax(-1), logits.float().softmax(-1), F.cross_entropy(flattened, self.tokens.view(-1), reduction="none")
                self.assertIs(type(flattened), torch.Tensor)
            return loss, found

        def metrics_before(model):
            logits = model(self.tokens)
            found = logits.argmax(-1)
            return F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1)), found

        def penalty(model):
            logits = model(self.tokens)
            return F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1)) + torch.logsumexp(logits, -1).square().mean(), ()

        def hook(model):
            logits, found = model(self.tokens), []
            logits.register_hook(lambda g: found.append(g) or g * 2)
            loss = F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1))
            loss.backward(retain_graph=True)
            return loss, found

        def change(model):
            logits = model(self.tokens)
            wide = logits.float()
            copy_ = logits.double()
            wide[..., 0] += 1
            return F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1)) + copy_.sum().float(), ()

        def capped(model):
            return F.cross_entropy(3 * torch.tanh(model(self.tokens).view(-1, CLASSES) / 3), self.tokens.view(-1)), ()

        def smooth(model):
            return F.cross_entropy(model(self.tokens).view(-1, CLASSES), self.tokens.view(-1), label_smoothing=0.1), ()

        def soft(model):
            logits = model(self.tokens).view(-1, CLASSES)
            return F.cross_entropy(logits, torch.full((36, CLASSES), 1 / CLASSES)), ()

        def images(model):
            return F.cross_entropy(model(self.tokens).transpose(1, 2), self.tokens), ()

        def some_classes(model):
            return F.cross_entropy(model(self.tokens)[..., :CLASSES - 1].reshape(-1, CLASSES - 1), self.tokens.view(-1) % 40), ()

        def unseen(model):
            class Mine(torch.autograd.Function):
                @staticmethod
                def forward(ctx, logits):
                    ctx.save_for_backward(logits)
                    return logits.square().sum()

                @staticmethod
                def backward(ctx, gradient):
                    return 2 * ctx.saved_tensors[0] * gradient

            return Mine.apply(model(self.tokens)), ()

        def aside(model):
            logits = model(self.tokens).view(-1, CLASSES)
            with torch._C.DisableTorchFunction():
                return torch.ops.aten.pow(logits, 2).sum(), ()

        cases = {metrics_after: None, metrics_before: "torch.Tensor.argmax", penalty: None, hook: "torch.Tensor.register_hook",
                 aside: "aten.pow", change: "torch.Tensor.__getitem__", capped: "torch.Tensor.div",
                 smooth: "cross_entropy, which has label_smoothing",
                 soft: "cross_entropy, whose targets are no class numbers", images: "torch.Tensor.transpose",
                 some_classes: "torch.Tensor.__getitem__", unseen: "aten.detach"}
        for case, why in cases.items():
            with self.subTest(case.__name__):
                def run(model, optimizer, case=case):
                    seen = []
                    for _ in range(4):
                        optimizer.zero_grad()
                        loss, found = case(model)
                        loss.backward()
                        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters()), *found]
                        optimizer.step()
                    return seen

                model = Model()
                want = run(model, torch.optim.SGD(model.parameters(), lr=0.1))
                model = Model()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                fitted = self.fitted(model, optimizer=optimizer)
                with self.assertLogs("spillway_torch", logging.INFO) as logs:
                    got = run(model, optimizer)
                lines = [line for line in logs.output if "loss is computed" in line or "was computed" in line]
                self.assertEqual(len(lines), 1, logs.output)
                if why is None:
                    self.close(want, got, 1e-4)
                    self.assertRegex(lines[0], "the loss of module 'head' was computed in chunks, and torch.* reads its logits, which are")
                else:
                    self.assertEqual(different(want, got), [])
                    self.assertRegex(lines[0], f"no loss is computed in chunks, because the result of module 'head' is read by .*{why}")
                self.assertIsNotNone(fitted.plan)
                fitted.remove()

    def test_what_would_be_wrong_is_refused(self):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.fitted(model, optimizer=optimizer)
        logits = model(self.tokens)
        loss = F.cross_entropy(logits.view(-1, CLASSES), self.tokens.view(-1))
        for ask in (logits.retain_grad, lambda: logits.register_hook(print), lambda: torch.autograd.grad(loss, logits)):
            with self.assertRaisesRegex(SpillwayError, "asks for a gradient of the logits of module 'head', whose loss was computed in"):
                ask()
        with torch._C.DisableTorchFunction(), torch.no_grad(), self.assertRaisesRegex(
                SpillwayError, "aten.mul_.Tensor changes the result of a linear layer unseen: leave"):
            logits.mul_(2)
        loss.backward()
        optimizer.step()
        with self.assertRaisesRegex(SpillwayError, "the logits of module 'head' are read after its input or its parameters were changed"):
            logits.argmax(-1)

    def test_small_results_say_so(self):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.fitted(model, optimizer=optimizer)
        with self.assertLogs("spillway_torch", logging.WARNING) as logs:
            for _ in range(3):
                flat(model, self.tokens[:1]).backward()
                optimizer.step()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "no loss is computed in chunks, because no linear layer outside of repeated blocks has a result")

    def test_checkpoints(self):
        for reentrant in False, True:
            for whole in False, True:
                class Checked(Model):
                    def forward(self, tokens, reentrant=reentrant, whole=whole):
                        def end(x):
                            logits = self.head(torch.tanh(x))
                            return F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) if whole else logits

                        made = checkpoint(end, self.inner(self.embed(tokens)), use_reentrant=reentrant)
                        return made if whole else F.cross_entropy(made.flatten(0, 1), tokens.flatten())

                model = Checked(dtype=torch.float64)
                loss = lambda: model(self.tokens)  # noqa: B023 pylint: disable=cell-var-from-loop
                want = gradients(model, loss)
                fitted = self.fitted(model)
                self.close(want, gradients(model, loss))
                self.assertEqual(fitted._losses.chunked > 0, whole or not reentrant)
                fitted.remove()

    def test_copies_and_files_have_ordinary_losses(self):
        model = Model()
        fitted = self.fitted(model)
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        for other in copy.deepcopy(model), copy.deepcopy(model.head), torch.load(stored, weights_only=False):
            given = self.tokens if isinstance(other, Model) else torch.randn(36, 16)
            self.assertIs(type(other(given)), torch.Tensor)
        fitted.remove()
        self.assertEqual([name for name in ("forward", "__getstate__") if name in {**vars(model), **vars(model.head)}], [])
        head = nn.Linear(16, CLASSES)
        self.fitted(head).remove()
        self.assertEqual(vars(head).keys() - vars(nn.Linear(1, 1)).keys(), set())

    def test_what_fit_refuses(self):
        for wrong in "chunked", ["chunked_loss", "fast"], None, 3:
            with self.assertRaisesRegex(SpillwayError, r"allow .* \(valid: 'chunked_loss', or a list of them\)"):
                fit(Model(), None, allow=wrong)
        with self.assertRaisesRegex(SpillwayError, "a compiled model has a budget without .* allow and device: leave them out"):
            fit(Model(), None, compiled=True, allow=["chunked_loss"])

    def train(self, memory, steps=4, allow=LOSS, classes=400, change=lambda logits: logits, watch=None):
        """Returns what training computes in chunks of 60 rows, the plan of its steps, and how many operators ran again in the last one."""
        model = Model(classes=classes, bias=True, tied=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        if watch is not None:
            watch(optimizer)
        tokens, seen = self.tokens.repeat(40, 1), []
        fitted = fit(model, optimizer, memory, allow=allow)
        self.addCleanup(fitted.remove)
        self.enterContext(mock.patch.object(losses, "CHUNK", 4 * classes * 60))
        for _ in range(steps):
            loss = F.cross_entropy(change(model(tokens)).view(-1, classes), tokens.view(-1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if watch is None:
                seen += [loss.detach(), *(p.detach().clone() for p in model.parameters())]
        plan, recomputed = fitted.plan, fitted.last.recomputed
        fitted.remove()
        return seen, plan, recomputed

    def test_steps_take_what_was_predicted(self):
        budget = 1 << 40
        for _ in range(2):
            device, peaks = Counting(), []
            patches = [mock.patch(f"spillway_torch.{of}.device_of", lambda _, device=device: device)
                       for of in ("tape.tape_recorder", "run.executor")]

            def watch(optimizer, device=device, peaks=peaks):
                optimizer.register_step_pre_hook(lambda *_: peaks.append(device.peak))
                optimizer.register_step_post_hook(lambda *_: setattr(device, "peak", 0))

            with patches[0], patches[1], device:
                _, plan, _ = self.train(budget, 7, watch=watch)
            self.assertLess(plan.peak, 3 * 4 * 1440 * 400)
            self.assertAlmostEqual(peaks[-1], plan.peak, delta=plan.peak // 1000)
            self.assertLessEqual(max(peaks[-3:]), budget)
            self.assertEqual(len(plan.actions) > 0, budget < 1 << 40)
            budget = (plan.floor.bytes + 2 * plan.eager_peak) // 3

    def test_what_the_loss_saves_may_leave(self):
        for reduction in "mean", "none":
            def make(reduction=reduction):
                model = Llama()
                tokens = torch.randint(60, (3, 12))

                def loss():
                    with torch.autocast("cpu", torch.bfloat16):
                        return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten(), reduction=reduction).mean()

                return model, loss

            stepping = Stepping(make)
            with self.chunks(stepping.model) as found:
                tape = stepping.record()
                want = stepping.steps()
                for way in WAYS:
                    with self.subTest(f"{reduction}, {way}"):
                        plan = plan_of(tape, way)
                        self.assertEqual(different(want, stepping.steps(plan, device=Adversary(1))), [])
                        self.assertEqual(executor_of(plan).deviations, [])
            self.assertEqual(found.chunked, 1 + 4 * 3)

    def test_planned_steps_have_the_bits_of_chunked_ones(self):
        want, free, _ = self.train(1 << 40, 20)
        got, plan, recomputed = self.train((free.floor.bytes + free.eager_peak) // 2, 20)
        self.assertEqual(different(want, got), [])
        self.assertGreater(recomputed, 0)
        self.assertLess(plan.peak, free.peak)

    def test_a_budget_below_the_floor_of_an_ordinary_loss(self):
        _, ordinary, _ = self.train(1 << 40, allow=())
        _, chunked, _ = self.train(1 << 40)
        budget = (chunked.floor.bytes + ordinary.floor.bytes) // 2
        logits = 4 * 1440 * 400
        self.assertGreater(ordinary.floor.bytes - chunked.floor.bytes, logits)
        with self.assertRaises(SpillwayError) as refused:
            self.train(budget, allow=())
        self.assertIn(f'{3 * (logits - 4 * 400 * 60):,} bytes by fit(..., allow="chunked_loss"): float32 logits', str(refused.exception))
        _, plan, _ = self.train(budget)
        self.assertLessEqual(plan.peak, budget)
        for given, options in ((chunked.floor.bytes - 1, {}),  # it cannot be lower
                               (budget, {"change": lambda logits: logits.argmax(-1) is None or logits}),  # it is allowed, and not done
                               (budget, {"change": lambda logits: logits / 2, "allow": ()})):  # it would not be done
            with self.assertRaises(SpillwayError) as refused:
                self.train(given, **options)
            self.assertIn("less is needed there:", str(refused.exception))
            self.assertNotIn("chunked_loss", str(refused.exception))

    def test_inputs_of_other_sizes(self):
        model = Model(dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        fitted = self.fitted(model, optimizer=optimizer)
        for rows in 40, 10, 60, 40:
            tokens = self.tokens.repeat(rows, 1)
            got = gradients(model, lambda: flat(model, tokens))  # noqa: B023 pylint: disable=cell-var-from-loop
            optimizer.step()
            ordinary = Model(dtype=torch.float64)
            self.close(gradients(ordinary, lambda: flat(ordinary, tokens)), got)  # noqa: B023 pylint: disable=cell-var-from-loop
        self.assertEqual(fitted._structures.recordings, 1)


if __name__ == "__main__":
    unittest.main()
