"""Checks and times attention kernels on a GPU machine that has torch and none of our package.

    python3 KIT/run.py --out DIR [--budget SECONDS] [--only check,time,host] [--match TEXT]

KIT is a folder that `fa4gen bench --kit` wrote: a copy of this package and of `run.py`,
`manifest.json`, shared objects, the apache-tvm-ffi wheel and the DSL's runtime library. Results go
to DIR as they come (`results.jsonl`), then as a whole (`results.json`, `table.txt`). Each piece of
work runs in a worker process under a time limit: a kernel that hangs costs that limit, never the
session.

What is measured is in the manifest: `kernels` (shared object, function, what it serves, and its
`arguments`: names of values, nulls and lists thereof, in the order of its call) and `cases`
(problems of a `kind`: check, time, host). An entry with `python`, "module:function", is called
through what that function makes of the shared object's path, and gives its `returns` as a tuple
instead of writing them: so the same run judges and times a library's own calls. Tensors are
(batch, seqlen, heads, head_dim), LSE is (batch, heads, seqlen_q) in float32; causal masks are
aligned bottom-right.

A check passes if, against float64 on fresh random inputs, the root-mean-square error is at most
1.1 and the largest error at most 1.5 times that of PyTorch's attention in the same dtype, plus
1e-5; LSE is within 1e-4; rows without keys are 0 and -inf; two runs are bitwise equal; nothing
outside the outputs was written. `--peers` checks the peers' kernels too, which tests the checker.

These files import the standard library, torch and tvm_ffi, and each other by relative imports
alone, so that a copy runs under any name. Exit code: 0 all passed, 1 something failed, 3 the budget
ended first.
"""
