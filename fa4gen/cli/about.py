"""The verbs that inform: `schema`, `list`, `explain`."""

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


def explain_arguments(parser: Arguments) -> None:
    parser.add_argument("code", nargs="?", help="FA and four digits; left out: all of them")
    json_argument(parser)


def explain_verb(given: Given) -> int:
    from fa4gen.codes import CODES, page

    if given.code is None:
        rows = [{"code": c.code, "stage": c.stage, "title": c.title} for c in CODES.values()]
        text = "\n".join(f"{c.code}  {c.stage:<12} {c.title}" for c in CODES.values())
        print(json.dumps(rows, indent=2) if given.json else text)
        return OK
    code = CODES.get(given.code.upper())
    if code is None:
        print(f"no code {given.code}; `fa4gen explain` lists them", file=sys.stderr)
        return USAGE
    text = page(code)
    print(
        json.dumps({"code": code.code, "title": code.title, "page": text}) if given.json else text
    )
    return OK
