"""Many kernels in one process, from many threads: each compiler is a process of its own.

The compiler is a script that writes what the DSL would; the processes, files and threads are real.
"""

import logging
import os
import sys
import threading
from pathlib import Path

import pytest

from fa4gen.api import jit
from fa4gen.diag import Fa4genError
from fa4gen.options import Options
from fa4gen.runtime import compile  # noqa: A004
from fa4gen.runtime.compile import Request, compile_cached
from fa4gen.runtime.dispatch import Candidate
from fa4gen.runtime.problem import Problem

SCRIPT = """\
#!/bin/sh
name=$3
text=$(cat "$name")
[ "$(echo *)" = "dump $name log" ] || exit 9  # shares a folder with another
if [ "$text" = broken ]; then
  echo '{"stage": "trace", "message": "no", "suggestion": "", "lines": [1], "ptxas": ""}' > half
else
  for kind in ptx cubin o; do echo "$text $CUTE_DSL_ARCH $$" > kernel.$kind; done
  echo '{"stage": "done"}' > half
fi
mv half outcome.json
"""


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Options:
    script = tmp_path / "compiler"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    monkeypatch.setattr(compile.sys, "executable", str(script))
    monkeypatch.setattr(compile, "_link", lambda made, out: out.write_bytes(made.read_bytes()))
    return Options(cache_dir=tmp_path / "cache")


def threads_here() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_24_threads_compile_at_once_each_in_its_own_process(options: Options) -> None:
    made: dict[int, str] = {}

    def work(n: int) -> None:
        request = Request(name="k", target="sm_90a", text=f"kernel {n % 12}")
        made[n] = compile_cached(request, options).shared_object.read_text()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [made[n].rsplit(maxsplit=1)[0] for n in range(24)] == [
        f"kernel {n % 12} sm_90a" for n in range(24)
    ]
    makers = [made[n].split()[-1] for n in range(24)]
    assert makers[:12] == makers[12:]  # asked for twice, made once
    assert len(set(makers)) == 12
    assert str(os.getpid()) not in makers


def test_a_tuning_loop_of_60_kernels_leaves_no_thread_and_no_compiler_behind(
    options: Options,
) -> None:
    compile_cached(Request(name="k", target="sm_90a", text="first"), options)
    before, modules = threads_here(), set(sys.modules)
    for n in range(60):
        compile_cached(Request(name="k", target="sm_90a", text=f"tile {n}"), options)
    assert threads_here() == before
    assert "cutlass" not in set(sys.modules) - modules
    assert not [p for p in Path("/tmp").glob("fa4gen.k.*") if p.stat().st_uid == os.getuid()]


def test_what_is_refused_is_told_after_the_others_and_the_count_is_logged(
    options: Options, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def request(_candidate: Candidate, problem: Problem, _options: Options) -> Request:
        text = "broken" if problem.head_dim == 24 else f"kernel {problem.head_dim}"
        return Request(name="k", target=problem.target, text=text)

    monkeypatch.setattr(jit, "request_of", request)
    caplog.set_level(logging.INFO, "fa4gen")
    candidate = jit.candidate_of(jit.SHIPPED / "fwd_hd64_sm90.yaml", options)

    def jobs(*dims: int) -> list[tuple[Candidate, Problem]]:
        return [
            (
                candidate,
                Problem(target="sm_90a", dtype="bf16", head_dim=d, head_dim_v=d, causal=False),
            )
            for d in dims
        ]

    made = jit.shared_objects(jobs(8, 16), options, workers=2)
    assert [m.read_text().split()[1] for m in made] == ["8", "16"]
    assert "2 of 2 kernels are there" in caplog.text
    assert caplog.text.count("compiling k for sm_90a") == 2  # a warning: seen by default
    with pytest.raises(Fa4genError, match="FA0701"):
        jit.shared_objects(jobs(24, 8), options, workers=1)
