"""What surrounds the elastic agent: its log kept quiet, its workers' streams and variables."""

import ctypes
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that ask a launcher to stop."""

_ERROR = 2


class Streams(LogsSpecs):
    """Workers write to this process's own stdout and stderr, and get a few more variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__()
        self._variables = variables

    @property
    def root_log_dir(self) -> str:
        """Nowhere."""
        return os.devnull

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Called by the agent with the variables of every worker, just before they start."""
        for worker in envs.values():
            worker.update(self._variables)
        through = dict.fromkeys(envs, "")
        return LogsDest(stdouts=through, stderrs=dict(through), error_files=dict.fromkeys(envs, os.devnull))


def _c10_log_level() -> ctypes.c_int:
    """The least level that torch's C++ side prints; it warns of every host that has no name.

    Only a variable that is set before torch is loaded would do the same. Where there is no such library,
    nothing changes.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return ctypes.c_int()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Silence torch's log and take SIGTERM for Ctrl-C; logging and handlers are put back afterwards."""
    logger = logging.getLogger("torch.distributed.elastic")
    silence = logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(silence)
    level = _c10_log_level()
    old_level, level.value = level.value, _ERROR
    handlers = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        if handlers[signal.SIGTERM] is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        level.value = old_level
        logger.propagate = propagate
        logger.removeHandler(silence)
