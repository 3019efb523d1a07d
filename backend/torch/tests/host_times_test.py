"""Tests the host times of operators, measured and in recorded steps."""

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import tempfile
import unittest

import torch

import cases
from spillway_torch import SpillwayError, pretend, record
from spillway_torch.__main__ import main
from spillway_torch.step.host_times import HostTimes, calibrate_host, read_host, set_host_times

GPU = "cuda:sm_90"
SLOW = HostTimes(30e-6, 40e-6, 8e-6, 100e-6, 2e-6, 9e-6, "cpu")


class HostTest(unittest.TestCase):
    def test_it_measures_this_machine(self):
        times = calibrate_host("cpu")
        for name, seconds in dataclasses.asdict(times).items():
            if name != "device":
                self.assertLess(seconds, 5e-3, name)
        self.assertGreater(min(times.forward, times.backward, times.plain), 2e-7)

    def test_the_step_takes_what_its_operators_take(self):
        with pretend(GPU):
            model, step = cases.mlp("cuda", torch.optim.AdamW)
            recorded = record(step, GPU, model=model)
        self.assertEqual({o.host_ns for o in recorded.operators}, {0})
        set_host_times(recorded, SLOW)
        by_phase = {phase: [o.host_ns for o in recorded.operators if o.phase == phase] for phase in ("forward", "backward", "update")}
        self.assertEqual(set(by_phase["backward"]), {40000})
        self.assertEqual(set(by_phase["forward"]), {30000})
        self.assertEqual(max(by_phase["update"]), 100000 + 2000 * len(list(model.parameters())))
        with tempfile.TemporaryDirectory() as folder:
            SLOW.write(path := os.path.join(folder, "host.json"))
            self.assertEqual(read_host(path), SLOW)
            with pretend(GPU):
                model, step = cases.mlp("cuda", torch.optim.AdamW)
                again = record(step, GPU, model=model, host=path)
            self.assertEqual([o.host_ns for o in again.operators], [o.host_ns for o in recorded.operators])
            again.write(trace := os.path.join(folder, "t.json"))
            found = {}
            for name, workload in (("calibrated", trace), ("given", f"{trace},host=1us")):
                ran = subprocess.run([os.environ["SPILLWAY"], "run", workload, "--policy", "as-recorded", "--device", "h100", "--format", "json"],
                                     capture_output=True, text=True, check=False)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                found[name] = json.loads(ran.stdout)["rows"][0]["iteration_ms"]
            host = sum(o.host_ns for o in again.operators) / 1e6
            self.assertLess(abs(found["calibrated"] - host), 0.05 * host)
            self.assertLess(found["given"], 0.5 * host)

    def test_wrong_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for text in ("", "[]", "{}", '{"format": "spillway-host", "version": 2}',
                         '{"format": "spillway-host", "version": 1, "forward": 1.0}',
                         json.dumps({"format": "spillway-host", "version": 1, **dataclasses.asdict(SLOW), "tensor": -1.0})):
                path = os.path.join(folder, "host.json")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaisesRegex(SpillwayError, "host.json: no host times"):
                    record(lambda: None, GPU, host=path)
        with self.assertRaisesRegex(SpillwayError, "host: target 'cpu' is no pretended device"):
            record(lambda: None, "cpu", host="host.json")

    def test_the_command(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
            path = os.path.join(folder, "host.json")
            self.assertEqual(main(["calibrate-host", "-o", path, "--device", "cpu"]), 0)
            self.assertEqual(read_host(path).device, "cpu")
            with open(path, encoding="utf-8") as file:
                older = {name: value for name, value in json.load(file).items() if name != "plain"}
            with open(path, "w", encoding="utf-8") as file:
                json.dump(older, file)
            self.assertEqual(read_host(path).plain, 7e-6)
        self.assertRegex(out.getvalue(), r"forward +\d+\.\d us")
        self.assertRegex(out.getvalue(), r'update = "[\d.]+GB/s"')
        self.assertLess(float(re.search(r'"([\d.]+)GB/s"', out.getvalue())[1]), 2000)


if __name__ == "__main__":
    unittest.main()
