"""Published modifications of attention in the emulator: right values, no race, no hang.

    python bench/flex.py [--target sm_100a] [--seqlen-q 300] [--seqlen-k 333] [--backward] [NAME …]

Each is compiled and run once, a minute and more on one core; without names, all twenty.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fa4gen.bench.runner.modifications import MODIFICATIONS, Sizes
from fa4gen.target import TARGETS
from tests.flex.emulated import run, run_backward


def main() -> int:
    """Runs what is asked for; 1 where any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODIFICATIONS))
    parser.add_argument("--target", default="sm_100a", choices=list(TARGETS))
    parser.add_argument("--seqlen-q", type=int, default=300)
    parser.add_argument("--seqlen-k", type=int, default=333)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--backward", action="store_true", help="gradients instead")
    given = parser.parse_args()
    runs = run_backward if given.backward else run
    x = Sizes(batch=1, heads=2, seqlen_q=given.seqlen_q, seqlen_k=given.seqlen_k)
    wrong = 0
    for name in given.names or MODIFICATIONS:
        begin = time.perf_counter()
        ran = runs(given.target, x, *MODIFICATIONS[name](x), head_dim=given.head_dim)
        fine = ran.right and not ran.report.faulty
        wrong += not fine
        r = ran.report
        found = f"{len(r.races)} races, {len(r.faults)} faults, {'a' if r.deadlock else 'no'} hang"
        seconds = time.perf_counter() - begin
        word = "right" if fine else "WRONG"
        print(f"{name} ({given.target}) {word}: {ran.said}; {found}; {seconds:.0f} s", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
