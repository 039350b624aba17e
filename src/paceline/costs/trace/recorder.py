"""Records every operator that is called: its module, its cost and the memory that is held while it runs."""

import traceback
import weakref
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.costs.trace.counting import counts, operator, tensors_in
from paceline.costs.trace.operator import Operator, OperatorKind, Phase, kind_of

_NARROW: tuple[OperatorKind, ...] = ("convolution", "product", "attention")
_FULL: tuple[OperatorKind, ...] = ("norm", "reduction")
BLOCK = 32 * 2**20
"""Bytes from which glibc gives a block pages of its own and gives them back; smaller ones share a heap, with holes."""
LOSS = "loss"


@dataclass(slots=True)
class _Memory:
    size: int
    mixed: int
    freed: object

    @property
    def heap(self) -> int:
        return self.size if self.size < BLOCK else 0


class HeldMemory:
    """Counts the memory of every tensor that an operator makes, until it is freed.

    Two tensors that share memory count once. What was there before the step, such as parameters, does not count.
    ``mixed`` is what the same step would hold in mixed precision: products and convolutions read and make 16-bit
    numbers, of which weights and inputs have a copy; softmax, losses and normalisation make 32-bit ones; everything
    else is as wide as the widest that it reads.
    """

    def __init__(self) -> None:
        self.bytes = self.mixed = self.heap = 0
        self._memories: dict[int, _Memory] = {}
        self._cast: set[int] = set()

    def made(
        self, name: str, kind: OperatorKind, forward: bool, given: Sequence[Tensor], made: Sequence[Tensor]
    ) -> None:
        if forward and kind in _NARROW:
            for tensor in filter(_is_wide, given):
                self._narrow(tensor)
        wide = self._makes_wide(name, kind, given)
        known = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in known or key in self._memories:
                continue
            mixed = size if wide or not _is_wide(tensor) else size // 2
            memory = _Memory(size, mixed, weakref.ref(storage, partial(self._freed, key)))
            self._memories[key] = memory
            self.bytes += size
            self.mixed += mixed
            self.heap += memory.heap

    def _makes_wide(self, name: str, kind: OperatorKind, given: Sequence[Tensor]) -> bool:
        if kind in _NARROW:
            return False
        if kind in _FULL and "batch_norm" not in name:
            return True
        memories = (
            self._memories.get(one.untyped_storage()._cdata)
            for one in given
            if one.dim() > 1 and _is_wide(one)
        )
        return any(memory is None or memory.mixed == memory.size for memory in memories)

    def _narrow(self, tensor: Tensor) -> None:
        """Hold a tensor in 16 bits: instead of its 32 where the step has made it, beside them where it was there."""
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
        self.heap -= memory.heap


def _is_wide(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.itemsize > 2


class ModuleTracker:
    """Follows a model through its forward, and finds the way back from the nodes of autograd."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self.recurrent = {name for module, name in self.names.items() if isinstance(module, nn.RNNBase)}
        self._owners: dict[int, str] = {}
        for module, name in self.names.items():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), name)
        self._stack: list[str] = []
        self._starts = [0]
        self._paths = [LOSS]

    def follow(self, hooks: ExitStack) -> None:
        """Until ``hooks`` are closed."""
        self._stack.clear()
        self._mark()
        for module in self.names:
            hooks.callback(module.register_forward_pre_hook(self._enter).remove)
            hooks.callback(module.register_forward_hook(self._leave, always_call=True).remove)

    def running(self, phase: Phase) -> str:
        """The module that is called, or whose backward is running; one that recomputes its forward is called again."""
        if phase == "apply":
            return ""
        if self._stack or phase == "forward":
            return self._current()
        node: Any = torch._C._current_autograd_node()
        if not node:
            return ""
        if hasattr(node, "variable"):
            return self._owners.get(id(node.variable), "")
        return self._paths[bisect_right(self._starts, node._sequence_nr()) - 1]

    def failed(self, error: BaseException) -> nn.Module:
        found = self.model
        for frame, _ in traceback.walk_tb(error.__traceback__):
            running = frame.f_locals.get("self")
            if isinstance(running, nn.Module) and running in self.names:
                found = running
        return found

    def _enter(self, module: nn.Module, _: Any) -> None:
        self._stack.append(self.names[module])
        self._mark()

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(self._current())

    def _current(self) -> str:
        return self._stack[-1] if self._stack else LOSS


Run = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
"""Gets an operator's result, and how many seconds that took where they are measured."""


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records calls in order, by phase; with no phase set, they run and are not recorded."""

    def __init__(self, run: Run, held: HeldMemory | None = None) -> None:
        """With ``held``, an operator's record also says what memory is held while it runs."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._held = run, held
        self.phase: Phase | None = None
        self.modules = ModuleTracker(nn.Module())
        self.last: OpOverload | None = None
        self.begin()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise import its compiler to keep it away from this class, which takes seconds."""
        return False

    def begin(self) -> None:
        self.calls: dict[Phase, list[tuple[Operator, Any]]] = {"forward": [], "backward": [], "apply": []}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        self.last = func
        result, seconds = self._run(func, args, kwargs)
        if self.phase is None or func.is_view:
            return result
        held = self._held
        if held is not None:
            given, name = list(tensors_in((*args, *kwargs.values()))), func._opname
            held.made(name, kind_of(name), self.phase == "forward", given, list(tensors_in([result])))
        if counts(func):
            module = self.modules.running(self.phase)
            unrolled = module in self.modules.recurrent
            record = operator(func, args, kwargs, result, self.phase, module, unrolled)
            if held is not None:
                record = replace(record, held=held.bytes, held_mixed=held.mixed, held_heap=held.heap)
            self.calls[self.phase].append((record, seconds))
        return result
