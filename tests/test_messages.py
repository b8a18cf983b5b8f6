"""What a person reads: every error of a schedule has its code, its line and column, and its names.

The schedules are the examples of the error pages; what no schedule leads to is shown on damaged
programs. A place in a shipped file is given by the text that stands there.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fa4gen.codes import CODES, page
from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check
from fa4gen.emit.model import Node
from fa4gen.emit.render import _node
from fa4gen.ir.program import Arrive, KernelProgram, NamedSync, RoleProgram
from fa4gen.scheduler.lower.kernel import lower
from fa4gen.scheduler.place import place as place_tiles
from fa4gen.scheduler.verify import verify
from tests.pipelines.program_damage import mutants, with_section
from tests.scheduler.schedules import blackwell, with_operation

SCHEDULES = Path(__file__).parents[1] / "schedules"
EXAMPLE = re.compile(r"```(yaml|sh)\n(.*?)```", re.DOTALL)
BLACKWELL, HOPPER = "fwd_hd128", "fwd_hd128_sm90"

# code, file, line:column or the text at the place, and what the message must say
EXAMPLES = (
    ("FA0101", "example", "5:1", ("expected ',' or '}'",)),
    ("FA0102", "example", "5:39", ("`warps`", "given here before")),
    ("FA0103", "example", "5:8", ("`&small`",)),
    ("FA0104", "example", "4:9", ("must be text",)),
    ("FA0105", "example", "5:13", ("`warp`", "write `warps`")),
    ("FA0106", "example", "5:20", ("an integer",)),
    ("FA0107", "example", "5:11", ("`registers`",)),
    ("FA0108", "example", "5:23", ("`qk[s]+one`", "`operation[0]+1`")),
    ("FA0109", "example", "5:15", ("`smen`", "write `smem`")),
    ("FA0110", "example", "3:10", ("`example.yaml`",)),
    ("FA0111", "example", "3:10", ("`missing.yaml`",)),
    ("FA0112", "--set kv_stage", "1:11", ("`kv_stage`", "write `kv_stages`")),
    ("FA0201", "example", "5:42", ("`score`", "write `scores`")),
    ("FA0202", "example", "5:8", ("`kv.w`", "write `kv.v`")),
    ("FA0203", "example", "5:3", ("`loader`", "write `load`")),
    ("FA0204", "example", "5:14", ("`tile_rows`",)),
    ("FA0205", "example", "5:13", ("`row_add`", "write `row_max`")),
    ("FA0206", "example", "5:17", ("`pv[1]`", "write `pv[s]`")),
    ("FA0207", BLACKWELL, "sum:", ("`sum`",)),
    ("FA0208", "example", "5:25", ("`exp`", "2 parts")),
    ("FA0209", "example", "5:3", ("`row_max` reads 1", "`scores` reads 2")),
    ("FA0210", "example", "4:18", ("tile_n -> tile_m -> tile_n",)),
    ("FA0211", "--set head_dim", "1:11", ("`head_dim` 96", "128")),
    ("FA0212", "example", "5:3", ("`s_full`",)),
    ("FA0213", BLACKWELL, "kv:", ("`kv`", "`empty`")),
    ("FA0214", "example", "5:3", ("`spare`",)),
    ("FA0215", "example", "4:1", ("`sm_120`", "sm_90a, sm_100a, sm_103a")),
    ("FA0216", "example", "5:3", ("`k`",)),
    ("FA0217", BLACKWELL, "load_q:", ("`load_q`", "`after: load_q`")),
    ("FA0218", "example", "5:41", ("`final_stats`", "`block`")),
    ("FA0219", "example", "5:3", ("`scores`", "`sum`", "`softmax`")),
    ("FA0220", BLACKWELL, 'qk[s]"', ("`qk` (umma)", "`kind: named`")),
    ("FA0221", "example", "5:17", ("`kv` holds k v", "`load` fills v k", "`ring: [v, k]`")),
    ("FA0222", "example", "5:3", ("`convert` takes `k` for S", "K for `qk`")),
    ("FA0223", "example", "5:23", ("`pv[0]`", "the first time")),
    ("FA0224", BLACKWELL, "exp:", ("`exp`", "`stats`", "`stats` of `softmax`")),
    ("FA0225", "example", "5:9", ("sm_90a", "`clc`", "`scheduler: dynamic`")),
    ("FA0301", "example", "5:3", ("`o_full[0]`", "a block of the loop", "`correction` waits 0")),
    ("FA0302", BLACKWELL, "kv: ", ("`load` → `mma` → `load`", "`kv_empty`", "a tile of 2 blocks")),
    (
        "FA0303",
        "example",
        "5:3",
        ("`softmax[0]` → `correction`", "`stats_empty[0]`", "`stats_full[0]`", "block 0 of tile 0"),
    ),
    ("FA0304", "example", "5:3", ("`out_empty[0]` expects 129", "160", "128 arrivals")),
    ("FA0306", BLACKWELL, "load_q:", ("`q_full[0]`", "`load`", "phase 1", "in tile 1")),
    ("FA0307", BLACKWELL, "stats_empty", ("`softmax[0]`", "`stats_empty[0]`", "block 0")),
    ("FA0308", BLACKWELL, "stats_full", ("`stats_full[0]`", "`correction`", "`softmax[0]`")),
    ("FA0309", BLACKWELL, "pv:", ("columns 64-111 (p over s)", "`pv` of `mma`", "`exp`")),
    ("FA0310", HOPPER, "load_q:", ("`load_q` of `load`", "`tma_o` of `consumer[0]", "in tile 1")),
    ("FA0311", BLACKWELL, "pv:", ("(o)", "`pv` of `mma`", "`rescale` of `correction`", "block 1")),
    ("FA0316", BLACKWELL, "qk:", ("`qk` of `mma`", "columns 64-111 (p over s)", "block 0")),
    ("FA0319", BLACKWELL, "load_k:", ("`load`", "`kv_full`", "block 1 of tile 0", "`k_at`")),
    ("FA0328", BLACKWELL, "scale:", ("`correction` does `scale` with stats",)),
    ("FA0401", BLACKWELL, "kv:", ("265216", "232448", "`q`, 2 of s x 32768", "`kv`, 4 stages")),
    ("FA0402", "example", "5:3", ("556 columns", "512", "`s[0]` (columns 0")),
    ("FA0403", "example", "5:3", ("`o[0]` (columns 200", "`s[1]`")),
    ("FA0404", "example", "5:3", ("`o_out` overlays `kv`",)),
    ("FA0405", "example", "5:3", ("`o`", "sm_90a", "`space: rmem`")),
    ("FA0406", "example", "5:3", ("`columns`", "`q` lies in smem")),
    ("FA0411", BLACKWELL, "pv:", ("`pv`", "`o` 128 x 64", "head_dim_v is 128")),
    ("FA0412", BLACKWELL, "qk:", ("`qk` has 64 rows", "tcgen05.mma has 128 rows")),
    ("FA0413", "example", "5:3", ("`pv` sums in f32", "`o` holds bf16")),
    ("FA0414", HOPPER, "tma_o:", ("`tma_o`", "`o_out` lies in rmem")),
    ("FA0415", BLACKWELL, "p:", ("`p`", "96 + 16", "112", "128")),
    ("FA0501", BLACKWELL, "epilogue:", ("17 warps", "16", "softmax 2 x 4", "load 3")),
    ("FA0502", "example", "5:3", ("`correction`", "70", "multiples of 8")),
    ("FA0503", "example", "5:3", ("`mma` (56)", "`load` (64", "warpgroup 3")),
    ("FA0504", BLACKWELL, "softmax:", ("72704", "65536", "192 + 192 + 128 + 56")),
    ("FA0505", "example", "13:3", ("16 named barriers", "15", "p_ready 2", "second 2")),
    ("FA0506", "example", "5:3", ("`load`", "5 active warps of 4")),
    ("FA0507", "example", "5:3", ("`scores`", "`softmax` has warps 0 … 1")),
    ("FA0508", "example", "7:3", ("`consumer` has 160", "s 64, p 32, o 64")),
    ("FA0602", "example", "5:23", ("`mma` runs 2 blocks ahead",)),
    ("FA0603", "example", "5:10", ("`descending`", "`empty: skip`")),
)  # fmt: skip

# what no schedule leads to: code, schedule, damage, the text at the place, what must be said
DAMAGES = (
    (
        "FA0305", BLACKWELL, "half the bytes TmaLoad q_full at load.before[1]", "load_q:",
        ("`load_q` arms 16384 bytes", "bring 32768", "2 boxes"),
    ),
    (
        "FA0312", BLACKWELL, "drop ProxyFence at correction.last[6]", "store_o:",
        ("fence.proxy.async", "`store_o` of `correction`", "`tma_o` of `epilogue`", "o_out"),
    ),
    (
        "FA0313", BLACKWELL, "swap Call scores at softmax.rest[1]", "scores:",
        ("tcgen05.wait::ld", "`mask_length`", "`s` of `softmax`", "`load_row`"),
    ),
    (
        "FA0314", BLACKWELL, "arrive for commit Commit s_full at mma.first[5]", "qk:",
        ("`mma` arrives while", "`qk`", "`scores` of `softmax[0]`", "`s_full[0]`"),
    ),
    (
        "FA0315", BLACKWELL, "drop Pending at epilogue.last[6]", "tma_o:",
        ("`tma_o` of `epilogue`", "block 0 of tile 0"),
    ),
    (
        "FA0325", BLACKWELL, "drop Wait s_full at softmax.rest[0]", "s_full[s]:",
        ("`mma` arrives at `s_full[0]`", "nobody waits"),
    ),
)  # fmt: skip

# shown by tests of their own, below or (None) beside what reports them
OTHERS = {
    "FA0113": None,
    "FA0317": "test_rounds_that_mix",
    "FA0320": "test_loops_that_part",
    "FA0323": None,
    "FA0324": None,
    "FA0326": "test_a_name_that_is_not_declared",
    "FA0327": None,
    "FA0601": "test_an_operation_that_the_target_lacks",
    "FA0605": "test_a_statement_without_a_template",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("messages")
    for path in SCHEDULES.glob("*.yaml"):
        shutil.copy(path, found)
    return found


def first(code: str, found: tuple[Diagnostic, ...]) -> Diagnostic:
    assert code in [d.code for d in found]
    return next(d for d in found if d.code == code)


def says(d: Diagnostic, words: tuple[str, ...]) -> None:
    text = d.render()
    assert [w for w in words if w not in text] == [], text


def test_every_error_of_a_schedule_is_here() -> None:
    here = [row[0] for row in (*EXAMPLES, *DAMAGES)] + list(OTHERS)
    assert sorted(here) == [c for c in CODES if c < "FA07"]
    assert {t for t in OTHERS.values() if t} <= set(globals())


@pytest.mark.parametrize(("code", "file", "at", "words"), EXAMPLES, ids=[x[0] for x in EXAMPLES])
def test_an_example_is_explained(
    code: str,
    file: str,
    at: str,
    words: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    kind, text = EXAMPLE.findall(page(CODES[code]))[0]
    settings = dict([text.split()[-1].split("=")]) if kind == "sh" else {}
    if kind == "yaml":
        Path("example.yaml").write_text(text)
    with pytest.raises(Fa4genError) as caught:
        check("example.yaml" if kind == "yaml" else text.split()[2], settings=settings)
    d = first(code, caught.value.diagnostics)
    says(d, words)
    assert d.span is not None
    assert Path(d.span.file).stem == file
    if at[0].isdigit():
        assert f"{d.span.line}:{d.span.col}" == at
    else:
        assert place(d).startswith(at)


@pytest.mark.parametrize(("code", "file", "damage", "at", "words"), DAMAGES)
def test_a_damaged_program_is_explained(
    code: str, file: str, damage: str, at: str, words: tuple[str, ...]
) -> None:
    program = next(m.program for m in mutants(lowered(file)) if m.name == damage)
    d = first(code, refusal(program))
    says(d, words)
    assert place(d).startswith(at)


def test_rounds_that_mix() -> None:
    """The token of consumer 1 is passed on before it is taken: one more arrival in a round."""
    program = lowered(HOPPER)
    consumer = role_of(program, "consumer")
    body = consumer.rest
    at = next(n for n, s in enumerate(body) if isinstance(s, NamedSync))
    late = with_section(consumer, "rest", (*body[:at], *body[at + 1 :], body[at]))
    d = first("FA0317", refusal(with_role(program, late)))
    says(d, ("`tensor[", "`consumer["))
    assert place(d).startswith("tensor:")


def test_loops_that_part() -> None:
    program = lowered(BLACKWELL)
    softmax = role_of(program, "softmax")
    masked, *others = softmax.segments
    less = replace(masked, body=tuple(s for s in masked.body if not isinstance(s, Arrive)))
    damaged = replace(softmax, segments=(less, *others), merge_first=False)
    d = first("FA0320", refusal(with_role(program, damaged)))
    says(d, (f"`{masked.name}`", f"`{others[0].name}`", "`softmax`", "they part at action"))
    assert place(d).startswith("stats_full[s]:")


def test_a_name_that_is_not_declared() -> None:
    program = lowered(BLACKWELL)
    less = replace(program, barriers=tuple(b for b in program.barriers if b.name != "s_full"))
    d = first("FA0326", refusal(less))
    says(d, ("no barrier `s_full[0]`",))
    assert place(d).startswith("s_full[s]:")


def test_an_operation_that_the_target_lacks() -> None:
    """Names are checked before; lowering does not rely on it."""
    s = with_operation(blackwell(), "sum", kind="online_softmax")
    with pytest.raises(Fa4genError) as caught:
        lower(place_tiles(s))
    d = first("FA0601", caught.value.diagnostics)
    says(d, ("`sum`: sm_100a has no `online_softmax`",))
    assert place(d).startswith("sum")


def test_a_statement_without_a_template() -> None:
    with pytest.raises(Fa4genError) as caught:
        _node(object(), Node(macro="nothing", text={}))
    says(first("FA0605", caught.value.diagnostics), ("no template prints `nothing`",))


def place(d: Diagnostic) -> str:
    """The text from the place of an error on."""
    assert d.span is not None
    line = Path(d.span.file).read_text().splitlines()[d.span.line - 1]
    return line[d.span.col - 1 :]


def lowered(name: str) -> KernelProgram:
    return check(SCHEDULES / f"{name}.yaml").program.value


def role_of(program: KernelProgram, name: str) -> RoleProgram:
    return next(r for r in program.roles if r.name == name)


def refusal(program: KernelProgram) -> tuple[Diagnostic, ...]:
    with pytest.raises(Fa4genError) as caught:
        verify(program)
    return caught.value.diagnostics


def with_role(program: KernelProgram, role: RoleProgram) -> KernelProgram:
    return replace(program, roles=tuple(role if r.name == role.name else r for r in program.roles))
