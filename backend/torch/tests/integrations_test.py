"""Tests the callbacks for the training loops of transformers and Lightning: nothing but the memory changes."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import accelerate
import pytorch_lightning
import torch
import transformers
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cases import slow
from spillway_torch import SpillwayError, fit
from spillway_torch.tape import losses
from spillway_torch.integrations import lightning, transformers as huggingface
from compiled_test import by_operators
from stepping import Vit, different

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(60, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, at):
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


class Images(Tokens):
    def __init__(self, count):
        self.tokens = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))

    def __getitem__(self, at):
        return self.tokens[at], at % 10


class Module(pytorch_lightning.LightningModule):
    """A module whose forward is no part of its step, as many are written."""

    def __init__(self, fail_at=None, skip_at=None, manual=False):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.fail_at, self.skip_at = Vit(), fail_at, skip_at
        self.automatic_optimization = not manual
        self.losses = []

    def training_step(self, batch, index):
        if index == self.skip_at:
            return None
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        if index == self.fail_at:
            raise KeyError("mine")
        self.log("loss", loss)
        self.losses.append(loss.detach())
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, _):
        self.losses.append(self.net(batch[0]).sum())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train_tokens(callback=None, steps=7, fail_at=None, **options):
    """Returns what a `Trainer` of transformers logs and the weights, and the Trainer."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0,
        attn_implementation="eager"))
    calls = []

    def fail(*_):
        calls.append(0)
        if len(calls) == fail_at:
            raise KeyError("mine")

    if fail_at:
        model.lm_head.register_forward_hook(fail)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, **{
            "per_device_train_batch_size": 4, "max_steps": steps, "use_cpu": True, "report_to": [], "logging_steps": 1,
            "disable_tqdm": True, "seed": 3, "save_strategy": "no", **options})
        trainer = transformers.Trainer(model, arguments, train_dataset=Tokens(22), eval_dataset=Tokens(5),
                                       callbacks=[callback] if callback else [])
        trainer.remove_callback(transformers.PrinterCallback)
        with contextlib.suppress(KeyError) if fail_at else contextlib.nullcontext():
            trainer.train()
        saved = sorted(os.listdir(folder))
    losses = [float(entry[key]) for entry in trainer.state.log_history for key in ("loss", "eval_loss", "grad_norm") if key in entry]
    return [torch.tensor(losses, dtype=torch.float64), *(p.detach().clone() for p in model.parameters())], saved, trainer


def train_images(callback=None, module=None, steps=7, **options):
    """Returns the losses and weights of a `Trainer` of Lightning, and the Trainer."""
    module = Module() if module is None else module
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu", max_steps=steps, logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder, callbacks=[callback] if callback else [],
            **{"enable_checkpointing": False, "num_sanity_val_steps": 0, **options})
        torch.manual_seed(4)
        trainer.fit(module, torch.utils.data.DataLoader(Images(22), 4), torch.utils.data.DataLoader(Images(5), 4))
    return [*module.losses, *(p.detach().clone() for p in module.parameters())], trainer


class Watched:
    """Mixed into a callback, it keeps the plan and how many operators ran again."""

    plan = None
    recomputed = 0

    def look(self):
        if self.fitted is not None and self.fitted.plan is not None:
            self.plan = self.fitted.plan
            self.recomputed = max(self.recomputed, self.fitted.last.recomputed if self.fitted.last is not None else 0)


class WatchedToken(Watched, huggingface.FitCallback):
    def on_step_end(self, args, state, control, **kwargs):
        self.look()


class WatchedImage(Watched, lightning.FitCallback):
    def on_train_batch_end(self, *arguments):
        super().on_train_batch_end(*arguments)
        self.look()


