"""What each function of PyTorch means on a `LowBitWeightTensor`: importing this fills the table."""

from . import arithmetic, memory, products, views
from .table import KINDS

__all__ = ["KINDS", "arithmetic", "memory", "products", "views"]
