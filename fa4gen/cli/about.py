"""The verbs that inform: `schema`, `list`."""

import json
import sys
from pathlib import Path

from .arguments import OK, USAGE, Arguments, Given, json_argument

SCHEDULES = Path("schedules")


def schema_verb(_given: Given) -> int:
    from fa4gen.dsl import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK


def list_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "folder", nargs="?", default=SCHEDULES, type=Path, help="folder of schedules"
    )
    json_argument(parser)


def list_verb(given: Given) -> int:
    from fa4gen.dsl import load, variants

    if not given.folder.is_dir():
        print(f"there is no folder {given.folder}", file=sys.stderr)
        return USAGE
    rows = []
    for path in sorted(given.folder.glob("*.yaml")):
        schedule, others = load(path), variants(path)
        served = {k: list(v) for k, v in schedule.serves.items()}
        about = {"schedule": str(path), "target": schedule.target, "serves": served}
        rows.append({**about, "variants": others})
        if not given.json:
            serves = ", ".join(f"{k} {'|'.join(map(str, v))}" for k, v in served.items())
            print(f"{path}  {schedule.target}  {serves.lower()}")
            print(f"    variants: {', '.join(others) or 'none'}")
    if given.json:
        print(json.dumps(rows, indent=2))
    return OK
