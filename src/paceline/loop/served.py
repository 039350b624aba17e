"""A script's optimizer on the servers: what workers say of it, and what each server makes of that.

Nothing is pickled: an optimizer is the import path of its class and the settings of its groups, as JSON.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.codecs.context import Layout
from paceline.errors import UsageError, raised
from paceline.jobs.optimizers import ELEMENTWISE, constructor_settings, has_stepped
from paceline.loop.replica import LoopReplica
from paceline.runtimes.compression import layout_of
from paceline.runtimes.flat import ScheduledOptimizer, strides_of
from paceline.runtimes.live.wire.messages import InitialParams, ParamGroups
from paceline.runtimes.live.worker.server_comm import ServerComm
from paceline.runtimes.replica import ParameterShard
from paceline.runtimes.served_compression import slice_bounds
from paceline.specs.source import load
from paceline.strategies.base import server_slices

MODEL = "loop/model"
"""The store's key under which rank 0 describes its model and optimizer to the servers."""
MAIN = "__main__"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
GroupSettings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """What servers know of a script's model and optimizer, once the first mini-batch is there."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtype: str
    optimizer: str
    """The import path of its class; "__main__:Mine" is in the script itself."""
    defaults: GroupSettings
    """What its constructor is given."""
    members: tuple[tuple[int, ...], ...]
    """The parameters of each group, by their places in the flat vector."""
    settings: tuple[GroupSettings, ...]
    """Of each group, as it was when the run began."""
    codec: str
    batch_sizes: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        return Layout(self.names, self.shapes)


def describe(replica: LoopReplica, codec: str, batch_sizes: tuple[int, ...]) -> ServedModel:
    optimizer, layout = replica.users_optimizer, layout_of(replica.model)
    places = {id(one): place for place, one in enumerate(replica.flat.parameters)}
    return ServedModel(
        names=layout.names,
        shapes=layout.shapes,
        strides=tuple(map(strides_of, replica.flat.parameters)),
        dtype=str(replica.flat.params.dtype).removeprefix("torch."),
        optimizer=_import_path(type(optimizer)),
        defaults=_plain(optimizer, optimizer.defaults),
        members=tuple(
            tuple(places[id(one)] for one in group["params"] if id(one) in places)
            for group in optimizer.param_groups
        ),
        settings=tuple(group_settings(optimizer)),
        codec=codec,
        batch_sizes=batch_sizes,
    )


def group_settings(optimizer: Optimizer) -> list[GroupSettings]:
    """Of each group, as they are now."""
    return [_plain(optimizer, group) for group in optimizer.param_groups]


def _plain(optimizer: Optimizer, settings: Mapping[str, Any]) -> GroupSettings:
    return {
        name: _value(optimizer, name, value)
        for name, value in settings.items()
        if name not in ("params", "param_names")
    }


def _value(optimizer: Optimizer, name: str, value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, tuple | list):
        return [_value(optimizer, name, one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"setting {name} of the {type(optimizer).__name__} is a {type(value).__name__}, which cannot be sent to "
        "servers: they take numbers and words; choose a strategy without servers, or another optimizer"
    )


def _import_path(kind: type[Optimizer]) -> str:
    module, name, main = kind.__module__, kind.__qualname__, sys.modules[MAIN]
    if "." in name:
        raise UsageError(
            f"optimizer {name} is defined inside of something else, where servers cannot import it; define it at the "
            "top level of a module"
        )
    if module == MAIN and main.__spec__ is not None:
        module = main.__spec__.name
    return f"{module}:{name}"


def make_optimizer(model: ServedModel, groups: list[dict[str, Any]], script: str = "") -> Optimizer:
    """The optimizer of a script on other parameters; ``script`` is the file that ``__main__`` stands for."""
    module, _, name = model.optimizer.partition(":")
    if module == MAIN and script:
        kind = load(f"{Path(script).absolute()}:{name}", "optimizer")
    else:
        kind = getattr(import_module(module), name)
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise UsageError(
            f"optimizer {model.optimizer} is no class of optimizers; derive it from torch.optim.Optimizer"
        )
    try:
        return kind(groups, **constructor_settings(kind, model.defaults))
    except Exception as error:
        raise UsageError(
            f"optimizer {name} cannot be made again on the servers: {raised(error)}; let its constructor take its "
            "parameters and its defaults"
        ) from error


def make_shard(model: ServedModel, rank: int, servers: int, script: str = "") -> ParameterShard:
    """One server's slice, with the parameters that lie in it, or the parts of them that do."""
    layout = model.layout
    start, stop = slice_bounds(layout.elements, servers)[rank]
    params, grad = (torch.zeros(stop - start, dtype=DTYPES[model.dtype]) for _ in range(2))
    bounds = list(pairwise(accumulate((torch.Size(shape).numel() for shape in layout.shapes), initial=0)))
    groups: list[dict[str, Any]] = []
    for members, settings in zip(model.members, model.settings, strict=True):
        pieces = []
        for member in members:
            first, last = max(start, bounds[member][0]), min(stop, bounds[member][1])
            if first < last:
                whole = (first, last) == bounds[member]
                shape = layout.shapes[member] if whole else (last - first,)
                strides = model.strides[member] if whole else (1,)
                own = slice(first - start, last - start)
                pieces.append(nn.Parameter(params[own].as_strided(shape, strides)))
                pieces[-1].grad = grad[own].as_strided(shape, strides)
        groups.append({**settings, "params": pieces})
    return ParameterShard(
        layout, params, grad, ScheduledOptimizer(make_optimizer(model, groups, script), grad), _constant
    )


