"""`fa4gen show`: one level of the compiler as text, the same at every run."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from fa4gen.driver import Checked, check, member_name
from fa4gen.ir.program import Call, Define, RoleProgram, Slot, Stmt, TmaLoad, TmaStore


def show(path: str | Path, level: str, settings: Mapping[str, str], variant: str | None) -> str:
    """The text of a member at `level`: plan, program, source or ptx. Raises Fa4genError."""
    checked = check(path, settings=settings, variant=variant)
    match level:
        case "plan":
            return plan_text(checked)
        case "program":
            return program_text(checked)
    from fa4gen.emit.render import render

    source = render(checked.program)
    if level == "source":
        return source.text
    from fa4gen.options import Options
    from fa4gen.runtime.compile import Request, compile_cached

    name = member_name(checked.schedule)
    request = Request(name=name, target=checked.schedule.target, text=source.text)
    return compile_cached(request, Options.from_environment()).ptx.read_text()


def plan_text(checked: Checked) -> str:
    """Warps, memory and barriers as placed."""
    plan, program = checked.plan, checked.program.value
    lines = [f"plan {member_name(checked.schedule)} for {program.target}", ""]
    lines.append(f"{plan.threads} threads, {plan.launch_registers} registers each at launch")
    for r in program.roles:
        last = r.first_warp + r.warps * r.instances - 1
        lines.append(f"  warps {r.first_warp}-{last}  {r.name}: {r.registers} registers")
    lines += ["", f"shared memory: {plan.smem_bytes} bytes"]
    lines += [
        f"  {s.buffer}: {s.total_bytes // s.tile_bytes} x {s.tile_bytes} bytes" for s in plan.smem
    ]
    if plan.columns:
        lines += ["", "tensor memory: columns"]
        for name, starts in plan.columns.items():
            spans = ", ".join(f"{c}-{c + plan.widths[name] - 1}" for c in starts)
            lines.append(f"  {name}: {spans}")
    lines += ["", "barriers: first, number, arrivals, bytes"]
    for b in program.barriers:
        who = ", ".join(str(c) for c in b.contributions)
        kind = "named" if b.named else "mbarrier"
        number = b.instances * b.stages
        lines.append(
            f"  {b.name} ({kind}): {b.base}, {number}, {b.arrive_count} ({who}), {b.tx_bytes}"
        )
    return "\n".join(lines) + "\n"


def program_text(checked: Checked) -> str:
    """Every role's statements, section by section."""
    program = checked.program.value
    lines = [f"program {member_name(checked.schedule)} for {program.target}"]
    for role in program.roles:
        lines += ["", f"role {role.name}" + (f" x {role.instances}" if role.instances > 1 else "")]
        lines += _sections(role)
    return "\n".join(lines) + "\n"


def _sections(role: RoleProgram) -> list[str]:
    first = () if role.merge_first else role.first
    parts: list[tuple[str, tuple[Stmt, ...]]] = [
        ("start", role.start),
        ("tile", (*role.tile, *role.before)),
        ("first block", first),
        *((f"loop {s.name}, {s.trips} times", s.body) for s in role.segments),
        ("last", role.last),
        ("end", role.end),
    ]
    return [
        line
        for name, body in parts
        if body
        for line in (f"  {name}", *(f"    {_line(s)}" for s in body))
    ]


def _line(s: Stmt) -> str:
    """A statement's class and its fields, in order."""
    words = [f"{_word(s)}"]
    for f in fields(s):
        value = getattr(s, f.name)
        if f.name in ("span", "accesses", "boxes", "operation") or value in (None, False, "", ()):
            continue
        words.append(f"{f.name}={_value(value)}")
    return " ".join(words)


def _word(s: Stmt) -> str:
    name = type(s).__name__
    operation = getattr(s, "operation", "")
    count = f" x {len(s.boxes)}" if isinstance(s, TmaLoad | TmaStore) else ""
    count += f" x {s.lanes}" if isinstance(s, TmaLoad) and s.lanes else ""
    return f"{name} {operation}{count}".rstrip() if not isinstance(s, Define | Call) else name


def _value(value: object) -> str:
    if isinstance(value, Slot):
        where = f"[{value.instance}]" if value.instance is not None else ""
        return f"{value.barrier}{where}{f'.{value.slot}' if value.slot else ''}"
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))})"
    return str(value)
