"""``paceline simulate --replay RUN``: a recorded run again, message by message."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.options import KeepOptions, RunOptions, given_options
from paceline.cli.simulate import ClusterOptions
from paceline.errors import UsageError
from paceline.records.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

DIFFERENT = 3


def repeat(run: Path, options: RunOptions, where: ClusterOptions, keep: KeepOptions) -> int:
    """Repeat a run and say whether it ends with the same parameters; 3 where it does not."""
    import torch

    from paceline.reports.progress import Tee
    from paceline.runtimes.prepare import prepare
    from paceline.runtimes.virtual.recording import FolderObserver, FolderRecorder, new_folder
    from paceline.runtimes.virtual.replay import read_recording, replay

    if given := [*given_options(options), *where.given()]:
        raise UsageError(
            f"--replay {run} says all that is run, so {given[0]} has no place; leave one of them out"
        )
    recording = read_recording(RunFolder(run))
    torch.set_num_threads(recording.threads)
    prepared = prepare(recording.settings)
    name = keep.name or f"{prepared.job.name}-replay"
    machinery = {"replay": str(recording.folder.path), "gradients": recording.gradients}
    folder = new_folder(keep.parent, name, recording.settings, machinery)
    observer = Tee([FolderObserver(folder), *keep.observers(recording.settings, "recorded")])
    with FolderRecorder(folder, recording.workers, prepared.triggers.last) as recorder, closing(observer):
        replay(
            recording,
            observer=observer,
            recorder=recorder,
            prepared=prepared,
            name=name,
            folder=str(folder.path),
        )
    return _compare(recording.folder, folder, keep.as_json)


def _compare(recorded: RunFolder, repeated: RunFolder, silent: bool) -> int:
    """Tell how far the two models are apart, where there are two."""
    from paceline.records.tensors import read_tensors

    if not recorded.model.exists() or not repeated.model.exists():
        _say("every update is the recorded one; there is no model to compare", silent)
        return 0
    one, other = read_tensors(recorded.model), read_tensors(repeated.model)
    apart = {key: _distance(one[key], other[key]) for key in one}
    worst = max(apart, key=lambda key: apart[key])
    if not apart[worst]:
        _say("every update is the recorded one, and the parameters are equal to the last bit", silent)
        return 0
    _say(
        f"every update is the recorded one, and the parameters differ: by {apart[worst]:.3g} at most, in {worst}",
        silent,
    )
    return DIFFERENT


def _distance(one: "Tensor", other: "Tensor") -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _say(sentence: str, silent: bool) -> None:
    if not silent:
        print(sentence)  # noqa: T201
