"""Members of a family: `extends`, `--variant` and `--set` make one tree before it is read.

Every node keeps the place that it came from, whichever file that is.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from fa4gen.diag import Bag, Diagnostic, Note, Span, error
from fa4gen.ir.features import FEATURES

from .expressions import nearest
from .language import PROBLEM, ROOT
from .phrases import NAME
from .reader import Map, Node, Scalar, read

SETTING = "--set"
CHANGES = ("variants", "search")  # sections of patches, whose nulls wait until they are applied


def read_family(path: Path, bag: Bag) -> Map:
    """The tree of a file, merged over those that it extends.

    Raises Fa4genError: FA0110 (extends itself), FA0111 (unreadable), those of `reader.read`.
    """
    return _read(path, (), None, bag)


def choose(tree: Map, variant: str | None, bag: Bag) -> Map:
    """The tree with one of its variants applied. FA0112 for a variant that it does not have."""
    if variant is None:
        return tree
    variants = tree.get("variants")
    patch = variants.get(variant) if isinstance(variants, Map) else None
    if not isinstance(patch, Map):
        known = variants.keys() if isinstance(variants, Map) else []
        fix = nearest(variant, known) if known else "the schedule has no variants"
        bag.add(Diagnostic(code="FA0112", title=f"no variant is called `{variant}`", fix=fix))
        return tree
    return merge(tree, patch)


def apply_settings(
    tree: Map, settings: Mapping[str, str], bag: Bag
) -> tuple[Map, dict[str, Scalar]]:
    """The tree with parameters (or paths into sections) set, and what was said of the problem."""
    problem: dict[str, Scalar] = {}
    for key, text in settings.items():
        value = _value(key, text, bag)
        if value is None:
            continue
        if key in (*PROBLEM, *FEATURES) and isinstance(value, Scalar):
            problem[key] = value
            continue
        if settable(tree, key, value.span, bag):
            tree = _set(tree, _path(key), value)
    return tree, problem


def merge(base: Map, patch: Map) -> Map:
    """`patch` over `base`: mappings key by key, else replaced; a null takes the key away."""
    entries = {k.text: (k, v) for k, v in base.entries}
    for key, value in patch.entries:
        old = entries.get(key.text)
        if isinstance(value, Scalar) and value.value is None:
            entries.pop(key.text, None)
        elif old and isinstance(old[1], Map) and isinstance(value, Map) and not _is_choice(value):
            combined = overlaid if key.text in CHANGES else merge
            entries[key.text] = (key, combined(old[1], value))
        else:
            entries[key.text] = (key, value)
    return Map(entries=tuple(entries.values()), span=patch.span)


def overlaid(first: Map, second: Map) -> Map:
    """Two patches as one: `second` over `first`, and a null stays, to take the key away later."""
    entries = {k.text: (k, v) for k, v in first.entries}
    for key, value in second.entries:
        old = entries.get(key.text, (key, value))[1]
        both = isinstance(old, Map) and isinstance(value, Map) and key.text in entries
        if both and isinstance(old, Map) and isinstance(value, Map) and not _is_choice(value):
            value = overlaid(old, value)
        entries[key.text] = (key, value)
    return Map(entries=tuple(entries.values()), span=second.span)


def nested(key: str, value: Node) -> Map:
    """The patch that `--set key=value` makes: a parameter, or a path into a section."""
    tree = value
    for name in reversed(_path(key)):
        tree = Map(entries=((Scalar(text=name, span=value.span), tree),), span=value.span)
    assert isinstance(tree, Map)
    return tree


def _path(key: str) -> list[str]:
    path = key.split(".")
    outside = path[0] not in ROOT.keys or path[0] in ("serves", "extends", *CHANGES)
    return ["params", *path] if outside else path


def _is_choice(value: Map) -> bool:
    """Whether a mapping is a whole choice (by mask, by head dim), which replaces what was there."""
    return set(value.keys()) in ({"full", "causal"}, {"up_to"})


def _read(path: Path, open_files: tuple[Path, ...], at: Span | None, bag: Bag) -> Map:
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = getattr(e, "strerror", None) or "not UTF-8 text"
        raise error("FA0111", f"cannot read `{name}`: {reason}", span=at) from None
    bag.sources[name] = text
    tree = read(text, name)
    parent = tree.get("extends")
    if parent is None:
        return tree
    if not isinstance(parent, Scalar):
        raise error("FA0106", "`extends` is the path of one file", span=parent.span)
    target = (path.parent / parent.text).resolve()
    if target in (path.resolve(), *open_files):
        raise error("FA0110", f"`{parent.text}` extends itself in the end", span=parent.span)
    shown = path.parent / parent.text
    base = _read(shown, (path.resolve(), *open_files), parent.span, bag)
    own = Map(entries=tuple((k, v) for k, v in tree.entries if k.text != "extends"), span=tree.span)
    if own.get("schedule") is None:
        bag.add(
            Diagnostic(
                code="FA0107",
                title="a schedule that extends another needs a key `schedule`: its own name",
                span=tree.span,
                notes=(Note(text="the name of the other", span=_place(base, "schedule")),),
            )
        )
    return merge(base, own)


def _place(tree: Map, key: str) -> Span:
    node = tree.key(key)
    return node.span if node else tree.span


def _value(key: str, text: str, bag: Bag) -> Node | None:
    """The node of a value from the command line, read as if it were a line `key: text`."""
    if not re.fullmatch(rf"{NAME}(\.{NAME})*", key) or "\n" in text:
        bag.add(
            Diagnostic(
                code="FA0112", title=f"`{key}={text}` is not a setting", fix="write key=value"
            )
        )
        return None
    name = f"{SETTING} {key}"
    bag.sources[name] = f"{key}: {text}"
    return read(bag.sources[name], name).get(key)


def settable(tree: Map, key: str, at: Span, bag: Bag) -> bool:
    """Whether a tree has what a setting would change; reports FA0112 if not."""
    found = _settable(tree, _path(key))
    if not found:
        _unknown(tree, key, at, bag)
    return found


def _settable(tree: Map, path: list[str]) -> bool:
    node: Node | None = tree
    for part in path[:-1]:
        node = node.get(part) if isinstance(node, Map) else None
    if not isinstance(node, Map):
        return False
    return path[0] != "params" or node.get(path[-1]) is not None


def _unknown(tree: Map, key: str, span: Span, bag: Bag) -> None:
    """Reports a path that leads nowhere, with the nearest one that leads somewhere."""
    params = tree.get("params")
    known = [*PROBLEM, *FEATURES, *(_paths(params) if isinstance(params, Map) else [])]
    title = f"the schedule has nothing called `{key}`"
    bag.add(Diagnostic(code="FA0112", title=title, span=span, fix=nearest(key, known)))


def _paths(params: Map) -> list[str]:
    inner = [f"{k.text}.{p}" for k, v in params.entries if isinstance(v, Map) for p in _paths(v)]
    return [*params.keys(), *inner]


def _set(tree: Map, path: list[str], value: Node) -> Map:
    """The tree with one value set (a null takes it away); keys stay where the files have them."""
    name, inner = path[0], tree.get(path[0])
    if len(path) > 1 and isinstance(inner, Map):
        value = _set(inner, path[1:], value)
    key = tree.key(name) or Scalar(text=name, span=value.span)
    kept = [(k, value if k.text == name else v) for k, v in tree.entries]
    if inner is None:
        kept.append((key, value))
    if isinstance(value, Scalar) and value.value is None:
        kept = [(k, v) for k, v in kept if k.text != name]
    return Map(entries=tuple(kept), span=tree.span)