class IntegrationsTest(unittest.TestCase):
    def setUp(self):
        logging.getLogger("spillway_torch").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("spillway_torch").setLevel, logging.NOTSET)
        self.addCleanup(lambda: self.assertIsNone(_get_current_dispatch_mode()))

    def equal(self, kind, train, **options):
        """Trains with the callback, which has to recompute tensors; returns its plan."""
        whole = kind(1 << 40)
        train(whole, steps=3, **options)
        want = train(**options)
        tight = kind((whole.plan.floor.bytes + whole.plan.eager_peak) // 2)
        got = train(tight, **options)
        self.assertEqual(different(want[0], got[0]), [])
        self.assertEqual(want[1:-1], got[1:-1])
        self.assertGreater(tight.recomputed, 0)
        self.assertIsNone(tight.fitted)
        return tight.plan

    def test_transformers(self):
        for options in ({"gradient_accumulation_steps": 2, "bf16": True},
                        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 3}):
            with self.subTest(**options):
                self.equal(WatchedToken, train_tokens, **options)
        checkpointed = {"gradient_checkpointing": True, "steps": 3}
        self.assertEqual(different(train_tokens(**checkpointed)[0], train_tokens(WatchedToken(1 << 40), **checkpointed)[0]), [])

    @slow
    def test_processes_of_torchrun(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            found = []
            for rank in range(2):
                variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
                process = stack.enter_context(subprocess.Popen(
                    [sys.executable, __file__, os.path.join(folder, "store"), str(rank)], text=True, stdout=subprocess.PIPE,
                    env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
                stack.callback(process.kill)
                found.append(process)
            for process in found:
                for name, numbers in json.loads(process.communicate(timeout=200)[0].splitlines()[-1]).items():
                    with self.subTest(name):
                        self.assertEqual(numbers["different"], [])
                        self.assertGreater(numbers["recomputed"], 0)

    def test_lightning(self):
        for options in ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed"},
                        {"val_check_interval": 2, "enable_checkpointing": True}):
            with self.subTest(**options):
                plan = self.equal(WatchedImage, train_images, **options)
                self.assertIn("aten::_log_softmax", [op.name for op in plan.tape.ops if not op.backward])  # not only `forward`
                self.assertNotIn("aten::addcdiv_", {op.name for op in plan.tape.ops})  # the update is none of it

    def test_lightning_with_steps_of_its_own(self):
        for made in ({"manual": True}, {"skip_at": 1}):
            with self.subTest(**made):
                self.equal(WatchedImage, lambda callback=None, made=made, **options: train_images(callback, Module(**made), **options))

    def test_trainers_log_what_steps_took(self):
        trainer = train_tokens(huggingface.FitCallback(1 << 40, verify=1))[-1]
        self.assertEqual([entry["spillway/steps"] for entry in trainer.state.log_history if "loss" in entry], [1, 2, 3, 4, 5, 6, 7])
        trainer = train_images(lightning.FitCallback(1 << 40))[-1]
        self.assertEqual(trainer.callback_metrics["spillway/planned"].item(), 6)

    def test_an_error_leaves_nothing_behind(self):
        for fail_at in (0, 2):
            callback = lightning.FitCallback(1 << 40, policy="dtr")
            with self.assertRaisesRegex(KeyError, "mine"):
                train_images(callback, Module(fail_at=fail_at))
            self.assertIsNone(callback.fitted)
            self.assertIsNone(_get_current_dispatch_mode())
            self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))
        for fail_at in (1, 3):
            callback = huggingface.FitCallback(1 << 40, policy="dtr")
            trainer = train_tokens(callback, fail_at=fail_at)[-1]
            self.assertIsNone(_get_current_dispatch_mode())
            self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))
            first = callback.fitted
            trainer.train()
            self.assertIsNot(first, None)
            self.assertIsNone(first.plan)

    def test_a_loss_in_chunks(self):
        want, _, _ = train_tokens()
        with mock.patch.object(losses, "CHUNK", 4 * 60 * 20), self.assertLogs("spillway_torch", logging.INFO) as logs:
            got, _, _ = train_tokens(huggingface.FitCallback(1 << 40, allow="chunked_loss"))
        self.assertNotIn("loss", "".join(logs.output))
        self.assertNotEqual(different(want, got), [])  # the last bits
        for one, other in zip(want, got):
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3)

    @slow
    def test_a_compiled_model(self):
        class Seen(huggingface.FitCallback):
            def on_step_end(self, *_, **__):
                self.numbers, self.text = self.fitted.stats(), self.fitted.report()

        options = {"torch_compile": True, "dataloader_drop_last": True, "steps": 5}
        with by_operators():
            plain = train_tokens(**options)[0]
            callback = Seen(1 << 40)
            train_tokens(callback, **options)
            budget = int(0.95 * callback.numbers["predicted_bytes"])
            callback = Seen(budget)
            found = train_tokens(callback, **options)[0]
        self.assertGreater(callback.numbers["planned"], 2)
        self.assertLessEqual(callback.numbers["predicted_bytes"], budget)
        self.assertIn("a graph of", callback.text)
        for one, other in zip(plain, found):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)  # the first step runs other operators

    def test_arguments_that_are_refused(self):
        many = mock.Mock(world_size=1, n_gpu=2)
        with self.assertRaisesRegex(SpillwayError, "a Trainer with several GPUs in one process is not planned: .* by torchrun"):
            huggingface.FitCallback("1GiB").on_train_begin(many, None, None)
        with self.assertRaisesRegex(SpillwayError, "a Trainer with deepspeed is not planned"):
            huggingface.FitCallback("1GiB").on_train_begin(mock.Mock(n_gpu=1, deepspeed="file.json"), None, None)
        with self.assertRaisesRegex(SpillwayError, "a module under torch.compile is not planned"):
            train_images(lightning.FitCallback("1GiB"), torch.compile(Module()))
        trainer = mock.Mock(strategy=DDPStrategy())
        with self.assertRaisesRegex(SpillwayError, "a Trainer with DDPStrategy is not planned: give it one device"):
            lightning.FitCallback("1GiB").on_train_start(trainer, Module())
        for kind, train in ((huggingface.FitCallback, train_tokens), (lightning.FitCallback, train_images)):
            with self.assertRaisesRegex(SpillwayError, "expected a number of bytes above 0"):
                kind("8 gigs")
            with self.assertRaisesRegex(SpillwayError, "a budget of 65,536 bytes is below the floor"):
                train(kind("64KiB"))


