"""A training step of any model as operators, done as the live runtime does it and traced without values or a device."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from math import nan, prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn, optim
from torch._ops import OpOverload
from torch.nn.parameter import UninitializedParameter

from paceline.costs.trace.fused import FusedKernels
from paceline.costs.trace.meta import NeedsValues, meta_result
from paceline.costs.trace.operator import MatrixKind, Operator
from paceline.costs.trace.recorder import LOSS, HeldMemory, ModuleTracker, OperatorRecorder
from paceline.errors import UsageError, is_users
from paceline.jobs.batches import Batch, batch_loss, check_loss, describe, kept_outputs, tensors_of
from paceline.jobs.job import Job, Traceable
from paceline.jobs.optimizers import Adam, AdamW, Sgd, clip_norm_, plain_step, takes_vector
from paceline.jobs.step import StepHooks, StepPhase, accumulate_gradient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TracedParameter:
    name: str
    shape: tuple[int, ...]
    ready: int
    """How many operators of backward have run when its gradient is complete."""

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One step of one worker; operators in the order in which they run, parameters in the model's own.

    ``buffers`` are floating-point elements; ``inputs``, ``fixed`` and ``optimizer`` are bytes.
    """

    name: str
    samples: int
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    apply: tuple[Operator, ...]
    parameters: tuple[TracedParameter, ...]
    buffers: int
    dtype: torch.dtype
    inputs: int = 0
    fixed: int = 0
    """Of buffers, and of parameters that are not trained."""
    optimizer: int = 0

    @property
    def operators(self) -> Sequence[Operator]:
        return (*self.forward, *self.backward, *self.apply)

    def held(self, *, mixed: bool = False) -> int:
        """The most bytes that the step's tensors occupy at a time, the mini-batch among them."""
        return self.inputs + max((one.held_mixed if mixed else one.held for one in self.operators), default=0)

    @property
    def heap(self) -> int:
        """The most bytes of them that a CPU's allocator keeps in its heap at a time."""
        return max((one.held_heap for one in self.operators), default=0)

    @property
    def size(self) -> int:
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def dtypes(self) -> Mapping[torch.dtype, str]:
        """What convolutions, products, attention and recurrent layers compute with, each with its first module.

        Of a step without any of them, the parameters' own.
        """
        found: dict[torch.dtype, str] = {}
        for one in (*self.forward, *self.backward):
            if one.kind in get_args(MatrixKind):
                found.setdefault(one.dtype, one.module)
        return found or {self.dtype: ""}

    def place(self, dtype: torch.dtype) -> str:
        """Where it computes in one of ``dtypes``, for people."""
        module = self.dtypes[dtype]
        inside = {"": "", LOSS: "the loss of "}.get(module, f"module {module!r} of ")
        return f"{inside}{self.name!r}"

    @property
    def multiply_adds(self) -> float:
        """Of one sample's forward in convolutions, matrix products and attention, as papers count them."""
        counted = get_args(MatrixKind)
        return sum(one.flops for one in self.forward if one.kind in counted) / 2 / self.samples


def trace(job: Traceable | Job, samples: int) -> Trace:
    """The operators of one step on ``samples`` samples: forward, loss, backward and the optimizer's step."""
    if samples < 1:
        raise UsageError(f"a step cannot be traced on {samples} samples; give at least 1")
    recorder = OperatorRecorder(without_values, HeldMemory())
    with torch.device("meta"), FusedKernels(), recorder:
        step = TracedStep(job, samples, recorder)
        step.run()
    calls = {phase: tuple(operator for operator, _ in found) for phase, found in recorder.calls.items()}
    untrained = (one for one in step.model.parameters() if not one.requires_grad)
    return Trace(
        name=job.name,
        samples=samples,
        forward=calls["forward"],
        backward=calls["backward"],
        apply=calls["apply"],
        parameters=tuple(
            # One that backward never reaches is ready when all are, as the live runtime treats it.
            TracedParameter(name, tuple(one.shape), step.ready.get(name, len(calls["backward"])))
            for name, one in step.parameters
        ),
        buffers=sum(one.numel() for one in step.model.buffers() if one.is_floating_point()),
        dtype=step.parameters[0][1].dtype,
        inputs=sum(one.nbytes for one in tensors_of(step.batch)),
        fixed=sum(one.nbytes for one in (*step.model.buffers(), *untrained)),
        optimizer=step.update.held,
    )


