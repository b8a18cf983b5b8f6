"""The emulator as Python: host code runs natively, its launches in the emulated GPU."""

from pathlib import Path

import pytest
import torch

from fa4gen.diag import Fa4genError
from fa4gen.emulator import Emulator, native

FIXTURES = Path(__file__).parent / "fixtures"
SCALE = FIXTURES / "scale.ptx"


@pytest.fixture(scope="module")
def shared_object(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("host") / "host.so"
    native.link([FIXTURES / "host_code.c"], built, ("-O1",))
    return built


def split(folder: Path) -> tuple[Path, Path]:
    """The two kernels in a file each."""
    text = SCALE.read_text()
    head, first, second = text.split(".visible")
    one, two = folder / "one.ptx", folder / "two.ptx"
    one.write_text(f"{head}.visible{first}")
    two.write_text(f"{head}.visible{second}")
    return one, two


@pytest.mark.parametrize("races", [False, True])
def test_a_call_runs_all_its_launches_on_the_tensors_memory(
    shared_object: Path, *, races: bool
) -> None:
    x = torch.arange(130.0)
    emulator = Emulator(target="sm_90a", seed=0, races=races)
    report = emulator.load(shared_object, ptx=[SCALE])["twice"](x, 2.5)
    want = torch.arange(130.0)
    want[:128] *= 2.5
    want[:32] += 1
    assert torch.equal(x, want)
    assert not report.faulty
    report.raise_if_faulty()
    assert len(report.kernels) == 2
    assert report.ctas == 132 * 2 * 3 + 1
    # all but one CTA of the first kernel leave after 7 statements by `ret`
    assert report.warp_instructions == 4 * (791 * 8 + 16) + 8


def test_views_write_through_and_leave_the_rest(shared_object: Path) -> None:
    base = torch.ones(3, 128)
    Emulator(target="sm_90a").load(shared_object, ptx=[SCALE])["twice"](base[1], 3.0)
    assert base[0].eq(1).all()
    assert base[1, :32].eq(4).all()
    assert base[1, 32:].eq(3).all()
    assert base[2].eq(1).all()


def test_a_kernel_of_another_target_is_refused(shared_object: Path) -> None:
    function = Emulator(target="sm_100a").load(shared_object, ptx=[SCALE])["twice"]
    with pytest.raises(Fa4genError, match=r"scale\.ptx is for sm_90a, not for sm_100a"):
        function(torch.ones(128), 2.0)


def test_memory_of_tensors_that_were_not_passed_is_out_of_bounds(shared_object: Path) -> None:
    x = torch.ones(100)
    report = Emulator(target="sm_90a").load(shared_object, ptx=[SCALE])["twice"](x, 3.0)
    assert report.faulty
    with pytest.raises(Fa4genError, match="out of bounds"):
        report.raise_if_faulty()


def test_kernels_may_lie_in_several_files(shared_object: Path, tmp_path: Path) -> None:
    x = torch.ones(128)
    Emulator(target="sm_90a").load(shared_object, ptx=split(tmp_path))["twice"](x, 2.0)
    assert x[0] == 3


def test_a_kernel_without_ptx_is_named_with_what_there_is(
    shared_object: Path, tmp_path: Path
) -> None:
    one, _ = split(tmp_path)
    function = Emulator(target="sm_90a").load(shared_object, ptx=[one])["twice"]
    with pytest.raises(Fa4genError, match=r"'tail_kernel'[\s\S]*hold scale_kernel"):
        function(torch.ones(128), 2.0)


def test_one_kernel_in_two_files_is_refused(shared_object: Path, tmp_path: Path) -> None:
    with pytest.raises(Fa4genError, match=r"'scale_kernel' is in scale\.ptx and in one\.ptx"):
        Emulator(target="sm_90a").load(shared_object, ptx=[SCALE, split(tmp_path)[0]])


def test_an_absent_ptx_file_and_an_unknown_target_are_named(
    shared_object: Path, tmp_path: Path
) -> None:
    with pytest.raises(Fa4genError, match=r"no PTX file at .*absent\.ptx"):
        Emulator(target="sm_90a").load(shared_object, ptx=[tmp_path / "absent.ptx"])
    with pytest.raises(Fa4genError, match="target 'sm_80' is not emulated"):
        Emulator(target="sm_80")


def test_the_host_codes_own_refusal_comes_through(shared_object: Path) -> None:
    function = Emulator(target="sm_90a").load(shared_object, ptx=[SCALE])["twice"]
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        function(3, 2.0)
