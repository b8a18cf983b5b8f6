"""A checked schedule as the cost model's pipeline: the marked graph of its block loop, as it is."""

from fa4gen.cost.pipeline import Edge, Event, Pipeline
from fa4gen.driver import Checked
from fa4gen.ir.program import Call
from fa4gen.ir.schedule import Schedule
from fa4gen.scheduler.graph import Node, loop_graph
from fa4gen.scheduler.instantiate import instantiate
from fa4gen.scheduler.model import Role, System


def pipeline_of(checked: Checked) -> Pipeline:
    """The pipeline of a checked schedule, with the edges that its proof explains itself by."""
    program = checked.program.value
    system = instantiate(program)
    graph = loop_graph(system)
    events = {n: _event(checked.schedule, system, n) for n in graph}
    edges = tuple(
        Edge(
            source=events[a],
            target=events[b],
            distance=data["d"],
            barrier=data["edge"].bar >= 0,
        )
        for a, b, data in graph.edges(data=True)
    )
    return Pipeline(schedule=checked.schedule, program=program, edges=edges)


def _event(schedule: Schedule, system: System, node: Node) -> Event:
    number, position, part = node
    role = system.roles[number]
    own = (role.declared, role.instance)
    return Event(
        key=node,
        role=role.declared,
        instance=role.instance,
        part=part,
        stmt=role.rest[position].stmt,
        last=position == len(role.rest) - 1,
        share=_share(schedule, role, position),
        actors=sum((r.declared, r.instance) == own for r in system.roles),
    )


def _share(schedule: Schedule, role: Role, position: int) -> float:
    """What one call does of its operation's work: its part of the buffer that is handed over in
    parts, else an equal share."""
    stmt = role.rest[position].stmt
    if not isinstance(stmt, Call):
        return 1.0
    calls = [
        n
        for n, x in enumerate(role.rest)
        if isinstance(x.stmt, Call) and x.stmt.operation == stmt.operation and not x.stmt.piece
    ]
    written = schedule.operation(stmt.operation).writes if len(calls) > 1 else ()
    parts = schedule.buffer_of(written[0]).parts if written else ()
    if position not in calls or len(parts) != len(calls):
        return 1.0 / max(len(calls), 1)
    return parts[calls.index(position)] / sum(parts)
