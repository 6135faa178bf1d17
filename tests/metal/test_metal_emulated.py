"""The op tests hold on mps too: some of them, run as `pytest tests/ops --device emulated` runs them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOME = "(bits3 or 3bits or expert_out_of_range or autocast) and not opcheck"  # of few kernels, since each has to be compiled


@pytest.mark.harness
def test_op_tests_on_metal() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/ops", "--device", "emulated", "-k", SOME]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 100
