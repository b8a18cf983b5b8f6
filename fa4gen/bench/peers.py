"""Peers' kernels that were compiled elsewhere: what a shared object serves, by its file's name.

`fa4_sm_90a_d128_dv128_full[_gqa8].so` is FlashAttention-4 (PyPI: flash-attn-4) for that target,
head dimensions and mask, bf16, with that ratio of query heads to KV heads (1 unless named).
`bench/compile_peer.py` makes them. Their calls take more arguments than ours; these stay absent.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from fa4gen.diag import error

NAME = re.compile(r"fa4_(sm_\w+?)_d(\d+)_dv(\d+)_(full|causal)(?:_gqa(\d+))?")
TENSORS = ("q", "k", "v", "o", "lse", "softmax_scale")
ABSENT = (None, None)
CALLS: dict[str, tuple[object, ...]] = {  # of flash-attn-4 4.0.0b36
    "sm_90a": (*TENSORS, *[None] * 9, ABSENT, *[None] * 2),
    "sm_100a": (*TENSORS, *[None] * 10, ABSENT, *[None] * 7, "max_seqlen_q"),
}


def peers(folder: Path, target: str) -> Iterator[dict[str, object]]:
    """Fields of a kit's kernel for each of the peer's shared objects for `target` in a folder.

    Raises `Fa4genError` FA0709 for a target whose call is not known.
    """
    if target not in CALLS:
        raise error("FA0709", f"no peer is known for `{target}`", fix=f"one of {', '.join(CALLS)}")
    for file in sorted(folder.glob("*.so")):
        m = NAME.fullmatch(file.stem)
        if m is None or m[1] != target:
            continue
        ratio = int(m[5] or 1)
        head_dim, head_dim_v = int(m[2]), int(m[3])
        dims = f"d{head_dim}" if head_dim == head_dim_v else f"d{head_dim},{head_dim_v}"
        yield {
            "name": f"fa4_{dims}_{m[4]}" + (f"_gqa{ratio}" if ratio > 1 else ""),
            "shared_object": file,
            "target": target,
            "dtype": "bfloat16",
            "head_dim": head_dim,
            "head_dim_v": head_dim_v,
            "causal": m[4] == "causal",
            "gqa_ratio": ratio,
            "arguments": CALLS[target],
            "peer": True,
        }
