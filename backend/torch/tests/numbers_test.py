"""Tests what a recording without data makes of numbers that the program reads, of data of the host, and of wrong types."""

import itertools
import logging
import math
import sys
import unittest

import torch
from torch import nn
from torch.nn import functional as F

from spillway_torch import NotRecordableError, SpillwayError, pretend, record

GPU = "cuda:sm_90"


def noise(*shape, dtype=torch.float32):
    return torch.empty(*shape, device="cuda", dtype=dtype).normal_()


def names_of(step, **options):
    with pretend(GPU):
        return [operator.name.removeprefix("aten::") for operator in record(step, GPU, **options).operators]


class NumbersTest(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.WARNING)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_numbers_that_are_logged(self):
        best = 0.0
        for read in (lambda x: float(x), lambda x: int(x), lambda x: complex(x), lambda x: round(x.item(), 3), lambda x: int(x.item()),
                     lambda x: max(best, x.item()), lambda x: min(x.item(), best), lambda x: max(1e-3, x), lambda x: sorted([x.item(), best]),
                     lambda x: f"{x:.2f} {x.item():d} {x.item():>8.3e} {x.item()}", lambda x: str(-x.item() % 3 // 2), lambda x: x.tolist(),
                     lambda x: math.exp(x.item()), lambda x: x.cpu().numpy().mean(), lambda x: math.floor(x.item())):
            self.assertIn("mean", names_of(lambda read=read: read(noise(4, 4).mean())))

    def test_the_host_waits_for_each_of_them(self):
        reads = lambda: [float(x := noise(4).sum()), x.item(), x.tolist(), max(0.0, x)]  # noqa: E731
        self.assertEqual(names_of(reads).count("_local_scalar_dense"), 4)

    def test_plain_numbers_are_said(self):
        logging.disable(logging.NOTSET)
        with self.assertLogs("spillway_torch", "WARNING") as logs:
            names_of(lambda: int(noise(4).sum()))
        self.assertRegex(logs.output[0], r"int\(\) gave 1 at numbers_test.py:\d+; record\(..., assume=")

    def test_guards_against_infinite_numbers(self):
        def step():
            loss = noise(4).sum()
            if not math.isfinite(loss.item()) or torch.isnan(loss) or loss.isinf() or not torch.isfinite(noise(64, 64)).all():
                sys.exit("the loss diverged")
            loss.mul_(2)

        self.assertIn("mul_", names_of(step))

    def test_decisions_are_refused_with_their_line_in_every_step(self):
        for warm_up in (0, 1, 2):
            for decide in (lambda x: x.item() > 0, lambda x: x.item() == 1, lambda x: not x.item(), lambda x: bool(x > 0),
                           lambda x: range(x.item()), lambda x: torch.allclose(x, x), lambda x: [1, 2][x.argmax()]):
                line = decide.__code__.co_firstlineno
                model = nn.ReLU()
                model.register_forward_hook(lambda _, args, out, decide=decide: decide(args[0].sum()))
                with self.assertRaisesRegex(NotRecordableError, rf"numbers_test.py:{line}.*assume={{'numbers_test.py:{line}': VALUE}}"):
                    names_of(lambda model=model: model(noise(4)), warm_up=warm_up)

    def test_errors_of_pytorch_about_missing_data_are_translated(self):
        for call in (lambda x: torch.allclose(x, x), lambda x: torch.arange(0, x.sum(), device="cuda")):
            with self.assertRaises(NotRecordableError):
                names_of(lambda call=call: call(noise(4)))
        for name, call in (("split", lambda x: x.split(x.tolist())), ("topk", lambda x: torch.topk(x, x.sum().item())),
                           ("arange", lambda x: torch.arange(x.sum().item(), device="cuda"))):
            with self.assertRaisesRegex(NotRecordableError, rf"a size that {name}.*\(\) takes \(numbers_test.py:\d+\) depends"):
                names_of(lambda call=call: call(noise(4)))
        with self.assertRaisesRegex(TypeError, "can't convert cuda:0 device type tensor to numpy"):
            names_of(lambda: noise(4).numpy())

    def test_other_errors_stay_as_they_are(self):
        for kind, call in ((RuntimeError, lambda: noise(4, 4) @ noise(5)), (TypeError, lambda: torch.exp("x"))):
            with self.assertRaises(kind) as caught:
                names_of(call)
            self.assertIs(type(caught.exception), kind)
            self.assertIsNone(caught.exception.__cause__)

    def test_what_is_assumed(self):
        seen = []

        def step():
            x = noise(8)
            if x.sum().item() > 5:
                seen.append("large")
            seen.append((len(x.nonzero()), len(x[x > 0]), int(x.sum()), bool(x.sum() > 0), x.masked_select(x > 0).shape[0]))
            for i in range(x.argmax()):
                seen.append(i)

        here = step.__code__.co_firstlineno
        counts = itertools.count(1)
        for value, wanted in ((6, (6, 6, 6, True, 6)), (lambda: next(counts), (1, 2, 3, True, 5))):
            seen.clear()
            names_of(step, warm_up=0, assume={f"numbers_test.py:{here + 2}": 6, f"tests/numbers_test.py:{here + 4}"[6:]: value,
                                              f"numbers_test.py:{here + 5}": 2})
            self.assertEqual(seen, ["large", wanted, 0, 1])
        rows = [[1, 2], [0, 3]]
        with pretend(GPU):
            found = []
            record(lambda: found.append(noise(4, 4).nonzero().tolist()), GPU, warm_up=0,
                   assume={f"numbers_test.py:{sys._getframe().f_lineno - 1}": rows})
        self.assertEqual(found, [rows])

    def test_wrong_assumptions(self):
        for text, assume in (("names no line", {"train": 1}), ("no number was asked for at train.py:31", {"train.py:31": 1})):
            with self.assertRaisesRegex(SpillwayError, text):
                names_of(lambda: noise(4).sum(), assume=assume)
        with self.assertRaisesRegex(SpillwayError, "no pretended device"):
            record(lambda: None, "cpu", assume={"train.py:31": 1})


class ValuesTest(unittest.TestCase):
    def test_tensors_of_the_host_have_their_values(self):
        def step():
            layers = sum(torch.rand([]).item() >= 0 for _ in range(4))
            lengths = torch.randint(2, 6, (4,))
            mask = torch.arange(8) < lengths[:, None]
            counted = int(mask.sum())
            shapes.append((layers, noise(counted).shape[0], noise(4, 8)[mask.cuda()].shape[0]))

        shapes = []
        names_of(step)
        for layers, counted, selected in shapes:
            self.assertEqual((layers, counted), (4, selected))
            self.assertTrue(8 <= counted <= 20)

    def test_random_whole_numbers_are_drawn(self):
        def step():
            words = torch.randint(0, 50, (4, 16), device="cuda")
            words[:, 12:] = 0
            mask = (words != 0)
            self.assertFalse(mask.all())
            kept.append(int(mask.sum()))
            permuted = torch.randperm(16, device="cuda")
            self.assertEqual(sorted(permuted.tolist()), list(range(16)))

        kept = []
        state = torch.get_rng_state()
        names_of(step)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))
        self.assertTrue(all(30 < count <= 48 for count in kept))

    def test_products_of_groups_one_after_another(self):
        x, w = (lambda: noise(12, 8).requires_grad_()), (lambda: noise(3, 8, 16).requires_grad_())

        def step(ends):
            torch._grouped_mm(x(), w(), offs=ends()).sum().backward()

        names = names_of(lambda: step(lambda: torch.tensor([4, 6, 12], dtype=torch.int32, device="cuda")))
        self.assertEqual(names.count("mm"), 9)
        unknown = lambda: noise(3).argsort().int()  # noqa: E731
        with self.assertLogs("spillway_torch", "WARNING") as logs:
            made = record(lambda: step(unknown), GPU)
        self.assertEqual([op.attributes["rows"] for op in made.operators if op.name == "aten::mm"][:3], [4, 4, 4])
        self.assertIn("products of torch.float32 in groups, one after another, gave groups of equal sizes at numbers_test.py", logs.output[0])
        line = step.__code__.co_firstlineno + 1
        made = record(lambda: step(unknown), GPU, assume={f"numbers_test.py:{line}": [4, 6, 12]})
        self.assertEqual([op.attributes["rows"] for op in made.operators if op.name == "aten::mm"][:3], [4, 2, 6])


