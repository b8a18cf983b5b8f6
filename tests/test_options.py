"""Settings from the environment."""

from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.options import Options, child_environment


def test_defaults_follow_the_xdg_cache_folder():
    options = Options.from_environment({"XDG_CACHE_HOME": "/x"})
    assert options == Options(cache_dir=Path("/x/fa4gen"))


def test_values_are_read():
    env = {"FA4GEN_CACHE_DIR": "/c", "FA4GEN_NO_JIT": "1", "FA4GEN_TIMEOUT": "30"}
    env["FA4GEN_CACHE_MB"] = "1.5"
    options = Options.from_environment(env)
    assert (options.cache_dir, options.no_jit, options.debug) == (Path("/c"), True, False)
    assert options.timeout_seconds == 30.0
    assert options.cache_bytes == 1_500_000


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"FA4GEN_NOJIT": "1"}, "unknown variable `FA4GEN_NOJIT`"),
        ({"FA4GEN_NO_JIT": "maybe"}, "expected 0 or 1"),
        ({"FA4GEN_TIMEOUT": "-3"}, "expected seconds above 0"),
        ({"FA4GEN_CACHE_MB": "2 GB"}, "expected megabytes above 0"),
        ({"FA4GEN_TIMEOUT": "nan"}, "expected seconds above 0"),
    ],
)
def test_nonsense_is_refused(env, said):
    with pytest.raises(Fa4genError, match=said):
        Options.from_environment(env)


def test_compilers_do_not_see_the_dsl_variables(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "surprise")
    monkeypatch.setenv("OTHER", "kept")
    env = child_environment(CUTE_DSL_ARCH="sm_90a")
    assert "CUTE_DSL_COMPILER_OPT" not in env
    assert (env["OTHER"], env["CUTE_DSL_ARCH"]) == ("kept", "sm_90a")
