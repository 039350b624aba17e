"""One call of one of torch's operators, with what its time depends on, and each operator's kind."""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch

Phase = Literal["forward", "backward", "apply"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "apply")

MatrixKind = Literal["convolution", "product", "attention", "recurrence"]
OperatorKind = Literal[
    MatrixKind, "norm", "pool", "elementwise", "reduction", "embedding", "copy", "optimizer"
]
"""What an operator does; those of one kind are timed by one rule.

``product`` is a matrix product, ``recurrence`` a whole layer of an LSTM, ``reduction`` also softmax and
losses, ``copy`` whatever only moves memory.
"""
Plane = tuple[int, int]
"""Height and width: a line has height 1, the depths of a volume are stacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    batch: int
    inputs: int
    outputs: int
    size: Plane
    out: Plane
    kernel: Plane
    stride: Plane = (1, 1)
    padding: Plane = (0, 0)
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    dimensions: int = 2
    """1 for lines, 2 for images, 3 for volumes."""
    channels_last: bool = False
    data: bool = True
    """Of a backward: whether the gradient of the input is wanted; the first layer's is not."""
    filter: bool = True
    """Of a backward: whether the gradient of the weights is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    batch: int
    channels: int
    size: Plane
    out: Plane
    kernel: Plane


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    batch: int
    length: int
    inputs: int
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A norm over images, or over vectors, which have one channel."""

    channels: int
    places: int
    """Numbers of a channel that lie side by side; the width of a vector."""
    groups: int = 1


Shape = Norm | Convolution | Product | Window | Attention | Recurrence | None
"""The sizes that the time of an operator depends on beyond its bytes; None where bytes are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One call; calls that differ only in the memory held are equal, as their time does not depend on it."""

    name: str
    kind: OperatorKind
    phase: Phase
    module: str
    """The dotted path of the innermost module in whose forward it, or what it is the backward of, was called."""
    flops: float
    read: int
    written: int
    elements: int
    shape: Shape = None
    dtype: torch.dtype = torch.float32
    """Of the numbers that it computes with: of the first of its tensors that holds any."""
    scattered: bool = False
    """Whether its largest tensors lie in memory in different orders, so that not all of them are streamed."""
    unrolled: bool = False
    """Whether a recurrent layer calls it, step by step: from C++, where a call costs less than from Python."""
    held: int = field(default=0, compare=False)
    """Bytes that the step's tensors occupy while it runs: what is saved for backward, what it reads and what it makes;
    neither parameters nor anything else that was there before the step. Only a trace counts it."""
    held_mixed: int = field(default=0, compare=False)
    held_heap: int = field(default=0, compare=False)
    """Of ``held``, what lies in blocks so small that a CPU's allocator keeps them in its heap."""


_FREE = (
    "_unsafe_view _reshape_alias empty empty_like empty_strided new_empty new_empty_strided empty_permuted "
    "lift_fresh _local_scalar_dense resize_ unsafe_split unsafe_split_with_sizes unsafe_chunk unsqueeze_ "
    "squeeze_ transpose_ t_ detach_ set_ resize_as_"
)
FREE = frozenset(_FREE.split())

WRITE_ONLY = frozenset(
    ["zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"]
)

_GROUPS: dict[OperatorKind, str] = {
    "product": "mm addmm bmm baddbmm",
    "convolution": "convolution",
    "recurrence": "mkldnn_rnn_layer",
    "norm": "native_batch_norm native_layer_norm native_group_norm _native_batch_norm_legit cudnn_batch_norm "
    "_fused_rms_norm",
    "pool": "_adaptive_avg_pool3d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d max_pool3d_with_indices avg_pool3d",
    "reduction": "sum mean max min amax amin argmax argmin var std var_mean norm prod cumsum any all topk sort "
    "logsumexp linalg_vector_norm _softmax _log_softmax _safe_softmax nll_loss nll_loss2d mse_loss "
    "binary_cross_entropy_with_logits binary_cross_entropy smooth_l1_loss huber_loss soft_margin_loss "
    "multi_margin_loss multilabel_margin_loss _trilinear",
    "embedding": "embedding embedding_dense _embedding_bag _embedding_bag_forward_only _embedding_bag_dense",
    "copy": "clone _to_copy copy cat stack constant_pad_nd slice select zeros ones full zeros_like ones_like "
    "full_like zero fill arange new_zeros new_ones new_full index index_select gather scatter index_put "
    "_index_put_impl roll flip repeat scalar_tensor tril triu reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d max_unpool2d max_unpool3d "
    "pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im",
    "elementwise": "_prelu_kernel abs add addcmul bernoulli bitwise_not celu clamp_min div elu eq exp ge gelu glu "
    "hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid masked_fill mish mul ne neg pow rand relu "
    "rrelu_with_noise rsqrt rsub sgn sigmoid sign silu softplus softshrink sqrt sub tanh threshold where xlogy",
    "optimizer": "_fused_sgd _fused_adam _fused_adamw _fused_adagrad",
}

KINDS: dict[str, OperatorKind] = {name: kind for kind, names in _GROUPS.items() for name in names.split()}
"""By name, without what says that it is a backward or works in place: what the layers of ``torch.nn`` consist of."""
_VARIANT = re.compile("(_backward|_backward_data|_forward)?_?$")
_ATTENTION = "_scaled_dot_product_"

_FLOPS: dict[float, str] = {
    0: "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward eq ne lt gt le ge where "
    "masked_fill masked_fill_ bitwise_and bitwise_or bitwise_not logical_and logical_not",
    2: "addcmul addcdiv addcmul_ addcdiv_ lerp lerp_ linalg_vector_norm mv addmv dot tanh_backward "
    "sigmoid_backward mse_loss mse_loss_backward",
    3: "var std var_mean _softmax_backward_data _log_softmax_backward_data silu_backward",
    4: "exp log sqrt rsqrt sin cos tanh sigmoid erf pow log1p exp_ sqrt_ tanh_ sigmoid_ elu normal_",
    5: "_softmax _log_softmax _safe_softmax logsumexp silu silu_ native_batch_norm _native_batch_norm_legit "
    "cudnn_batch_norm native_group_norm native_layer_norm _fused_rms_norm binary_cross_entropy_with_logits",
    8: "gelu native_batch_norm_backward cudnn_batch_norm_backward native_group_norm_backward "
    "native_layer_norm_backward _fused_rms_norm_backward",
    12: "gelu_backward",
}

FLOPS: dict[str, float] = {name: flops for flops, names in _FLOPS.items() for name in names.split()}
"""Floating-point operations an element of the largest tensor; an operator that is not listed takes one.

A multiply-add is two operations; a function such as exp or tanh counts as four. These figures matter little, because
such operators are bound by memory.
"""


def is_known(name: str) -> bool:
    return name.startswith(_ATTENTION) or _VARIANT.sub("", name) in KINDS


@cache
def kind_of(name: str) -> OperatorKind:
    return "attention" if name.startswith(_ATTENTION) else KINDS.get(_VARIANT.sub("", name), "elementwise")
