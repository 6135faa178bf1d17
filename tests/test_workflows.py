"""The workflows parse, and what they run exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_what_is_run_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = "\n".join(step.get("run", "") for step in steps_of(path))
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= targets
    for script in re.findall(r"[\w/]+\.py\b", commands):
        assert (ROOT / script).is_file(), f"{path.name} runs {script}"


def test_macs() -> None:
    """What runs on a Mac: every kernel against the reference, the tests of ops and kernels, the demo; nothing falls back to the CPU unseen.

    The harness is not for Macs, and the tests that need it have no place in the run on the CPU.
    """
    path = ROOT / ".github" / "workflows" / "macos.yml"
    job = yaml.safe_load(path.read_text())["jobs"]["test"]
    runners = job["strategy"]["matrix"]["os"]
    assert {"macos-14", "macos-15"} <= set(re.findall(r'"([\w-]+)"', runners))
    commands = "\n".join(step.get("run", "") for step in steps_of(path))
    tests = [f"pytest tests/{folder} --device mps" for folder in ("ops", "metal")]
    for command in ("lowbit selftest --report", *tests, "benchmarks/mps.py --quick --out", "make demo"):
        assert command in commands
    on_cpu = next(step for step in steps_of(path) if step.get("run") == "make test")
    assert set(on_cpu["env"]["PYTEST_ADDOPTS"].split()) >= {"--ignore=tests/metal", "--ignore=tests/metal_emu"}
    assert "PYTORCH_ENABLE_MPS_FALLBACK" not in path.read_text()
    uploads = next(step["with"]["path"].split() for step in steps_of(path) if step.get("uses", "").startswith("actions/upload-artifact"))
    assert all(name in commands for name in uploads)
