"""Importing torch, quickly."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import torch and what needs it without looking for garbage, which takes a sixth of a short command's time.

    There is none among what modules define; it is set aside for good. Where torch is there already, nothing happens.
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