def accelerated(budget=None):
    """Returns the losses and weights of a loop of Accelerate, its plan, and how many operators ran again."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Vit()
    model, optimizer, batches = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01),
                                                    torch.utils.data.DataLoader(Images(32), 4))
    fitted, losses, recomputed = fit(model, optimizer, budget) if budget is not None else None, [], 0
    for x, y in (batch for _ in range(3) for batch in batches):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        if fitted is not None and fitted.last is not None:
            recomputed = fitted.last.recomputed
    plan = fitted.plan if fitted is not None else None
    if fitted is not None:
        fitted.remove()
    return [*losses, *(p.detach().clone() for p in model.parameters())], plan, recomputed


def work(store, rank):
    """Trains in one of two processes, and prints what the test asks for."""
    torch.set_num_threads(1)
    logging.getLogger("spillway_torch").setLevel(logging.ERROR)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, store=torch.distributed.FileStore(store, 2))
    whole = WatchedToken(1 << 40)
    train_tokens(whole, steps=3, ddp_backend="gloo")
    tight = WatchedToken((whole.plan.floor.bytes + whole.plan.eager_peak) // 2)
    want, got = (train_tokens(callback, ddp_backend="gloo")[0] for callback in (None, tight))
    found = {"Trainer": {"different": different(want, got), "recomputed": tight.recomputed}}
    plan = accelerated(1 << 40)[1]
    got, _, recomputed = accelerated((plan.floor.bytes + plan.eager_peak) // 2)
    found["Accelerate"] = {"different": different(accelerated()[0], got), "recomputed": recomputed}
    print(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
