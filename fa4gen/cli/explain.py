"""The verb `explain`: the page of an error code, or the proof of a schedule."""

import json
import sys
from pathlib import Path

from fa4gen.diag import Fa4genError

from .arguments import OK, USAGE, Arguments, Given, code_of, json_argument, settings


def explain_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "subject",
        nargs="?",
        metavar="CODE|SCHEDULE",
        help="FA and four digits, or a schedule file; left out: all codes",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for `check`"
    )
    parser.add_argument("--variant", metavar="NAME", help="a variant that the schedule names")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the pipeline there")
    json_argument(parser)


def explain_verb(given: Given) -> int:
    if given.subject is not None and given.subject.endswith((".yaml", ".yml")):
        return _schedule(given)
    if given.svg is not None:
        print("--svg draws a schedule: give its file", file=sys.stderr)
        return USAGE
    return _code(given)


def _code(given: Given) -> int:
    from fa4gen.codes import CODES, page

    if given.subject is None:
        rows = [{"code": c.code, "stage": c.stage, "title": c.title} for c in CODES.values()]
        text = "\n".join(f"{c.code}  {c.stage:<12} {c.title}" for c in CODES.values())
        print(json.dumps(rows, indent=2) if given.json else text)
        return OK
    code = CODES.get(given.subject.upper())
    if code is None:
        print(f"no code {given.subject}; `fa4gen explain` lists them", file=sys.stderr)
        return USAGE
    text = page(code)
    print(
        json.dumps({"code": code.code, "title": code.title, "page": text}) if given.json else text
    )
    return OK


def _schedule(given: Given) -> int:
    from fa4gen.driver import check
    from fa4gen.scheduler.explain import explain, picture

    try:
        checked = check(given.subject, settings=settings(given), variant=given.variant)
    except Fa4genError as e:
        print(e, file=sys.stderr)
        return code_of(e)
    text = explain(checked.program)
    print(json.dumps({"schedule": given.subject, "text": text}) if given.json else text)
    if given.svg is not None:
        given.svg.write_text(picture(checked.program))
        print(f"drawn: {given.svg}", file=sys.stderr)
    return OK
