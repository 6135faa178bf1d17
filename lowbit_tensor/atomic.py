"""Writing that is whole or not there: under a temporary name beside the target, then renamed."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_COUNTER = itertools.count()


def _temporary(path: Path, kind: str) -> Path:
    """A name beside `path` that no other writer has: of this machine, this process and this call."""
    return path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}-{next(_COUNTER)}.{kind}")


def _sweep(path: Path) -> None:
    """Takes away what writers of `path` on this machine left that were killed."""
    pattern = re.compile(re.escape(f".{path.name}.{platform.node()}-") + r"(\d+)-\d+\.part")
    for old in path.parent.iterdir():
        found = pattern.fullmatch(old.name)
        if found and not _is_running(int(found[1])):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, or no process there could be
        return True
    return True


def check_file(path: Path) -> None:
    """Raises FileNotFoundError where the folder of `path` does not exist, IsADirectoryError where `path` is one."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: expected an existing folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a file, got a folder")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Gives a name to write to; on success that file is synced and takes the place of `path`, on any exception it is removed.

    Raises what `check_file` does.
    """
    check_file(path)
    _sweep(path)
    part = _temporary(path, "part")
    try:
        part.touch()
        mode = part.stat().st_mode  # what a new file gets here; some writers make theirs private
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.chmod(mode)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check_folder(path: Path, *, force: bool = False) -> None:
    """Raises FileExistsError where `path` exists, unless `force` and it is empty or a model folder; NotADirectoryError and
    FileNotFoundError where no folder can be put there."""
    if (path.exists() or path.is_symlink()) and not force:
        raise FileExistsError(f"{path} exists: expected a new folder, or --force to replace it")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path}: expected a folder, got a file")
    if path.is_dir() and any(path.iterdir()):
        _check_model(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: expected an existing folder {path.absolute().parent}")


def _check_model(path: Path) -> None:
    """Raises FileExistsError where a folder holds more than a model, and so must not be replaced."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict) or not config.keys() & {"model_type", "architectures"}:
        raise FileExistsError(f"{path}: expected a model folder to replace, got a folder without config.json of a model")
    if folders := [p.name for p in path.iterdir() if p.is_dir()]:
        raise FileExistsError(f"{path}: expected a model folder to replace, got one that holds the folder {folders[0]!r}")


@contextmanager
def atomic_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Gives a new folder to fill; on success it takes the place of `path`, on any exception it is removed. `check_folder` comes first."""
    check_folder(path, force=force)
    path = path.absolute()
    _sweep(path)
    part, old = (_temporary(path, kind) for kind in ("part", "old"))
    try:
        part.mkdir()
        yield part
        if path.exists():
            os.replace(path, old)
        os.replace(part, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
