"""Masks that schedules have by themselves, recognised where that is certain."""

from dataclasses import dataclass, replace

from fa4gen.ir.expression import Expression, Node

FIELDS = ("causal", "left", "right", "document")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a mask is made of: key <= query (`causal`), query - key <= `left`, key - query <=
    `right`; `document` is the tensor whose elements at query and key must be equal.

    Bounds are numbers, or captured numbers by their place in the table; None: no bound.
    """

    causal: bool = False
    left: "int | Number | None" = None
    right: "int | Number | None" = None
    document: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A captured number, plus a constant."""

    number: int
    plus: int = 0


def recognise(mask: Expression) -> Known | None:
    """The parts of a mask, if all of them are known; None where any is not."""
    found = Known()
    for n in _conjunction(mask, mask.results[0]):
        part = _part(mask, mask.nodes[n])
        if part is None:
            return None
        for name in FIELDS:
            new, old = getattr(part, name), getattr(found, name)
            if new is not None and new is not False:
                if old is not None and old is not False:
                    return None  # two bounds: which is less is not known
                found = replace(found, **{name: new})
    return found


def _conjunction(mask: Expression, n: int) -> set[int]:
    """The nodes that must all be true."""
    node = mask.nodes[n]
    if node.op == "and":
        return set().union(*(_conjunction(mask, a) for a in node.args))
    return set() if node.op == "constant" and node.value is True else {n}


def _part(mask: Expression, node: Node) -> Known | None:
    args = [mask.nodes[a] for a in node.args]
    ops = tuple(a.op for a in args)
    if node.op == "le" and ops == ("key", "query"):
        return Known(causal=True)
    if node.op == "eq" and ops == ("load", "load") and args[0].value == args[1].value:
        indices = {mask.nodes[i].op for a in args for i in a.args}
        if indices == {"query", "key"} and all(len(a.args) == 1 for a in args):
            return Known(document=int(args[0].value or 0))
    if node.op in ("lt", "le") and ops[0] == "sub":
        bound = _bound(args[1], minus=node.op == "lt")
        sides = tuple(mask.nodes[a].op for a in args[0].args)
        if bound is not None and sides == ("query", "key"):
            return Known(left=bound)
        if bound is not None and sides == ("key", "query"):
            return Known(right=bound)
    return None


def _bound(node: Node, *, minus: bool) -> "int | Number | None":
    if node.op == "constant" and isinstance(node.value, int):
        return node.value - minus
    if node.op == "number":
        return Number(int(node.value or 0), -int(minus))
    return None
