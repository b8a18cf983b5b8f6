"""Schedules in use: shipped, the environment's, `use_schedule`, packs; what a first call builds."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fa4gen
from fa4gen.api import jit, session
from fa4gen.diag import Fa4genError, error
from fa4gen.options import Options
from fa4gen.runtime import launch
from fa4gen.runtime.dispatch import Candidate
from fa4gen.runtime.pack import Built, write_pack
from fa4gen.runtime.problem import Problem

D128 = Problem(target="sm_90a", dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
SHIPPED = jit.SHIPPED / "fwd_hd128_sm90.yaml"


@pytest.fixture(autouse=True)
def _own_process_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FA4GEN_CACHE_DIR", str(tmp_path / "cache"))
    own = session.Session()
    monkeypatch.setattr(session, "PROCESS", own)
    token = session.CURRENT.set(own)
    yield
    session.CURRENT.reset(token)


def serving(problem: Problem = D128) -> str:
    from fa4gen.runtime.dispatch import find

    return find(session.CURRENT.get().layers(), problem).name


def own_schedule(folder: Path, name: str = "mine", **more: str) -> Path:
    path = folder / f"{name}.yaml"
    lines = [f"{k}: {v}\n" for k, v in more.items()]
    path.write_text(f"language: 1\nschedule: {name}\nextends: {SHIPPED}\n{''.join(lines)}")
    return path


def test_hopper_has_a_backward_for_every_pair_of_head_dims() -> None:
    asked = replace(D128, kernel="attention_backward")
    for d, dv in ((d, dv) for d in range(8, 257, 8) for dv in range(8, 257, 8)):
        assert serving(replace(asked, head_dim=d, head_dim_v=dv)).startswith("bwd")
    with pytest.raises(Fa4genError, match="FA0805"):
        serving(replace(asked, head_dim=264))


def test_import_loads_neither_torch_nor_the_dsl() -> None:
    code = "import fa4gen, sys; print({'torch', 'cutlass', 'yaml', 'tvm_ffi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert set(fa4gen.__all__) <= set(dir(fa4gen))


def test_shipped_schedules_are_without_doubt() -> None:
    assert serving() == "fwd_hd128_sm90"
    text = fa4gen.explain_dispatch(target="sm_90a", head_dim=64)
    assert "fwd_hd64_sm90 (shipped schedules): serves" in text


def test_use_schedule_nests_and_ends(tmp_path: Path) -> None:
    with fa4gen.use_schedule(own_schedule(tmp_path)):
        assert serving() == "mine"
        with fa4gen.use_schedule(own_schedule(tmp_path, "inner")):
            assert serving() == "inner"
        assert serving() == "mine"
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(session.CURRENT.get() is None or ""))
        thread.start()
        thread.join()
    assert serving() == "fwd_hd128_sm90"


def test_two_of_the_same_named_together_are_ambiguous(tmp_path: Path) -> None:
    files = [own_schedule(tmp_path, n) for n in ("a", "b")]
    with pytest.raises(Fa4genError, match="FA0812"), fa4gen.use_schedule(*files):
        pass


def test_a_faulty_schedule_is_refused_when_it_is_named(tmp_path: Path) -> None:
    bad = own_schedule(tmp_path, "bad", colour="red")
    with pytest.raises(Fa4genError, match=r"FA0105.*colour"), fa4gen.use_schedule(bad):
        pass
    with pytest.raises(Fa4genError, match="FA0111"), fa4gen.use_schedule(tmp_path / "none.yaml"):
        pass


def test_the_environment_names_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_schedule(tmp_path)
    monkeypatch.setenv("FA4GEN_SCHEDULES", str(tmp_path))
    assert serving() == "mine"


def test_an_edited_schedule_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(SHIPPED.read_text())
    options = Options.from_environment()
    first = jit.candidate_of(path, options)
    assert jit.candidate_of(path, options) == first
    path.write_text(SHIPPED.read_text().replace("dtype: [bf16, fp16]", "dtype: [bf16]"))
    assert jit.candidate_of(path, options).dtypes == ("bf16",)


def test_emission_is_kept_until_text_or_package_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    import fa4gen.driver

    calls = []
    real = fa4gen.driver.check
    monkeypatch.setattr(
        fa4gen.driver, "check", lambda *a, **more: calls.append(a) or real(*a, **more)
    )
    options = Options.from_environment()
    candidate = jit.candidate_of(SHIPPED, options)
    first = jit.request_of(candidate, D128, options)
    assert jit.request_of(candidate, D128, options) == first
    assert len(calls) == 1
    monkeypatch.setattr(jit, "package_hash", lambda: "another template")
    assert jit.request_of(candidate, D128, options) == first
    assert len(calls) == 2


def test_no_jit_turns_a_miss_into_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA4GEN_NO_JIT", "1")
    options = Options.from_environment()
    with pytest.raises(Fa4genError, match=r"FA0814.*not built"):
        jit.shared_object(jit.candidate_of(SHIPPED, options), D128, options)


def test_what_the_compiler_refuses_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(*_: Any) -> Path:
        tries.append(1)
        raise error("FA0702", "no")

    monkeypatch.setattr(jit, "shared_object", refuse)
    for _ in range(3):
        with pytest.raises(Fa4genError, match="FA0702"):
            session.CURRENT.get().kernel(D128, 0, 132)
    assert len(tries) == 1


def test_several_compile_side_by_side_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock, together = [0], [0], threading.Lock(), threading.Barrier(2, timeout=20)

    def build(_candidate: Candidate, problem: Problem, _options: Options) -> Path:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait()
        with lock:
            running[0] -= 1
        return Path(str(problem.head_dim))

    monkeypatch.setattr(jit, "shared_object", build)
    options = Options.from_environment()
    candidate = jit.candidate_of(SHIPPED, options)
    jobs = [
        (candidate, Problem(target="sm_90a", dtype="bf16", head_dim=d, head_dim_v=d, causal=False))
        for d in range(8, 72, 8)
    ]
    made = jit.shared_objects(jobs, options, workers=2)
    assert [str(m) for m in made] == [str(d) for d in range(8, 72, 8)]
    assert most[0] == 2


def pack(folder: Path, target: str = "sm_90a") -> Path:
    (folder / "k.so").write_bytes(b"no machine code")
    problem = Problem(target=target, dtype="bf16", head_dim=128, head_dim_v=128, causal=True)
    return write_pack(
        folder / "pack", [Built(name="packed", problem=problem, shared_object=folder / "k.so")], "1"
    )


def test_a_pack_comes_before_schedules(tmp_path: Path) -> None:
    assert fa4gen.load(pack(tmp_path)) == ("packed",)
    assert serving() == "packed"


def test_a_pack_for_another_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "visible_targets", lambda: ("sm_90a",))
    with pytest.raises(Fa4genError, match=r"FA0811.*is for sm_100a, this machine has sm_90a"):
        fa4gen.load(pack(tmp_path, "sm_100a"))
    assert serving() == "fwd_hd128_sm90"


def test_a_lone_shared_object_has_to_be_described(tmp_path: Path) -> None:
    pack(tmp_path)
    with pytest.raises(Fa4genError, match=r"FA0811.*does not say"):
        fa4gen.load(tmp_path / "k.so")
    fa4gen.load(tmp_path / "k.so", target="sm_90a", head_dim=128, causal=True)
    assert serving() == "k"


def test_what_was_loaded_is_looked_up_anew_when_layers_change(tmp_path: Path) -> None:
    with fa4gen.use_schedule(own_schedule(tmp_path, serves="{head_dim: 128}")):
        inner = session.CURRENT.get()
        inner.kernels["key",] = launch.Kernel(name="k", function=print, device=0, num_sms=1)
        fa4gen.load(pack(tmp_path))
        assert not inner.kernels


@pytest.mark.parametrize(("major", "minor"), [(12, 0), (12, 1), (8, 0)])
def test_foreign_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, major: int, minor: int) -> None:
    import torch

    facts = type("P", (), {"major": major, "minor": minor, "name": "X", "multi_processor_count": 1})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: facts)
    with pytest.raises(Fa4genError, match=f"FA0804.*sm_{major}{minor}"):
        launch.device_of.__wrapped__(0)


def test_a_missing_runtime_library_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launch.metadata, "distribution", _missing)
    launch.load_library.cache_clear()
    with pytest.raises(Fa4genError, match=r"FA0810.*not installed") as caught:
        launch.load_library(None)
    assert "nvidia-cutlass-dsl-libs-cu" in caught.value.diagnostics[0].fix
    with pytest.raises(Fa4genError, match=r"FA0810.*does not load"):
        launch.load_library(tmp_path / "none.so")


def _missing(name: str) -> Any:
    raise launch.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    "part",
    [
        "emit/templates",
        "emit/device",
        "scheduler",
        "dsl",
        "ir",
        "driver.py",
        "target.py",
        "api/jit.py",  # what it keeps has other fields in another version
    ],
)
def test_a_changed_template_or_pass_changes_what_emission_is_kept_by(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "fa4gen"
    shutil.copytree(jit.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "explain"))
    monkeypatch.setattr(jit, "PACKAGE", copy)
    before = jit.package_hash.__wrapped__()
    assert before == jit.package_hash()
    place = copy / part
    texts = [f for f in [place, *place.rglob("*")] if f.suffix in (".py", ".j2")]
    for file in (texts[0], texts[-1]):
        text = file.read_text()
        file.write_text(text + "\n")
        assert jit.package_hash.__wrapped__() != before, file
        file.write_text(text)
