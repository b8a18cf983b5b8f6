"""Every error code: its title, the step that reports it, and its page under `explain/`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

PAGES = Path(__file__).parent / "explain"

STAGES = MappingProxyType(
    {
        "01": "syntax",
        "02": "names",
        "03": "synchronisation",
        "04": "memory",
        "05": "roles",
        "06": "lowering",
        "07": "toolchain",
        "08": "runtime",
        "09": "emulator",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """`FA0102`: the family is the first two digits."""

    code: str
    title: str

    @property
    def stage(self) -> str:
        """The step that reports it."""
        return STAGES[self.code[2:4]]


_TITLES = {
    "FA0101": "the file is not YAML",
    "FA0102": "a key is given twice",
    "FA0103": "an anchor, an alias or a tag",
    "FA0104": "a key that is not text",
    "FA0105": "an unknown key",
    "FA0106": "a value of the wrong kind",
    "FA0107": "a missing key",
    "FA0108": "a phrase that cannot be read",
    "FA0109": "a value that is not allowed",
    "FA0110": "a schedule that extends itself",
    "FA0111": "a file that cannot be read",
    "FA0112": "no such setting or variant",
    "FA0113": "no axis of a search",
    "FA0201": "an operation that does not exist",
    "FA0202": "a buffer that does not exist",
    "FA0203": "a role that does not exist",
    "FA0204": "a parameter that does not exist",
    "FA0205": "an operation kind that does not exist on this target",
    "FA0206": "an index that is missing, wrong, or too many",
    "FA0207": "an operation of no role, or of two",
    "FA0208": "a part that does not exist",
    "FA0209": "operands that do not fit the kind of operation",
    "FA0210": "an expression without a value",
    "FA0211": "a problem that the schedule does not serve",
    "FA0212": "a barrier with nobody on one side",
    "FA0213": "a ring without a full or an empty barrier",
    "FA0214": "a definition that nothing uses",
    "FA0215": "a target that schedules cannot be built for",
    "FA0216": "two things with one name",
    "FA0217": "a TMA load without one mbarrier to complete on",
    "FA0218": "a step at the wrong level",
    "FA0219": "a turn that does not fit its role's steps",
    "FA0220": "an asynchronous unit at a named barrier",
    "FA0221": "a ring that is filled in another order",
    "FA0222": "a tile that means two things",
    "FA0223": "a step of the algorithm that is missing, or done twice",
    "FA0224": "a value that is not in the role's registers",
    "FA0225": "a tile scheduler that the target does not have",
    "FA0301": "a barrier that is not awaited as often as it completes",
    "FA0302": "a deadlock in the block loop: a cycle without a token",
    "FA0303": "a deadlock at a seam",
    "FA0304": "a barrier whose arrivals do not sum up to its count",
    "FA0305": "transaction bytes that do not sum up",
    "FA0306": "arrivals of two phases mix",
    "FA0307": "an old phase may be taken for a new one",
    "FA0308": "a waiter may be lapped by two phases",
    "FA0309": "data may be read before it is written",
    "FA0310": "data may be overwritten before it is read",
    "FA0311": "data may be overwritten before it is complete",
    "FA0312": "a proxy fence is missing",
    "FA0313": "a tensor memory wait is missing",
    "FA0314": "an arrival that does not vouch for the data",
    "FA0315": "work that may outlive its CTA",
    "FA0316": "a use of a slot comes after a later one",
    "FA0317": "rounds of a named barrier mix",
    "FA0319": "a slot or parity that counting does not give",
    "FA0320": "loops of one role that synchronise differently",
    "FA0323": "turns across CTAs that need more of them resident than is certain",
    "FA0324": "ranks that are not those of all visitors",
    "FA0325": "a barrier of one side in the lowered program",
    "FA0326": "a lowered program that names what it does not declare",
    "FA0327": "a role that may fall behind without bound",
    "FA0328": "data is read that nobody has written",
    "FA0401": "too much shared memory",
    "FA0402": "too many columns of tensor memory",
    "FA0403": "tiles that lie on each other in tensor memory",
    "FA0404": "an overlay that cannot be",
    "FA0405": "a memory that the target's operations do not use",
    "FA0406": "a key that does not go with the buffer",
    "FA0411": "tiles that do not fit together",
    "FA0412": "a product that the matrix instruction cannot do",
    "FA0413": "an element type that the operation does not take",
    "FA0414": "a tile that TMA cannot move",
    "FA0415": "parts that do not make up the tile",
    "FA0501": "too many warps",
    "FA0502": "a register count that setmaxnreg does not take",
    "FA0503": "different register counts in one warpgroup",
    "FA0504": "more registers than an SM has",
    "FA0505": "too many named barriers",
    "FA0506": "more active warps than warps",
    "FA0507": "work for a whole warpgroup in a role that is none",
    "FA0508": "tiles that do not fit into a role's registers",
    "FA0601": "an operation that the target cannot do",
    "FA0602": "a role that runs too far ahead",
    "FA0603": "a choice of levels that cannot be printed",
    "FA0605": "a statement that no template prints",
    "FA0701": "the CuTe DSL refuses the generated file",
    "FA0702": "ptxas refuses the PTX",
    "FA0703": "a compiler process that died or took too long",
    "FA0704": "the shared object cannot be linked",
    "FA0705": "the CuTe DSL is not installed",
    "FA0706": "machine code that cannot be read",
    "FA0707": "a cache that cannot be written",
    "FA0708": "a kit that cannot be made",
    "FA0709": "results that cannot be had",
    "FA0710": "registers that do not fit: local memory",
    "FA0711": "a generated file that is not current",
    "FA0801": "a setting of the environment that makes no sense",
    "FA0802": "a tensor that attention does not take",
    "FA0803": "an element type that attention does not take",
    "FA0804": "a device without kernels",
    "FA0805": "a problem that no kernel serves",
    "FA0806": "a number that makes no sense",
    "FA0807": "an input that requires a gradient",
    "FA0808": "an output that cannot be written",
    "FA0809": "a feature that the kernels do not have",
    "FA0810": "a runtime part that is not there",
    "FA0811": "a pack that cannot be used",
    "FA0812": "two schedules that serve the same problem",
    "FA0813": "a schedule that no call can reach",
    "FA0814": "a kernel that is not built, and may not be",
    "FA0820": "a score or mask function that cannot be traced",
    "FA0821": "a captured tensor that kernels cannot read",
    "FA0822": "a block mask that does not fit the call",
    "FA0901": "the emulator has no C compiler",
    "FA0902": "the emulator's sources do not compile",
    "FA0903": "the emulator's folder cannot be written",
    "FA0904": "an argument that the emulator does not take",
    "FA0905": "a shared object that is not there",
    "FA0906": "a function that the shared object does not export",
    "FA0907": "a shared object that cannot be loaded",
    "FA0908": "a target that is not emulated",
    "FA0909": "a launched kernel without PTX",
    "FA0910": "a PTX file that is not there",
    "FA0911": "one kernel in two PTX files",
    "FA0912": "sizes that make no problem",
    "FA0920": "the emulator found a race",
    "FA0921": "the emulator found a fault",
    "FA0922": "the emulator found a deadlock",
    "FA0923": "an entry that the PTX does not have",
    "FA0924": "PTX for another target",
    "FA0925": "a launch with more shared memory than there is",
    "FA0926": "parameters of other sizes than the kernel's",
    "FA0927": "a grid that is no multiple of the cluster",
    "FA0930": "PTX that the emulator does not understand",
}

CODES: Mapping[str, Code] = MappingProxyType(
    {code: Code(code=code, title=title) for code, title in _TITLES.items()}
)


def page(code: Code) -> str:
    """The page that explains a code."""
    return (PAGES / f"{code.code}.md").read_text(encoding="utf-8")
