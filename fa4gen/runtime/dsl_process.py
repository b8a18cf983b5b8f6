"""Runs in a process of its own: compiles one generated file with the CuTe DSL. No GPU, no driver.

    python -P dsl_process.py NAME.py      in a folder that holds NAME.py and an empty folder `dump`

Writes `kernel.ptx`, `kernel.cubin`, `kernel.o` and, last, `outcome.json`. The target and
what to keep are in CUTE_DSL_* variables, which the DSL reads once a process.

The generated file defines `launch` (a `cute.jit` function) and `example_arguments()`, the fake
tensors that it is compiled for. It is executed under its bare file name: what the DSL embeds (in
symbols, line tables, host code) then holds no path of this machine: equal bytes anywhere.
"""

import json
import sys
import traceback
import types
from pathlib import Path

FUNCTION = "fwd"  # the symbol that a loader of the shared object asks for


def run(name: str) -> dict[str, object]:
    """Compiles and exports; returns the outcome: `stage` is what failed, or 'done'."""
    stage = "import"
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi would import it: 2 s for nothing
    try:
        import cutlass.cute as cute

        stage = "trace"
        text = Path(name).read_text()
        module = types.ModuleType(Path(name).stem)
        module.__file__ = name
        sys.modules[module.__name__] = module  # where the DSL looks a function's source up
        exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
        function = cute.compile(
            module.launch, *module.example_arguments(), options="--enable-tvm-ffi"
        )
        stage = "export"
        Path("kernel.ptx").write_text(function.__ptx__)
        Path("kernel.cubin").write_bytes(function.__cubin__)
        function.export_to_c("kernel.o", function_name=FUNCTION)
    except BaseException as failure:  # whatever it is, the parent has to say it with its place
        return {"stage": stage, **describe(failure, name)}
    return {"stage": "done"}


def describe(failure: BaseException, name: str) -> dict[str, object]:
    """What failed, in the tool's words, and the lines of the generated file that were active."""
    lines: list[int] = []
    ptxas = ""
    chain: list[BaseException] = []
    error: BaseException | None = failure
    while error is not None and error not in chain:
        chain.append(error)
        own = getattr(error, "line", None) or getattr(error, "lineno", None)  # SyntaxError: lineno
        if getattr(error, "filename", None) == name and own:
            lines.append(int(own))
        frames = traceback.extract_tb(error.__traceback__)
        lines += [f.lineno for f in reversed(frames) if f.filename == name and f.lineno]
        ptxas = ptxas or getattr(error, "ptxas_error", None) or ""
        error = error.__cause__ or error.__context__
    message = getattr(failure, "message", None) or str(failure)
    suggestion = getattr(failure, "suggestion", None) or ""
    return {
        "type": type(failure).__name__,
        "message": str(message),
        "suggestion": suggestion if isinstance(suggestion, str) else " ".join(suggestion),
        "lines": lines,
        "ptxas": ptxas,
    }


if __name__ == "__main__":
    outcome = run(sys.argv[1])
    Path("outcome.partial").write_text(json.dumps(outcome))
    Path("outcome.partial").rename("outcome.json")
