"""The checker against every interleaving: random small pipelines, one word at a time and all words.

Profiles: `make test` runs the default; HYPOTHESIS_PROFILE=nightly runs thousands.
"""

import os
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, assume, given, settings

from fa4gen.scheduler.closure import closure
from fa4gen.scheduler.deep_rings import prove_shallow
from fa4gen.scheduler.run import Rules, run_word
from tests.pipelines.brute import HARD, explore
from tests.pipelines.small import Pipeline, to_system
from tests.property.strategies import pipelines

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile(
    "default", max_examples=100, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

WORDS = ((1,), (2,), (0, 1), (1, 1), (2, 1))
ORDER = Rules(kinds=False)  # the oracle knows no fences
STATES = 20_000
LETTERS = 5  # longer certificates are not enumerated


def words_of(letters: int) -> list[tuple[int, ...]]:
    """All lists of tiles that are told in so many letters (a block, the end of a tile)."""
    out: list[tuple[int, ...]] = []
    for n in range(letters + 1):
        for text in product("bc", repeat=n):
            if text and text[-1] == "b":
                continue
            word, blocks = [], 0
            for letter in text:
                blocks += letter == "b"
                if letter == "c":
                    word.append(blocks)
                    blocks = 0
            out.append(tuple(word))
    return out


@given(pipelines())
def test_one_word(pipeline: Pipeline) -> None:
    """Refused if and only if some interleaving hangs, races, leaves work or meets another phase."""
    system = to_system(pipeline)
    for word in WORDS:
        truth = explore(pipeline, word, STATES)
        assume(truth.complete)
        faults = run_word(system, word, ORDER).faults
        assert bool(truth.faults) == bool(faults), (word, truth.faults, faults)


@given(pipelines())
def test_every_word(pipeline: Pipeline) -> None:
    """Acceptance holds for all words up to the certificate; refusal is shown by its word."""
    system = to_system(pipeline)
    verdict = closure(system, ORDER, limit=200)
    assume(not any(f.kind == "runaway" for f in verdict.faults))
    if verdict.faults:
        truth = explore(pipeline, verdict.word, STATES)
        assume(truth.complete or truth.faults)
        assert truth.faults, (verdict.word, verdict.faults)
        return
    for word in words_of(min(LETTERS, verdict.letters + 1)):
        truth = explore(pipeline, word, STATES)
        assert not HARD & truth.faults.keys(), (word, truth.faults)


@given(pipelines())
def test_shallow_proofs_hold_at_depth(pipeline: Pipeline) -> None:
    """What is accepted at a small depth of its rings is accepted as it is."""
    system = to_system(_deeper(pipeline))
    if prove_shallow(system) is not None:
        assert not closure(system, limit=2000).faults


def _deeper(p: Pipeline) -> Pipeline:
    """All rings of two get three slots."""
    bars = {n: replace(b, stages=3) if b.stages == 2 else b for n, b in p.bars.items()}
    return replace(p, bars=bars, buffers={n: 3 if s == 2 else s for n, s in p.buffers.items()})
