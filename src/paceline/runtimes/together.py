"""The gradients of several learners as one program: traced once by torch.func, then repeated without its overhead.

``vmap`` turns every operator of forward and backward into one on all learners. Going through it at every step costs
more than that gains, so what it calls is recorded (``make_fx``) and replayed. A convolution of k learners would be a
grouped one, which the CPU's kernels are slow at; it becomes a batch of matrix products (``grouped_convolution``).
"""

import operator
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import functional_call, functionalize, grad_and_value, vmap
from torch.fx import Graph, Node

from paceline.errors import UsageError, raised
from paceline.jobs.batches import Batch, map_tensors
from paceline.jobs.step import StepHooks
from paceline.runtimes.grouped_convolution import DECOMPOSITIONS
from paceline.runtimes.randomness import AllStreams, undisturbed

if TYPE_CHECKING:
    from paceline.runtimes.flat import FlatModel


_ATEN = torch.ops.aten
VIEWS = {
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.permute.default,
    _ATEN.expand.default,
    _ATEN.transpose.int,
}


class NotTraced(Exception):
    """The message says why the learners' gradients cannot be computed together."""


@dataclass(frozen=True)
class StackedBatch:
    """One mini-batch of every learner, its tensors stacked."""

    like: Batch
    """The first learner's, for the nesting."""
    tensors: tuple[Tensor, ...]

    @property
    def shapes(self) -> tuple[tuple[torch.Size, torch.dtype], ...]:
        return tuple((one.shape, one.dtype) for one in self.tensors)


def stack_batches(taken: Sequence[Sequence[Batch]]) -> list[StackedBatch] | None:
    """The mini-batches of each learner as those of all learners; None where they are not alike."""
    if len({len(own) for own in taken}) != 1 or not taken[0]:
        return None
    stacks = []
    for alike in zip(*taken, strict=True):
        leaves = [_leaves(batch) for batch in alike]
        if any(not isinstance(leaf, Tensor) for own in leaves for leaf in own):
            return None
        if len({tuple((leaf.shape, leaf.dtype) for leaf in own) for own in leaves}) != 1:
            return None
        stacks.append(StackedBatch(alike[0], tuple(map(torch.stack, zip(*leaves, strict=True)))))
    return stacks


def _leaves(batch: Batch) -> list[Any]:
    """All that a batch is made of, tensors or not: what is no tensor would become a constant of the trace."""
    found: list[Any] = []
    containers = Mapping, tuple, list
    map_tensors(found.append, batch, lambda one: not (isinstance(one, containers) or is_dataclass(one)))
    return found


class TracedGradients:
    """The program of one mini-batch of every learner, on the memory of a model with several learners."""

    def __init__(self, model: "FlatModel", stack: StackedBatch) -> None:
        """Trace; the learners' buffers and all random streams stay as they are. Raises NotTraced."""
        flat, buffers = model.flat, model.named_buffers.named
        self._inputs = [*flat.stacked(flat.param_rows), *buffers.values()]
        self._grads = flat.stacked(flat.grad_rows)
        self._buffers = list(buffers.values())
        before = _hidden_state(model.learners[0])
        with undisturbed(AllStreams()):
            self._run = _traced(_gradients_of(model, stack), [*self._inputs, *stack.tensors])
            hidden = _hidden_state(model.learners[0]) != before
        if hidden:
            raise NotTraced(
                "its forward draws from Python's or numpy's random numbers, or changes attributes of a module"
            )

    def add(self, stack: StackedBatch, share: float, hooks: StepHooks, *, first: bool) -> list[float]:
        """Add ``share`` times the gradients of a mini-batch to the learners'; the ``first`` replaces them."""

        def forward_over() -> None:
            hooks.end("forward")
            hooks.last_backward()
            hooks.begin("backward")

        hooks.begin("forward")
        loss, *found = self._run(*self._inputs, *stack.tensors, forward_over)
        grads, buffers = found[: len(self._grads)], found[len(self._grads) :]
        # What was found is only read: two parameters' gradients may be one tensor, or one number shown many times.
        if first:
            torch._foreach_copy_(self._grads, grads)
            if share != 1.0:
                torch._foreach_mul_(self._grads, share)
        else:
            torch._foreach_add_(self._grads, grads, alpha=share)
        if buffers:
            torch._foreach_copy_(self._buffers, buffers)
        losses: list[float] = loss.tolist()
        hooks.end("backward")
        return losses


