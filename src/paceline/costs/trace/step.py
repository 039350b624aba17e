"""One training step under a recorder, done as the live runtime does it."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn.parameter import UninitializedParameter

from paceline.costs.trace.meta import NeedsValues
from paceline.costs.trace.operator import Phase
from paceline.costs.trace.recorder import ModuleTracker, OperatorRecorder
from paceline.errors import UsageError, is_users
from paceline.jobs.batches import Batch, batch_loss, check_loss, describe, kept_outputs
from paceline.jobs.job import Job, Traceable
from paceline.jobs.optimizers import ELEMENTWISE, Adam, AdamW, Sgd, clip_norm_
from paceline.jobs.step import StepHooks, StepPhase, accumulate_gradient

Factory = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

_NO_VALUES = (
    *("cannot be called on meta tensors", "no data", "data-dependent"),
    *("Cannot copy out of meta", "tensor to numpy"),
)


class TracedStep(StepHooks):
    """A training step with its gradients in one vector, on the device that is the default when it is made."""

    def __init__(self, job: Traceable | Job, samples: int, recorder: OperatorRecorder) -> None:
        self.job, self.samples, self.recorder = job, samples, recorder
        self._doing, self._outputs = "model", list[Any]()
        with self._refusing():
            model = job.model()
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"the model of {job.name!r} is a {type(model).__name__}; it must be an nn.Module"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise UsageError(
                f"the model of {job.name!r} is compiled by torch.jit, whose modules cannot be followed; "
                "give the module that it was made from"
            )
        self.model = model.train()
        self.parameters = _trainable(job.name, self.model)
        recorder.modules = self._modules = ModuleTracker(self.model)
        parameters = [parameter for _, parameter in self.parameters]
        self.grad = _flat_gradient(parameters)
        self._doing = "batch"
        with self._refusing():
            self.batch = job.batch(samples)
            check_loss(job, self.batch)
        self.update = Update(job.optimizer, parameters, self.grad)
        self.ready: dict[str, int] = {}
        """After how many operators of backward each gradient is complete."""

    def run(self) -> None:
        """Forward, backward and the optimizer's step; the recorder has the calls afterwards."""
        self.recorder.begin()
        with self._refusing(), self._modules.followed(), self._gradients_watched():
            accumulate_gradient(self._forward, self.grad, iter([self.batch]), [1.0], self)
        # Torch's optimizers keep their counters on the CPU.
        self._doing = "optimizer"
        with torch.device("cpu"), self._refusing():
            self.update.prepare()
            self.recorder.phase = "apply"
            clip_norm_(self.grad, self.job.clip_norm)
            self.update.step()

    def begin(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._enter("forward")

    def end(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._enter("backward")  # which begins with the gradient being zeroed
        elif phase == "backward":
            self.recorder.phase = None

    def read(self, loss: Tensor) -> float:  # noqa: ARG002
        """A loss without memory has no value."""
        return nan

    def _enter(self, phase: Phase) -> None:
        self._doing = self.recorder.phase = phase

    def _forward(self, batch: Batch) -> Tensor:
        with kept_outputs(self.model) as self._outputs:
            loss = batch_loss(self.job, self.model, batch)
        self._outputs.clear()  # a training step does not keep them either
        return loss

    @contextmanager
    def _gradients_watched(self) -> Iterator[None]:
        def completed(name: str, _: Tensor) -> None:
            self.ready[name] = len(self.recorder.calls["backward"])

        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(completed, name))  # type: ignore[no-untyped-call]
            for name, parameter in self.parameters
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            raise self._refusal(error) from error
        finally:
            self.recorder.phase = None

    def _refusal(self, error: Exception) -> UsageError:
        """What went wrong, in which module and line, and how to mend it."""
        frames = reversed(traceback.extract_tb(error.__traceback__))
        users = (f" at {Path(one.filename).name}:{one.lineno}" for one in frames if is_users(one.filename))
        at = next(users, "")
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = lines[0].rstrip(".") if lines else type(error).__name__
        # With outputs, the model has returned.
        doing = "loss" if self._doing == "forward" and self._outputs else self._doing
        place, last = f"{self._place(error, doing)} of {self.job.name!r}", self.recorder.last
        if isinstance(error, NeedsValues) or any(words in message for words in _NO_VALUES):
            return UsageError(
                f"{place} asks for the values of a tensor{at} ({message}), and a trace has none, only shapes; "
                "decide by shapes and settings, or compute on the tensor itself, with torch.where for one"
            )
        if isinstance(error, NotImplementedError) and last is not None:
            return UsageError(
                f"{place} calls {last._schema.name}{at}, which torch cannot run on meta tensors, "
                "that is without values; use an operator that has a meta kernel or register one with torch.library"
            )
        if doing == "loss":
            return UsageError(
                f"{place} cannot take the model's outputs, {describe(self._outputs[0])}{at}: {message}; "
                "let the model give what the loss expects"
            )
        fix = ""
        if "device" in message and "meta" in message:
            fix = "; make new tensors on the device of the inputs, with device=inputs.device"
        elif doing in ("forward", "backward") and isinstance(error, RuntimeError | ValueError | IndexError):
            fix = "; make the sizes of the inputs fit what the module expects"
        return UsageError(f"{place} fails{at}: {message}{fix}")

    def _place(self, error: Exception, doing: str) -> str:
        if doing not in ("forward", "backward"):
            return f"the {doing}"
        module = self._modules.failed(error)
        if module is self.model:
            return "the model" if doing == "forward" else "the backward"
        return f"module {self._modules.names[module]!r} ({type(module).__name__})"


class OnCpu(nn.Parameter):
    """A meta parameter that says it is on the CPU: torch's fused optimizers refuse one that says it is not."""

    device = property(lambda _: torch.device("cpu"))


class Update:
    """Steps of an optimizer; those that ship are not built on meta, because torch imports its compiler to do so."""

    def __init__(self, factory: Factory, parameters: list[nn.Parameter], grad: Tensor) -> None:
        self._factory, self._parameters, self._grad = factory, parameters, grad
        self._optimizer: optim.Optimizer | None = None
        self._vector, self._moments, self._steps = grad, list[Tensor](), list[Tensor]()

    def prepare(self) -> None:
        """Have the state that an optimizer has from its first step on."""
        if self._grad.is_meta and isinstance(self._factory, Sgd | Adam):
            many = 2 if isinstance(self._factory, Adam) else int(self._factory.momentum > 0)
            self._vector, *self._moments = (torch.empty_like(self._grad) for _ in range(many + 1))
            self._steps = [torch.empty((), device=self._grad.device)]
        elif self._optimizer is None:
            self._optimizer = self._built()
            self._optimizer.step()

    @property
    def held(self) -> int:
        """Bytes of that state."""
        if self._optimizer is None:
            return sum(one.nbytes for one in self._moments)
        states = self._optimizer.state.values()
        return sum(one.nbytes for state in states for one in state.values() if isinstance(one, Tensor))

    def step(self) -> None:
        """Of an optimizer that ships, what torch's own calls: a fused operator with the factory's settings."""
        vector, grad, factory = [self._vector], [self._grad], self._factory
        if self._optimizer is not None:
            self._optimizer.step()
        elif isinstance(factory, Adam):
            torch._foreach_add_(self._steps, 1)
            fused = torch._fused_adamw_ if isinstance(factory, AdamW) else torch._fused_adam_
            mean, square = ([moment] for moment in self._moments)
            settings = {**asdict(factory), "amsgrad": False, "maximize": False}
            fused(vector, grad, mean, square, [], self._steps, **settings)
        elif isinstance(factory, Sgd):
            settings = {**asdict(factory), "dampening": 0.0, "maximize": False, "is_first_step": False}
            torch._fused_sgd_(vector, grad, self._moments, **settings)

    def _built(self) -> optim.Optimizer:
        stand_ins = [_stand_in(one) for one in self._parameters]
        optimizer = self._factory(stand_ins)
        alike = type(optimizer) in ELEMENTWISE and len(optimizer.param_groups) == 1
        if alike and len(optimizer.param_groups[0]["params"]) == len(stand_ins):
            optimizer = self._factory([_stand_in(nn.Parameter(torch.zeros_like(self._grad)), self._grad)])
        for group in optimizer.param_groups:
            if not group.get("fused"):
                group["params"] = [_plain(one) for one in group["params"]]
        return optimizer


def _stand_in(parameter: nn.Parameter, grad: Tensor | None = None) -> nn.Parameter:
    made = parameter
    if parameter.is_meta:
        made = torch.Tensor._make_subclass(OnCpu, parameter.data, True)
    made.grad = parameter.grad if grad is None else grad
    return made


def _plain(parameter: nn.Parameter) -> nn.Parameter:
    """A meta parameter that says where it is, for optimizers that are not fused."""
    if not isinstance(parameter, OnCpu):
        return parameter
    made = nn.Parameter(parameter.data)
    made.grad = parameter.grad
    return made


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
    first = parameters[0]
    flat = torch.zeros(sum(one.numel() for one in parameters), dtype=first.dtype, device=first.device)
    start = 0
    for one in parameters:
        one.grad = flat[start : start + one.numel()].view(one.shape)
        start += one.numel()
    return flat
