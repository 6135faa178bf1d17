"""The command `lowbit`: `main` is its entry point. typer and rich are the extra `cli`; without them it says what to install."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status: 0, 1 for failure, 2 for bad use, 130 where interrupted."""
    try:
        from . import app
    except ImportError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"lowbit: expected {error.name} to be installed: pip install 'lowbit-tensor[cli]'", file=sys.stderr)
        return 1
    return app.run(sys.argv[1:] if argv is None else argv)
