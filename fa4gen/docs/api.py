"""The API reference, from signatures and docstrings as they stand in the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fa4gen

PACKAGE = Path(fa4gen.__file__).parent
HEAD = """\
# API reference

Made from docstrings by `fa4gen docs`. Everything here is a name of `fa4gen`; importing it loads
neither torch nor the CuTe DSL before a function is used.
"""
BESIDE = {  # names that are called by their full path
    "fa4gen.integrations.transformers.register": "integrations/transformers.py",
}


def api() -> str:
    """The page, in Markdown."""
    parts = [HEAD]
    for name, home in sorted(fa4gen.HOMES.items()):
        path = PACKAGE / Path(*home.split(".")[1:]).with_suffix(".py")
        parts += _entry(f"fa4gen.{name}", path, name)
    for full, file in BESIDE.items():
        parts += _entry(full, PACKAGE / file, full.rpartition(".")[2])
    return "\n".join(parts)


def _entry(full: str, path: Path, name: str) -> Iterator[str]:
    """Title, signature and docstring of a function or class of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name
    )
    yield f"## {full}\n"
    if isinstance(node, ast.FunctionDef):
        yield f"```text\n{_signature(full, node)}\n```\n"
    yield _plain(ast.get_docstring(node) or "") + "\n"


def _signature(full: str, node: ast.FunctionDef) -> str:
    """One argument a line, as ruff writes what does not fit into one."""
    words = re.sub(r"(?<=\S)=(?=\S)", " = ", ast.unparse(node.args))
    words = words.replace("Tensor", "torch.Tensor")
    returns = ast.unparse(node.returns).replace("Tensor", "torch.Tensor") if node.returns else ""
    flat = f"{full}({words}) -> {returns}"
    if len(flat) <= 100:
        return flat
    inside = ",\n    ".join(_split(words))
    return f"{full}(\n    {inside},\n) -> {returns}"


def _split(arguments: str) -> list[str]:
    """Arguments, at commas that stand within no bracket."""
    found, depth = [""], 0
    for letter in arguments:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [word.strip() for word in found]


def _plain(text: str) -> str:
    """A docstring as Markdown: what looks like markup there is none, but for code."""
    return text.replace("<", "&lt;")
