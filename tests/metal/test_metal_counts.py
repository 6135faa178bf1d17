"""docs/metal.md holds what the kernels cost a weight, as benchmarks/metal_counts.py counts it; costs may not creep up."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import metal_counts  # noqa: E402

pytestmark = pytest.mark.harness


def rows_of(table: str) -> dict[int, list[float]]:
    return {int(row[0]): [float(v) for v in row[1:]] for row in (re.findall(r"[\d.]+", line) for line in table.splitlines()[2:])}


@pytest.mark.parametrize("bits", [4, *(pytest.param(b, marks=pytest.mark.full) for b in (1, 2, 3, 5, 6, 7, 8))])
def test_the_tables_are_those_counted(bits: int) -> None:
    """Bytes, sums and limits exactly; arithmetic within a twentieth, since compilers of the harness differ."""
    text = (ROOT / "docs" / "metal.md").read_text()
    first, second = re.findall(r"^\| bits \|.*\n(?:\|.*\n)+", text, re.M)
    written = rows_of(first)[bits], rows_of(second)[bits]
    counted = rows_of(f"-\n-\n{metal_counts.one_row(bits)}")[bits], rows_of(f"-\n-\n{metal_counts.several_rows(bits)}")[bits]
    exact = (0, 1, 6)
    assert [written[0][i] for i in exact] == [counted[0][i] for i in exact]
    assert written[0][7:] == pytest.approx(counted[0][7:], rel=0.05)
    for a, b in zip(written[0][2:6] + written[1], counted[0][2:6] + counted[1], strict=True):
        assert abs(a - b) <= 0.05 * b + 0.01


@pytest.mark.parametrize("bits", [3, 4])
def test_what_a_weight_may_cost(bits: int) -> None:
    """The budget: a multiply-add, a conversion, a shift and a mask a code, bytes joined at 3 bits; x, parameters and addresses shared."""
    counts = metal_counts.counted(1, bits)
    assert counts["float_operations"] <= 2.8 and counts["conversions"] <= 1.51
    assert counts["integer_operations"] <= {3: 2.8, 4: 2.1}[bits] and counts["long_operations"] <= 0.5
    assert counts["device_bytes_loaded"] == pytest.approx(bits / 8 + 0.5 + 0.5 + 4 / 1e4, abs=0.01)
    eight = metal_counts.counted(8, bits)
    assert metal_counts.instructions(eight) / 8 <= 0.7 * metal_counts.instructions(counts), "decoding is shared by the rows of x"
