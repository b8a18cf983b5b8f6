"""Every code that the package reports has a title and a page, and the examples of pages are run."""

import re
import shutil
from pathlib import Path

import pytest

from fa4gen import cli
from fa4gen.codes import CODES, PAGES, STAGES, page
from fa4gen.diag import Fa4genError
from fa4gen.driver import check

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```(yaml|sh)\n(.*?)```", re.DOTALL)


def test_every_code_in_the_source_is_listed() -> None:
    sources = [p for p in (ROOT / "fa4gen").rglob("*.py") if p.name != "codes.py"]
    used = {c for p in sources for c in re.findall(r'"(FA\d{4})"', p.read_text())}
    assert used - set(CODES) == set()


def test_every_listed_code_is_reported_somewhere() -> None:
    sources = [p for p in (ROOT / "fa4gen").rglob("*.py") if p.name != "codes.py"]
    text = "\n".join(p.read_text() for p in sources)
    assert [c for c in CODES if c not in text] == []


def test_codes_have_a_stage_and_a_page_with_their_title() -> None:
    assert {c[2:4] for c in CODES} <= set(STAGES)
    assert {p.stem for p in PAGES.glob("*.md")} == set(CODES)
    for code in CODES.values():
        text = page(code)
        assert text.splitlines()[0] == f"# {code.code}: {code.title}"
        assert "**Mend.**" in text
        assert max(map(len, text.splitlines())) <= 100


def examples() -> list[tuple[str, str, str]]:
    return [
        (code.code, kind, text)
        for code in CODES.values()
        for kind, text in EXAMPLE.findall(page(code))
    ]


def test_faults_of_schedules_have_examples() -> None:
    shown = {code for code, _, _ in examples()}
    assert [c for c in CODES if c[2:4] in ("01", "02", "04", "05") and c not in shown] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("examples")
    for path in (ROOT / "schedules").glob("*.yaml"):
        shutil.copy(path, found)
    return found


@pytest.mark.parametrize(
    ("code", "kind", "text"), examples(), ids=[code for code, _, _ in examples()]
)
def test_an_example_gives_its_code(
    code: str,
    kind: str,
    text: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    if kind == "sh":
        program, *arguments = text.split()
        assert program == "fa4gen"
        assert cli.main(arguments) in (cli.REFUSED, cli.USAGE)
        assert f"error[{code}]" in capsys.readouterr().err
        return
    Path("example.yaml").write_text(text)
    with pytest.raises(Fa4genError) as caught:
        check("example.yaml")
    assert code in {d.code for d in caught.value.diagnostics}
