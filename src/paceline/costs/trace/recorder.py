"""Records every operator that is called: its module, its cost and the memory that is held while it runs."""

import traceback
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.costs.trace.counting import counts, operator, tensors_in
from paceline.costs.trace.kinds import kind_of
from paceline.costs.trace.operator import Kind, Operator, Phase

MATRIX: tuple[Kind, ...] = ("convolution", "product", "attention")
"""What mixed precision computes in 16 bits."""

_FULL: tuple[Kind, ...] = ("norm", "reduction")
"""What it computes in 32, softmax and losses among them; batch normalisation keeps the format that it is given."""


BLOCK = 32 * 2**20
"""Bytes from which glibc gives a block pages of its own and gives them back; smaller ones share a heap, with holes."""


class HeldMemory:
    """Counts the memory of every tensor that an operator makes, until it is freed.

    Two tensors that share memory count once. What was there before the step, such as parameters, does not count.
    ``mixed`` is what the same step would hold in mixed precision: products and convolutions read and make 16-bit
    numbers, of which weights and inputs have a copy; softmax, losses and normalisation make 32-bit ones; everything
    else is as wide as the widest that it reads.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.mixed = 0
        self.heap = 0
        """Of ``bytes``, those in blocks below ``BLOCK``."""
        self._memories: dict[int, _Memory] = {}
        self._cast: set[int] = set()

    def made(
        self, name: str, kind: Kind, forward: bool, given: Sequence[Tensor], made: Sequence[Tensor]
    ) -> None:
        if forward and kind in MATRIX:
            for tensor in given:
                self._narrow(tensor)
        wide = self._wide(name, kind, given)
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in known or key in self._memories:
                continue
            size = storage.nbytes()
            mixed = size if wide or not _is_wide(tensor) else size // 2
            self._memories[key] = _Memory(size, mixed, weakref.ref(storage, partial(self._freed, key)))
            self.bytes += size
            self.mixed += mixed
            self.heap += size if size < BLOCK else 0

    def _wide(self, name: str, kind: Kind, given: Sequence[Tensor]) -> bool:
        """Whether mixed precision makes 32-bit numbers here."""
        if kind in MATRIX:
            return False
        if kind in _FULL and "batch_norm" not in name:
            return True
        return any(_is_wide(tensor) and self._is_wide_here(tensor) for tensor in given if tensor.dim() > 1)

    def _is_wide_here(self, tensor: Tensor) -> bool:
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        return memory is None or memory.mixed == memory.size

    def _narrow(self, tensor: Tensor) -> None:
        """Hold a tensor in 16 bits: instead of its 32 where the step has made it, beside them where it was there."""
        if not _is_wide(tensor):
            return
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is not None and memory.mixed == memory.size:
            memory.mixed //= 2
            self.mixed -= memory.mixed
        elif memory is None and storage._cdata not in self._cast:
            self._cast.add(storage._cdata)
            self.mixed += storage.nbytes() // 2

    def _freed(self, key: int, _: object) -> None:
        memory = self._memories.pop(key)
        self.bytes -= memory.size
        self.mixed -= memory.mixed
        self.heap -= memory.size if memory.size < BLOCK else 0


class _Memory:
    """One that is held, and the reference that tells when it is not any more."""

    __slots__ = ("mixed", "reference", "size")

    def __init__(self, size: int, mixed: int, reference: object) -> None:
        self.size, self.mixed, self.reference = size, mixed, reference


def _is_wide(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 2


LOSS = "loss"
"""The place of what is called outside of the model, in its loss."""


class ModuleTracker:
    """Follows a model through its forward, and finds the way back from the nodes of autograd.

    Autograd numbers its nodes in the order in which forward makes them: whichever module was running when a number
    was given out is the one that the node's backward belongs to.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self._owners: dict[int, str] = {}
        for module, name in self._names.items():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), name)
        self._recurrent = {name for module, name in self._names.items() if isinstance(module, nn.RNNBase)}
        self._stack: list[str] = []
        self._starts = [0]
        self._paths = [LOSS]

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else LOSS

    @contextmanager
    def followed(self) -> Iterator[None]:
        hooks = [module.register_forward_pre_hook(self._enter) for module in self._names]
        hooks += [module.register_forward_hook(self._leave, always_call=True) for module in self._names]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def begin(self) -> None:
        self._stack.clear()
        self._mark()

    def backward(self) -> str:
        """The module whose backward is running; one that recomputes its forward is found as in forward."""
        if self._stack:
            return self._stack[-1]
        node: Any = torch._C._current_autograd_node()
        if not node:
            return ""
        if hasattr(node, "variable"):
            return self._owners.get(id(node.variable), "")
        number: int = node._sequence_nr()
        return self._paths[bisect_right(self._starts, number) - 1]

    def is_recurrent(self, name: str) -> bool:
        return name in self._recurrent

    def failed(self, error: BaseException) -> nn.Module:
        """The innermost module in which an error happened; the model itself if it was in none."""
        found = self.model
        for frame, _ in traceback.walk_tb(error.__traceback__):
            running = frame.f_locals.get("self")
            if isinstance(running, nn.Module) and running in self._names:
                found = running
        return found

    def name(self, module: nn.Module) -> str:
        return self._names[module]

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self._names[module])
        self._mark()

    def _leave(self, _: nn.Module, __: Any, ___: Any) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(self.current)


Run = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], tuple[Any, float]]
"""Gets an operator's result, and how many seconds that took where they are measured."""


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records calls in order, by phase; with no phase set, they run and are not recorded."""

    def __init__(self, run: Run, held: HeldMemory | None = None) -> None:
        """With ``held``, an operator's record also says what memory is held while it runs."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._held = run, held
        self.phase: Phase | None = None
        self.modules: ModuleTracker | None = None
        self.last: OpOverload | None = None
        self.calls: dict[Phase, list[tuple[Operator, float]]] = {"forward": [], "backward": [], "apply": []}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise import its compiler to keep it away from this class, which takes seconds."""
        return False

    def begin(self) -> None:
        self.calls = {"forward": [], "backward": [], "apply": []}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        self.last = func
        result, seconds = self._run(func, args, kwargs)
        if self.phase is None:
            return result
        if self._held is not None:
            given = list(tensors_in((*args, *kwargs.values())))
            made, name = list(tensors_in([result])), func._opname
            self._held.made(name, kind_of(name), self.phase == "forward", given, made)
        if counts(func):
            module = self._module()
            unrolled = self.modules is not None and self.modules.is_recurrent(module)
            record = operator(func, args, kwargs, result, self.phase, module, unrolled)
            if self._held is not None:
                held = self._held
                record = replace(record, held=held.bytes, held_mixed=held.mixed, held_heap=held.heap)
            self.calls[self.phase].append((record, seconds))
        return result

    def _module(self) -> str:
        if self.modules is None or self.phase == "apply":
            return ""
        return self.modules.current if self.phase == "forward" else self.modules.backward()
