"""One training step under a recorder, done as the live runtime does it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from paceline.costs.trace.operator import Phase
from paceline.costs.trace.places import ModuleTracker
from paceline.costs.trace.recorder import Recorder
from paceline.costs.trace.refusals import told
from paceline.costs.trace.updates import Update
from paceline.errors import UsageError
from paceline.jobs.batches import batch_loss, check_loss, kept_outputs
from paceline.jobs.optimizers import clip_norm_
from paceline.jobs.subject import Subject


class Step:
    """A subject's model with its gradients in one vector, on the device that is the default when it is made."""

    def __init__(self, subject: Subject, samples: int, recorder: Recorder) -> None:
        self.subject, self.samples, self.recorder = subject, samples, recorder
        with self._refusing("model"):
            model = subject.model()
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"the model of {subject.name!r} is a {type(model).__name__}; it must be an nn.Module"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise UsageError(
                f"the model of {subject.name!r} is compiled by torch.jit, whose modules cannot be followed; "
                "give the module that it was made from"
            )
        self.model = model.train()
        self.parameters = _trainable(subject.name, self.model)
        self.places = recorder.places = ModuleTracker(self.model)
        self.grad = _flat_gradient([parameter for _, parameter in self.parameters])
        with self._refusing("batch"):
            self.batch = subject.batch(samples)
            check_loss(subject, self.batch)
        self._outputs: list[Any] = []
        self.update = Update(subject.optimizer, [one for _, one in self.parameters], self.grad)
        self.ready: dict[str, int] = {}

    @property
    def fixed(self) -> int:
        """Bytes of the model that no step changes by its gradient: buffers, and parameters that are not trained."""
        untrained = (one for one in self.model.parameters() if not one.requires_grad)
        return sum(one.nbytes for one in (*self.model.buffers(), *untrained))

    def run(self) -> None:
        """Forward, backward and the optimizer's step; the recorder knows the calls afterwards."""
        self.recorder.begin()
        self.places.begin()
        with self.places.followed():
            self._backward(self._forward())
        # Torch's optimizers keep their counters on the CPU.
        with torch.device("cpu"), self._refusing("optimizer"):
            self.update.prepare()
            with self._during("apply"):
                clip_norm_(self.grad, self.subject.clip_norm)
                self.update.step()

    def _forward(self) -> Tensor:
        with self._during("forward"), self._refusing("forward"), kept_outputs(self.model) as self._outputs:
            loss = batch_loss(self.subject, self.model, self.batch)
        self._outputs.clear()  # a training step does not keep them either
        return loss

    def _backward(self, loss: Tensor) -> None:
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._completed, name))  # type: ignore[no-untyped-call]
            for name, parameter in self.parameters
        ]
        try:
            with self._during("backward"), self._refusing("backward"):
                self.grad.zero_()
                # Without a gradient given, which the runtime gives: to check it torch would import sympy.
                loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for hook in hooks:
                hook.remove()

    def _completed(self, name: str, _: Tensor) -> None:
        self.ready[name] = len(self.recorder.calls["backward"])

    @contextmanager
    def _during(self, phase: Phase) -> Iterator[None]:
        self.recorder.phase = phase
        try:
            yield
        finally:
            self.recorder.phase = None

    @contextmanager
    def _refusing(self, doing: str) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            if doing == "forward" and self._outputs:  # the model has returned
                doing = "loss"
            raise told(error, doing, self.subject.name, self.recorder, self._outputs) from error


def _trainable(name: str, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    parameters = [(path, one) for path, one in model.named_parameters() if one.requires_grad]
    for path, one in parameters:
        if isinstance(one, UninitializedParameter):
            raise UsageError(
                f"parameter {path!r} of {name!r} is of a lazy module and has no size yet; give the module its sizes"
            )
    if not any(one.numel() for _, one in parameters):
        raise UsageError(f"the model of {name!r} has no trainable parameter; a step needs at least one")
    types = sorted({str(one.dtype) for _, one in parameters})
    if len(types) > 1:
        raise UsageError(
            f"the parameters of {name!r} are of several types ({', '.join(types)}); convert the model to one with .to()"
        )
    return parameters


def _flat_gradient(parameters: list[nn.Parameter]) -> Tensor:
    """One vector whose parts are the parameters' gradients."""
    first = parameters[0]
    flat = torch.zeros(sum(one.numel() for one in parameters), dtype=first.dtype, device=first.device)
    start = 0
    for one in parameters:
        one.grad = flat[start : start + one.numel()].view(one.shape)
        start += one.numel()
    return flat
