"""Files and folders that are whole or not there."""

import os
import platform
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lowbit_tensor.atomic import atomic_file, atomic_folder, check_folder

ERRORS = [RuntimeError("midway"), OSError(28, "No space left"), KeyboardInterrupt(), SystemExit(1)]


OLD = '{"model_type": "old"}'


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def model_folder(path: Path, text: str = OLD) -> Path:
    path.mkdir()
    (path / "config.json").write_text(text)
    return path


# Files


@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "over_an_old_file"])
def test_a_file_appears_when_it_is_whole(tmp_path, old):
    path = tmp_path / "a.bin"
    if old is not None:
        path.write_bytes(old)
    with atomic_file(path) as part:
        part.write_bytes(b"half")
        assert part != path and part.parent == path.parent
        assert (path.read_bytes() if path.exists() else None) == old
        part.write_bytes(b"whole")
    assert path.read_bytes() == b"whole" and names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("old", [False, True], ids=["new", "over_an_old_file"])
def test_a_file_that_fails_leaves_what_was(tmp_path, error, old):
    path = tmp_path / "a.bin"
    if old:
        path.write_bytes(b"old")
    with pytest.raises(type(error)) as caught, atomic_file(path) as part:
        part.write_bytes(b"half")
        raise error
    assert caught.value is error and names(tmp_path) == ["a.bin"] * old
    assert not old or path.read_bytes() == b"old"


def test_a_part_that_was_not_left_is_an_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "a.bin") as part:
        part.unlink()
    assert (tmp_path / "a.bin").read_bytes() == b"old" and names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)], ids=oct)
def test_the_mode_is_that_of_a_new_file_whatever_the_writer_made(tmp_path, umask, mode):
    old = os.umask(umask)
    try:
        with atomic_file(tmp_path / "a.bin") as part:
            part.write_bytes(b"x")
            part.chmod(0o640)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == mode


def test_a_file_is_replaced_under_whoever_reads_the_old_one(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        with atomic_file(path) as part:
            part.write_bytes(b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_file_needs_its_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected an existing folder"), atomic_file(tmp_path / "no" / "a.bin"):
        pytest.fail("the body is not reached")
    assert names(tmp_path) == []


def test_a_file_is_no_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match="expected a file, got a folder"), atomic_file(tmp_path):
        pytest.fail("the body is not reached")
    assert names(tmp_path) == [] and names(tmp_path.parent).count(tmp_path.name) == 1


def test_two_files_at_once(tmp_path):
    with atomic_file(tmp_path / "a.bin") as a, atomic_file(tmp_path / "b.bin") as b:
        a.write_bytes(b"a")
        b.write_bytes(b"b")
    assert [(tmp_path / name).read_bytes() for name in names(tmp_path)] == [b"a", b"b"]


# Where a folder may be put


def test_a_new_folder_is_taken(tmp_path):
    check_folder(tmp_path / "new")
    check_folder(tmp_path / "new", force=True)
    assert names(tmp_path) == []


def test_an_empty_folder_and_a_model_folder_are_replaced_by_force_alone(tmp_path):
    (tmp_path / "empty").mkdir()
    model_folder(tmp_path / "model")
    for name in ("empty", "model"):
        check_folder(tmp_path / name, force=True)
        with pytest.raises(FileExistsError, match="--force"):
            check_folder(tmp_path / name)


def test_a_folder_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years")
    for force in (False, True):
        with pytest.raises(FileExistsError):
            check_folder(tmp_path / "home", force=force)


@pytest.mark.parametrize("force", [False, True], ids=["plain", "force"])
def test_places_where_no_folder_can_be(tmp_path, force):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError if force else FileExistsError):
        check_folder(tmp_path / "file", force=force)
    with pytest.raises(FileNotFoundError, match="expected an existing folder"):
        check_folder(tmp_path / "no" / "model", force=force)


