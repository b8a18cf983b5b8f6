"""The verb `check`: everything up to the proof."""

import json
import sys

from fa4gen.diag import Fa4genError
from fa4gen.driver import Checked, check
from fa4gen.ir.features import ordered

from .arguments import OK, Given, code_of, settings


def check_verb(given: Given) -> int:
    chosen, results, code = settings(given), [], OK
    for file in given.schedules:
        try:
            checked = check(file, settings=chosen, variant=given.variant)
        except Fa4genError as e:
            code = max(code, code_of(e))
            errors = [d.as_dict() for d in e.diagnostics]
            results.append({"schedule": file, "sound": False, "errors": errors})
            if not given.json:
                print(e, file=sys.stderr)
            continue
        results.append({"schedule": file, "sound": True, **_facts(checked)})
        if not given.json:
            print(_summary(file, checked))
    if given.json:
        print(json.dumps(results, indent=2))
    return code


def _facts(checked: Checked) -> dict[str, object]:
    schedule, plan = checked.schedule, checked.plan
    return {
        "target": schedule.target,
        "problem": {
            "dtype": schedule.dtype,
            "causal": schedule.causal,
            "features": list(ordered(schedule.features)),
            "head_dim": schedule.head_dim,
            "head_dim_v": schedule.head_dim_v,
        },
        "threads": plan.threads,
        "smem_bytes": plan.smem_bytes,
        "tmem_columns": plan.tmem_columns,
        "stages": dict(plan.stages),
        "proof": [list(fact) for fact in checked.program.evidence],
    }


def _summary(file: str, checked: Checked) -> str:
    schedule, plan = checked.schedule, checked.plan
    mask = ", ".join(("causal" if schedule.causal else "full", *ordered(schedule.features)))
    rings = ", ".join(f"{n} {d}" for n, d in plan.stages.items() if d > 1)
    return "\n".join(
        [
            f"{file}: sound for {schedule.target}, {schedule.dtype}, {mask}, "
            f"head dim {schedule.head_dim}",
            f"  {plan.threads} threads, {plan.smem_bytes} bytes of shared memory, "
            f"{plan.tmem_columns} columns of tensor memory{'; stages: ' if rings else ''}{rings}",
            *(f"  {what}: {fact}" for what, fact in checked.program.evidence),
        ]
    )
