#!/usr/bin/env python3
"""Predicts every case of the recorded validations again, without a GPU, and compares them with the CSVs.

usage: experiments/evidence/validation/check_predictions.py SPILLWAY [CSV...]

CSV defaults to the files of FILES below, in the directory of this file. Prints each
cell that differs. The exit code is 1 if any cell differs.
"""

import csv
import io
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILES = ("allocators-h200.csv", "densenet-h200.csv", "h100.csv", "h200.csv", "joint-allocators-h200.csv",
         "joint-h200.csv", "joint-others-h200.csv", "micro-h200.csv", "mmcnn-h200.csv", "superneurons-h200.csv",
         "vdnnpp-h200.csv")
COLUMNS = ("iteration_ms", "compute_ms", "stall_ms", "stall_fetch_ms", "stall_fence_ms", "stall_memory_ms",
           "stall_launch_ms", "stall_drain_ms", "peak_reserved_bytes", "peak_allocated_bytes", "offloaded_bytes",
           "prefetched_bytes", "pinned_peak_bytes")


def predict(spillway: str, setup: tuple, policies: list) -> list:
    workload, memory, allocator, preset, device, mode = setup
    command = [spillway, "compare", f"{workload},preset={preset},mode={mode}", "--memory", f"{memory}B" if memory else "unlimited",
               "--allocator", allocator, "--device", device, "--format", "csv", "--quiet"]
    for policy in policies:
        command += ["--policy", policy]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode > 1:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return list(csv.DictReader(io.StringIO(result.stdout, newline="")))


def differences(spillway: str, path: pathlib.Path):
    with open(path, newline="", encoding="utf-8") as stream:
        cases = list(csv.DictReader(stream))
    groups = {}
    for case in cases:
        setup = *(case[name] for name in ("workload", "memory_bytes", "allocator", "preset", "device")), case.get(
            "mode", "training")
        groups.setdefault(setup, []).append(case)
    for setup, group in groups.items():
        rows = predict(spillway, setup, [case["policy"] for case in group])
        for case, row in zip(group, rows, strict=True):
            where = f"{path.name}: {case['workload']} {case['policy']} {case['memory_bytes']}"
            if case["status"] != row["status"]:
                yield f"{where}: status was {case['status']}, is {row['status']}"
            for name in COLUMNS:
                before = case.get(f"predicted_{name}", "")
                if before and before != row[name]:
                    yield f"{where}: {name} was {before}, is {row[name]}"


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    files = [pathlib.Path(name) for name in sys.argv[2:]] or [HERE / name for name in FILES]
    found = [line for path in files for line in differences(sys.argv[1], path)]
    print("\n".join(found) or "every prediction is as recorded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
