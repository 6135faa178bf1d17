"""Weights of 1 to 8 bits for PyTorch: one tensor, one file format, every device."""

from . import handlers  # noqa: F401  (fills the table of what ops mean)
from .format import Format
from .packing import pack, unpack
from .quantize import DEFAULT_METHOD, METHODS
from .tensor import LowBitWeightTensor, packed_nbytes
from .version import __version__
