"""What torch's operators are for, and the floating-point operations that one takes an element.

A multiply-add is two operations; a function such as exp or tanh counts as four. These figures matter little, because
such operators are bound by memory; the products, whose operations do matter, are counted exactly elsewhere.
"""

from paceline.costs.trace.operator import Kind

_FREE = (
    "_unsafe_view _reshape_alias empty empty_like empty_strided new_empty new_empty_strided empty_permuted "
    "lift_fresh _local_scalar_dense resize_ unsafe_split unsafe_split_with_sizes unsafe_chunk unsqueeze_ "
    "squeeze_ transpose_ t_ detach_ set_ resize_as_"
)
FREE = frozenset(_FREE.split())
"""They look at memory or reserve it, and touch none; as do all views, which their schema tells, unless they are
"unsafe" or in place."""

WRITE_ONLY = frozenset(
    ["zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"]
)
"""They change their first argument in place without reading it."""

_GROUPS: dict[Kind, str] = {
    "product": "mm addmm bmm baddbmm",
    "convolution": "convolution convolution_backward",
    "recurrence": "mkldnn_rnn_layer mkldnn_rnn_layer_backward",
    "norm": "native_batch_norm native_batch_norm_backward native_layer_norm native_layer_norm_backward "
    "native_group_norm native_group_norm_backward _native_batch_norm_legit cudnn_batch_norm "
    "cudnn_batch_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    "pool": "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool3d adaptive_max_pool3d_backward "
    "fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward "
    "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward",
    "reduction": "sum mean max min amax amin argmax argmin var std var_mean norm prod cumsum any all topk sort "
    "logsumexp linalg_vector_norm _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data "
    "_safe_softmax nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss "
    "mse_loss_backward binary_cross_entropy_with_logits binary_cross_entropy binary_cross_entropy_backward "
    "smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward soft_margin_loss soft_margin_loss_backward "
    "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward "
    "_trilinear",
    "embedding": "embedding embedding_dense_backward _embedding_bag _embedding_bag_forward_only "
    "_embedding_bag_dense_backward _embedding_bag_backward",
    "copy": "clone _to_copy copy_ cat stack constant_pad_nd slice_backward select_backward zeros ones full "
    "zeros_like ones_like full_like zero_ fill_ arange new_zeros new_ones new_full index index_select gather "
    "scatter scatter_ index_put index_put_ _index_put_impl_ roll flip repeat scalar_tensor tril triu "
    "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d "
    "reflection_pad3d_backward replication_pad1d replication_pad1d_backward replication_pad2d "
    "replication_pad2d_backward replication_pad3d replication_pad3d_backward upsample_nearest1d "
    "upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d "
    "upsample_nearest3d_backward upsample_linear1d upsample_linear1d_backward upsample_bilinear2d "
    "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d "
    "upsample_trilinear3d_backward max_unpool2d max_unpool3d pixel_shuffle pixel_unshuffle channel_shuffle im2col "
    "col2im",
    "elementwise": "_prelu_kernel _prelu_kernel_backward abs add add_ addcmul_ bernoulli_ bitwise_not celu celu_ "
    "clamp_min clamp_min_ div div_ elu elu_ elu_backward eq exp ge gelu gelu_backward glu glu_backward hardshrink "
    "hardshrink_backward hardsigmoid hardsigmoid_ hardsigmoid_backward hardswish hardswish_ hardswish_backward "
    "hardtanh hardtanh_ hardtanh_backward leaky_relu leaky_relu_ leaky_relu_backward log_sigmoid_backward "
    "log_sigmoid_forward masked_fill masked_fill_ mish mish_ mish_backward mul mul_ ne neg pow rand relu relu_ "
    "rrelu_with_noise rrelu_with_noise_backward rsqrt rsub sgn sigmoid sigmoid_ sigmoid_backward sign silu silu_ "
    "silu_backward softplus softplus_backward softshrink softshrink_backward sqrt_ sub sub_ tanh tanh_ tanh_backward "
    "threshold threshold_backward where xlogy",
    "optimizer": "_fused_sgd_ _fused_adam_ _fused_adamw_ _fused_adagrad_",
}

KINDS: dict[str, Kind] = {name: kind for kind, names in _GROUPS.items() for name in names.split()}
"""By name: every operator that the layers of ``torch.nn`` consist of, and others; attention is known by its prefix."""

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
"""Operations an element of the largest tensor; what is not listed takes one, and what only moves memory none."""


def kind_of(name: str) -> Kind:
    """What an operator does; an unknown one is taken to be elementwise."""
    if name.startswith("_scaled_dot_product_"):
        return "attention"
    return KINDS.get(name, "elementwise")
