"""A kernel program to the theory's system: instances become roles of their own, names become
numbers.

A role whose first warp acts for the others (it copies, issues or arrives for all) becomes two: that
warp, and the rest. Each then touches its own rows of what the role's calls touch, so such a region
becomes two as well; copies and products on the tensor core touch both. Roles all of whose warps do
the same need no second actor: every barrier counts all their warps alike.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fa4gen.diag import Bag, Diagnostic, Span
from fa4gen.ir import program as ir
from fa4gen.ir.program import Access, KernelProgram, Lanes, Relative, RoleProgram, Stmt

from .model import Action, Bar, Do, Region, Role, System, Unit, Use

LANES = 32
FIRST_WARP, OTHER_WARPS = 0, 1
BY_ONE_WARP = (ir.TmaLoad, ir.BulkLoad, ir.TryCancel, ir.TmaStore, ir.Umma, ir.Commit)
SILENT = (ir.Define, ir.Take, ir.Keep, ir.Advance)
Key = tuple[str, int]


def instantiate(program: KernelProgram) -> System:
    """The system of a program.

    Raises Fa4genError (FA0326) for barriers, regions, units or instances that are not declared, and
    (FA0320) where the loops of a role do not synchronise alike.
    """
    bag = Bag()
    split = tuple(r.name for r in program.roles if _leads(r))
    names = _Names(program=program, split=frozenset(split), bag=bag)
    roles: list[Role] = []
    for role in program.roles:
        for instance in range(role.instances):
            columns = (FIRST_WARP, OTHER_WARPS) if role.name in split else (None,)
            for column in columns:
                actor = _Actor(names=names, role=role, instance=instance, column=column)
                roles.append(actor.build(len(roles)))
    bag.raise_if_any()
    return System(
        name=program.name,
        roles=tuple(roles),
        bars=tuple(names.bar_list),
        regions=tuple(names.region_list),
        units=tuple(names.unit_list),
        empty_tiles=False,
        split_roles=split,
    )


def _leads(role: RoleProgram) -> bool:
    """Whether one warp of several acts for the others."""
    return role.active > 1 and any(_by_one_warp(s) for s in statements(role))


def _by_one_warp(s: Stmt) -> bool:
    leads = isinstance(s, ir.Arrive) and s.lanes is Lanes.LEADER
    return leads or isinstance(s, BY_ONE_WARP)


def statements(role: RoleProgram) -> Iterator[Stmt]:
    """Every statement of a role, in the order of its text."""
    yield from role.start
    yield from role.before
    yield from role.first
    for segment in role.segments:
        yield from segment.body
    yield from role.last
    yield from role.end


@dataclass(slots=True)
class _Names:
    """The declared barriers and regions, and the units as they are met, by name and instance."""

    program: KernelProgram
    split: frozenset[str]
    bag: Bag
    bars: dict[Key, int] = field(default_factory=dict)
    bar_list: list[Bar] = field(default_factory=list)
    regions: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    region_list: list[Region] = field(default_factory=list)
    units: dict[tuple[str, int, int | None], int] = field(default_factory=dict)
    unit_list: list[Unit] = field(default_factory=list)

    def __post_init__(self) -> None:
        for b in self.program.barriers:
            for n in range(b.instances):
                self.bars[b.name, n] = len(self.bar_list)
                self.bar_list.append(
                    Bar(
                        name=f"{b.name}[{n}]" if b.instances > 1 else b.name,
                        count=b.arrive_count,
                        stages=b.stages,
                        named=b.named,
                        declared=b.name,
                        instance=n if b.instances > 1 else None,
                        tx_bytes=b.tx_bytes,
                        tx_turns=b.tx_turns,
                        span=b.span,
                    )
                )
        shared = self._touched_by_split_roles()
        for r in self.program.regions:
            for n in range(r.instances):
                parts = ("", "") if r.name in shared else ("",)
                first = len(self.region_list)
                self.regions[r.name, n] = tuple(range(first, first + len(parts)))
                name = f"{r.name}[{n}]" if r.instances > 1 else r.name
                region = Region(name=name, stages=r.stages, space=r.space, what=r.what or name)
                self.region_list += [region] * len(parts)

    def _touched_by_split_roles(self) -> set[str]:
        return {
            a.region
            for role in self.program.roles
            if role.name in self.split
            for s in statements(role)
            if isinstance(s, ir.Call)
            for a in s.accesses
        }

    def missing(self, what: str, name: str, span: Span | None) -> int:
        """Reports a name without a declaration."""
        self.bag.add(
            Diagnostic(
                code="FA0326",
                title=f"the program has no {what} `{name}`",
                span=span,
                why="a statement uses it, and nothing declares it",
            )
        )
        return -1

    def unit(self, name: str, role: RoleProgram, instance: int, column: int | None) -> int:
        """The unit of an issuing role instance (and warp)."""
        key = (name, instance, column)
        if key not in self.units:
            plan = next((u for u in self.program.units if u.name == name), None)
            if plan is None or plan.owner != role.name:
                return self.missing("unit of this role called", name, role.span)
            self.units[key] = len(self.unit_list)
            own = f"[{instance}]" if role.instances > 1 else ""
            self.unit_list.append(
                Unit(name=name + own, in_order=plan.in_order, assumption=plan.assumption)
            )
        return self.units[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Actor:
    """One instance of a role, or one of its two columns of warps."""

    names: _Names
    role: RoleProgram
    instance: int
    column: int | None

    @property
    def warps(self) -> int:
        """How many warps of the role act here."""
        if self.column is None:
            return self.role.active
        return 1 if self.column == FIRST_WARP else self.role.active - 1

    def build(self, number: int) -> Role:
        """The role of the system."""
        r = self.role
        loops = [self._section("rest", s.body, number) for s in r.segments]
        self._alike(loops)
        first = self._section("first", r.first, number)
        if r.merge_first:
            self._merged(first, loops)
        name = f"{r.name}[{self.instance}]" if r.instances > 1 else r.name
        which = {None: "", FIRST_WARP: " (first warp)", OTHER_WARPS: " (other warps)"}
        return Role(
            name=name + which[self.column],
            declared=r.name,
            instance=self.instance,
            start=self._section("start", r.start, number),
            first=(
                *self._section("before", r.before, number),
                *first,
            ),
            rest=loops[0] if loops else (),
            last=self._section("last", r.last, number),
            end=self._section("end", r.end, number),
            span=r.span,
        )

    def _alike(self, loops: list[tuple[Action, ...]]) -> None:
        """All loops of a role must synchronise and touch memory alike."""
        if not loops:
            return
        want = [x.skeleton() for x in loops[0]]
        for segment, loop in zip(self.role.segments[1:], loops[1:], strict=True):
            got = [x.skeleton() for x in loop]
            if got == want:
                continue
            n = next(
                (n for n, (a, b) in enumerate(zip(want, got, strict=False)) if a != b),
                min(len(want), len(got)),
            )
            span = (loop[n:] or loops[0][n:])[0].span
            self.names.bag.add(
                Diagnostic(
                    code="FA0320",
                    title=(
                        f"the loops `{self.role.segments[0].name}` and `{segment.name}` of "
                        f"`{self.role.name}` do not synchronise alike"
                    ),
                    span=span,
                    label=f"they part at action {n + 1}",
                    why="other roles cannot know which of them a block runs in",
                )
            )

    def _merged(self, first: tuple[Action, ...], loops: list[tuple[Action, ...]]) -> None:
        """Block 0 is printed as the loop's first iteration: it must be that iteration."""
        if not loops or [x.skeleton() for x in first] == [x.skeleton() for x in loops[0]]:
            return
        self.names.bag.add(
            Diagnostic(
                code="FA0320",
                title=f"block 0 of `{self.role.name}` is printed as an iteration of its loop, "
                "and synchronises otherwise",
                span=(first or loops[0])[0].span,
                why="the loop would do for block 0 what it does for the others",
            )
        )

    def _section(self, name: str, body: tuple[Stmt, ...], number: int) -> tuple[Action, ...]:
        out: list[Action] = []
        for s in body:
            if isinstance(s, SILENT) or (s.only is not None and s.only != self.instance):
                continue
            for fields in self._actions(s):
                out.append(
                    Action(
                        **fields,  # type: ignore[arg-type]
                        prev=s.prev, role=number, section=name, position=len(out), stmt=s,
                    )
                )  # fmt: skip
        return tuple(out)

    def _actions(self, s: Stmt) -> Iterator[Mapping[str, object]]:
        """What a statement does here: nothing, where another warp does it."""
        if self.column == OTHER_WARPS and _by_one_warp(s):
            return
        match s:
            case ir.Call():
                if s.accesses:
                    yield {"do": Do.TOUCH, "uses": self._uses(s.accesses, s.span, all_own=True)}
                if s.settled:
                    yield {"do": Do.SETTLE_LOADS}
            case ir.Wgmma():
                uses = self._uses(s.accesses, s.span, own=True)
                yield {"do": Do.ISSUE, "unit": self._unit(s.unit, self.column), "uses": uses}
            case ir.Umma() | ir.TmaStore():
                uses = self._uses(s.accesses, s.span)
                yield {"do": Do.ISSUE, "unit": self._unit(s.unit, None), "uses": uses}
            case ir.Pending():
                yield from self._pending(s)
            case ir.ProxyFence():
                yield {"do": Do.FENCE}
            case ir.TmemWait():
                yield {"do": Do.SETTLE_LOADS if s.kind == "load" else Do.SETTLE_STORES}
            case _:
                yield from self._at_barrier(s)

    def _at_barrier(self, s: Stmt) -> Iterator[Mapping[str, object]]:
        all_threads = LANES * self.warps
        match s:
            case ir.Wait():
                yield {"do": Do.WAIT, "bar": self._bar(s.on, s.span), "free": s.free}
            case ir.Arrive():
                bar = self._bar(s.on, s.span)
                yield {"do": Do.ARRIVE, "bar": bar, "weight": self._weight(s.lanes)}
            case ir.NamedSync():
                yield {"do": Do.SYNC, "bar": self._bar(s.on, s.span), "weight": all_threads}
            case ir.NamedArrive():
                yield {"do": Do.ARRIVE, "bar": self._bar(s.on, s.span), "weight": all_threads}
            case ir.Commit():
                bar = self._bar(s.on, s.span)
                yield {"do": Do.COMMIT, "bar": bar, "unit": self._unit(s.unit, None)}
            case ir.TmaLoad() | ir.BulkLoad() | ir.TryCancel():
                yield {
                    "do": Do.LOAD,
                    "bar": self._bar(s.on, s.span),
                    "tx_bytes": s.tx_bytes,
                    "uses": self._uses(s.accesses, s.span),
                }

    def _pending(self, s: ir.Pending) -> Iterator[Mapping[str, object]]:
        """Bulk stores are one warp's, products every warp's own."""
        stored = any(isinstance(x, ir.TmaStore) and x.unit == s.unit for x in statements(self.role))
        if not (stored and self.column == OTHER_WARPS):
            unit = self._unit(s.unit, None if stored else self.column)
            yield {"do": Do.PENDING, "unit": unit, "groups": s.groups}

    def _weight(self, lanes: Lanes) -> int:
        match lanes:
            case Lanes.ALL:
                return LANES * self.warps
            case Lanes.ELECTED | Lanes.WARPS:
                return self.warps
            case Lanes.LEADER:
                return 1

    def _unit(self, name: str, column: int | None) -> int:
        return self.names.unit(name, self.role, self.instance, column)

    def _own(self, instance: int | Relative | None) -> int:
        match instance:
            case Relative.OWN:
                return self.instance
            case Relative.NEXT:
                return (self.instance + 1) % self.role.instances
            case None:
                return 0
        return instance

    def _bar(self, on: ir.Slot, span: Span | None) -> int:
        found = self.names.bars.get((on.barrier, self._own(on.instance)))
        if found is None:
            return self.names.missing("barrier", f"{on.barrier}[{self._own(on.instance)}]", span)
        return found

    def _uses(
        self,
        accesses: tuple[Access, ...],
        span: Span | None,
        own: bool = False,
        all_own: bool = False,
    ) -> tuple[Use, ...]:
        """In the order of ranks; `own`: only this column's rows of what belongs to the instance."""
        out: list[Use] = []
        for a in accesses:
            parts = self.names.regions.get((a.region, self._own(a.instance)))
            if parts is None:
                self.names.missing("region", f"{a.region}[{self._own(a.instance)}]", span)
                continue
            mine = all_own or (own and a.instance is Relative.OWN)
            if mine and self.column is not None and len(parts) > 1:
                parts = (parts[self.column],)
            out += [Use(region=n, write=a.write, rank=a.rank, a=a.a, b=a.b) for n in parts]
        return tuple(sorted(out, key=lambda u: (u.rank, u.write)))
