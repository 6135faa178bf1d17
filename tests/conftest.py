"""What all tests share: the device, the seed (printed), and the marker of the full grids."""

import random
from collections.abc import Iterator
from pathlib import Path

import emulation
import pytest
import torch

# A kernel that the self-test finds wrong gives way to the reference, with which every test of the kernel would pass.
DISTRUSTED = pytest.mark.filterwarnings("error:.*the plain reference serves in its place:UserWarning")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", help="where the op tests run: cpu, mps, cuda, or emulated: as on mps, by the Metal harness on the CPU"
    )
    parser.addoption("--full", action="store_true", help="run every grid in full")
    parser.addoption("--seed", type=int, default=0, help="seed of every test's random numbers")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed {config.getoption('--seed')}, device {config.getoption('--device')}, torch {torch.__version__}"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "emulated":
        emulation.compile_by_harness()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    device = config.getoption("--device")
    others = {"full"} if not config.getoption("--full") else set()
    if device != "cpu":
        others |= {"cpu_only", "harness"}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if others & {mark.name for mark in item.iter_markers()} else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
    for item in kept if device in ("mps", "emulated") else []:
        item.add_marker(DISTRUSTED)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    name = request.config.getoption("--device")
    if name == "emulated":
        with emulation.registered():
            yield torch.device("cpu")
    else:
        yield torch.device(name)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    value = request.config.getoption("--seed")
    print(f"seed {value}")
    random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"
