"""What a cubin says about its kernels without any tool: an ELF file read by hand.

Layout: ELF64; machine code of kernel K in `.text.K`; attributes in `.nv.info` as (format byte,
attribute byte, size or value u16, payload), the codes being those that `cuobjdump -elf` prints.
"""

import struct
from dataclasses import dataclass

EIATTR_FRAME_SIZE = 0x11  # payload: symbol, bytes
EIATTR_REGCOUNT = 0x2F  # payload: symbol, registers
MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
EM_CUDA = 190
SECTION_HEADER = 64  # bytes
FORMAT_SIZED = 4  # the u16 is the payload's size; other formats carry a value in it


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One kernel of a cubin: registers a thread at launch, bytes of local memory a thread."""

    name: str
    registers: int
    frame_bytes: int
    code: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int
    info: int


def embedded(data: bytes) -> bytes:
    """The first cubin in a file: of a shared object the one that it carries, of a cubin itself.

    Raises ValueError if there is none.
    """
    at = data.find(MAGIC)
    while at >= 0:
        (machine,) = struct.unpack_from("<H", data, at + 0x12)
        if machine == EM_CUDA:
            (table,) = struct.unpack_from("<Q", data, at + 0x28)
            (count,) = struct.unpack_from("<H", data, at + 0x3C)
            segments = struct.unpack_from("<Q", data, at + 0x20)[0]
            segment_size, segment_count = struct.unpack_from("<HH", data, at + 0x36)
            end = max(table + count * SECTION_HEADER, segments + segment_size * segment_count)
            return data[at : at + end]
        at = data.find(MAGIC, at + 1)
    raise ValueError("it holds no cubin")


def kernels(cubin: bytes) -> tuple[KernelFacts, ...]:
    """The kernels of a cubin, in file order; ValueError if it is not a 64-bit CUDA ELF file."""
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    frames = _attributes(cubin, sections, symbols, EIATTR_FRAME_SIZE)
    registers = _attributes(cubin, sections, symbols, EIATTR_REGCOUNT)
    return tuple(
        KernelFacts(
            name=s.name.removeprefix(".text."),
            registers=registers.get(s.name.removeprefix(".text."), 0),
            frame_bytes=frames.get(s.name.removeprefix(".text."), 0),
            code=cubin[s.offset : s.offset + s.size],
        )
        for s in sections
        if s.name.startswith(".text.")
    )


def _sections(cubin: bytes) -> list[_Section]:
    if not cubin.startswith(MAGIC):
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    raw = [
        struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * SECTION_HEADER) for i in range(count)
    ]
    strings = raw[names][4]
    return [
        _Section(
            name=_string(cubin, strings + r[0]),
            kind=r[1],
            offset=r[4],
            size=r[5],
            link=r[6],
            info=r[7],
        )
        for r in raw
    ]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbols(cubin: bytes, sections: list[_Section]) -> list[str]:
    table = next(s for s in sections if s.name == ".symtab")
    strings = sections[table.link].offset
    offsets = range(table.offset, table.offset + table.size, 24)
    return [_string(cubin, strings + struct.unpack_from("<I", cubin, o)[0]) for o in offsets]


def _attributes(
    cubin: bytes, sections: list[_Section], symbols: list[str], wanted: int
) -> dict[str, int]:
    """Symbol -> value of one attribute of `.nv.info`."""
    found = {}
    for section in (s for s in sections if s.name == ".nv.info"):
        at, end = section.offset, section.offset + section.size
        while at + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form != FORMAT_SIZED:
                continue
            if attribute == wanted and size == 8:
                symbol, value = struct.unpack_from("<II", cubin, at)
                found[symbols[symbol]] = value
            at += size
    return found