class TypesTest(unittest.TestCase):
    def test_operands_of_different_types(self):
        half, single = (lambda *s: noise(*s, dtype=torch.bfloat16)), noise
        for call in (lambda a, b: a(4, 4) @ b(4, 4), lambda a, b: F.linear(a(2, 3, 4), b(4, 4), b(4)), lambda a, b: F.linear(a(2, 4), a(4, 4), b(4)),
                     lambda a, b: torch.bmm(a(2, 4, 4), b(2, 4, 4)), lambda a, b: F.conv2d(a(1, 3, 8, 8), b(3, 3, 3, 3)),
                     lambda a, b: F.conv2d(a(1, 3, 8, 8), a(3, 3, 3, 3), b(3)), lambda a, b: F.conv_transpose2d(a(1, 3, 8, 8), b(3, 3, 3, 3)),
                     lambda a, b: F.scaled_dot_product_attention(a(1, 2, 4, 8), b(1, 2, 4, 8), b(1, 2, 4, 8)),
                     lambda a, b: a(4).index_put_((torch.zeros(1, dtype=torch.long, device="cuda"),), b(1)),
                     lambda a, b: a(4).index_add_(0, torch.zeros(1, dtype=torch.long, device="cuda"), b(1)),
                     lambda a, b: F.embedding(a(4), b(4, 4)), lambda a, b: a(4).index_select(0, b(2)), lambda a, b: F.layer_norm(single(2, 4), (4,), half(4), half(4))):
            for a, b in ((half, single), (single, half)):
                with self.assertRaisesRegex(RuntimeError, r"numbers_test.py:\d+\): expected .*dtype|should be the same"):
                    names_of(lambda call=call, a=a, b=b: call(a, b))
                self.assertTrue(names_of(lambda a=a: noise(4, 4).to(a(1).dtype) @ a(4, 4)))

    def test_autocast_casts_them(self):
        def step():
            with torch.autocast("cuda", torch.bfloat16):
                (noise(4, 4) @ noise(4, 4, dtype=torch.bfloat16)).add(noise(4, 4))

        self.assertIn("mm", names_of(step))


if __name__ == "__main__":
    unittest.main()
