"""The same pipeline several times in one kernel: for how the checker's time grows."""

from dataclasses import replace

from fa4gen.scheduler.model import SECTIONS, Action, System


def copies(system: System, times: int) -> System:
    """The same pipeline so many times, side by side."""
    bars, regions, units = len(system.bars), len(system.regions), len(system.units)

    def moved(x: Action, n: int) -> Action:
        return replace(
            x,
            role=x.role + n * len(system.roles),
            bar=x.bar + n * bars if x.bar >= 0 else -1,
            unit=x.unit + n * units if x.unit >= 0 else -1,
            uses=tuple(replace(u, region=u.region + n * regions) for u in x.uses),
        )

    roles = tuple(
        replace(r, **{s: tuple(moved(x, n) for x in r.section(s)) for s in SECTIONS})
        for n in range(times)
        for r in system.roles
    )
    return replace(
        system,
        roles=roles,
        bars=system.bars * times,
        regions=system.regions * times,
        units=system.units * times,
    )
