"""Runs windows, soft-capping, ALiBi and sinks in the emulator, alone and together.

    python bench/features.py [MEMBER...] [--features window,softcap+alibi,...] [--json FILE]

A member is SCHEDULE:HEAD_DIM[:causal]; without any, head dims 64, 128 and 256 of both families,
full and causal. Windows are of every kind: one-sided, empty, larger than the keys, beside the
query's own place, leaving rows without keys. Exit code 0: all values right, no race, no hang.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from fa4gen.emulate import Emulated, emulate

ROOT = Path(__file__).parents[1]
MEMBERS = tuple(
    f"{family}:{d}{mask}"
    for family in ("fwd_sm90", "fwd")
    for d in (64, 128, 256)
    for mask in ("", ":causal")
)
FEATURES = (
    *("window", "softcap", "alibi", "sinks"),
    *("window+sinks", "softcap+alibi", "window+softcap+alibi+sinks"),
)
WINDOWS = (
    *((100, 0), (0, 0), (None, 0), (37, None), (None, 50), (1000, 1000), (130, 70), (0, 128)),
    *((-40, 90), (90, -40), (-20, 10), (None, -30), (255, 0), (64, None), (None, None), (0, None)),
)
PAIRS = ((300, 500), (129, 129), (77, 391), (391, 77), (1, 260), (257, 255))
CAPS = (30.0, 5.0, 50.0)


def runs(member: str, features: str) -> Iterator[Emulated]:
    """Every window, or every pair of lengths where there is none."""
    name, d, *mask = member.split(":")
    settings = {"head_dim": d, "head_dim_v": d, "causal": str(bool(mask)).lower()}
    settings |= dict.fromkeys(features.split("+"), "true")
    windows = WINDOWS if "window" in features else (None,) * len(PAIRS)
    for n, (window, (sq, sk)) in enumerate(
        zip(windows, islice(cycle(PAIRS), len(windows)), strict=True)
    ):
        yield emulate(
            ROOT / "schedules" / f"{name}.yaml",
            settings=settings,
            batch=1 + n % 2,
            heads=2,
            heads_kv=1,
            seqlen_q=sq,
            seqlen_k=sk,
            window=window,
            softcap=CAPS[n % 3] if "softcap" in features else None,
            seed=n,
            races=n % 3 == 0,
            num_sms=1 + n % 2,
        )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("members", nargs="*", default=MEMBERS)
    parser.add_argument("--features", default=",".join(FEATURES))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for member in args.members:
        for features in args.features.split(","):
            started, done = time.perf_counter(), []
            for one in runs(member, features):
                done.append(one)
                if not one.ok:
                    print(one, flush=True)
            worst = max(
                v.max_error / max(v.plain_max_error, 1e-9) for o in done for v in o.verdicts[:1]
            )
            print(
                f"{member} {features}: {sum(o.ok for o in done)} of {len(done)} right, no fault; "
                f"largest error at most {worst:.2f} of plain PyTorch's; "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )
            rows += done
    print(f"{sum(o.ok for o in rows)} of {len(rows)} right, no race, no hang")
    if args.json:
        args.json.write_text(json.dumps([o.as_dict() for o in rows], indent=1) + "\n")
    return 0 if rows and all(o.ok for o in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
