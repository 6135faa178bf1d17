"""What all tests share: the device, the seed (printed), and the marker of the full grids."""

import random
from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the op tests run: cpu, mps, cuda")
    parser.addoption("--full", action="store_true", help="run every grid in full")
    parser.addoption("--seed", type=int, default=0, help="seed of every test's random numbers")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed {config.getoption('--seed')}, device {config.getoption('--device')}, torch {torch.__version__}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        full = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


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
