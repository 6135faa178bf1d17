"""Plots with matplotlib, the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def quality_against_size(points: Sequence[tuple[str, float, float]], path: Path, title: str) -> None:
    """Writes a PNG of (label, megabytes, perplexity), the float model, labelled `float`, as a dashed line."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter, ScalarFormatter
    except ImportError as error:
        raise ImportError(f"expected matplotlib to be installed: pip install 'lowbit-tensor[plots]' ({error})") from None
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low_bit = [p for p in points if p[0] != "float"]
    for label, _, perplexity in points:
        if label == "float":
            axes.axhline(perplexity, linestyle="--", color="grey", linewidth=1, label=f"float: {perplexity:.2f}")
    axes.plot([p[1] for p in low_bit], [p[2] for p in low_bit], marker="o", label="low-bit")
    for label, megabytes, perplexity in low_bit:
        axes.annotate(f"{label}\n{perplexity:.2f}", (megabytes, perplexity), textcoords="offset points", xytext=(8, 6), fontsize=9)
    axes.set_yscale("log")
    for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.12, y=0.15)
    axes.set_xlabel("size on disk, MB")
    axes.set_ylabel("perplexity (log scale; lower is better)")
    axes.set_title(title)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, format="png")
