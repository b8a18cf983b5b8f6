"""What verbs share: arguments, exit codes."""

import argparse

from fa4gen.diag import Fa4genError

Arguments = argparse.ArgumentParser
Given = argparse.Namespace

OK, REFUSED, USAGE = 0, 1, 2
USAGE_CODES = ("FA0111", "FA0112")  # a file that is not there, a setting that does not exist


def schedule_arguments(parser: Arguments, least: str = "+") -> None:
    parser.add_argument("schedules", nargs=least, metavar="SCHEDULE", help="schedule files (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter (kv_stages=2), the problem (causal=true) or a path (roles.mma.warps=1)",
    )
    parser.add_argument("--variant", metavar="NAME", help="a variant that the schedule names")
    json_argument(parser)


def json_argument(parser: Arguments) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def settings(given: Given) -> dict[str, str]:
    """`--set` as a mapping; a setting without `=` ends the program (2)."""
    found: dict[str, str] = {}
    for text in given.set:
        key, equals, value = text.partition("=")
        if not equals:
            given.parser.error(f"--set takes KEY=VALUE, not `{text}`")
        found[key.strip()] = value.strip()
    return found


def code_of(errors: Fa4genError) -> int:
    """The exit code of an error: wrong usage, or a refusal."""
    codes = {d.code for d in errors.diagnostics}
    return USAGE if codes and codes <= set(USAGE_CODES) else REFUSED
