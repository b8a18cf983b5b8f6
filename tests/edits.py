"""Changes that an engineer would try: each replaces a few lines of a shipped schedule.

`refused`: the code that the edit must be refused with; '' where it must be sound.
"""

from dataclasses import dataclass
from pathlib import Path

SCHEDULES = Path(__file__).parents[1] / "schedules"
BLACKWELL, HOPPER, BACKWARD = "fwd_hd128", "fwd_hd128_sm90", "bwd_hd128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Texts of one schedule to be replaced, each of which stands there once."""

    name: str
    schedule: str
    replace: tuple[tuple[str, str], ...]
    refused: str = ""

    def text(self) -> str:
        """The schedule's text after the edit."""
        text = (SCHEDULES / f"{self.schedule}.yaml").read_text()
        for old, new in self.replace:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {text.count(old)} times in the schedule: {old}")
            text = text.replace(old, new)
        return text


_ORDER = '{block: "pv[s] qk[s]+1"}'
_KV = "  kv:    {space: smem, ring: [k, v], tile: [tile_n, head_dim], stages: kv_stages}\n"
_RINGS = (
    "  k:     {space: smem, tile: [tile_n, head_dim], stages: kv_stages}\n"
    "  v:     {space: smem, tile: [tile_n, head_dim_v], stages: kv_stages}\n"
)