def without_values(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
    return meta_result(function, args, kwargs), 0.0


def trace_function(function: Callable[[], T]) -> tuple[T, list[Operator]]:
    """Call a function under ``torch.device("meta")``: what it returned, and the operators that it called."""
    recorder = OperatorRecorder(without_values, HeldMemory())
    with torch.device("meta"), recorder, torch.no_grad():
        recorder.phase = "forward"
        result = function()
    return result, [operator for operator, _ in recorder.calls["forward"]]


Factory = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

_NO_VALUES = (
    *("cannot be called on meta tensors", "no data", "data-dependent"),
    *("Cannot copy out of meta", "tensor to numpy"),
)


class Update(NamedTuple):
    step: Callable[[], object]
    held: int
    """Bytes of the optimizer's state."""


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
        self.grad = _flat_gradient([parameter for _, parameter in self.parameters])
        self._doing = "batch"
        with self._refusing():
            self.batch = job.batch(samples)
            check_loss(job, self.batch)
        self.ready: dict[str, int] = {}

    def run(self) -> None:
        self.recorder.begin()
        with self._refusing(), ExitStack() as hooks:
            self._modules.follow(hooks)
            for name, parameter in self.parameters:
                completed = partial(self._completed, name)
                hook = parameter.register_post_accumulate_grad_hook(completed)  # type: ignore[no-untyped-call]
                hooks.callback(hook.remove)
            accumulate_gradient(self._forward, self.grad, iter([self.batch]), [1.0], self)
        # Torch's optimizers keep their counters on the CPU.
        self._doing = "optimizer"
        with torch.device("cpu"), self._refusing():
            update = self.update
            self.recorder.phase = "apply"
            clip_norm_(self.grad, self.job.clip_norm)
            update.step()

    def begin(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._doing = self.recorder.phase = "forward"

    def end(self, phase: StepPhase) -> None:
        if phase == "forward":
            self._doing = self.recorder.phase = "backward"  # which begins with the gradient being zeroed
        elif phase == "backward":
            self.recorder.phase = None

    def read(self, loss: Tensor) -> float:  # noqa: ARG002
        """A loss without memory has no value."""
        return nan

    @cached_property
    def update(self) -> Update:
        factory = self.job.optimizer
        if self.grad.is_meta and isinstance(factory, Sgd | Adam):
            return _fused_update(factory, self.grad)
        return _built_update(factory, [parameter for _, parameter in self.parameters], self.grad)

    def _forward(self, batch: Batch) -> Tensor:
        with kept_outputs(self.model) as self._outputs:
            loss = batch_loss(self.job, self.model, batch)
        self._outputs.clear()  # a training step does not keep them either
        return loss

    def _completed(self, name: str, _: Tensor) -> None:
        self.ready[name] = len(self.recorder.calls["backward"])

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


def _fused_update(factory: Sgd | Adam, grad: Tensor) -> Update:
    """What an optimizer that ships calls; it is not built on meta, because torch imports its compiler to do so."""
    settings = {**asdict(factory), "maximize": False}
    settings.pop("decay", None)  # of what is pulled towards zero, nothing is moved less
    many = 2 if isinstance(factory, Adam) else int(factory.momentum > 0)
    vector, *moments = (torch.empty_like(grad) for _ in range(many + 1))
    held = many * grad.nbytes
    if isinstance(factory, Sgd):
        settings.update(dampening=0.0, is_first_step=False)
        return Update(partial(torch._fused_sgd_, [vector], [grad], moments, **settings), held)
    fused = torch._fused_adamw_ if isinstance(factory, AdamW) else torch._fused_adam_
    (mean, square), steps = moments, [torch.empty((), device=grad.device)]

    def step() -> None:
        torch._foreach_add_(steps, 1)
        fused([vector], [grad], [mean], [square], [], steps, amsgrad=False, **settings)

    return Update(step, held)


def _built_update(factory: Factory, parameters: list[nn.Parameter], grad: Tensor) -> Update:
    optimizer = factory(parameters)
    if takes_vector(optimizer, len(parameters)):
        vector = nn.Parameter(torch.zeros_like(grad))
        vector.grad = grad
        optimizer = factory([vector])
    for group in optimizer.param_groups:
        if group.get("fused") and grad.is_meta:
            group["params"] = [_on_cpu(one, optimizer) for one in group["params"]]
    step = plain_step(optimizer)
    step()  # which makes its state
    states = [one for state in optimizer.state.values() for one in state.values()]
    return Update(step, sum(one.nbytes for one in states if isinstance(one, Tensor)))


def _on_cpu(parameter: nn.Parameter, optimizer: optim.Optimizer) -> nn.Parameter:
    made = torch.Tensor._make_subclass(OnCpu, parameter.data, True)
    made.grad = parameter.grad
    if parameter in optimizer.state:
        optimizer.state[made] = optimizer.state.pop(parameter)
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
