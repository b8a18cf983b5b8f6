"""Reads PTX text, as NVVM and inline assembly write it, into a `PtxModule`.

Inline assembly brings nested scopes with registers and labels of their own; both are looked up from
the innermost scope outwards. What is not understood is an error with its line, never skipped.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from fa4gen.diag import Fa4genError, Span, error
from fa4gen.emulator.ptx.module import (
    Address,
    Guard,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Parameter,
    PtxEntry,
    PtxModule,
    Register,
    Shared,
    Sink,
    Special,
    Statement,
    Symbol,
    Vector,
)

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.S)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?\s*;")
_FILE = re.compile(r"\.file\s+(\d+)\s+\"([^\"]*)\"")
_TOKEN = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)"
    r"|(?P<loc>\.loc\s+(\d+)\s+(\d+)[^\n;]*)|(?P<statement>[^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)"
)
_DECIMAL = re.compile(r"-?\d+\.\d*(?:[eE][-+]?\d+)?")
_GUARD = re.compile(r"@(!?)\s*([%\w$]+)\s+")
_OPERAND = re.compile(r"(?:\{[^{}]*\}|\[(?:[^\[\]{}]|\{[^{}]*\})*\]|[^,\[\]{}])+")
_REG = re.compile(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", re.S)
_ADDRESS = re.compile(r"\s*([%\w$.]+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?\s*$")
_WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}


def load_ptx(text: str, name: str) -> PtxModule:
    """Parses a whole file.

    Args:
        text: PTX, version 8.x.
        name: what messages call the file.

    Raises:
        Fa4genError: where the text is not PTX that this emulator knows, with its line.
    """
    clean = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    target = re.search(r"\.target\s+(\w+)", clean)
    files = {m[1]: m[2] for m in _FILE.finditer(text)}
    entries = {}
    first = next(_ENTRY.finditer(clean), None)
    outer = _shared(clean[: first.start()] if first else clean)
    for head in _ENTRY.finditer(clean):
        body = _Body(text=clean, name=name, files=files, at=head.end())
        body.params = _params(head[2] or "")
        body.shared = list(outer)
        entries[head[1]] = body.read(head[1], head[3])
    if not entries:
        raise error(
            "FA0930", f"{name}: no .entry in this text", fix="give a PTX module with kernels"
        )
    return PtxModule(name=name, target=target[1] if target else "", entries=entries)


def _params(text: str) -> tuple[Parameter, ...]:
    out: list[Parameter] = []
    offset = 0
    for m in _PARAM.finditer(text):
        width = _WIDTHS[re.sub(r"\D", "", m[2])]
        size = width * int(m[4] or 1)
        align = int(m[1] or width)
        offset = -(-offset // align) * align
        out.append(Parameter(name=m[3], bytes=size, align=align, offset=offset))
        offset += size
    return tuple(out)


def _shared(text: str) -> list[Shared]:
    found = []
    for m in _SHARED.finditer(text):
        width = _WIDTHS[re.sub(r"\D", "", m[2])]
        count = 0 if m[4] == "" else int(m[4] or 1)
        found.append(Shared(name=m[3], bytes=width * count, align=int(m[1] or width)))
    return found


@dataclass(slots=True)
class _Raw:
    """A statement before its labels are known."""

    text: str
    line: int
    scope: tuple[int, ...]
    source: str


@dataclass(slots=True)
class _Body:
    """Reads one entry's body."""

    text: str
    name: str
    files: dict[str, str]
    at: int
    params: tuple[Parameter, ...] = ()
    shared: list[Shared] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    scopes: dict[tuple[str, tuple[int, ...]], Register] = field(default_factory=dict)
    families: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = field(default_factory=dict)
    labels: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)

    def read(self, entry: str, directives: str) -> PtxEntry:
        raws = self._statements()
        self.symbols = {p.name for p in self.params} | {s.name for s in self.shared}
        statements = tuple(self._statement(r) for r in raws)
        m = re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
        return PtxEntry(
            name=entry,
            params=self.params,
            shared=tuple(self.shared),
            registers=tuple(self.registers),
            statements=statements,
            reqntid=(int(m[1]), int(m[2] or 1), int(m[3] or 1)) if m else None,
        )

    def _statements(self) -> list[_Raw]:
        raws: list[_Raw] = []
        scope: tuple[int, ...] = ()
        opened, line, seen, source = 0, 1 + self.text.count("\n", 0, self.at), self.at, ""
        while True:
            m = _TOKEN.match(self.text, self.at)
            if m is None:
                raise self._error(
                    line, f"cannot read: {self.text[self.at : self.at + 60].strip()!r}"
                )
            start = m.end() - len(m.group().lstrip())
            line += self.text.count("\n", seen, start)
            seen, self.at = start, m.end()
            if m["open"]:
                opened += 1
                scope = (*scope, opened)
            elif m["close"]:
                if not scope:
                    return raws
                scope = scope[:-1]
            elif m["label"]:
                self.labels[m["label"], scope] = len(raws)
            elif m["loc"]:
                source = f"{self.files.get(m[5], m[5])}:{m[6]}"
            else:
                self._keep(m["statement"].strip(), line, scope, source, raws)

    def _keep(
        self, text: str, line: int, scope: tuple[int, ...], source: str, raws: list[_Raw]
    ) -> None:
        if text.startswith(".reg"):
            self._declare(text, line, scope)
        elif text.startswith((".shared", ".extern")):
            self.shared += _shared(text + ";")
        elif text.startswith(".pragma") or not text:
            pass
        elif text.startswith("."):
            raise self._error(line, f"unknown directive: {text[:60]}")
        else:
            raws.append(_Raw(text, line, scope, source))

    def _declare(self, text: str, line: int, scope: tuple[int, ...]) -> None:
        m = _REG.match(text)
        if m is None:
            raise self._error(line, f"cannot read: {text[:60]}")
        kind = "pred" if m[1] == "pred" else "b" + re.sub(r"\D", "", m[1])
        kind = "b16" if kind == "b8" else kind
        for name in m[2].split(","):
            base, _, count = name.strip().partition("<")
            names = [f"{base}{i}" for i in range(int(count[:-1]))] if count else [base]
            for n in names:
                register = Register(n, kind, len(self.registers))
                self.registers.append(register)
                self.scopes[n, scope] = register

    def _statement(self, raw: _Raw) -> Statement:
        text, guard = raw.text, None
        m = _GUARD.match(text)
        if m:
            register = self._register(m[2], raw)
            if register is None:
                raise self._error(raw.line, f"undeclared guard {m[2]}: {raw.text[:60]}")
            guard, text = Guard(register=register, negated=m[1] == "!"), text[m.end() :]
        opcode, _, rest = text.replace("\t", " ").replace("\n", " ").partition(" ")
        operands = tuple(self._operand(o.strip(), raw) for o in _OPERAND.findall(rest) if o.strip())
        return Statement(
            opcode=opcode,
            operands=operands,
            guard=guard,
            line=raw.line,
            text=" ".join(raw.text.split()),
            source=raw.source,
        )

    def _register(self, name: str, raw: _Raw) -> Register | None:
        for depth in range(len(raw.scope), -1, -1):
            found = self.scopes.get((name, raw.scope[:depth]))
            if found:
                return found
        return None

    def _operand(self, text: str, raw: _Raw) -> Operand:
        if text[0] == "{":
            return Vector(tuple(self._operand(o, raw) for o in _split(text[1:-1])))
        if text[0] == "[":
            return self._address(text[1:-1], raw)
        if "|" in text:
            a, b = text.split("|")
            return Pair(self._operand(a.strip(), raw), self._operand(b.strip(), raw))
        return self._atom(text, raw)

    def _address(self, text: str, raw: _Raw) -> Address:
        inner, _, tail = text.partition(",")
        m = _ADDRESS.match(inner)
        if m is None:
            raise self._error(raw.line, f"cannot read the address [{text}]")
        offset = _integer((m[2] or m[3] or "0").replace(" ", ""))
        coordinates: tuple[Operand, ...] = ()
        if tail.strip():
            vector = self._operand(tail.strip(), raw)
            coordinates = vector.items if isinstance(vector, Vector) else (vector,)
        return Address(self._atom(m[1], raw), offset or 0, coordinates)

    def _atom(self, text: str, raw: _Raw) -> Operand:
        if text == "_":
            return Sink()
        register = self._register(text, raw)
        if register is not None:
            return register
        if text[0] == "!":
            inner = self._register(text[1:].strip(), raw)
            if inner is not None:
                return Negated(inner)
        if text[0] == "%":
            return Special(text)
        immediate = _literal(text)
        if immediate is not None:
            return immediate
        if text in self.symbols:
            return Symbol(text)
        for depth in range(len(raw.scope), -1, -1):
            target = self.labels.get((text, raw.scope[:depth]))
            if target is not None:
                return Label(text, target)
        raise self._error(raw.line, f"unknown name {text!r} in: {raw.text[:80]}")

    def _error(self, line: int, title: str) -> Fa4genError:
        return error(
            "FA0930", title, span=Span(self.name, line, 1), why="this PTX is not understood"
        )


def _split(text: str) -> Iterator[str]:
    return (o.strip() for o in text.split(",") if o.strip())


def _integer(text: str) -> int | None:
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        return None


def _literal(text: str) -> Immediate | None:
    if text[:2] in ("0f", "0F"):
        return Immediate(int(text[2:], 16), 32)
    if text[:2] in ("0d", "0D"):
        return Immediate(int(text[2:], 16), 64)
    if _DECIMAL.fullmatch(text):
        return Immediate(struct.unpack("<I", struct.pack("<f", float(text)))[0], 32)
    value = _integer(text)
    return None if value is None else Immediate(value)
