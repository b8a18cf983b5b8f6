"""A tree back to YAML text: sections as blocks, what lies deeper in flow style on one line."""

from .reader import Map, Node, Scalar, Seq

BLOCK_DEPTH = 2  # levels of mappings that get lines of their own


def entries_text(tree: Map, indent: int = 0) -> str:
    """The lines of a mapping's entries; reading them gives the same tree."""
    lines = []
    for key, value in tree.entries:
        pad = "  " * indent
        if isinstance(value, Map) and value.entries and indent + 1 < BLOCK_DEPTH:
            lines.append(f"{pad}{key.text}:\n{entries_text(value, indent + 1)}")
        else:
            lines.append(f"{pad}{_scalar(key)}: {flow_text(value)}\n")
    return "".join(lines)


def flow_text(node: Node) -> str:
    """One line."""
    if isinstance(node, Scalar):
        return _scalar(node)
    if isinstance(node, Seq):
        return f"[{', '.join(map(flow_text, node.items))}]"
    inner = ", ".join(f"{_scalar(k)}: {flow_text(v)}" for k, v in node.entries)
    return f"{{{inner}}}"


def _scalar(s: Scalar) -> str:
    """Plain where it was written plain and stays so within brackets; a null as a word."""
    if s.plain and s.value is None:
        return "null"
    safe = not any(c in s.text for c in "[]{},#:\"'\\\n|&*!%@`")
    if s.plain and safe:
        return s.text
    escaped = s.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
