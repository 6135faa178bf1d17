"""What each function of PyTorch means on a `LowBitWeightTensor`: importing this fills the table."""

from . import arithmetic, embedding, memory, modules, products, views
from .table import KINDS

__all__ = ["KINDS", "arithmetic", "embedding", "memory", "modules", "products", "views"]
