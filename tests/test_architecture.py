"""The shape of the project: who imports whom, what templates may say, what is loaded when."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from fa4gen.emit import model
from fa4gen.ir import program

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fa4gen"
TEMPLATES = PACKAGE / "emit" / "templates"

FACTS = {"diag", "codes", "dtypes", "options", "target"}
IR = FACTS | {"ir"}
COMPILER = IR | {"dsl", "scheduler", "emit", "cost", "flex", "runtime", "emulator", "driver"}
MAY_IMPORT = {  # besides itself
    "diag": set(),
    "codes": {"diag"},
    "dtypes": {"diag"},
    "options": {"diag"},
    "target": FACTS,
    "ir": FACTS,
    "dsl": IR,
    "scheduler": IR,
    "emit": IR,
    "cost": IR,
    "flex": IR,
    "runtime": IR,
    "emulator": FACTS,  # an oracle shares no belief with what it judges
    "driver": COMPILER,
    "build": COMPILER,
    "show": COMPILER,
    "emulate": COMPILER,
    "analyze": COMPILER | {"build"},
    "api": COMPILER,
    "bench": COMPILER | {"build"},
    "explore": COMPILER | {"analyze", "bench", "build"},
    "integrations": COMPILER | {"api"},
    "docs": COMPILER | {"bench", "__init__"},
    "cli": COMPILER | {"analyze", "api", "bench", "build", "docs", "emulate", "explore", "show"},
    "__init__": {"diag", "api"},
    "__main__": {"cli"},
}
DOORS = {  # the packages of ours through which a third party comes in
    "yaml": {"dsl"},
    "networkx": {"scheduler", "cost"},
    "jinja2": {"emit"},
    "cutlass": {"runtime/dsl_process.py"},
    "torch": {
        "flex/closure.py",
        "flex/trace.py",
        "flex/interpret.py",
        "flex/lists.py",
        "api",
        "runtime",
        "emulator",
        "emulate.py",
        "bench/runner",
    },
    "tvm_ffi": {"runtime", "emulator", "bench/runner"},
    "transformers": {"integrations"},
}


def sources() -> list[Path]:
    """Files of ours; those of `emit/device` are text of kernels, and import the DSL."""
    device = PACKAGE / "emit" / "device"
    return sorted(p for p in PACKAGE.rglob("*.py") if device not in p.parents)


def imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*up, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part(path: Path) -> str:
    """The package of ours (or top-level module) that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def known() -> set[str]:
    return {part(p) for p in sources()}


def wrong_imports(path: Path) -> set[str]:
    """What of ours a file imports against the law."""
    found = {m.split(".")[1] for m in imports(path) if m.startswith("fa4gen.")}
    return (found & known()) - MAY_IMPORT[part(path)] - {part(path)}


def wrong_doors(path: Path) -> set[str]:
    """Third parties that a file imports though its package is no door of theirs."""
    inside = path.relative_to(PACKAGE)
    roots = {m.split(".")[0] for m in imports(path)}
    return {
        name
        for name in roots & set(DOORS)
        if not any(inside.is_relative_to(door) for door in DOORS[name])
    }


def test_every_part_has_its_place() -> None:
    assert known() - set(MAY_IMPORT) == set()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way_and_third_parties_through_their_door(path: Path) -> None:
    assert wrong_imports(path) == set()
    assert wrong_doors(path) == set()


def test_the_walk_sees_an_import_in_a_function() -> None:
    seen = set(imports(PACKAGE / "emulate.py"))
    assert {"torch", "fa4gen.driver", "fa4gen.emulator.attention"} <= seen
    assert "fa4gen.ir.plan" in set(imports(PACKAGE / "driver.py"))


def test_the_runner_of_a_kit_needs_nothing_of_ours() -> None:
    runner = PACKAGE / "bench" / "runner"
    for path in runner.glob("*.py"):
        outside = {m for m in imports(path) if m.startswith("fa4gen")}
        assert all(m.startswith("fa4gen.bench.runner") for m in outside), path


# templates -------------------------------------------------------------------------------------

DECISIONS = (nodes.If, nodes.CondExpr, nodes.Test, nodes.Compare, nodes.And, nodes.Or, nodes.Not)
ARITHMETIC = (nodes.BinExpr, nodes.UnaryExpr, nodes.Assign, nodes.AssignBlock)
FILTERS = {"join", "indent"}


def decisions(source: str) -> list[str]:
    """What a template does besides printing: its tests, arithmetic, calls and other filters."""
    tree = jinja2.Environment().parse(source)
    found = [type(n).__name__ for n in tree.find_all((*DECISIONS, *ARITHMETIC, nodes.Call))]
    found += [f"filter {n.name}" for n in tree.find_all(nodes.Filter) if n.name not in FILTERS]
    found += [
        "a loop with a condition or an else"
        for n in tree.find_all(nodes.For)
        if n.test is not None or n.else_ or n.recursive
    ]
    return found


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.j2")), ids=lambda p: p.name)
def test_a_template_prints_and_never_decides(path: Path) -> None:
    assert decisions(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "{% if n.x %}a{% endif %}",
        "{{ 'a' if n.x else 'b' }}",
        "{{ n.x + 1 }}",
        "{{ n.x == 1 }}",
        "{{ n.f(1) }}",
        "{{ n.x | sort }}",
        "{% for a in n.b if a %}{% endfor %}",
        "{% set a = 1 %}",
    ],
)
def test_a_decision_in_a_template_is_seen(source: str) -> None:
    assert decisions(source)


def macros() -> list[str]:
    tree = jinja2.Environment().parse((TEMPLATES / "statements.j2").read_text())
    return [m.name for m in tree.find_all(nodes.Macro)]


def statements() -> list[type[program.Stmt]]:
    return [
        c
        for _, c in inspect.getmembers(program, inspect.isclass)
        if issubclass(c, program.Stmt) and c is not program.Stmt
    ]


def test_every_statement_has_its_macro_and_every_macro_is_used() -> None:
    """A macro is `Class`, or one for each form: `Class_form`; no two have the same name."""
    names = macros()
    assert len(names) == len(set(names))
    for statement in statements():
        assert [m for m in names if m.partition("_")[0] == statement.__name__], statement
    text = Path(model.__file__).read_text() + (PACKAGE / "emit" / "render.py").read_text()
    classes = {s.__name__ for s in statements()}
    frame = {"Tiles", "Begin", "Finish"}  # their form is a word of the schedule
    for name in names:
        assert name in classes or name.partition("_")[0] in frame or f'"{name}"' in text, name


# what is loaded --------------------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["import fa4gen", "from fa4gen.driver import check; check(FILE)"])
def test_nothing_heavy_is_loaded(doing: str) -> None:
    file = ROOT / "schedules" / "fwd_hd128_sm90.yaml"
    script = (
        f"import sys; FILE = {str(file)!r}; {doing}\n"
        "print(sorted({'torch', 'cutlass', 'tvm_ffi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
