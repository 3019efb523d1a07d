"""Records the times of single operators on this machine's GPU, as a table for `spillway`.

The table is a trace (traces/FORMAT.md) of operators in many sizes, each of which stands in it once, with the median of
its times. It predicts the times of steps that were recorded without a GPU. --family records only these families of
operators, and --like the operators of recorded steps instead. --add-to writes those that a table lacks behind the
operators that it has. --small tries the recorder with a tiny grid; it also runs without a GPU, and the times are then 0.

Exit codes: 0 if the table was written; 2 for bad usage; 3 for bad input; 5 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Optional

import torch

from ..base.document import write_document
from ..base.errors import SpillwayError
from . import record_operators
from .families import FAMILIES
from .joined import joined


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spillway_torch.operators", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, metavar="FILE",
                        help="the table; the ending .zst compresses it")
    parser.add_argument("--family", action="append", choices=list(FAMILIES), metavar="NAME",
                        help=f"only these operators: {', '.join(FAMILIES)}")
    parser.add_argument("--like", action="append", default=[], metavar="TRACE", help="the operators of a recorded step")
    parser.add_argument("--add-to", metavar="TABLE", help="a table of the same GPU, whose operators the file has first, as they are")
    parser.add_argument("--small", action="store_true", help="a tiny grid, for a trial")
    arguments = parser.parse_args(argv)
    if not (arguments.small or torch.cuda.is_available()):
        print("operators: this machine has no GPU that PyTorch can use; --small tries the recorder without one",
              file=sys.stderr)
        return 5
    try:
        recording = record_operators(arguments.family, like=arguments.like, small=arguments.small)
        table = recording.trace()
        write_document(joined(arguments.add_to, table) if arguments.add_to else table, arguments.output)
    except (SpillwayError, OSError) as error:
        print(f"operators: {error}", file=sys.stderr)
        return 3
    device = recording.measured.device
    print(f"{arguments.output}: {len(table['ops'])} operators{f' of {device}' if device else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
