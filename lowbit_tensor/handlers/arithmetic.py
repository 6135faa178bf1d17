"""Arithmetic: functional ops give plain tensors, in-place ops re-quantize into the existing bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ..tensor import LowBitWeightTensor
from .memory import write
from .table import function, operator

FUNCTIONAL = """
abs acos acosh add addcdiv addcmul all allclose amax amin aminmax any argmax argmin argsort asin asinh atan atan2 atanh bernoulli
bitwise_not bucketize ceil clamp clamp_max clamp_min copysign cos cosh count_nonzero cummax cummin cumprod cumsum dist div dot eq erf
erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac full_like gather ge gelu gt heaviside histc histogram huber_loss hypot
isfinite isinf isnan isneginf isposinf kthvalue le lerp linalg_cholesky_ex linalg_inv_ex linalg_pinv linalg_qr
linalg_vector_norm _linalg_det _linalg_eigh _linalg_slogdet _linalg_svd log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor logsumexp lt masked_fill masked_select max maximum mean median min minimum mode mse_loss mul nan_to_num
nanmedian nansum ne neg new_full new_ones nonzero norm ones_like pow prod rand_like randn_like reciprocal relu remainder
rot90 round rsqrt rsub sigmoid sign signbit silu sin sinh smooth_l1_loss sort sqrt std std_mean sub sum take tan tanh topk trace tril
triu trunc _unique2 var var_mean where xlogy _log_softmax _native_multi_head_attention _softmax _transformer_encoder_layer_fwd
_weight_norm_interface
""".split()
IN_PLACE = """
abs_ add_ addcdiv_ addcmul_ addmm_ bernoulli_ ceil_ clamp_ clamp_max_ clamp_min_ div_ erfinv_ exp_ exponential_ fill_ floor_ lerp_
log_ log_normal_ masked_fill_ mul_ neg_ normal_ pow_ reciprocal_ relu_ round_ sign_ sqrt_ sub_ tanh_ tril_ triu_ trunc_ uniform_ zero_
""".split()
LISTS = "_foreach_add _foreach_div _foreach_mul _foreach_norm _foreach_sub".split()
LISTS_IN_PLACE = "_foreach_add_ _foreach_copy_ _foreach_div_ _foreach_lerp_ _foreach_mul_ _foreach_sub_ _foreach_zero_".split()


def dequantized(tree: Any) -> Any:
    """Every low-bit tensor in a tree of arguments as a plain one."""
    return tree_map_only(LowBitWeightTensor, lambda w: w.dequantize(), tree)


def _on_dequantized(func: Any) -> None:
    """Registers a function of torch that is to run on the dequantized weight, with the gradient to its other operands kept."""

    @function(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*dequantized(args), **dequantized(kwargs))


def _on_packed_unless_trained(func: Any) -> None:
    """Registers a layer of several products: PyTorch's code within it loses the gradient to scales and zeros, that to the rest it keeps."""

    @function(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        weights = [w for w in tree_leaves((args, kwargs)) if isinstance(w, LowBitWeightTensor)]
        if torch.is_grad_enabled() and any(w.scales.requires_grad or w.zeros.requires_grad for w in weights):
            return func(*dequantized(args), **dequantized(kwargs))
        args, kwargs = tree_map_only(LowBitWeightTensor, lambda w: w.detach() if w.requires_grad else w, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


for _func in (torch.einsum, torch.tensordot, torch.inner, torch.baddbmm, torch.linalg.lstsq, torch.quantile, Tensor.quantile):
    _on_dequantized(_func)
for _func in (F.bilinear, F.cosine_similarity, F.dropout, torch.lstm):
    _on_dequantized(_func)
for _func in (F.multi_head_attention_forward, torch.gru, torch.rnn_tanh, torch.rnn_relu, torch.gru_cell):
    _on_packed_unless_trained(_func)
for _func in (torch.lstm_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell):
    _on_packed_unless_trained(_func)


@operator("arithmetic", *FUNCTIONAL, *LISTS)
def functional(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*dequantized(args), **dequantized(kwargs))


@operator("in-place", *IN_PLACE)
def in_place(op: Any, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    value = dequantized(target)
    op(value, *dequantized(args), **dequantized(kwargs))
    if isinstance(target, LowBitWeightTensor):
        write(target, value)
    return target


@operator("in-place", *LISTS_IN_PLACE)
def lists_in_place(op: Any, targets: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
    """What optimizers and averages do to all weights in one call."""
    values = dequantized(list(targets))
    op(values, *dequantized(args), **dequantized(kwargs))
    for target, value in zip(targets, values, strict=True):
        if isinstance(target, LowBitWeightTensor):
            write(target, value)
