"""The schedule language, version 1: every key, what it may hold, and what it means.

This table reads files and makes the JSON Schema. Meaning that spans several keys (who reads what,
whether it fits) is checked later, on the bound schedule.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fa4gen.dtypes import DTYPES, IO, IO_DTYPES
from fa4gen.ir.features import FEATURES
from fa4gen.ir.ops import KINDS, Kind

from . import phrases
from .expressions import Environment, nearest
from .reader import Map, Node, Scalar
from .schema import ENDS, STEPS, Anything, Fields, Key, ListOf, Phrase, Record, Table
from .shapes import Choice, Depth, Flag, Integer, Json, Name, Number, Shape

VERSION = 1
KERNELS = ("attention_forward", "attention_backward")
TILES = ("work_tiles", "key_tiles")
BLOCKS = ("kv_blocks", "block_list", "query_blocks", "query_list")
MASKS = ("full", "causal")
PROBLEM = ("head_dim", "head_dim_v", "dtype", "causal")
TILE_SCHEDULERS = (
    "single",
    "static_persistent",
    "lpt",
    "lpt_persistent",
    "dynamic",
    "lpt_dynamic",
    "clc",
    "lpt_clc",
    "spt",
)
OUTPUTS = ("lse",)  # global results that an operation may write without a buffer

_NAME = Name()
_ITEM = Name(pattern=rf"({phrases.NAME}\.)?{phrases.NAME}", what="a buffer, or `ring.item`")
_OPERAND = Name(
    pattern=rf"({phrases.NAME}\.)?{phrases.NAME}(\^T)?",
    what="a buffer, or `ring.item`; with `^T` behind it, taken transposed",
)
_TILE = Integer(low=1, high=1024)


@dataclass(frozen=True, slots=True)
class Values:
    """What a schedule may be built for: one value, a list, or multiples in a range."""

    item: Shape

    def read(self, node: Node, env: Environment) -> object:
        """A tuple; the first is what is built if nothing else is asked for."""
        if not isinstance(node, Map):
            return ListOf(item=self.item, or_one=True, high=64).read(node, env)
        fields = _RANGE.read(node, env)
        if not isinstance(fields, Fields) or any(fields.values.get(k) is None for k in _RANGE.keys):
            return None
        step, low, high, first = (int(str(fields.values[k])) for k in _RANGE.keys)
        found = [v for v in range(-(-low // step) * step, high + 1, step) if v != first]
        return (first, *found)

    def json(self) -> Json:
        """A value, a list of values, or a range."""
        several = ListOf(item=self.item, or_one=True, high=64).json()
        return {"anyOf": [several, _RANGE.json()]}


_HEAD_DIM = Integer(low=8, high=256)
_RANGE = Record(
    what="a range of head dims",
    keys={
        "multiple_of": Key(shape=Integer(low=8, high=256), doc="the step", required=True),
        "from": Key(shape=_HEAD_DIM, doc="the least", required=True),
        "to": Key(shape=_HEAD_DIM, doc="the largest", required=True),
        "default": Key(shape=_HEAD_DIM, doc="what is built if none is asked for", required=True),
    },
)


@dataclass(frozen=True, slots=True)
class TrueFalse:
    """A value of `causal`."""

    def read(self, node: Node, env: Environment) -> object:
        """The bool."""
        return Flag().read(node, env)

    def json(self) -> Json:
        """A boolean."""
        return {"type": "boolean"}


SERVES = Record(
    what="`serves`",
    keys={
        "head_dim": Key(shape=Values(_HEAD_DIM), doc="head dimension of Q and K", required=True),
        "head_dim_v": Key(
            shape=Values(_HEAD_DIM), doc="head dimension of V and O; left out: that of Q"
        ),
        "dtype": Key(shape=Values(Choice(IO_DTYPES)), doc="type of Q, K, V and O", required=True),
        "causal": Key(
            shape=Values(TrueFalse()), doc="with or without the causal mask", required=True
        ),
        "features": Key(
            shape=ListOf(item=Choice(tuple(FEATURES)), or_one=True),
            doc="what else it may be built with, each on or off",
        ),
    },
)

LEVELS = Record(
    what="`levels`",
    keys={
        "tile": Key(
            required=True,
            doc="the outer loop",
            shape=Record(
                what="the level `tile`",
                keys={
                    "over": Key(
                        shape=Choice(TILES),
                        doc="query tiles of all heads; key tiles of all heads of K and V",
                        required=True,
                    ),
                    "scheduler": Key(
                        shape=Choice(TILE_SCHEDULERS),
                        doc="which CTA takes which tile, and when",
                        required=True,
                    ),
                },
            ),
        ),
        "block": Key(
            required=True,
            doc="the inner loop",
            shape=Record(
                what="the level `block`",
                keys={
                    "over": Key(
                        shape=Choice(BLOCKS),
                        doc="blocks of keys, all that may count or those of a list in memory; "
                        "blocks of queries, of each head that shares the keys, likewise",
                        required=True,
                    ),
                    "order": Key(
                        shape=Choice(("descending", "ascending")),
                        doc="last block first, or first",
                        required=True,
                    ),
                    "empty": Key(
                        shape=Choice(("mask", "skip")),
                        doc="a tile without blocks runs one that is all masked, or none",
                        required=True,
                    ),
                },
            ),
        ),
    },
)

ROLE = Record(
    what="a role",
    keys={
        "warps": Key(shape=Integer(low=1, high=16), doc="warps of each instance", required=True),
        "registers": Key(
            shape=Integer(low=1, high=1024),
            doc="registers of each thread (setmaxnreg)",
            required=True,
        ),
        "per": Key(shape=_NAME, doc="the index: one instance of the role for each value"),
        "active": Key(
            shape=Integer(low=1, high=16),
            doc="warps that work; the others give their registers away",
        ),
    },
)

BUFFER = Record(
    what="a buffer",
    keys={
        "space": Key(
            shape=Choice(("smem", "tmem", "rmem")),
            doc="shared memory, tensor memory, registers",
            required=True,
        ),
        "tile": Key(
            shape=ListOf(item=_TILE, high=2), doc="rows and columns, in elements", required=True
        ),
        "dtype": Key(shape=Choice((IO, *DTYPES)), doc="element type; `io`: that of Q, K, V and O"),
        "per": Key(shape=_NAME, doc="the index: one buffer for each value"),
        "stages": Key(shape=Depth(), doc="slots of a ring; `max`: as many as fit"),
        "ring": Key(
            shape=ListOf(item=_NAME),
            doc="items that take turns in the ring, in the order of their loads",
        ),
        "parts": Key(shape=ListOf(item=_TILE), doc="columns handed over at a time"),
        "overlays": Key(shape=_NAME, doc="the buffer whose storage this one uses again"),
        "columns": Key(
            shape=ListOf(item=Integer(low=0, high=511)),
            doc="first tensor memory column of each instance",
        ),
        "one_load": Key(shape=Flag(), doc="one TMA box fills all instances"),
    },
)

STEP_SECTIONS = ("tile", "block", "after")
ROLE_STEPS = Record(
    what="a role's steps",
    keys={
        "tile": Key(shape=STEPS, doc="once a tile, before its blocks"),
        "block": Key(shape=STEPS, doc="for each block; `+1`: one block ahead"),
        "after": Key(shape=STEPS, doc="once a tile, after its blocks"),
    },
)

OPTIONS: Mapping[str, Key] = MappingProxyType(
    {
        "mask": Key(
            shape=ListOf(item=Choice(("seqlen_k", "causal", "window", "mask_mod")), or_one=True),
            doc="what is masked",
        ),
        "score": Key(
            shape=ListOf(item=Choice(("softcap", "alibi", "score_mod")), or_one=True),
            doc="what it can do to scores, always in this order, where the problem asks for it",
        ),
        "sinks": Key(shape=Flag(), doc="the sink of a head can join the sums of its rows"),
        "threshold": Key(
            shape=Number(low=0, high=64),
            doc="log2 by which the maximum must grow before O is rescaled",
        ),
        "first": Key(shape=Choice(("none",)), doc="what it does for a tile's first block"),
        "spans": Key(
            shape=_NAME, doc="the index: it takes the tiles of all instances, side by side"
        ),
        "sums_over": Key(shape=_NAME, doc="the index: it sums over all instances of its operands"),
        "scaled": Key(shape=Flag(), doc="times the scale of the softmax"),
        "turns": Key(
            shape=Choice(("ascending", "descending")),
            doc="the order in which tiles of keys add to a block, each time the same; without it, "
            "any",
        ),
        "skip_when_unchanged": Key(shape=Flag(), doc="does nothing where no row of the warp moved"),
        "mix": Key(
            doc="how exponentials are computed",
            shape=Record(
                what="`mix`",
                named=True,
                keys={
                    "fma_share": Key(
                        shape=Number(low=0, high=1),
                        doc="share computed by a polynomial",
                        required=True,
                    ),
                    "degree": Key(
                        shape=Integer(low=2, high=5), doc="degree of the polynomial", required=True
                    ),
                },
            ),
        ),
    }
)


def operation_record(kind: Kind) -> Record:
    """The keys of an operation of one kind."""
    keys = {"op": Key(shape=Choice(tuple(KINDS)), doc="the kind of operation", required=True)}
    if kind.product:
        keys["a"] = Key(shape=_OPERAND, doc="left operand; `a^T`: transposed", required=True)
        keys["b"] = Key(
            shape=_OPERAND,
            doc="right operand; where neither says `^T`, a product that writes takes it transposed",
            required=True,
        )
    for name, (least, most) in (
        ("reads", kind.reads),
        ("writes", kind.writes),
        ("updates", kind.updates),
    ):
        if most:
            keys[name] = Key(
                shape=ListOf(item=_ITEM, or_one=True), doc=f"what it {name}", required=least > 0
            )
    keys |= {name: OPTIONS[name] for name in kind.options}
    return Record(what=f"`{kind.name}`", keys=keys)


@dataclass(frozen=True, slots=True)
class OperationShape:
    """An operation: `op` decides which other keys there are."""

    def read(self, node: Node, env: Environment) -> object:
        """`Fields` of that kind."""
        op = node.get("op") if isinstance(node, Map) else None
        if not isinstance(node, Map) or op is None:
            env.error("FA0107", "an operation is a mapping with a key `op`, its kind", node.span)
            return None
        kind = KINDS.get(op.text) if isinstance(op, Scalar) else None
        if kind is None:
            name = op.text if isinstance(op, Scalar) else ""
            env.error(
                "FA0205",
                f"there is no operation kind `{name}`",
                op.span,
                nearest(name, list(KINDS)),
            )
            return None
        return operation_record(kind).read(node, env)

    def json(self) -> Json:
        """One object for each kind."""
        kinds = []
        for kind in KINDS.values():
            schema = operation_record(kind).json()
            properties = schema["properties"]
            op = {"const": kind.name, "description": kind.doc}
            kinds.append(
                {**schema, "properties": {**properties, "op": op}}
                if isinstance(properties, dict)
                else schema
            )
        return {"anyOf": kinds}


BARRIER = Record(
    what="a barrier",
    keys={
        "after": Key(
            shape=ENDS,
            doc="comes after these: `[a, b]` both arrive in each phase, `a | b` take turns",
        ),
        "before": Key(shape=ENDS, doc="comes before these: they wait"),
        "level": Key(
            shape=Choice(("block", "tile")), doc="how often: for each block, or once a tile"
        ),
        "distance": Key(
            shape=Integer(low=0, high=1),  # one slot tells one phase from the next, not more
            doc="`before` of iteration i waits for `after` of i - distance",
        ),
        "kind": Key(
            shape=Choice(("mbarrier", "named")),
            doc="a shared memory mbarrier, or one of 15 named barriers",
        ),
        "ring": Key(shape=_NAME, doc="the ring whose writers and readers are the ends"),
        "side": Key(
            shape=Choice(("full", "empty")),
            doc="left out: both, called `name_full` and `name_empty`",
        ),
    },
)

TURN = Record(
    what="a turn",
    keys={
        "kind": Key(shape=Choice(("named",)), doc="named barriers carry the token"),
        "around": Key(
            shape=Phrase(pattern=phrases.STEP, separator=" +", parse=phrases.steps),
            doc="the first and the last step of the holder",
            required=True,
        ),
        "over": Key(shape=_NAME, doc="the index of the role's instances", required=True),
    },
)

ROOT = Record(
    what="a schedule",
    keys={
        "language": Key(
            shape=Integer(low=VERSION, high=VERSION),
            doc="version of this language: 1",
            required=True,
        ),
        "schedule": Key(
            shape=_NAME, doc="its name, that of the file and of the kernel", required=True
        ),
        "extends": Key(
            shape=Name(pattern=r"[A-Za-z0-9_./-]+\.yaml", what="a path of a YAML file"),
            doc="the file that this one changes",
        ),
        "kernel": Key(shape=Choice(KERNELS), doc="what it computes", required=True),
        "target": Key(shape=_NAME, doc="what it runs on: sm_90a, sm_100a, sm_103a", required=True),
        "serves": Key(shape=Anything(), doc="the problems that it may be built for", required=True),
        "params": Key(shape=Anything(), doc="named values, for expressions and `--set`"),
        "index": Key(
            shape=Table(what="`index`", entry=Integer(low=1, high=4), low=1),
            doc="`s: 2` makes `x[s]` exist twice",
            required=True,
        ),
        "levels": Key(shape=LEVELS, doc="the two loops", required=True),
        "roles": Key(
            shape=Table(what="`roles`", entry=ROLE),
            doc="groups of warps, in the order of warps",
            required=True,
        ),
        "buffers": Key(
            shape=Table(what="`buffers`", entry=BUFFER), doc="where tiles lie", required=True
        ),
        "steps": Key(
            shape=Table(what="`steps`", entry=ROLE_STEPS),
            doc="each role's own order",
            required=True,
        ),
        "operations": Key(
            shape=Table(what="`operations`", entry=OperationShape()),
            doc="what each step does",
            required=True,
        ),
        "barriers": Key(
            shape=Table(what="`barriers`", entry=BARRIER, pattern=phrases.EDGE_NAME),
            doc="what comes after what",
            required=True,
        ),
        "turns": Key(
            shape=Table(what="`turns`", entry=TURN), doc="tokens that go round a role's instances"
        ),
        "variants": Key(
            shape=Table(what="`variants`", entry=Anything()), doc="named changes, for `--variant`"
        ),
        "search": Key(
            shape=Anything(), doc="choices that `fa4gen explore` combines: values, or named changes"
        ),
    },
)
