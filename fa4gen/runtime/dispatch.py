"""Which kernel serves a problem: frozen layers of candidates, from what schedules say they serve.

Layers are looked through from the innermost (`use_schedule`) to the shipped schedules. Within one
layer the narrower candidate comes first: one that serves a true subset of what another serves.
Candidates that overlap otherwise are ambiguous; one that narrower ones leave nothing is
unreachable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from fa4gen.diag import Diagnostic, Fa4genError, error
from fa4gen.ir.features import ordered

from .problem import Problem

# kernel, target, dtype, head dims, causal: quick to hash
Served = tuple[str, str, str, tuple[int, int], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule, or a kernel of a pack, and the problems that it serves.

    A schedule serves each of its `features` on or off, but for those that are `always` on; a kernel
    was built with all of its own.

    `head_dims_v` may be empty: V is as wide as Q. `shared_object` is empty for a schedule, which is
    compiled on first use; `origin` is the file to name in messages.
    """

    name: str
    target: str
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    head_dims_v: tuple[int, ...]
    causal: tuple[bool, ...]
    origin: str
    features: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    shared_object: str = ""
    kernel: str = "attention_forward"

    def serves(self) -> frozenset[Served]:
        """Every problem that it serves, leaving features aside."""
        widths = [(d, dv) for d in self.head_dims for dv in self.head_dims_v or (d,)]
        return frozenset(product((self.kernel,), (self.target,), self.dtypes, widths, self.causal))

    @property
    def least(self) -> frozenset[str]:
        """Features without which it serves nothing."""
        return frozenset(self.features if self.shared_object else self.always)

    @property
    def most(self) -> frozenset[str]:
        """Features that it can serve together."""
        return frozenset(self.features)

    def why_not(self, problem: Problem) -> str:
        """What of the problem it does not serve; empty if it serves it."""
        widths = self.head_dims_v or (problem.head_dim,)
        asked = (
            ("kernel", problem.kernel, (self.kernel,)),
            ("target", problem.target, (self.target,)),
            ("dtype", problem.dtype, self.dtypes),
            ("head_dim", problem.head_dim, self.head_dims),
            ("head_dim_v", problem.head_dim_v, widths),
            ("causal", problem.causal, self.causal),
        )
        wrong = [f"{k} is {'|'.join(map(str, ok))}" for k, have, ok in asked if have not in ok]
        wrong += [f"no {f}" for f in problem.features if f not in self.most]
        wrong += [f"{f} always" for f in ordered(self.least - set(problem.features))]
        return ", ".join(wrong)

    def share_features(self, other: "Candidate") -> bool:
        """Whether some choice of features is served by both."""
        return self.least | other.least <= self.most & other.most

    def within_features(self, other: "Candidate") -> bool:
        """Whether the other serves every choice of features that this one serves."""
        return other.least <= self.least and self.most <= other.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Candidates that were named together; `name` says by whom."""

    name: str
    candidates: tuple[Candidate, ...]


def make_layer(name: str, candidates: Sequence[Candidate]) -> Layer:
    """A layer without doubt. Raises `Fa4genError` with every FA0812 and FA0813 in it."""
    found: list[Diagnostic] = []
    served = [(c, c.serves()) for c in candidates]
    for (a, mine), (b, theirs) in combinations(served, 2):
        shared = mine & theirs if a.share_features(b) else frozenset()
        if shared and _narrower(a, mine, b, theirs) == _narrower(b, theirs, a, mine):
            found.append(_ambiguous(a, b, min(shared)))
    for c, mine in served:
        alike = [s for o, s in served if s < mine and (o.least, o.most) == (c.least, c.most)]
        if not mine.difference(*alike):
            title = f"no call can reach `{c.name}`"
            why = "narrower ones serve all that it serves" if mine else "it serves no problem"
            found.append(Diagnostic(code="FA0813", title=title, why=f"{c.origin}: {why}"))
    if found:
        raise Fa4genError(found)
    order = sorted(served, key=lambda s: (len(s[1]), len(s[0].most - s[0].least)))
    return Layer(name=name, candidates=tuple(c for c, _ in order))


def _narrower(
    a: Candidate, mine: frozenset[Served], b: Candidate, theirs: frozenset[Served]
) -> bool:
    """Whether `a` serves a true part of what `b` serves."""
    whole = mine <= theirs and a.within_features(b)
    return whole and (mine != theirs or not b.within_features(a))


def _ambiguous(a: Candidate, b: Candidate, shared: Served) -> Diagnostic:
    kernel, target, dtype, (d, dv), causal = shared
    problem = Problem(
        target=target, dtype=dtype, head_dim=d, head_dim_v=dv, causal=causal, kernel=kernel
    )
    return Diagnostic(
        code="FA0812",
        title=f"`{a.name}` and `{b.name}` both serve {problem}",
        why=f"{a.origin} and {b.origin} are named together",
        fix="narrow `serves` of one of them, or name only one: `fa4gen.use_schedule(FILE)`",
    )


def find(layers: Iterable[Layer], problem: Problem) -> Candidate:
    """The candidate of the innermost layer that serves the problem. Raises FA0805."""
    seen = []
    for layer in layers:
        seen.append(layer)
        for c in layer.candidates:
            if not c.why_not(problem):
                return c
    raise error(
        "FA0805",
        f"no kernel serves {problem}",
        why="; ".join(explain(seen, problem)) or "there are no schedules at all",
        fix="write a schedule that does (`serves:`) and name it with `fa4gen.use_schedule(FILE)`",
    )


def explain(layers: Iterable[Layer], problem: Problem) -> list[str]:
    """One line for each candidate in the order of the search: serves, hidden, or why not."""
    lines, taken = [], ""
    for layer in layers:
        for c in layer.candidates:
            why = c.why_not(problem)
            state = why or (f"would serve, but {taken} comes first" if taken else "serves")
            taken = taken or ("" if why else c.name)
            lines.append(f"{c.name} ({layer.name}): {state}")
    return lines
