"""Packs: folders of kernels built ahead of time, for machines without the DSL and a compiler.

    pack.json       what each kernel serves, the hash of its file, the toolchain that made it
    NAME.so         shared objects; they need tvm_ffi and NVIDIA's runtime library, not in here

Loading one runs its machine code: load packs only from where you would install programs.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import Fa4genError, error

from .cache import toolchain
from .dispatch import Candidate
from .problem import Problem

FORMAT = 1
MANIFEST = "pack.json"
FIELDS = {"name": str, "file": str, "sha256": str, "dtype": str, "causal": bool}
FIELDS |= {"head_dim": int, "head_dim_v": int, "features": list}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A kernel that was compiled, for a pack."""

    name: str
    problem: Problem
    shared_object: Path


def write_pack(folder: Path, kernels: Sequence[Built], version: str) -> Path:
    """Writes a pack (new, or over an older one), whole or not at all; returns the folder.

    Raises FA0811: nothing to pack, two targets, a folder that holds something else.
    """
    targets = sorted({k.problem.target for k in kernels})
    if len(targets) != 1:
        raise error("FA0811", f"a pack is for one target, not for {', '.join(targets) or 'none'}")
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise error(
            "FA0811", f"`{folder}` is neither empty nor a pack", fix="name a new folder: -o DIR"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        entries = [_add(work, k) for k in kernels]
        about = {"format": FORMAT, "fa4gen": version, "toolchain": toolchain()}
        manifest = {"about": about, "target": targets[0], "kernels": entries}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        work.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)  # noqa: PTH105 - a folder takes the place of none or an empty one
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _add(work: Path, built: Built) -> dict[str, object]:
    file = f"{built.name}.so"
    data = built.shared_object.read_bytes()
    (work / file).write_bytes(data)
    p = built.problem
    return {
        "name": built.name,
        "file": file,
        "sha256": hashlib.sha256(data).hexdigest(),
        "dtype": p.dtype,
        "head_dim": p.head_dim,
        "head_dim_v": p.head_dim_v,
        "causal": p.causal,
        "features": list(p.features),
    }


def read_pack(folder: Path) -> tuple[Candidate, ...]:
    """The kernels of a pack, every file compared with its hash. Raises FA0811."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        form, target = manifest["about"]["format"], manifest["target"]
        entries = list(manifest["kernels"])
    except FileNotFoundError:
        raise error(
            "FA0811", f"`{folder}` is no pack: it has no {MANIFEST}", fix="`fa4gen pack -o DIR`"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise _damaged(folder, f"{MANIFEST} cannot be read: {problem}") from problem
    if form != FORMAT:
        raise _damaged(folder, f"its format is {form}, this version reads {FORMAT}")
    if not isinstance(target, str) or not entries:
        raise _damaged(folder, "it names no target or no kernels")
    return tuple(_candidate(folder, target, e) for e in entries)


def _candidate(folder: Path, target: str, entry: object) -> Candidate:
    if not isinstance(entry, dict) or any(type(entry.get(k)) is not t for k, t in FIELDS.items()):
        raise _damaged(folder, f"{MANIFEST} has an entry that is not one: {str(entry)[:80]}")
    path = folder / entry["file"]
    if path.parent != folder:
        raise _damaged(folder, f"`{entry['file']}` is outside of it")
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise _damaged(folder, f"`{entry['file']}`: {problem.strerror}") from problem
    if found != entry["sha256"]:
        raise _damaged(folder, f"`{entry['file']}` has another hash than when it was made")
    return Candidate(
        name=entry["name"],
        target=target,
        dtypes=(entry["dtype"],),
        head_dims=(entry["head_dim"],),
        head_dims_v=(entry["head_dim_v"],),
        causal=(entry["causal"],),
        features=tuple(entry["features"]),
        origin=str(path),
        shared_object=str(path.absolute()),
    )


def _damaged(folder: Path, why: str) -> Fa4genError:
    return error(
        "FA0811", f"the pack `{folder}` is damaged: {why}", fix="copy it again, or make it again"
    )
