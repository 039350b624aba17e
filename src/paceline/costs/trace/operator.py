"""One call of one of torch's operators, as far as its time depends on it."""

from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["forward", "backward", "apply"]

Kind = Literal[
    "convolution",
    "product",
    "attention",
    "recurrence",
    "norm",
    "pool",
    "elementwise",
    "reduction",
    "embedding",
    "copy",
    "optimizer",
]
"""What an operator does; those of one kind are timed by one rule.

``product`` is a matrix product, ``recurrence`` a whole layer of an LSTM, ``reduction`` also softmax and
losses, ``copy`` whatever only moves memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The sizes of a convolution, as its forward has them; one dimension or three are brought to this form."""

    batch: int
    inputs: int
    """Channels in, of all groups."""
    outputs: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int = 1
    stride_width: int = 1
    padding_height: int = 0
    padding_width: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    dimensions: int = 2
    """1 for lines, 2 for images, 3 for volumes."""
    channels_last: bool = False
    """Whether the channels of a place lie next to each other in memory."""
    data: bool = True
    """Of a backward: whether the gradient of the input is wanted; the first layer's is not."""
    filter: bool = True
    """Of a backward: whether the gradient of the weights is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``batch`` products of an (m, k) and a (k, n) matrix."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A pooling window over images."""

    batch: int
    channels: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Scaled dot-product attention over ``batch`` x ``heads`` sequences."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    """Of a head."""
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A layer of an LSTM over ``batch`` sequences."""

    batch: int
    length: int
    inputs: int
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A norm over images, or over vectors, which have one place and one channel."""

    channels: int
    places: int
    """Of an image: how many numbers of a channel lie side by side. The width of a vector."""
    groups: int = 1
    """Of channels that are normed together."""


Shape = Norm | Convolution | Product | Window | Attention | Recurrence | None
"""The sizes that the time of an operator depends on beyond its bytes; None where bytes are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One call."""

    name: str
    """Torch's, such as "convolution_backward"."""
    kind: Kind
    phase: Phase
    module: str
    """The dotted path of the innermost module in whose forward it, or what it is the backward of, was called."""
    flops: float
    """Floating-point operations; a multiply-add counts as two."""
    read: int
    """Bytes."""
    written: int
    """Bytes."""
    elements: int
    """Of the largest tensor that it reads or writes."""
    shape: Shape = None
    scattered: bool = False
    """Whether its largest tensors lie in memory in different orders, so that not all of them are streamed."""
    unrolled: bool = False
    """Whether a recurrent layer calls it, step by step: from C++, where a call costs less than from Python."""
    held: int = field(default=0, compare=False)
    """Bytes that the step's tensors occupy while it runs: what is saved for backward, what it reads and what it makes;
    neither parameters nor anything else that was there before the step. Only a trace counts it, and its time does not
    depend on it, so calls that differ in it are equal."""
    held_mixed: int = field(default=0, compare=False)
    """The same in mixed precision."""
    held_heap: int = field(default=0, compare=False)
    """Of ``held``, what lies in blocks so small that a CPU's allocator keeps them in its heap."""
