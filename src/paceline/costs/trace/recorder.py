"""A mode of torch that writes down every operator that is called while it is on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.costs.trace.counting import counts, operator, tensors_in
from paceline.costs.trace.kinds import kind_of
from paceline.costs.trace.memory import Held
from paceline.costs.trace.operator import Operator, Phase
from paceline.costs.trace.places import ModuleTracker

Run = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], tuple[Any, float]]
"""Gets an operator's result, and how many seconds that took where they are measured."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls in the order in which they come, by phase; with no phase set, they run and are not written down."""

    def __init__(self, run: Run, held: Held | None = None) -> None:
        """With ``held``, an operator's record also says what memory is held while it runs."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._run, self._held = run, held
        self.phase: Phase | None = None
        self.places: ModuleTracker | None = None
        self.last: OpOverload | None = None
        self.calls: dict[Phase, list[tuple[Operator, float]]] = {"forward": [], "backward": [], "apply": []}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would otherwise import its compiler to keep it away from this class, which takes seconds."""
        return False

    def begin(self) -> None:
        """Forget the calls so far."""
        self.calls = {"forward": [], "backward": [], "apply": []}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator, and write it down."""
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
            place = self._place()
            unrolled = self.places is not None and self.places.is_recurrent(place)
            record = operator(func, args, kwargs, result, self.phase, place, unrolled)
            if self._held is not None:
                held = self._held
                record = replace(record, held=held.bytes, held_mixed=held.mixed, held_heap=held.heap)
            self.calls[self.phase].append((record, seconds))
        return result

    def _place(self) -> str:
        if self.places is None or self.phase == "apply":
            return ""
        return self.places.current if self.phase == "forward" else self.places.backward()
