"""Prints a kernel program: the templates, the device functions that it needs, nothing else.

Takes a verified program only. The text depends on the program and on the files of `emit` alone: no
time, no path, no order of a hash.
"""

import ast
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath

import jinja2

from fa4gen.diag import error
from fa4gen.ir.head import Head
from fa4gen.ir.program import Define, KernelProgram
from fa4gen.ir.verified import Verified

from . import expression, model

HERE = Path(__file__).parent
LIBRARIES = {
    "sm_90a": ("sm90", "backward", "sm90_backward"),
    "sm_100a": ("sm100", "backward", "sm100_backward"),
    "sm_103a": ("sm100", "backward", "sm100_backward"),
}
COMMON = ("launch", "tiles", "scores", "combine", "modifiers")
HOST = ("LOG2_E",)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """A generated file: its text, the hash of it, and which of its lines comes from which YAML
    line."""

    name: str
    target: str
    text: str
    sha256: str
    line_map: dict[int, tuple[str, int]]


def render(verified: Verified[KernelProgram]) -> KernelSource:
    """The complete CuTe DSL source of a verified kernel program."""
    program = verified.value
    head = program.head
    assert isinstance(head, Head)
    env = _environment()
    macros = env.get_template("statements.j2").module
    roles = "\n".join(_node(macros, n) for n in model.roles(program))
    begin, finish = _frame(macros, head)
    host = "\n".join(d.text for d in (*head.first, *head.launch, *head.tiles.launch, *head.declare))
    host += "".join(f"\n{i.example}" for i in head.inputs)
    maps = "\n".join(m.text for m in head.maps)
    own = expression.functions(head.modifiers)
    wanted = (
        *HOST,
        *_names_in(maps),
        *head.functions,
        *_names_in(roles),
        *_names_in(begin),
        *_names_in(host),
        *_names_in(own),
    )
    functions, imports = _library(program.target, wanted)
    text = env.get_template(head.template).render(
        k={
            "title": f"{program.name}: {head.title} for {program.target}.",
            "schedule": PurePath(program.schedule_file).name,
            "summary": _summary(program, head),
            "imports": imports,
            "constants": "\n".join(
                [f"DTYPE = {head.dtype}", *(_constant(d) for d in head.constants)]
            ),
            "functions": "\n\n\n".join([functions, own] if own else [functions]),
            "first": head.first,
            "maps": head.maps,
            "lengths": head.lengths,
            "batches": head.batches,
            "parameters": head.parameters,
            "arguments": head.arguments,
            "ratio": head.ratio,
            "inputs": head.inputs,
            "declare": head.declare,
            "launch": head.launch,
            "begin": begin,
            "roles": roles,
            "finish": finish,
            "tiles": head.tiles,
            "threads": program.threads,
            "head_dim": head.head_dim,
            "head_dim_v": head.head_dim_v,
        }
    )
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return KernelSource(
        name=program.name,
        target=program.target,
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        line_map=model.line_map(text),
    )


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        autoescape=False,
    )


def _node(macros: object, node: model.Node) -> str:
    body = "\n".join(_node(macros, c) for c in node.children)
    try:
        macro = getattr(macros, node.macro)
    except AttributeError:
        raise error("FA0605", f"no template prints `{node.macro}`") from None
    return str(macro(node, body)).strip("\n")


def _constant(d: Define) -> str:
    return f"{d.name} = {d.text}{model.at(d.span)}"


def _frame(macros: object, head: Head) -> tuple[str, str]:
    """What stands before the roles (barriers, tensor memory) and after them."""
    frame = "tensor_memory" if head.tmem_columns else "plain"
    text: dict[str, object] = {
        "inits": head.mbarriers,
        "columns": str(head.tmem_columns),
        "warp": str(head.alloc_warp),
    }
    begin = model.Node(macro=f"Begin_{frame}", text=text)
    finish = model.Node(macro=f"Finish_{frame}", text=text)
    return _node(macros, begin), _node(macros, finish)


def _summary(program: KernelProgram, head: Head) -> str:
    roles = ", ".join(
        f"{r.name} (warps {r.first_warp}-{r.first_warp + r.warps * r.instances - 1})"
        for r in program.roles
    )
    return (
        f"Roles: {roles}.\n"
        f"Tiles: {head.tiles.rows} {head.tiles.unit} a CTA, scheduler {head.tiles.kind}."
    )


def _names_in(text: str) -> tuple[str, ...]:
    return tuple(sorted({n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    name: str
    text: str
    needs: frozenset[str]
    constant: bool = False


@cache
def _items(library: str) -> tuple[tuple[_Item, ...], tuple[str, ...]]:
    """Top-level functions and constants of a device file, and its import lines."""
    source = (HERE / "device" / f"{library}.py").read_text()
    items, imports = [], []
    for node in ast.parse(source).body:
        text = ast.get_source_segment(source, node) or ""
        needs = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        match node:
            case ast.FunctionDef():
                decorators = "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list)
                items.append(_Item(name=node.name, text=decorators + text, needs=needs))
            case ast.Assign(targets=[ast.Name(id=name)]):
                items.append(
                    _Item(
                        name=name,
                        text=_with_comment(source, node, text),
                        needs=needs,
                        constant=True,
                    )
                )
            case ast.ImportFrom(module=module) if module and module.startswith("fa4gen"):
                pass  # another device file: what it needs of it is copied like the rest
            case ast.ImportFrom(module=str(other)) if other.startswith("fa4gen."):
                pass  # another device file: its functions are copied, not imported
            case ast.Import() | ast.ImportFrom():
                imports.append(text)
    return tuple(items), tuple(imports)


def _with_comment(source: str, node: ast.Assign, text: str) -> str:
    line = source.splitlines()[(node.end_lineno or node.lineno) - 1]
    return text + line[node.end_col_offset :]


def _library(target: str, wanted: tuple[str, ...]) -> tuple[str, str]:
    """The functions wanted and all that they call, in file order; and the imports."""
    files = [*COMMON, *LIBRARIES[target]]
    items = [i for f in files for i in _items(f)[0]]
    need, todo = set(), [n for n in wanted if any(i.name == n for i in items)]
    while todo:
        name = todo.pop()
        if name not in need:
            need.add(name)
            todo += [
                n
                for i in items
                if i.name == name
                for n in i.needs
                if any(j.name == n for j in items)
            ]
    chosen = [i for i in items if i.name in need]
    constants = "\n".join(i.text for i in chosen if i.constant)
    functions = "\n\n\n".join(i.text for i in chosen if not i.constant)
    return f"{constants}\n\n\n{functions}".strip("\n"), _imports(files)


def _imports(files: list[str]) -> str:
    """All imports of the device files but those of each other, one line a module."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    head = (
        "import cutlass\nimport cutlass.cute as cute\nimport cutlass.experimental.cuda as cuda\n"
        "from cutlass import BFloat16, Float16, Float32, Int8, Int32, Int64\n"
        "from cutlass.cute.runtime import make_fake_stream, make_fake_tensor\n"
        "from cutlass.experimental import primitives as p\n"
    )
    for text in (head, *("\n".join(_items(f)[1]) for f in files)):
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                plain |= {
                    f"import {a.name} as {a.asname}" if a.asname else f"import {a.name}"
                    for a in node.names
                }
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.setdefault(node.module or "", set()).update(
                    f"{a.name} as {a.asname}" if a.asname else a.name for a in node.names
                )
    lines = sorted(plain) + [
        f"from {m} import {', '.join(sorted(n))}" for m, n in sorted(names.items())
    ]
    return "\n".join(lines)
