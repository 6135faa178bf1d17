"""Which GPU of Apple's this machine has, and whether PyTorch can use it."""

from __future__ import annotations

import json
import shutil
import subprocess

import torch

SECONDS = 60  # for a tool of the system to answer


def gpu() -> torch.device:
    """The GPU of this machine. Raises RuntimeError where there is none of Apple's, or none that PyTorch can use.

    Virtual machines show one on which nothing can be allocated.
    """
    if not torch.backends.mps.is_available():
        raise RuntimeError("expected an Apple GPU, got a machine without one: torch.backends.mps.is_available() is False")
    device = torch.device("mps")
    try:
        torch.zeros(1, device=device)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RuntimeError(f"expected an Apple GPU that works, got one that PyTorch cannot use: {reason}") from None
    return device


def chip() -> dict[str, str]:
    """Its `chip`, such as Apple M3 Max, and `gpu_cores`, such as 40; what this machine does not tell is left out."""
    name, cores = _said("sysctl", "-n", "machdep.cpu.brand_string"), _cores(_said("system_profiler", "SPDisplaysDataType", "-json"))
    return {key: value for key, value in (("chip", name), ("gpu_cores", cores)) if value}


def _said(tool: str, *args: str) -> str:
    """What a tool prints; nothing where there is none, or it fails or hangs."""
    path = shutil.which(tool)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *args], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return "" if done.returncode else done.stdout.strip()


def _cores(displays: str) -> str:
    """The cores of the first GPU that tells them."""
    try:
        gpus = json.loads(displays)["SPDisplaysDataType"] if displays else []
    except (ValueError, KeyError):
        return ""
    return next((str(gpu["sppci_cores"]) for gpu in gpus if "sppci_cores" in gpu), "")
