"""Run checked argument lists as a pipeline: no shell, little environment, bounded.

Each program gets a process group of its own, and all groups are killed when the time is over,
the output is too large, or the waiting task is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cyberagent.core.errors import ToolFailed

MAX_OUTPUT_BYTES = 100_000
MAX_ERROR_BYTES = 10_000

_CHUNK = 65_536
_BROKEN_PIPE = -signal.SIGPIPE


@dataclass(frozen=True, slots=True)
class Finished:
    """``statuses``: one per program, negative where a signal ended it. ``ended``: why the
    pipeline was killed, or ""."""

    output: bytes
    errors: bytes
    statuses: tuple[int, ...]
    ended: str = ""


def program(name: str, workspace: Path) -> str:
    """The full path of a program; never one that lies in the workspace, where a model could have
    written it. Raises ToolFailed where this machine has none."""
    folders = [
        f
        for f in os.environ.get("PATH", os.defpath).split(os.pathsep)
        if f.startswith("/") and not Path(os.path.realpath(f)).is_relative_to(workspace)
    ]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise ToolFailed(f"the program `{name}` is not installed on this machine")
    return found


async def run(
    commands: Sequence[Sequence[str]], *, cwd: Path, first_input: bytes, seconds: float | None
) -> Finished:
    """Run programs with each one's output as the next one's input; ``first_input`` is what the
    first one reads. ``seconds`` None: no time limit."""
    processes: list[asyncio.subprocess.Process] = []
    error_read, error_write = os.pipe()
    reading = asyncio.create_task(_drain_pipe(error_read))
    ended = ""
    output = bytearray()
    try:
        try:
            await _start(commands, cwd, error_write, processes)
        finally:
            os.close(error_write)
        async with asyncio.timeout(seconds):
            await _collect(processes, first_input, output)
            if len(output) > MAX_OUTPUT_BYTES:
                ended = f"cut after {MAX_OUTPUT_BYTES:,} bytes"
            else:
                await asyncio.gather(*(p.wait() for p in processes))
    except TimeoutError:
        ended = f"stopped after {seconds:g} s"
    finally:
        _kill(processes)
        errors = await _after_kill(processes, reading)
    statuses = tuple(p.returncode or 0 for p in processes)
    return Finished(bytes(output[:MAX_OUTPUT_BYTES]), errors, statuses, ended)


async def _start(
    commands: Sequence[Sequence[str]],
    cwd: Path,
    error_write: int,
    processes: list[asyncio.subprocess.Process],
) -> None:
    """Start each program and add it to ``processes`` at once, so that none is ever lost."""
    upstream: int = asyncio.subprocess.PIPE
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    for number, (path, *arguments) in enumerate(commands, 1):
        is_last = number == len(commands)
        read, write = (-1, asyncio.subprocess.PIPE) if is_last else os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                Path(path).name,  # what it calls itself in its errors
                *arguments,
                executable=path,
                stdin=upstream,
                stdout=write,
                stderr=error_write,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
            processes.append(process)
            _forbid_files(process.pid)
        except BaseException:
            if read >= 0:
                os.close(read)
            raise
        finally:
            for handle in (upstream, write):
                if handle >= 0:
                    os.close(handle)
        upstream = read


def _forbid_files(pid: int) -> None:
    """No program of the terminal has a reason to write a file; where the system can, make it
    impossible, should the table of allowed options ever miss one."""
    if hasattr(resource, "prlimit"):
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))


async def _collect(
    processes: Sequence[asyncio.subprocess.Process], first_input: bytes, output: bytearray
) -> None:
    """Add what the last program says to ``output``, until its end or just over the limit."""
    feeding = asyncio.create_task(_feed(processes[0], first_input))
    stream = processes[-1].stdout
    try:
        while stream and len(output) <= MAX_OUTPUT_BYTES and (chunk := await stream.read(_CHUNK)):
            output += chunk
    finally:
        feeding.cancel()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    stream = process.stdin
    if stream is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _drain_pipe(handle: int) -> bytes:
    """Read a pipe to its end, keep its first MAX_ERROR_BYTES."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(handle, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    kept = b""
    try:
        while chunk := await reader.read(_CHUNK):
            kept += chunk[: max(0, MAX_ERROR_BYTES - len(kept))]
    finally:
        transport.close()
    return kept


def _kill(processes: Sequence[asyncio.subprocess.Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def _after_kill(
    processes: Sequence[asyncio.subprocess.Process], reading: asyncio.Task[bytes]
) -> bytes:
    """Wait for the dead, so that none is left behind; then everything they said is there."""
    await asyncio.gather(*(p.wait() for p in processes))
    return await reading


def failures(finished: Finished, names: Sequence[str]) -> list[str]:
    """Programs that did not end well; a program whose reader left first is not at fault."""
    return [
        f"{name}: exit status {status}" if status > 0 else f"{name}: ended by signal {-status}"
        for name, status in zip(names, finished.statuses, strict=True)
        if status not in (0, _BROKEN_PIPE)
    ]
