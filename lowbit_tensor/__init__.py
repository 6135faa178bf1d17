"""Weights of 1 to 8 bits for PyTorch: one tensor, one file format, every device."""

from . import cpu as _cpu  # registers the native kernels for the CPU
from . import handlers as _handlers  # fills the table of what ops mean
from . import metal as _metal  # registers the kernels for mps, and compiles nothing
from .config import LowBitConfig
from .convert import dequantize_, quantize_, trainable_parameters
from .format import Format
from .packing import pack, unpack
from .quantize import DEFAULT_METHOD, METHODS
from .report import QuantizationReport, packed_nbytes
from .serialize import load_file, save_file
from .tensor import LowBitWeightTensor
from .version import __version__

__all__ = [
    # the tensor
    "LowBitWeightTensor",
    "packed_nbytes",
    # whole models
    "LowBitConfig",
    "quantize_",
    "dequantize_",
    "trainable_parameters",
    "QuantizationReport",
    # files
    "save_file",
    "load_file",
    # the format
    "Format",
    "pack",
    "unpack",
    # quantizers
    "METHODS",
    "DEFAULT_METHOD",
    # the package
    "__version__",
]
del _cpu, _handlers, _metal