def test_a_dangling_link_counts_as_something_there(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError):
        check_folder(tmp_path / "link")


# Folders


def test_a_folder_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "model"
    with atomic_folder(path) as part:
        (part / "config.json").write_text("new")
        assert not path.exists() and part.parent == path.parent
    assert names(tmp_path) == ["model"] and (path / "config.json").read_text() == "new"


def test_a_folder_replaces_the_old_one_entirely(tmp_path):
    path = model_folder(tmp_path / "model")
    (path / "stale.bin").write_text("stale")
    with atomic_folder(path, force=True) as part:
        (part / "config.json").write_text("new")
        assert (path / "config.json").read_text() == OLD
    assert names(tmp_path) == ["model"] and names(path) == ["config.json"] and (path / "config.json").read_text() == "new"


def test_a_folder_is_not_replaced_without_force(tmp_path):
    path = model_folder(tmp_path / "model")
    with pytest.raises(FileExistsError, match="--force"), atomic_folder(path):
        pytest.fail("the body is not reached")
    assert names(tmp_path) == ["model"] and (path / "config.json").read_text() == OLD


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("old", [False, True], ids=["new", "over_an_old_folder"])
def test_a_folder_that_fails_leaves_what_was(tmp_path, error, old):
    path = tmp_path / "model"
    if old:
        model_folder(path)
    with pytest.raises(type(error)) as caught, atomic_folder(path, force=True) as part:
        (part / "config.json").write_text("half")
        raise error
    assert caught.value is error and names(tmp_path) == ["model"] * old
    assert not old or (path / "config.json").read_text() == OLD


def test_a_swap_that_fails_puts_the_old_folder_back(tmp_path, monkeypatch):
    path, replace, calls = model_folder(tmp_path / "model"), os.replace, []

    def fail_second(source, target):
        calls.append(source)
        if len(calls) == 2:
            raise OSError("no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="no"), atomic_folder(path, force=True) as part:
        (part / "config.json").write_text("new")
    assert len(calls) == 3 and names(tmp_path) == ["model"] and (path / "config.json").read_text() == OLD


def test_a_relative_path_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with atomic_folder(Path("model")) as part:
        (part / "config.json").write_text("new")
    with atomic_file(Path("a.bin")) as part:
        part.write_bytes(b"x")
    assert names(tmp_path) == ["a.bin", "model"]


# Several writers


def test_many_threads_may_write_one_file(tmp_path):
    """Each has a temporary name of its own; the file is always one of theirs, whole."""
    path, size = tmp_path / "a.bin", 200_000

    def write(i: int) -> None:
        with atomic_file(path) as part, part.open("wb") as file:
            for _ in range(10):
                file.write(bytes([i]) * (size // 10))

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        data = path.read_bytes()
        assert len(data) == size and len(set(data)) == 1 and names(tmp_path) == ["a.bin"]


KILLED = """
import os, signal, sys
from pathlib import Path
from lowbit_tensor.atomic import atomic_file, atomic_folder
with (atomic_file if sys.argv[2] == "file" else atomic_folder)(Path(sys.argv[1])) as part:
    (part if sys.argv[2] == "file" else part / "x").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_killed_writers_left_is_swept_by_the_next(tmp_path, kind):
    path = tmp_path / "model"
    subprocess.run([sys.executable, "-c", KILLED, str(path), kind], check=False, timeout=60)
    left = names(tmp_path)
    assert len(left) == 1 and left[0].endswith(".part")
    (tmp_path / f".model.{platform.node()}-{os.getpid()}-99.part").write_bytes(b"a writer that runs")
    (tmp_path / ".model.elsewhere-1-0.part").write_bytes(b"a writer on another machine")
    with (atomic_file if kind == "file" else atomic_folder)(path) as part:
        (part if kind == "file" else part / "x").write_bytes(b"whole")
    assert left[0] not in names(tmp_path) and len(names(tmp_path)) == 3
