"""Runs the compile with a moving line, a full log and a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import click

from hvd_mnist.horovod_build.progress import percent, target

BUILD_LIMIT = 7200  # seconds
LINE_EVERY = 20  # seconds between lines where the console does not move


def compile_wheel(command: list[str], env: dict[str, str], log: Path, verbose: bool) -> int:
    """Exit status of the build; its whole output goes into ``log``, its progress onto the console.

    Ctrl-C, SIGTERM and the limit of BUILD_LIMIT seconds end the compilers too (status 124 for the limit).
    """
    show = plain_lines if verbose or not sys.stdout.isatty() else moving_line
    with log.open("w", encoding="utf-8") as file, terminated_by_exception(), show() as progress:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        past_limit = threading.Event()

        def end_at_limit() -> None:
            past_limit.set()
            end_group(process)

        timer = threading.Timer(BUILD_LIMIT, end_at_limit)
        timer.daemon = True
        timer.start()
        try:
            for line in process.stdout:
                file.write(line)
                if verbose:
                    click.echo(line, nl=False)
                progress(percent(line), target(line))
            status = process.wait()
        except BaseException:
            end_group(process)
            raise
        finally:
            timer.cancel()
        if past_limit.is_set():
            file.write(f"error: the build was ended after {BUILD_LIMIT} s\n")
            return 124
        return status


@contextmanager
def terminated_by_exception():
    """SIGTERM as SystemExit, so that what was started is ended on the way out; else it would compile on, alone."""

    def leave(signum, frame):
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(1)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@contextmanager
def moving_line():
    """A rich progress bar, for a terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [
        SpinnerColumn(),
        TextColumn("compiling"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    ]
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("configuring", total=100)

        def update(done: int | None, what: str) -> None:
            if done is not None:
                bar.update(task, completed=done, description=what or "finishing")

        yield update


@contextmanager
def plain_lines():
    """A line every 20 seconds, for a log file or a CI console, also while nothing is printed by the build."""
    started = time.monotonic()
    state = {"done": 0, "what": "configuring"}
    finished = threading.Event()

    def update(done: int | None, what: str) -> None:
        if done is not None:
            state.update(done=done, what=what or "finishing")

    def speak() -> None:
        while not finished.wait(LINE_EVERY):
            click.echo(f"  building Horovod: {state['done']:3d} %, {time.monotonic() - started:.0f} s, {state['what']}")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield update
    finally:
        finished.set()
        speaker.join()
