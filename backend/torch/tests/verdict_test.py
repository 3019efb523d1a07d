"""Tests `Step.fit`: its rows are those of the program, which has to be there."""

import json
import tempfile
import unittest

import torch
from spillway_torch import ProgramError, pretend, record
from spillway_torch.base.program import run_program

import cases


class FitTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with pretend("cuda:sm_90"):
            model, step = cases.mlp("cuda", optimizer=torch.optim.AdamW)
            cls.recording = record(step, "cuda:sm_90", model=model, name="mlp", batch=16)

    def test_a_step_that_fits_has_one_row_a_device(self):
        rows = self.recording.fit(["h200", "rtx4090"])
        self.assertEqual([(row.device, row.change, row.fits, row.slowdown) for row in rows],
                         [("h200", "none", True, 1), ("rtx4090", "none", True, 1)])
        self.assertTrue(all(row.host_bound and row.iteration_ms == row.fastest_host_ms < row.slowest_host_ms for row in rows))
        self.assertEqual(rows[0].peak_requested_bytes, self.recording.peak_requested)
        for holders in (rows[0].peak_blocks, rows[0].peak_layers):
            self.assertEqual(sum(holder.requested_bytes for holder in holders), rows[0].peak_requested_bytes)

    def test_the_rows_are_those_of_the_program(self):
        peak = self.recording.fit("h200")[0].peak_reserved_bytes
        memory = peak - (1 << 21)
        rows = self.recording.fit("h200", memory=memory, batch="2x", outside="1KiB")
        self.assertFalse(rows[0].fits)
        self.assertIn("out of device memory", rows[0].reason)
        self.assertEqual({row.batch for row in rows if row.change == "none"}, {32})
        self.assertNotIn("policy", {row.change for row in rows})
        for row in rows[1:]:
            if row.python is not None:  # those of research have none
                compile(row.python, row.remedy, "exec")
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            self.recording.write(file.name)
            text = run_program("fit", file.name, "--device", "h200", "--memory", f"{memory}B", "--batch", "32", "--outside",
                               "1024B", "--format", "json", "--policy", "as-recorded")
        for row, other in zip(rows, json.loads(text)["rows"], strict=True):
            self.assertEqual({key: getattr(row, key) for key in ("change", "remedy", "status", "iteration_ms", "margin_bytes")},
                             {key: other[key] for key in ("change", "remedy", "status", "iteration_ms", "margin_bytes")})

    def test_a_model_that_is_built_in_fp32_and_cast(self):
        def recording(build):
            with pretend("cuda:sm_90"):
                model = build(torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(16))))
                model.requires_grad_(False)[0].requires_grad_()

                def step():
                    model(torch.randn(64, 2048, device="cuda", dtype=torch.bfloat16)).sum().backward()

                return record(step, "cuda:sm_90", model=model, name="cast")

        first, build, *_ = recording(lambda model: model.cuda().bfloat16()).fit("h200", memory="250MiB")
        self.assertRegex(first.reason, "^its construction, before the first step, takes .* at once, of 250 MiB that there are: build it in "
                                       "bf16, or on the CPU$")
        self.assertEqual((build.change, build.remedy, build.fits), ("construction", "build in bf16 or on the CPU", True))
        self.assertIn("set_default_dtype(torch.bfloat16)", build.python)
        # The remedy holds.
        self.assertTrue(recording(lambda model: model.bfloat16().cuda()).fit("h200", memory="250MiB")[0].fits)

    def test_changed_steps_are_as_they_are_recorded(self):
        def recording(parts=1, dtype=torch.float32):
            with pretend("cuda:sm_90"):
                layers = [layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
                model = torch.nn.Sequential(*layers).to("cuda", dtype)
                optimizer = torch.optim.AdamW(model.parameters())

                def run(part):
                    (model(part).square().mean() / parts).backward()

                def step():
                    data = torch.randn(1 << 17, 64, device="cuda", dtype=dtype)
                    optimizer.zero_grad()
                    for part in data.chunk(parts):
                        run(part)
                    optimizer.step()

                return record(step, "cuda:sm_90", model=model, name="steps", batch=1 << 17)

        whole = recording()
        rows = {row.change: row for row in whole.fit("h200", memory=whole.peak_requested * 3 // 4)}
        self.assertTrue(rows["micro-batches"].fits)
        parts = int(rows["micro-batches"].remedy.split()[0])
        self.assertEqual(rows["micro-batches"].peak_requested_bytes, recording(parts).peak_requested)
        bf16 = recording(dtype=torch.bfloat16)
        self.assertAlmostEqual(rows["bf16"].peak_requested_bytes, bf16.peak_requested, delta=16)  # scalars

    def test_autocast_is_as_it_is_recorded(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.one, self.two = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

            def forward(self, x):
                return x + torch.nn.functional.dropout(self.two(torch.nn.functional.gelu(self.one(self.norm(x)))))

        def recording(autocast, dtype=torch.float32):
            with pretend("cuda:sm_90"):
                model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(64, 64)).to("cuda", dtype)
                optimizer = torch.optim.AdamW(model.parameters())

                def step():
                    optimizer.zero_grad()
                    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                        loss = model(torch.randn(1 << 15, 64, device="cuda", dtype=dtype)).float().square().mean()
                    loss.backward()
                    optimizer.step()

                return record(step, "cuda:sm_90", model=model, name="steps", batch=1 << 15)

        plain = recording(False)
        rows = {row.change: row for row in plain.fit("h200", memory="64MiB")}
        self.assertAlmostEqual(rows["autocast"].peak_requested_bytes, recording(True).peak_requested, delta=16)  # scalars
        self.assertLess(rows["autocast"].peak_requested_bytes, 0.8 * plain.peak_requested)
        for other in (recording(True), recording(False, torch.bfloat16)):
            self.assertNotIn("autocast", {row.change for row in other.fit("h200", memory="64MiB")})

    def test_the_largest_batch_and_length(self):
        def recording(batch, length):
            with pretend("cuda:sm_90"):
                model = torch.nn.Linear(64, 4096, device="cuda")

                def step():
                    model(torch.randn(batch, length, 64, device="cuda")).square().mean().backward()

                return record(step, "cuda:sm_90", model=model, name="linear", batch=batch)

        small = recording(2, 16)
        for quantity, other, shape in (("batch", recording(3, 16), lambda value: (value, 16)),
                                       ("length", recording(2, 24), lambda value: (2, value))):
            first, *others = small.largest(quantity, other, "h200", memory="1GiB")
            self.assertEqual((first.vary, first.change, first.next), (quantity, "none", first.limit + 1))
            self.assertIn("expandable segments", {row.remedy for row in others})
            self.assertEqual(first.peak_requested_bytes, recording(*shape(first.limit)).peak_requested)
            self.assertEqual([recording(*shape(value)).fit("h200", memory="1GiB")[0].fits for value in (first.limit, first.next)],
                             [True, False])
        with self.assertRaisesRegex(ProgramError, "two recordings of one program"):
            small.largest("length", device="h200")

    def test_wrong_arguments_are_the_programs_errors(self):
        for arguments, message in (({"device": "h2000"}, "did you mean 'h200'"), ({"memory": "3 apples"}, "memory"),
                                   ({"batch": "0.3x"}, "4.8 samples of 16")):
            with self.subTest(**arguments), self.assertRaisesRegex(ProgramError, message):
                self.recording.fit(**{"device": "h200", **arguments})


if __name__ == "__main__":
    unittest.main()
