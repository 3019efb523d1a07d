#!/usr/bin/env python3
"""Records a step of PyTorch for Spillway: the program and the library of backend/torch, without installing it.

As a program: record_pytorch.py --help. As a library, for any step on this machine's GPU:

    from record_pytorch import record
    record(step, "gpt2", "recordings")       # step() takes no argument and runs one iteration, data included

Needs PyTorch 2.4 or later. Exits with 5 if PyTorch is missing.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "backend" / "torch"))
try:
    from spillway_torch.__main__ import main
    from spillway_torch.step.profile import profile as record  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    print("record_pytorch: PyTorch is missing (python3 -c 'import torch')", file=sys.stderr)
    sys.exit(5)

if __name__ == "__main__":
    sys.exit(main())