EDITS = (
    Edit(
        name="fewer_stages",
        schedule=BLACKWELL,
        replace=(("  kv_stages: max ", "  kv_stages: 2 "),),
    ),
    Edit(
        name="too_many_stages",
        schedule=BLACKWELL,
        replace=(("  kv_stages: max ", "  kv_stages: 4 "),),
        refused="FA0401",
    ),
    Edit(
        name="two_rings",
        schedule=BLACKWELL,
        replace=(
            (_KV, _RINGS),
            ("  kv:             {ring: kv} ", "  k: {ring: k}\n  v: {ring: v} "),
        ),
    ),
    Edit(
        name="one_query_tile", schedule=BLACKWELL, replace=(("\nindex: {s: 2}", "\nindex: {s: 1}"),)
    ),
    Edit(
        name="both_pv_first",
        schedule=BLACKWELL,
        replace=((_ORDER, '{block: "pv[0] pv[1] qk[0]+1 qk[1]+1"}'),),
    ),
    Edit(name="qk_not_ahead", schedule=BLACKWELL, replace=((_ORDER, '{block: "qk[s] pv[s]"}'),)),
    Edit(
        name="qk_before_pv",
        schedule=BLACKWELL,
        replace=((_ORDER, '{block: "qk[s]+1 pv[s]"}'),),
        refused="FA03",
    ),
    Edit(name="whole_p", schedule=BLACKWELL, replace=(("p_parts: [96, 32]", "p_parts: [128]"),)),
    Edit(name="half_p", schedule=BLACKWELL, replace=(("p_parts: [96, 32]", "p_parts: [64, 64]"),)),
    Edit(
        name="softmax_corrects",
        schedule=BLACKWELL,
        replace=(
            ("  correction: {warps: 4, registers: 72}\n", ""),
            ('  correction: {block: "scale[s] rescale[s]", after: "store_o[s]"}\n', ""),
            (
                "{block: scores stats exp sum, after: final_stats}\n",
                "{block: scores stats scale rescale exp sum, after: final_stats store_o}\n",
            ),
        ),
    ),
    Edit(
        name="correction_stores",
        schedule=BLACKWELL,
        replace=(
            ("  epilogue:   {warps: 1, registers: 56}\n", ""),
            (
                'after: "store_o[s]"}\n  epilogue:   {after: "tma_o[s]"}\n',
                'after: "store_o[s] tma_o[s]"}\n',
            ),
        ),
    ),
    Edit(
        name="another_mix",
        schedule=BLACKWELL,
        replace=(("exp2: {fma_share: 0.125, degree: 3}", "exp2: {fma_share: 0.25, degree: 4}"),),
    ),
    Edit(
        name="always_rescale",
        schedule=BLACKWELL,
        replace=(("rescale_threshold: 8 ", "rescale_threshold: 0 "),),
    ),
    Edit(
        name="softmax_takes_turns",
        schedule=BLACKWELL,
        replace=(
            ("\nvariants:", "\nturns:\n  softmax: {around: [scores, sum], over: s}\n\nvariants:"),
        ),
    ),
    Edit(
        name="other_registers",
        schedule=BLACKWELL,
        replace=(
            ("{warps: 4, per: s, registers: 192}", "{warps: 4, per: s, registers: 184}"),
            ("{warps: 4, registers: 72}", "{warps: 4, registers: 88}"),
        ),
    ),
    Edit(
        name="too_many_registers",
        schedule=BLACKWELL,
        replace=(("{warps: 4, per: s, registers: 192}", "{warps: 4, per: s, registers: 208}"),),
        refused="FA0504",
    ),
    Edit(
        name="one_tile_a_cta",
        schedule=BLACKWELL,
        replace=(("{full: static_persistent, causal: lpt}", "single"),),
    ),
    Edit(
        name="tiles_claimed",
        schedule=BLACKWELL,
        replace=(("{full: static_persistent, causal: lpt}", "dynamic"),),
    ),
    Edit(
        name="tiles_claimed_by_consumers",
        schedule=HOPPER,
        replace=(("full: single, causal: lpt}", "full: dynamic, causal: lpt_dynamic}"),),
    ),
    Edit(
        name="one_consumer",
        schedule=HOPPER,
        replace=(
            ("\nindex: {s: 2}", "\nindex: {s: 1}"),
            ("  tensor: {kind: named, around: [qk+1, pv], over: s} ", "  {} "),
        ),
    ),
    Edit(
        name="two_consumers_of_three",
        schedule="fwd_hd64_sm90",
        replace=(("index: {s: 3}", "index: {s: 2}"),),
    ),
    Edit(
        name="no_turns",
        schedule=HOPPER,
        replace=(("  tensor: {kind: named, around: [qk+1, pv], over: s} ", "  {} "),),
    ),
    Edit(
        name="no_overlap",
        schedule=HOPPER,
        replace=(
            ("  tensor: {kind: named, around: [qk+1, pv], over: s} ", "  {} "),
            (
                "{block: qk+1 pv softmax+1 convert+1 rescale+1,",
                "{block: qk softmax convert rescale pv,",
            ),
        ),
    ),
    Edit(
        name="three_stages",
        schedule=HOPPER,
        replace=(("  kv_stages: 2\n", "  kv_stages: 3\n"),),
    ),
    Edit(
        name="backward_in_step",
        schedule=BACKWARD,
        replace=(("kq+1 dsq dsk vdo+1 pdo+1", "kq vdo pdo dsq dsk"),),
    ),
    Edit(
        name="backward_one_q_stage",  # Q is held for dK while S of the next block needs another
        schedule=BACKWARD,
        replace=(("q_stages: 2", "q_stages: 1"),),
        refused="FA0302",
    ),
    Edit(
        name="dq_before_dk",  # and over the dS that dK takes
        schedule=BACKWARD,
        replace=(("dsq dsk vdo+1", "dsk dsq vdo+1"),),
        refused="FA0316",
    ),
    Edit(
        name="dp_before_dq",  # which lies where dP goes
        schedule=BACKWARD,
        replace=(("dsq dsk vdo+1 pdo+1", "dsq vdo+1 dsk pdo+1"),),
        refused="FA0302",
    ),
    Edit(
        name="dk_out_too_early",  # over the K that dQ still takes
        schedule=BACKWARD,
        replace=(("dk_full:  {after: dsk,", "dk_full:  {after: dsq,"),),
        refused="FA0310",
    ),
)
