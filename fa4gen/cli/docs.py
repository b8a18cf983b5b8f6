"""The verb `docs`: writes the pages that are made from the code, or compares them."""

import sys
from pathlib import Path

from .arguments import OK, REFUSED, Arguments, Given


def docs_arguments(parser: Arguments) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path("docs"), metavar="DIR")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; refuse if a page is not current"
    )


def docs_verb(given: Given) -> int:
    from fa4gen.docs import stale, write

    if given.check:
        old = stale(given.out)
        for name in old:
            print(f"{given.out / name} is not current; `fa4gen docs` writes it", file=sys.stderr)
        return REFUSED if old else OK
    for path in write(given.out):
        print(path)
    return OK
