"""Compiled models in a budget, on each of two processes under DistributedDataParallel."""

import json
import logging
import os
import sys
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compiled_test import Block, Branches, Layers, by_operators, saved_bytes
from distributed_fit_test import results
from spillway_torch import fit

WIDTH, ROWS = 128, 512
BYTES = 4 * (2 * 4 * WIDTH * WIDTH + 7 * WIDTH) * 4  # of the parameters of four blocks, and of their buckets
STEPS = 5


def inner(model, **options):
    return DistributedDataParallel(torch.compile(model), bucket_cap_mb=1, **options)


def in_place(model):
    run = DistributedDataParallel(model, bucket_cap_mb=1)
    run.module.compile()
    return run


def outer(model):
    return torch.compile(DistributedDataParallel(model, bucket_cap_mb=1))


def blocks(model):
    return DistributedDataParallel(Branches(*model), bucket_cap_mb=1)


CASES = {"inner": inner, "views": lambda model: inner(model, gradient_as_bucket_view=True), "blocks": blocks}
if os.environ.get("SPILLWAY_SLOW"):
    CASES |= {"in place": in_place, "outer": outer, "lengths": inner}


# ---- one process of two ----

def train(name, budget):
    """Returns losses, parameters, the most bytes that backward held in a step, what `fit` predicts, what the largest step takes by that, the
    nodes of graphs, and the bytes in use before the first step, and after its backward."""
    torch.compiler.reset()
    torch.manual_seed(0)
    run = CASES[name](Layers(*(Block(WIDTH, 0.1) for _ in range(4))))
    optimizer = torch.optim.AdamW(run.parameters(), lr=0.01)
    fitted = fit(run, optimizer, budget, **{"compile": "blocks"} if name == "blocks" else {})
    torch.manual_seed(1 + dist.get_rank())
    losses, held, in_use = [], [], [fitted._in_use()]
    for step in range(STEPS):
        rows = ROWS if name != "lengths" else (64, 96, 128, 200, 512)[(step + dist.get_rank()) % STEPS]
        given = torch.randn(rows, WIDTH)
        loss = run(given).square().mean()
        held.append(saved_bytes(loss, [given, *run.parameters()]))
        loss.backward()
        if step == 0:
            in_use.append(fitted._in_use())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    values = [p.detach().sum().item() for p in run.parameters()]
    nodes = [len(graph.joint.nodes) for graph in fitted._graphs]
    last, predicted = fitted._graphs[-1].step, fitted.stats()["predicted_bytes"]
    most = max(predicted, budget + fitted._most_over(last.events(), last.cuts[0].more) if last is not None else 0)
    fitted.remove()
    return losses, values, max(held), predicted, most, nodes, in_use


def work(rank, folder):
    """Prints, for each case, what the test asks for."""
    torch.set_num_threads(1)
    logging.getLogger("spillway_torch").setLevel(logging.ERROR)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(os.path.join(folder, "store"), 2))
    found = {}
    with by_operators():
        for name in CASES:
            free = train(name, 1 << 40)
            budget = int(0.9 * free[4])
            found[name] = {"budget": budget, "free": free, "within": train(name, budget)}
    print(json.dumps(found))
    dist.destroy_process_group()


# ---- the tests ----

class RanksTest(unittest.TestCase):
    def cases(self):
        return [(rank, name, case) for rank, found in enumerate(results(__file__)) for name, case in found.items()]

    def test_steps_have_their_results_and_save_less(self):
        for rank, name, case in self.cases():
            with self.subTest(name, rank=rank):
                losses, values, held, _, _, nodes, _ = case["free"]
                found, others, less, predicted, _, same, _ = case["within"]
                self.assertEqual((found, others, same), (losses, values, nodes))
                self.assertLessEqual(predicted, case["budget"])
                self.assertLess(less, held)

    def test_processes_keep_the_same_parameters(self):
        one, other = results(__file__)
        for name in CASES:
            self.assertEqual(one[name]["within"][1], other[name]["within"][1], name)
            self.assertNotEqual(one[name]["within"][0], other[name]["within"][0], name)  # their batches differ

    def test_graphs_are_divided_at_buckets(self):
        for _, name, case in self.cases():
            self.assertGreater(len(case["free"][5]), 1, name)

    def test_buckets_count(self):
        for _, name, case in self.cases():
            self.assertEqual(case["within"][6], [2 * BYTES, 3 * BYTES] if name != "views" else [2 * BYTES, 2 * BYTES], name)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in "01":
        work(int(sys.argv[1]), sys.argv[2])
    else:
        unittest.main()
