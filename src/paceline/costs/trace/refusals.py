"""Torch's errors under a trace, as sentences about the user's model."""

import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from paceline.costs.trace.recorder import OperatorRecorder
from paceline.costs.trace.results import NeedsValues
from paceline.errors import UsageError
from paceline.jobs.batches import describe

_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parents[2]
_NO_VALUES = (
    "cannot be called on meta tensors",
    "no data",
    "data-dependent",
    "Cannot copy out of meta",
    "tensor to numpy",
)


def refusal(
    error: Exception, doing: str, name: str, recorder: OperatorRecorder, outputs: Sequence[object] = ()
) -> UsageError:
    """What went wrong while ``doing`` a part of a step of the subject ``name``, where, and how to mend it."""
    line = _line(error)
    at = f" at {line}" if line else ""
    message = _first_line(error)
    place = _place(error, doing, recorder)
    if isinstance(error, NeedsValues) or any(words in message for words in _NO_VALUES):
        return UsageError(
            f"{place} of {name!r} asks for the values of a tensor{at} ({message}), and a trace has none, only shapes; "
            "decide by shapes and settings, or compute on the tensor itself, with torch.where for one"
        )
    if isinstance(error, NotImplementedError) and recorder.last is not None:
        return UsageError(
            f"{place} of {name!r} calls {recorder.last._schema.name}{at}, which torch cannot run on meta tensors, "
            "that is without values; use an operator that has a meta kernel or register one with torch.library"
        )
    if doing == "loss":
        return UsageError(
            f"the loss of {name!r} cannot take the model's outputs, {describe(outputs[0])}{at}: {message}; "
            "let the model give what the loss expects"
        )
    if doing in ("model", "batch", "optimizer"):
        return UsageError(f"the {doing} of {name!r} cannot be traced{at}: {message}")
    return UsageError(f"{place} of {name!r} fails{at}: {message}{_fix(error, message)}")


def _fix(error: Exception, message: str) -> str:
    if "device" in message and "meta" in message:
        return "; make new tensors on the device of the inputs, with device=inputs.device"
    if isinstance(error, RuntimeError | ValueError | IndexError):
        return "; make the sizes of the inputs fit what the module expects"
    return ""


def _place(error: Exception, doing: str, recorder: OperatorRecorder) -> str:
    modules = recorder.modules
    if doing not in ("forward", "backward") or modules is None:
        return f"the {doing}"
    module = modules.failed(error)
    if module is modules.model:
        return "the model" if doing == "forward" else "the backward"
    return f"module {modules.name(module)!r} ({type(module).__name__})"


def _line(error: Exception) -> str:
    """The innermost line that is neither torch's nor this package's: the user's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not (path.is_relative_to(_TORCH) or path.is_relative_to(_HERE) or frame.filename.startswith("<")):
            return f"{path.name}:{frame.lineno}"
    return ""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