def _constant(_: float) -> float:
    return 1.0


class ServedOptimizer:
    """A worker's end: the script's own optimizer leaves the parameters alone, and its settings go to the servers."""

    def __init__(self, replica: LoopReplica, comm: ServerComm, servers: int) -> None:
        self._replica, self._comm, self._servers = replica, comm, servers
        self._optimizer, self._sent = replica.users_optimizer, ""
        self._hidden: list[tuple[nn.Parameter, Tensor]] = []
        kind = type(self._optimizer)
        if servers > 1 and kind not in ELEMENTWISE:
            raise UsageError(
                f"{servers} servers cannot share the optimizer {kind.__name__}, which does not treat every element "
                "alike; choose 1 server"
            )
        if servers > replica.flat.offsets[-1]:
            raise UsageError(
                f"{servers} servers cannot share {replica.flat.offsets[-1]} parameters; choose fewer servers"
            )
        if has_stepped(self._optimizer):
            raise UsageError(
                f"the {kind.__name__} has a state already, and the servers' optimizer begins without; call "
                "distribute() with a new optimizer, or choose a strategy without servers"
            )
        described = describe(replica, "", ())
        make_optimizer(
            described, [{**one, "params": [nn.Parameter(torch.zeros(1))]} for one in described.settings]
        )

    def begin(self) -> None:
        """Rank 0's parameters are those that all begin with."""
        if self._comm.rank == 0:
            for server, part in enumerate(server_slices(self._replica.flat.params, self._servers)):
                self._comm.send(server, InitialParams(part))

    def _follow(self) -> None:
        """Say how the next gradient is to be applied, where a scheduler or the script has changed it."""
        document = json.dumps(group_settings(self._optimizer))
        if document != self._sent:
            self._sent = document
            for server in range(self._servers):
                self._comm.send(server, ParamGroups(document))

    def begin_step(self) -> None:
        """Refuse what servers cannot follow; before the gradient is pushed."""
        if any(not one.requires_grad for one in self._replica.flat.parameters):
            raise UsageError(
                "a parameter was frozen after distribute(), and servers go on to move it; freeze it before, or choose "
                "a strategy without servers"
            )
        if getattr(self._optimizer, "grad_scale", None) is not None:
            raise UsageError(
                "this optimizer undoes the loss scale in its own step, which the servers take; call "
                "scaler.unscale_(optimizer) before scaler.step(optimizer)"
            )
        self._follow()

    def hide_gradients(self) -> None:
        """An optimizer leaves parameters without gradients as they are."""
        self._hidden = [(one, one.grad) for one in self._replica.flat.parameters if one.grad is not None]
        for parameter, _ in self._hidden:
            parameter.grad = None

    def show_gradients(self) -> None:
        for parameter, grad in self._hidden:
            parameter.grad = grad


def check_groups(document: str, model_groups: int) -> Sequence[GroupSettings] | None:
    """The settings that a worker sent; None for anything that no worker sends."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(found, list) and len(found) == model_groups
    if not fits or not all(isinstance(one, dict) and isinstance(one.get("lr"), int | float) for one in found):
        return None
    return list(found)
