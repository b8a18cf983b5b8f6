"""Shipped schedules, and one change at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fa4gen.diag import Diagnostic
from fa4gen.dsl import load
from fa4gen.ir.schedule import Barrier, Buffer, Operation, Role, Schedule

SCHEDULES = Path(__file__).parents[2] / "schedules"


def blackwell(**settings: str) -> Schedule:
    return load(SCHEDULES / "fwd_hd128.yaml", settings=settings)


def hopper(**settings: str) -> Schedule:
    return load(SCHEDULES / "fwd_hd128_sm90.yaml", settings=settings)


def _with(things: tuple[Any, ...], name: str, changes: dict[str, Any]) -> tuple[Any, ...]:
    assert name in [t.name for t in things], name
    return tuple(replace(t, **changes) if t.name == name else t for t in things)


def with_role(s: Schedule, name: str, **changes: Any) -> Schedule:
    roles: tuple[Role, ...] = _with(s.roles, name, changes)
    return replace(s, roles=roles)


def with_buffer(s: Schedule, name: str, **changes: Any) -> Schedule:
    buffers: tuple[Buffer, ...] = _with(s.buffers, name, changes)
    return replace(s, buffers=buffers)


def with_operation(s: Schedule, name: str, **changes: Any) -> Schedule:
    operations: tuple[Operation, ...] = _with(s.operations, name, changes)
    return replace(s, operations=operations)


def with_barrier(s: Schedule, name: str, **changes: Any) -> Schedule:
    barriers: tuple[Barrier, ...] = _with(s.barriers, name, changes)
    return replace(s, barriers=barriers)


def without(things: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    assert name in [t.name for t in things], name
    return tuple(t for t in things if t.name != name)


def codes(found: list[Diagnostic]) -> list[str]:
    return sorted({d.code for d in found})
