"""The command line's verbs of the runtime: `pack`, and `cache list|clear|path`."""

import argparse
import json
from datetime import datetime

from fa4gen.diag import error
from fa4gen.options import Options
from fa4gen.runtime.cache import Cache


def pack_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `fa4gen pack`."""
    parser.add_argument("--target", required=True, help="sm_90a, sm_100a, ...")
    parser.add_argument(
        "--head-dims", default="64,128", metavar="D,…", help="64,128 or 192x128 (Q and K x V)"
    )
    parser.add_argument("--dtypes", default="bf16,fp16", metavar="T,…", help="bf16, fp16")
    parser.add_argument(
        "--schedules", nargs="*", default=[], metavar="FILE", help="before the shipped ones"
    )
    parser.add_argument(
        "--features", default="", metavar="LIST", help="also with these: window,window+sinks"
    )
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="compilers side by side")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the pack's folder")


def pack(given: argparse.Namespace) -> int:
    """Builds a pack, and says how to use it."""
    import logging
    from contextlib import nullcontext

    from .ahead import make_pack
    from .session import use_schedule

    logging.basicConfig(level=logging.INFO, format="%(message)s")  # minutes: say how far it is
    with use_schedule(*given.schedules) if given.schedules else nullcontext():
        names = make_pack(
            given.out,
            target=given.target,
            head_dims=[_widths(text) for text in given.head_dims.split(",")],
            dtypes=given.dtypes.split(","),
            features=[(), *(f.split("+") for f in given.features.split(",") if f)],
            workers=given.jobs,
        )
    for name in names:
        print(name)
    print(f"{len(names)} kernels for {given.target}: fa4gen.load({given.out!r}) there")
    print("that machine needs torch, apache-tvm-ffi and NVIDIA's nvidia-cutlass-dsl-libs-cu13")
    return 0


def _widths(text: str) -> tuple[int, int]:
    first, _, second = text.strip().partition("x")
    if not first.isdigit() or not (second or first).isdigit():
        raise error("FA0112", f"`--head-dims` has `{text}`", fix="write 64,128 or 192x128")
    return int(first), int(second or first)


def cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `fa4gen cache`."""
    parser.add_argument("what", choices=("list", "clear", "path"))
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def cache(given: argparse.Namespace) -> int:
    """Lists or empties the disk cache, or says where it is."""
    options = Options.from_environment()
    if given.what == "path":
        print(options.cache_dir)
        return 0
    caches = [Cache(folder=options.cache_dir / part) for part in ("kernels", "emitted")]
    if given.what == "clear":
        gone = [key for one in caches for key in one.trim(0)]
        print(json.dumps({"removed": gone}) if given.json else f"{len(gone)} entries removed")
        return 0
    rows: list[dict[str, object]] = [
        {**e.about, "key": e.key, "bytes": e.size_bytes, "used": e.used}
        for e in caches[0].entries()
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        name, target, key = (str(row[k]) for k in ("name", "target", "key"))
        used = datetime.fromtimestamp(float(str(row["used"]))).isoformat(" ", "minutes")
        print(f"{name}  {target}  {row['bytes']} bytes  used {used}  {key[:12]}")
    print(f"{len(rows)} kernels in {caches[0].folder}")
    return 0
