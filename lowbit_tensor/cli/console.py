"""What the commands share: one-line errors, progress bars, measures of a run."""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class BadUse(Exception):
    """Wrong use of the command: exit status 2."""


@contextmanager
def checking_use() -> Iterator[None]:
    """Errors within are wrong use: options and paths are checked here, before anything is read or written."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise BadUse(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The message of an error on one line; paths in operating-system errors included."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"missing key {text}" if isinstance(error, KeyError) else text


@contextmanager
def progress(title: str) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error: call it with (done, total) or (name, done, total). Without a terminal, nothing is drawn."""
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def update(*args: Any) -> None:
            done, total = args[-2:]
            bar.update(task, completed=done, total=total, description=f"{title} {args[0]}" if len(args) > 2 else title)

        yield update


@contextmanager
def working(title: str) -> Iterator[None]:
    """A spinner on standard error for a step whose length is not known."""
    if not err.is_terminal:
        yield
        return
    with err.status(title):
        yield


def quiet_libraries() -> None:
    """Leaves the screen to this command: no bars and notices of transformers, nothing looked up on the network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tqdm
        from transformers.utils import logging as transformers_logging
    except ImportError:
        return
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if not isinstance(tqdm.std.tqdm.__init__, functools.partialmethod):
        tqdm.std.tqdm.__init__ = functools.partialmethod(tqdm.std.tqdm.__init__, disable=True)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")


def read_text(path: Path) -> str:
    """A UTF-8 text file. Raises ValueError naming it where it holds something else."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text: {error.reason} at byte {error.start}") from None


def peak_memory() -> int | None:
    """The most memory, in bytes, that this process has held; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def megabytes(n: int | None) -> str:
    """Bytes as megabytes of 10**6."""
    return "unknown" if n is None else f"{n / 1e6:,.1f} MB"
