"""The tree of a schedule, with its problem bound, to `ir.schedule.Schedule`.

Names between sections (operations, buffers, roles) are taken as written; whether they exist is for
the checks of `scheduler`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fa4gen.diag import Bag, Span
from fa4gen.ir.features import FEATURES
from fa4gen.ir.schedule import Index, Operation, Schedule
from fa4gen.target import TARGETS, why_not

from . import declare, edges
from .expressions import Environment
from .language import PROBLEM, ROOT, SERVES
from .reader import Map, Node, Scalar, Seq, Value
from .schema import Fields

OVER = MappingProxyType(  # what the two loops of a kernel run over
    {
        "attention_forward": (("work_tiles",), ("kv_blocks", "block_list")),
        "attention_backward": (("key_tiles",), ("query_blocks", "query_list")),
    }
)
_EMPTY = Map(entries=(), span=Span("", 1, 1))
Serves = Mapping[str, tuple[object, ...]]
_SHOWN = 12  # served values that an error lists


def bind(tree: Map, file: str, asked: Mapping[str, Scalar], bag: Bag) -> Schedule:
    """The schedule that a tree declares, for the problem asked for (else for the first it serves).

    It is read once for each mask that it serves, so that no side of `{full: …, causal: …}` stays
    unread. Raises Fa4genError with every fault of shape, key, value or reference to a parameter.
    """
    params = tree.get("params")
    params = params if isinstance(params, Map) else _EMPTY
    serves = _serves(tree, Environment(params=params, problem={}, mask="full", bag=bag))
    problem = _problem(serves, asked, bag)
    bound = None
    for mask in _masks(serves, problem):
        env = Environment(params=params, problem=problem, mask=mask, bag=Bag(sources=bag.sources))
        root = ROOT.read(tree, env)
        if isinstance(root, Fields):
            bound = _schedule(root, env, file, serves)
        for diagnostic in env.bag.found:
            if diagnostic not in bag.found:
                bag.add(diagnostic)
    bag.raise_if_any()
    if bound is None:
        raise AssertionError("a tree without faults has a schedule")
    return bound


def _serves(tree: Map, env: Environment) -> Serves:
    node = tree.get("serves")
    fields = SERVES.read(node, env) if isinstance(node, Map) else None
    if not isinstance(fields, Fields):
        return {}
    return MappingProxyType({k: v for k, v in fields.values.items() if isinstance(v, tuple) and v})


def _problem(serves: Serves, asked: Mapping[str, Scalar], bag: Bag) -> dict[str, Value]:
    """One value for each of `PROBLEM`: what is asked for if it is served, else the first served.

    `head_dim_v` is `head_dim` where it is neither asked for nor said to be served. None where
    `serves` is at fault.
    """
    env = Environment(params=_EMPTY, problem={}, mask="full", bag=bag)
    problem: dict[str, Value] = dict.fromkeys(PROBLEM)
    for key in PROBLEM:
        served = serves.get(key, ())
        if key == "head_dim_v" and key not in serves and problem["head_dim"] is not None:
            served = (problem["head_dim"],)
        if key in asked and served and asked[key].value not in served:
            shown = ", ".join(_word(v) for v in served[:_SHOWN])
            more = " …" if len(served) > _SHOWN else ""
            title = f"`{key}` {asked[key].text} is not served: {shown}{more}"
            env.error("FA0211", title, asked[key].span)
        elif key in asked:
            problem[key] = asked[key].value
            continue
        if served:  # also after an error, so that one fault is one message
            same = key == "head_dim_v" and problem["head_dim"] in served
            first = problem["head_dim"] if same else served[0]
            problem[key] = first if isinstance(first, (str, int)) else None
    return problem | _features(serves, asked, env)


def _features(serves: Serves, asked: Mapping[str, Scalar], env: Environment) -> dict[str, Value]:
    """Which features are on: those asked for, which must be served."""
    served = serves.get("features", ())
    on: dict[str, Value] = {}
    for name in FEATURES:
        word = asked.get(name)
        if word is not None and not isinstance(word.value, bool):
            env.error("FA0106", f"`{name}` is true or false, not `{word.text}`", word.span)
        elif word is not None and word.value and name not in served and serves:
            shown = ", ".join(map(str, served)) or "none"
            title = f"`{name}` is not served; features of the schedule: {shown}"
            env.error("FA0211", title, word.span)
        on[name] = word is not None and word.value is True
    return on


def _on(env: Environment, over: str, operations: Iterable[Operation]) -> frozenset[str]:
    """Features that are asked for, and those that the schedule is made for."""
    turns = any(o.options.get("turns") for o in operations)
    always = {over} | ({"deterministic"} if turns else set())
    return frozenset(f for f in FEATURES if env.problem.get(f) or f in always)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _masks(serves: Serves, problem: Mapping[str, Value]) -> list[str]:
    """Masks to read the schedule for: all that it serves, the bound one last."""
    bound = "causal" if problem.get("causal") else "full"
    every = ["causal" if c else "full" for c in serves.get("causal", ())]
    return [*(m for m in every if m != bound), bound]


def _schedule(root: Fields, env: Environment, file: str, serves: Serves) -> Schedule | None:
    """The schedule, or None if something that everything else needs is missing."""
    index, levels = _index(root, env), root.values.get("levels")
    _target(root, env)
    params = _params(env)
    if index is None or not isinstance(levels, Fields):
        return None
    tile, block = levels.values.get("tile"), levels.values.get("block")
    if not isinstance(tile, Fields) or not isinstance(block, Fields):
        return None
    for level, over in zip((tile, block), OVER.get(root.text("kernel"), ()), strict=False):
        if level.has("over") and level.text("over") not in over:
            title = f"`{root.text('kernel')}` runs over `{over[0]}` here"
            env.error("FA0109", title, level.at("over"), f"write `over: {over[0]}`")
    roles = tuple(declare.role(k, f, index, env) for k, f in _table(root, "roles"))
    buffers = tuple(declare.buffer(k, f, index, env) for k, f in _table(root, "buffers"))
    steps = tuple(declare.steps(k, f, roles, index, env) for k, f in _table(root, "steps"))
    operations = tuple(
        declare.operation(k, f, steps, buffers, env) for k, f in _table(root, "operations")
    )
    maker = edges.Edges(env=env, index=index, parts=declare.parts(operations, buffers))
    return Schedule(
        name=root.text("schedule"),
        kernel=root.text("kernel"),
        target=root.text("target"),
        file=file,
        serves=serves,
        dtype=str(env.problem.get("dtype")),
        causal=bool(env.problem.get("causal")),
        features=_on(env, block.text("over"), operations),
        head_dim=int(env.problem.get("head_dim") or 0),
        head_dim_v=int(env.problem.get("head_dim_v") or 0),
        params=params,
        index=index,
        scheduler="split" if env.problem.get("split_kv") else tile.text("scheduler"),
        over=block.text("over"),
        order=block.text("order"),
        empty=block.text("empty"),
        roles=roles,
        buffers=buffers,
        steps=steps,
        operations=operations,
        barriers=tuple(b for k, f in _table(root, "barriers") for b in maker.barriers(k, f)),
        turns=tuple(t for k, f in _table(root, "turns") for t in maker.turns(k, f, operations)),
        level_spans=MappingProxyType({"tile": tile.span, "block": block.span}),
        span=root.at("schedule"),
    )


def _table(root: Fields, section: str) -> list[tuple[Scalar, Fields]]:
    entries = root.values.get(section)
    entries = entries if isinstance(entries, tuple) else ()
    return [(k, f) for k, f in entries if isinstance(f, Fields)]


def _index(root: Fields, env: Environment) -> Index | None:
    entries = root.values.get("index")
    if not isinstance(entries, tuple) or not entries:
        return None
    if len(entries) != 1:
        env.error("FA0106", f"`index` holds one name, not {len(entries)}", root.at("index"))
        return None
    key, count = entries[0]
    return Index(name=key.text, count=count, span=key.span)


def _target(root: Fields, env: Environment) -> None:
    name = root.text("target")
    if name and name not in TARGETS:
        fix = f"one of {', '.join(TARGETS)}"
        env.error("FA0215", f"`{name}` is no target: {why_not(name)}", root.at("target"), fix)


def _params(env: Environment) -> Mapping[str, object]:
    out = {}
    for key, node in env.params.entries:
        if key.text in (*PROBLEM, *FEATURES):
            title = f"`{key.text}` is part of the problem, and no parameter"
            env.error("FA0216", title, key.span, "say it in `serves`")
        out[key.text] = _plain(node, env)
    return MappingProxyType(out)


def _plain(node: Node, env: Environment) -> object:
    """A parameter's value as plain data, with names and expressions worked out."""
    found = env.resolve(node)
    if isinstance(found, Map):
        return {k.text: _plain(v, env) for k, v in found.entries}
    if isinstance(found, Seq):
        return tuple(_plain(i, env) for i in found.items)
    value: Value = found.value
    if isinstance(value, str) and env.known(value):
        return env.integer(found)
    return value
