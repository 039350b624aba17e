"""``paceline.predict``: how fast a training will be, on hardware that you do not have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.api.arguments import SPECS_OF_ALL, bytes_text, counts_of, naming_arguments, rate_text, specs_of
from paceline.api.result import StudyResult, flat
from paceline.api.runs import path_of_times
from paceline.api.subjects import with_subject
from paceline.clusters.profile import named_profile
from paceline.errors import unknown

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

    from paceline.codecs.base import Codec
    from paceline.jobs.job import Job, Traceable
    from paceline.strategies.base import Strategy
    from paceline.studies.predict import PredictRequest
    from paceline.studies.predict.prediction import Prediction

SHOWN = (
    "strategy",
    "workers",
    "batch",
    "step",
    "low",
    "high",
    "communicate",
    "rate",
    "speed_up",
    "efficiency",
)


@naming_arguments
def predict(
    model_or_name: "str | nn.Module | Job | Traceable | Callable[[], Any] | None" = None,
    /,
    *,
    input: "str | Sequence[int] | Tensor | Mapping[str, Tensor] | tuple[Tensor, ...] | None" = None,  # noqa: A002
    loss: "Callable[[Any, Any], Tensor] | None" = None,
    classes: int | None = None,
    optimizer: "str | Callable[..., optim.Optimizer] | optim.Optimizer | None" = None,
    job: "str | Job | Callable[[], Job] | None" = None,
    data: str | None = None,
    data_dir: str | None = None,
    model: "str | nn.Module | Callable[[], Any] | None" = None,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    memory: str | float | None = None,
    profile: str | Path | None = None,
    times: "str | Path | StudyResult[Any] | None" = None,
    network: str | float | None = None,
    per_host: int | None = None,
    inside: str | float | None = None,
    cluster: str | None = None,
    backend: Literal["shm", "gloo"] | None = None,
    cost_model: Literal["paceline", "paleo"] | None = None,
    ppp_comp: float | None = None,
    ppp_comm: float | None = None,
    workers: str | int | Iterable[int] | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    scaling: Literal["weak", "strong"] | None = None,
    strategy: "str | Strategy | Sequence[str | Strategy] | None" = None,
    collective: str | None = None,
    codec: "str | Codec | Sequence[str | Codec] | None" = None,
    servers: int | None = None,
    jitter: float | None = None,
    price: float | None = None,
    host_price: float | None = None,
    epochs: int | None = None,
    samples: int | None = None,
    layers: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> "StudyResult[Prediction]":
    """Predict how fast a training will be, as ``paceline predict`` does; nothing is trained or measured.

    Args:
        model_or_name: A name such as "resnet50" (see 'paceline models'), an import path, a function that makes a
            module, a ``paceline.Job``, or an ``nn.Module``: it is traced by its shapes, and its weights are not read.
        input: The shape of one sample, (3, 224, 224) or "3x224x224", or a batch as the model is called with it: a
            tensor, a dict of keyword arguments, or (inputs, targets) as a loader gives it. A module needs it.
        loss: (outputs, targets) to the mean loss of a batch. Where there is none it is assumed by the model's output:
            its own loss, cross entropy among classes or tokens, or the mean square of errors; the result says which.
        classes: Number of classes of a model that ships.
        optimizer: "sgd", "adam", ..., or a torch optimizer, its class, or a function that makes one. Of one that is
            made already, its class and its defaults count.
        job: A job of your own, by import path, as an object, or the function that makes it, instead of a model.
        data: A data set's name: with ``model``, and instead of the first argument, a job by its parts.
        data_dir: The folder that holds the data's files.
        model: The model of such a job.
        device: What each worker computes on, such as "a100"; see 'paceline devices'.
        precision: "torch" (as PyTorch computes), "fp32", "tf32", "fp16" or "bf16".
        threads: Cores of a CPU that a worker uses.
        memory: Of the device: "24 GiB", or bytes.
        profile: Instead of a device: a file of 'paceline calibrate', or "machine" for this machine's.
        times: Instead of a device: the run of one worker: its folder, "latest" (the latest live run), or what
            ``load_run`` returned.
        network: Between hosts: "25gbit", "30 Gbit/s,10 us", or bytes a second.
        per_host: Workers per host.
        inside: Between workers of a host, such as "nvlink3", or bytes a second.
        cluster: A .toml file or an inline description instead.
        backend: On a measured machine: "shm" or "gloo".
        cost_model: "paceline", or "paleo" with ``ppp_comp`` and ``ppp_comm``, the fractions of the peaks.
        ppp_comp: Of the device's peak.
        ppp_comm: Of the network's bandwidth.
        workers: How many: 8, [1, 8, 32], "1,8,32" or "1-8".
        batch_size: Samples per worker and step (32), or of all workers with ``scaling="strong"``.
        accumulate: Mini-batches per step.
        scaling: "weak": a worker keeps its batch; "strong": the batch is divided.
        strategy: How workers agree: a name, an object such as ``Baton(period=4)``, or several to compare.
        collective: How all-reduces are done: "native" or a schedule's name.
        codec: What is sent: a name, an object, or several to compare.
        servers: Servers that keep the parameters, for ps, ssp and async.
        jitter: Spread of compute times.
        price: Per worker and hour; or ``host_price``, per host and hour.
        host_price: Per host and hour.
        epochs: Adds the time of a whole training, of ``samples`` an epoch where the job does not say.
        samples: Samples per epoch.
        layers: Find where a worker's step goes, module by module.
        progress: Called with a few words now and then.

    Returns:
        Rows by strategy and number of workers; ``value`` is the ``Prediction``, ``print`` shows what the command does.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from paceline.records.files import to_document
    from paceline.reports.predict.text import text_lines
    from paceline.studies.predict import predict as predict_request

    for name in ("layers", "progress"):
        given.pop(name)
    found = predict_request(predict_settings(given), modules=layers, progress=progress)
    rows = [
        {"strategy": one.strategy, **flat(to_document(row), bare=("breakdown",))}
        for one in found.series
        for row in one.rows
    ]
    return StudyResult(
        value=found,
        rows=rows,
        document=lambda: to_document(found),
        text=lambda: "\n".join(text_lines(found)),
        shown=SHOWN,
    )


def predict_settings(given: Mapping[str, Any]) -> "PredictRequest":
    from paceline.runtimes.threads import usual_threads
    from paceline.studies.predict import PredictRequest
    from paceline.studies.predict.compute import PRECISIONS

    asked = with_subject(given)
    for name, read in (
        ("memory", bytes_text),
        ("network", rate_text),
        ("inside", rate_text),
    ):
        if name in asked:
            asked[name] = read(asked[name], name)
    if "times" in asked:
        asked["times"] = path_of_times(asked["times"])
    if asked.get("precision") == "":
        raise unknown("precision", "", PRECISIONS)
    if "profile" in asked:
        asked["profile"] = named_profile(Path(asked["profile"]), usual_threads())
    if "workers" in asked:
        asked["workers"] = counts_of(asked["workers"])
    for kind, name in SPECS_OF_ALL:
        if kind in asked:
            asked[name] = specs_of(asked.pop(kind), kind)
    return PredictRequest(**asked)
