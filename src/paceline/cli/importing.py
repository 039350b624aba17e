"""Importing torch, quickly."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BOOKKEEPING = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


@contextmanager
def gc_paused() -> Iterator[None]:
    """Import torch and what needs it without looking for garbage, which takes a sixth of a short command's time.

    There is none among what modules define; it is set aside for good. Where torch is imported already, nothing happens.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def skip_compiler_import() -> None:
    """Let optimizers be made without torch's compiler, whose import takes a second and 90 MB.

    torch imports it to exempt their bookkeeping from compilation, and keeps the exempt method beside the plain one;
    here they are the same. A model that is compiled does no bookkeeping. Where it is imported already, nothing happens.
    """
    from torch.optim import Optimizer

    if "torch._dynamo" in sys.modules:
        return
    for name in _BOOKKEEPING:
        plain = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain
