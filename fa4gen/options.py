"""Settings from the environment; the only place of the package that reads `os.environ`.

FA4GEN_CACHE_DIR   folder of compiled kernels (default: $XDG_CACHE_HOME or ~/.cache, /fa4gen)
FA4GEN_CACHE_MB    megabytes that compiled kernels may take there (default 2000)
FA4GEN_NO_JIT      1: never compile on first use; a kernel that is not there is an error
FA4GEN_DEBUG       1: keep the folder of a compilation that failed, and name it in the error
FA4GEN_TIMEOUT     seconds that one compilation may take (default 600)
FA4GEN_SCHEDULES   schedules of your own, files or folders, with `:` between them
FA4GEN_RUNTIME_LIBRARY   NVIDIA's libcute_dsl_runtime.so, where its wheel is not installed
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import error

KNOWN = (
    "FA4GEN_CACHE_DIR",
    "FA4GEN_CACHE_MB",
    "FA4GEN_NO_JIT",
    "FA4GEN_DEBUG",
    "FA4GEN_TIMEOUT",
    "FA4GEN_SCHEDULES",
    "FA4GEN_RUNTIME_LIBRARY",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the environment asks for; `Options.from_environment()` reads it."""

    cache_dir: Path
    cache_bytes: int = 2_000_000_000
    no_jit: bool = False
    debug: bool = False
    timeout_seconds: float = 600.0
    schedules: tuple[Path, ...] = ()
    runtime_library: Path | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> "Options":
        """Reads the variables above.

        Raises `Fa4genError` FA0801 for a value that makes no sense or a FA4GEN_ variable that does
        not exist (a misspelt switch would otherwise be without effect, silently).
        """
        env = os.environ if environment is None else environment
        unknown = sorted(k for k in env if k.startswith("FA4GEN_") and k not in KNOWN)
        if unknown:
            raise error(
                "FA0801", f"unknown variable `{unknown[0]}`", fix=f"one of {', '.join(KNOWN)}"
            )
        home = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return Options(
            cache_dir=Path(env.get("FA4GEN_CACHE_DIR") or home / "fa4gen").expanduser().absolute(),
            cache_bytes=int(_number(env, "FA4GEN_CACHE_MB", 2000.0, "megabytes") * 1e6),
            no_jit=_switch(env, "FA4GEN_NO_JIT"),
            debug=_switch(env, "FA4GEN_DEBUG"),
            timeout_seconds=_number(env, "FA4GEN_TIMEOUT", 600.0, "seconds"),
            schedules=_paths(env, "FA4GEN_SCHEDULES"),
            runtime_library=next(iter(_paths(env, "FA4GEN_RUNTIME_LIBRARY")), None),
        )


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a compiler process: ours without CUTE_DSL_*, which would change its code.

    What the cache's keys do not hold must not reach the compiler.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUTE_DSL_")}
    return inherited | extra


def _paths(env: Mapping[str, str], name: str) -> tuple[Path, ...]:
    return tuple(Path(p).expanduser() for p in env.get(name, "").split(os.pathsep) if p.strip())


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value in ("", "0", "false", "no", "off"):
        return False
    if value in ("1", "true", "yes", "on"):
        return True
    raise error("FA0801", f"`{name}` is `{env[name]}`, expected 0 or 1", fix=f"export {name}=1")


def _number(env: Mapping[str, str], name: str, default: float, unit: str) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise error(
            "FA0801",
            f"`{name}` is `{text}`, expected {unit} above 0",
            fix=f"export {name}={default:g}",
        )
    return value
