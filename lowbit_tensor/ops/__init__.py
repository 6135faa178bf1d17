"""The ops `lowbit::*`: plain tensors and integers in, plain tensors out. One file an op; importing this registers them."""

from . import dequantize, embedding, grouped, linear, matmul, packing, parameter_grad, quantize

__all__ = ["dequantize", "embedding", "grouped", "linear", "matmul", "packing", "parameter_grad", "quantize"]
