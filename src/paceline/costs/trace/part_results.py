"""Rules for what products, sums, embeddings, attention and the like give on meta tensors."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from paceline.costs.trace.making import empty, ordered


def _mm(left: Tensor, right: Tensor, **options: Any) -> Any:
    fit = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0] and left.dtype == right.dtype
    if not fit or options:
        return NotImplemented
    return empty((left.shape[0], right.shape[1]), left.dtype)


def _addmm(bias: Tensor, left: Tensor, right: Tensor, **options: Any) -> Any:
    made = _mm(left, right)
    if made is NotImplemented or not set(options) <= {"alpha", "beta"}:
        return NotImplemented
    fit = bias.dim() <= 2 and all(
        one in (1, size) for one, size in zip(reversed(bias.shape), reversed(made.shape), strict=False)
    )
    return made if fit and bias.dtype == left.dtype else NotImplemented


def _bmm(left: Tensor, right: Tensor, **options: Any) -> Any:
    fit = (
        left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]
    )
    if not fit or options or left.dtype != right.dtype:
        return NotImplemented
    return empty((left.shape[0], left.shape[1], right.shape[2]), left.dtype)


def _reduced(values: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if not values.is_floating_point() or options.get("dtype") is not None or "out" in options:
        return NotImplemented
    dims = range(values.dim()) if dims in (None, []) else dims
    depth = max(values.dim(), 1)
    gone = {place % depth for place in dims}
    if len(gone) < len(dims) or not all(-depth <= place < depth for place in dims):
        return NotImplemented
    kept = [1 if place in gone else size for place, size in enumerate(values.shape)]
    return empty(
        kept if keepdim else [size for place, size in enumerate(kept) if place not in gone], values.dtype
    )


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        return NotImplemented
    place = dim % first.dim()
    rests = {(one.dtype, one.shape[:place], one.shape[place + 1 :]) for one in tensors}
    if len(rests) > 1 or not all(one.is_contiguous() for one in tensors):
        return NotImplemented
    shape = list(first.shape)
    shape[place] = sum(one.shape[place] for one in tensors)
    return empty(shape, first.dtype)


def _pad(values: Tensor, widths: Sequence[int], value: float = 0) -> Any:
    del value
    if not values.is_contiguous() or len(widths) > 2 * values.dim():
        return NotImplemented
    shape = list(values.shape)
    for place in range(len(widths) // 2):
        shape[-1 - place] += widths[2 * place] + widths[2 * place + 1]
    return empty(shape, values.dtype) if min(shape) > 0 else NotImplemented


def _nll(scores: Tensor, targets: Tensor, weight: Any, reduction: int, ignore: int) -> Any:
    del ignore, weight
    if scores.dim() != 2 or targets.shape != scores.shape[:1]:
        return NotImplemented
    return empty(() if reduction else targets.shape, scores.dtype), empty((), scores.dtype)


def _embedding(table: Tensor, indices: Tensor, *_: Any) -> Any:
    return empty((*indices.shape, table.shape[1]), table.dtype) if table.dim() == 2 else NotImplemented


def _embedding_backward(grad: Tensor, indices: Tensor, rows: int, *_: Any) -> Any:
    del indices
    return empty((rows, grad.shape[-1]), grad.dtype)


def _sized(grad: Tensor, shape: Sequence[int], *_: Any) -> Any:
    return empty(shape, grad.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
    if not query.dim() == key.dim() == value.dim() == 4:
        return NotImplemented
    batch, heads, queries, _width = query.shape
    return ordered(query), empty((batch, queries, heads), query.dtype).transpose(1, 2)


def _attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> Any:
    return tuple(_by_token(one) for one in (query, key, value))


def _by_token(heads: Tensor) -> Tensor:
    batch, count, length, width = heads.shape
    return empty((batch, length, count, width), heads.dtype).transpose(1, 2)


PARTS: dict[str, Any] = {
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
    "sum": _reduced,
    "mean": _reduced,
    "cat": _cat,
    "constant_pad_nd": _pad,
    "nll_loss_forward": _nll,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "slice_backward": _sized,
    "select_backward": _sized,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
