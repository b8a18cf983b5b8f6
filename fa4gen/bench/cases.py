"""The problems that the benchmark checks and times, as plain data for the manifest of a kit.

A case is a dictionary: `kind` (check, time, host), `name`, `dtype`, `head_dim`, `head_dim_v`,
`causal`, `batch`, `heads`, `heads_kv`, `seqlen_q`, `seqlen_k`, and where they differ from the plain
case `layout` (how the tensors lie in memory) and `spread` (a factor on the queries: large scores
make the running maximum move, so that rescaling is exercised).
"""

from collections.abc import Iterable

Case = dict[str, object]

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 1000, 1025, 4096)  # about a tile and its halves
UNEQUAL = (
    *((1, 2), (1, 129), (1, 4096), (2, 1), (63, 65), (64, 128), (65, 63), (100, 1025)),
    *((127, 129), (128, 64), (128, 129), (129, 127), (129, 128), (200, 3000), (256, 255)),
    *((257, 511), (511, 257), (1000, 1), (1000, 65), (1000, 1025), (1025, 1000), (1025, 2048)),
    *((3000, 200), (4096, 1)),
)
RATIOS = ((4, 4), (6, 2), (8, 2), (7, 1), (16, 2), (32, 1))  # heads of Q, of K
LAYOUTS = ("contiguous", "heads_first", "sequence_first", "padded_rows")
GROUPED = (
    "bfloat16",
    128,
    128,
    True,
)  # what shared heads of K and V are timed for, and tile orders
TIMED_TOKENS, TIMED_HEADS = 32768, 16  # a batch, as published comparisons have it


def check_shapes() -> list[Case]:
    """The 68 shapes of the correctness run: lengths, unequal pairs, head ratios, strides."""
    lengths = [(n, n) for n in LENGTHS] * 2
    ratios = [pair for pair in ((129, 129), (333, 700)) for _ in RATIOS]
    layouts = [pair for pair in ((128, 256), (300, 190), (77, 1000)) for _ in LAYOUTS]
    shapes: list[Case] = []
    for n, (sq, sk) in enumerate([*lengths, *UNEQUAL, *ratios, *layouts]):
        heads, heads_kv = RATIOS[n % len(RATIOS)]
        shapes.append(
            {
                "batch": 1 if sq * sk > 1 << 22 else 1 + n % 3,
                "heads": heads,
                "heads_kv": heads_kv,
                "seqlen_q": sq,
                "seqlen_k": sk,
                "layout": LAYOUTS[(n + n // 4) % len(LAYOUTS)],
                "spread": 8.0 if n % 5 == 4 else 1.0,
            }
        )
    return shapes


def timed_shapes(lengths: Iterable[int] = (1024, 4096, 16384)) -> list[Case]:
    """The shapes that are timed: 16 heads, 32 k tokens a batch."""
    return [
        {
            "batch": max(1, TIMED_TOKENS // n),
            "heads": TIMED_HEADS,
            "heads_kv": TIMED_HEADS,
            "seqlen_q": n,
            "seqlen_k": n,
        }
        for n in lengths
    ]


def grouped_shapes(length: int = 8192) -> list[Case]:
    """Shapes whose tiles differ in how their heads share K and V: MHA, GQA 64/8, MQA."""
    heads = ((16, 16), (64, 8), (16, 1))
    return [
        {
            "batch": max(1, TIMED_TOKENS * TIMED_HEADS // (n * length)),
            "heads": n,
            "heads_kv": kv,
            "seqlen_q": length,
            "seqlen_k": length,
        }
        for n, kv in heads
    ]


WINDOWS = (
    *((100, 0), (0, 0), (None, 40), (37, None), (1000, 1000), (130, 70), (0, 128), (-40, 90)),
    *((90, -40), (None, -30), (255, 0), (1023, 0)),
)
CAPS = (30.0, 5.0, 50.0)


def feature_cases(kernel: Case) -> list[Case]:
    """Twelve shapes for a kernel with features, with other values in each; a window is timed."""
    features = set(kernel["features"])  # type: ignore[call-overload]
    head = {k: kernel[k] for k in ("dtype", "head_dim", "head_dim_v", "causal")}
    shapes = [s for s in check_shapes() if s["seqlen_k"] != 1][::5][: len(WINDOWS)]
    timed = [("time", s) for s in timed_shapes((16384,))] if features == {"window"} else []
    found = []
    for n, (kind, shape) in enumerate([*(("check", s) for s in shapes), *timed]):
        case: Case = {"kind": kind, **head, **shape}
        window = WINDOWS[min(n, len(WINDOWS) - 1)]  # a timing has the last
        case |= {"window": list(window)} if "window" in features else {}
        case |= {"softcap": CAPS[n % 3]} if "softcap" in features else {}
        case |= {name: True for name in ("alibi", "sinks") if name in features}
        found.append({"name": case_name(case), **case})
    return found


HOST_SHAPES: tuple[Case, ...] = (
    {"batch": 1, "heads": 2, "heads_kv": 2, "seqlen_q": 128, "seqlen_k": 128},  # no device time
)


def cases(kernels: Iterable[Case]) -> list[Case]:
    """All cases for what these kernels (entries of a manifest) serve, in a fixed order."""
    kernels = list(kernels)
    served = sorted(
        {
            (k["dtype"], k["head_dim"], k["head_dim_v"], k["causal"])
            for k in kernels
            if not k.get("features")
        },
        key=repr,
    )
    found: list[Case] = [c for k in kernels if k.get("features") for c in feature_cases(k)]
    for kind, shapes in (
        ("check", check_shapes()),
        ("time", timed_shapes()),
        ("host", list(HOST_SHAPES)),
    ):
        for dtype, head_dim, head_dim_v, causal in served:
            grouped = kind == "time" and (dtype, head_dim, head_dim_v, causal) == GROUPED
            for shape in [*shapes, *(grouped_shapes() if grouped else ())]:
                case: Case = {
                    "kind": kind,
                    "dtype": dtype,
                    "head_dim": head_dim,
                    "head_dim_v": head_dim_v,
                    "causal": causal,
                    **shape,
                }
                found.append({"name": case_name(case), **case})
    return found


def case_name(case: Case) -> str:
    """A name that says what differs: `bfloat16 d128 causal b2 h8:2 129x127 padded_rows x8`."""
    d, dv = case["head_dim"], case["head_dim_v"]
    words = [
        str(case["dtype"]),
        f"d{d}" if d == dv else f"d{d},{dv}",
        "causal" if case["causal"] else "full",
        f"b{case['batch']}",
        f"h{case['heads']}:{case['heads_kv']}",
        f"{case['seqlen_q']}x{case['seqlen_k']}",
    ]
    words += [str(case["layout"])] if case.get("layout", "contiguous") != "contiguous" else []
    words += [f"x{case['spread']:g}"] if case.get("spread", 1.0) != 1.0 else []
    words += [f"window{case['window']}".replace(" ", "")] if case.get("window") else []
    words += [f"softcap{case['softcap']:g}"] if case.get("softcap") else []
    words += [name for name in ("alibi", "sinks") if case.get(name)]
    return " ".join(words)
