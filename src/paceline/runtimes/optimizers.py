"""The job's optimizer on the flat vector, where that is the same mathematics."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import nn, optim

from paceline.runtimes.flat import Flat

ELEMENTWISE: frozenset[type[optim.Optimizer]] = frozenset(
    {optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad, optim.Adamax}
)
"""Optimizers that treat every element alike: one call on the whole vector does what a call a parameter would do."""


def plain_step(optimizer: optim.Optimizer) -> Callable[[], object]:
    """The optimizer's step without torch's wrapper for hooks and profilers, where nobody has hooked in.

    The wrapper costs several times what a small model's step itself does.
    """
    step = getattr(type(optimizer).step, "__wrapped__", None)
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if type(optimizer) not in ELEMENTWISE or step is None or hooks:
        return optimizer.step
    return partial(step, optimizer)


def flat_optimizer(
    factory: Callable[[Iterable[nn.Parameter]], optim.Optimizer], flat: Flat
) -> optim.Optimizer:
    """Build the optimizer on one flat parameter if it is elementwise and takes all alike; else on the model's own."""
    optimizer = factory(flat.parameters)
    if type(optimizer) not in ELEMENTWISE or len(optimizer.param_groups) > 1:
        return optimizer
    if len(optimizer.param_groups[0]["params"]) < len(flat.parameters):
        return optimizer  # it leaves some parameters out, and would not know them in the flat vector
    whole = nn.Parameter(flat.params)
    assert whole.data_ptr() == flat.params.data_ptr()
    whole.grad = flat.grad
    return factory([whole])
