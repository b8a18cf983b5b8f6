"""Runs units of work in worker processes under time limits: a hang costs its limit alone."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import IO, Any

START_LIMIT_S = 240.0  # importing torch and making a context on a cold machine took about 60 s


class Worker:
    """A worker process in a session of its own, and the lines that it sends."""

    def __init__(self, command: list[str], log: IO[bytes] | None) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        self.pending = b""

    def line(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if it ended or sent nothing for so long."""
        deadline = time.monotonic() + seconds
        pipe = self.process.stdout
        assert pipe is not None
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                return None
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(10)  # it closed its end: it is on its way out
                return None
            self.pending += chunk
        text, self.pending = self.pending.split(b"\n", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def stop(self) -> int | None:
        """Ends the worker; returns how it ended by itself, None if it was still running."""
        status = self.process.poll()
        if status is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:  # stuck in the driver: leave it, and say so
            print("a killed worker has not gone yet", file=sys.stderr)
        return status


def supervise(
    start: Callable[[list[dict[str, Any]]], Worker],
    units: Sequence[dict[str, Any]],
    limits: dict[str, float],
    deadline: float,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Runs all units in workers made by `start(units)`, within time limits by kind of unit.

    `report(message)` gets what workers send, and for a unit that hung, crashed or was skipped a
    message of the same form. After two hangs or crashes of a kernel, its other units are skipped.
    """
    left: list[dict[str, Any]] = list(units)
    bad: Counter[str] = Counter()
    while left and time.monotonic() < deadline:
        worker = start(left)
        ready = worker.line(START_LIMIT_S)
        if ready is None:
            status = worker.stop()
            raise SystemExit(f"the worker did not start (status {status}): see worker.log")
        report(ready)
        while left:
            unit = left[0]
            limit = min(limits[unit["kind"]], deadline - time.monotonic())
            answer = worker.line(limit) if limit > 0 else None
            if answer and "start" in answer:
                answer = worker.line(limit)
            left.pop(0)
            if answer is None:
                over = time.monotonic() >= deadline
                status = worker.stop()
                how = "did not end in time (hang)" if status is None else f"died, status {status}"
                report({"done": unit["id"], "faults": ["budget ended" if over else how]})
                bad[unit["kernels"][0]] += not over
            else:
                report(answer)
            if answer is None or answer.get("lost_context"):
                break
        worker.stop()
        for unit in [u for u in left if bad[u["kernels"][0]] >= 2]:
            left.remove(unit)
            report({"done": unit["id"], "faults": ["skipped: this kernel hung or died twice"]})
    return left
