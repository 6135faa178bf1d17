"""Checks what an sdist and a wheel hold: `python tools/check_dist.py dist`. Exit status 1 with the reason where they are wrong."""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"hf", "plots", "cli", "dev"}
REQUIRED = {"torch", "safetensors"}


def check(folder: Path) -> list[str]:
    """What is wrong with the one wheel and the one sdist in `folder`."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        return [f"expected one wheel and one sdist in {folder.name}, got {[p.name for p in wheels + sdists]}"]
    return [*_wheel(wheels[0]), *_sdist(sdists[0])]


def _wheel(path: Path) -> list[str]:
    wrong = [] if re.search(r"-py3-none-[\w.]+\.whl$", path.name) else [f"expected a wheel for every Python 3, got {path.name}"]
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        metadata = message_from_string(wheel.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode())
        entry_points = wheel.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    native = {n for n in names if re.fullmatch(r"lowbit_tensor/cpu/liblowbit\.(so|dylib)", n)}
    if bool(native) == path.name.endswith("-any.whl"):
        wrong.append(
            f"wheel: expected the library of CPU kernels in a wheel for one platform, and there alone, got {sorted(native)} in {path.name}"
        )
    sources = {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "lowbit_tensor").rglob("*") if p.suffix in (".py", ".metal") or p.name == "py.typed"
    }
    packaged = {n for n in names if ".dist-info/" not in n} - native
    wrong += [f"wheel: {n} is missing" for n in sorted(sources - packaged)]
    wrong += [f"wheel: {n} should not be there" for n in sorted(packaged - sources)]
    if not any(n.endswith("licenses/LICENSE") for n in names):
        wrong.append("wheel: LICENSE is missing")
    if "lowbit = lowbit_tensor.cli:main" not in entry_points:
        wrong.append("wheel: the command lowbit is missing")
    requires = metadata.get_all("Requires-Dist") or []
    required = {re.split(r"[^A-Za-z0-9_.-]", r)[0] for r in requires if "extra ==" not in r}
    if required != REQUIRED:
        wrong.append(f"wheel: expected {sorted(REQUIRED)} to be required, got {sorted(required)}")
    if set(metadata.get_all("Provides-Extra") or []) != EXTRAS:
        wrong.append(f"wheel: expected the extras {sorted(EXTRAS)}, got {metadata.get_all('Provides-Extra')}")
    if metadata["License-Expression"] != "Apache-2.0" or metadata["Requires-Python"] != ">=3.10":
        wrong.append(f"wheel: expected Apache-2.0 and >=3.10, got {metadata['License-Expression']} and {metadata['Requires-Python']}")
    return wrong


def _sdist(path: Path) -> list[str]:
    with tarfile.open(path) as sdist:
        names = {n.partition("/")[2] for n in sdist.getnames()}
    needed = {
        "lowbit_tensor/cpu/csrc/kernels.inl",
        "lowbit_tensor/cpu/csrc/api.cpp",
        "setup.py",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "lowbit_tensor/__init__.py",
        "lowbit_tensor/py.typed",
    }
    return [f"sdist: {n} is missing" for n in sorted(needed - names)]


if __name__ == "__main__":
    problems = check(Path(sys.argv[1]))
    print("\n".join(problems) if problems else "sdist and wheel hold what they should")
    sys.exit(bool(problems))