class _Loss(nn.Module):
    """The loss of a batch as a module, so that ``functional_call`` can replace the model's tensors."""

    def __init__(self, model: "FlatModel") -> None:
        super().__init__()
        self.model, self._forward = model.learners[0], model.forward

    def forward(self, batch: Batch) -> Tensor:
        given = [
            (one._buffers, key, own) for one in self.model.modules() for key, own in one._buffers.items()
        ]
        loss = self._forward(batch)
        for table, key, own in given:
            now = table[key]
            if own is not None and now is not None and now is not own:
                with torch.no_grad():  # assigned anew, and only what is changed in place is seen
                    own.copy_(now)
        return loss


def _gradients_of(model: "FlatModel", stack: StackedBatch) -> Callable[..., list[Tensor]]:
    """All learners' tensors to the loss of each, the gradients of each, and the new values of its buffers."""
    loss_of, trained = _Loss(model), _names_of_parameters(model.learners[0])
    buffers = [[f"model.{name}" for name in names] for names in model.named_buffers.names]
    own = len(trained) + len(buffers)

    def loss(params: list[Tensor], others: list[Tensor], batch: list[Tensor]) -> Tensor:
        tensors = iter(batch)
        nested = map_tensors(lambda _: next(tensors), stack.like)
        pairs = zip([*trained, *buffers], [*params, *others], strict=True)
        replaced = {name: tensor for names, tensor in pairs for name in names}
        # Were it to find what is tied itself, it would not put back a module that has two names.
        return functional_call(loss_of, replaced, (nested,), tie_weights=False)  # type: ignore[no-any-return]

    each = vmap(grad_and_value(loss), randomness="different")

    def gradients(*inputs: Tensor) -> list[Tensor]:
        params, others, batch = inputs[: len(trained)], inputs[len(trained) : own], inputs[own:]
        # In copies: a batch norm does not update memory that it cannot see as one vector.
        copies = [one.clone(memory_format=torch.contiguous_format) for one in others]
        grads, losses = each(list(params), copies, list(batch))
        return [losses, *grads, *copies]

    return gradients


def _names_of_parameters(model: nn.Module) -> list[list[str]]:
    """Of each trainable parameter, in ``_Loss``; several where modules share it. A module counts once."""
    found: dict[int, list[str]] = {}
    for prefix, module in model.named_modules(prefix="model"):
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                found.setdefault(id(parameter), []).append(f"{prefix}.{key}")
    return list(found.values())


def _traced(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
    """What ``function`` calls, as a function of its inputs and of what is called when the losses are known."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, and most runs have one learner

    try:
        with warnings.catch_warnings():  # an operator without a batching rule is called once a learner
            warnings.filterwarnings("ignore", "There is a performance drop")
            traced = make_fx(functionalize(function), decomposition_table=DECOMPOSITIONS)(*inputs)
    except UsageError:
        raise
    except Exception as error:
        first, _, _ = raised(error).partition(". ")  # what follows is for torch's own developers
        raise NotTraced(first) from error
    graph = traced.graph
    _merge_repeated(graph)
    output = next(iter(reversed(graph.nodes)))
    losses = output.args[0][0]
    last = next(node for node in reversed(graph.nodes) if node.op == "placeholder")
    with graph.inserting_after(last):
        forward_over = graph.placeholder("forward_over")
    with graph.inserting_after(max(losses, forward_over)):
        graph.call_function(operator.call, (forward_over,))
    traced.recompile()
    return traced.forward


def _merge_repeated(graph: Graph) -> None:
    """Compute once what backward computes again as forward did: how a convolution's input is laid out, for one.

    Without in-place operators, which ``functionalize`` has replaced, equal calls have equal results.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in calls):
        return
    seen: dict[object, Node] = {}
    for node in calls:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        same = node.args[0] if _changes_nothing(node) else node
        first = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), same)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _changes_nothing(node: Node) -> bool:
    """Whether a node only shows its first input as it is."""
    if node.target not in VIEWS:
        return False
    given: Any = node.args[0]
    layouts = [(one.meta["val"].shape, one.meta["val"].stride()) for one in (node, given)]
    return layouts[0] == layouts[1]


def _hidden_state(model: nn.Module) -> object:
    """What a trace would not repeat: Python's and numpy's random streams, and plain attributes of modules."""
    attributes = [
        {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)}
        for module in model.modules()
    ]
    _, key, position, *_ = np.random.get_state()
    return attributes, random.getstate(), np.asarray(key).tobytes(), position
