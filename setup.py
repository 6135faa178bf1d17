"""Builds the library of CPU kernels beside the package: plain C++, no headers of Python or torch, so one wheel serves them all.

Without a C++ compiler, or with LOWBIT_NO_NATIVE=1, the package is installed without it, and says so when it is used.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("lowbit_tensor/cpu/csrc")
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # the last two: gcc's own vector headers


class Build(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + (".dylib" if sys.platform == "darwin" else ".so")

    def get_export_symbols(self, ext: Extension) -> list:
        return []


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if self.distribution.ext_modules else (python, abi, platform)


library = Extension(
    "lowbit_tensor.cpu.liblowbit",
    sources=[str(path) for path in sorted(SOURCES.glob("*.cpp"))],
    depends=[str(path) for path in [*SOURCES.glob("*.h"), *SOURCES.glob("*.inl")]],
    extra_compile_args=["-O3", "-g0", "-std=c++17", "-fvisibility=default", *OPENMP, *WARNINGS],
    extra_link_args=OPENMP,
    language="c++",
    optional=True,
)
native = os.environ.get("LOWBIT_NO_NATIVE", "0") in ("", "0")
setup(ext_modules=[library] if native else [], cmdclass={"build_ext": Build, "bdist_wheel": Wheel})
