"""From words to a question: everything is looked up and read; the model is traced when it is first priced."""

import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import torch

from paceline import __version__, specs
from paceline.clusters.catalogue import DeviceSheet, all_devices, find_device
from paceline.clusters.cluster import CIPHER
from paceline.clusters.profile import Profile, read_profile
from paceline.codecs import build_codec
from paceline.collectives import NATIVE, check_collective
from paceline.costs.device import DeviceModel, accumulated, step_cost
from paceline.costs.fitted import read_fitted
from paceline.costs.recorded import recorded_jitter, typical_step
from paceline.costs.roofline import TORCH, WIDTHS, Roofline
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of, traceable_of_job
from paceline.jobs.job import Job, Traceable
from paceline.records.files import read_json
from paceline.records.folder import RunFolder
from paceline.records.load import disturbance
from paceline.records.summary import recorded_loads
from paceline.runtimes.config import read_run
from paceline.runtimes.threads import HostRoom
from paceline.strategies import STRATEGIES
from paceline.studies.predict.batches import Batches
from paceline.studies.predict.memory import Room
from paceline.studies.predict.mixed import at_their_speeds, first_device, refuse_named
from paceline.studies.predict.modelled import Modelled
from paceline.studies.predict.places import Described, Place
from paceline.studies.predict.prediction import Prediction
from paceline.studies.predict.pricing import Tell, quiet
from paceline.studies.predict.question import Gathers, Money, Question, Remedy
from paceline.studies.predict.remedies import find_remedies
from paceline.studies.predict.sources import (
    Nominal,
    Recorded,
    Source,
    Traced,
    by_profile,
    by_sheet,
    told_disturbance,
    told_threads,
)
from paceline.studies.predict.standing import find_standing
from paceline.studies.predict.study import predict
from paceline.studies.predict.words import USUAL_BATCH, PredictRequest
from paceline.units import parse_bytes, show_rate

PRECISIONS = MappingProxyType(
    {
        TORCH: "FP32 with TF32 tensor cores in convolutions",
        "fp32": "FP32",
        "tf32": "TF32 tensor cores in convolutions and matrix products",
        "fp16": "FP16 mixed precision",
        "bf16": "BF16 mixed precision",
    }
)
"""Number formats in words."""


def ask(words: PredictRequest) -> Question:
    """The question that the words are. A UsageError says which of them cannot be."""
    check_collective(words.collective)
    _check_ways(words)
    profile = find_profile(words)
    standing = find_standing(words, profile)
    subject = find_subject(words)
    words = _as_trained(words, subject)
    sheet = _find_sheet(words, standing.place)
    source = find_source(words, subject, profile, sheet)
    batch = _batch(words, source)
    model = Modelled(
        source=source,
        place=_with_devices(words, standing.place, source, batch),
        links=standing.words + _servers(words, standing.place, profile),
        links_spread=standing.spread,
        names=standing.names,
        precision=_untold(subject) if sheet is None else _precision(words, sheet, source, batch),
        collective=words.collective,
        codec=words.codec,
        room=_room(words, profile, sheet),
        mixed=_is_mixed(words),
        cipher=profile.cipher or CIPHER if profile else CIPHER,
    )
    money = _money(words, subject)
    most = model.most if words.scaling == "strong" else min(model.most, money.room(batch))
    question = Question(
        name=subject.name,
        model=model,
        workers=words.counts(most, batch),
        batch=batch,
        accumulate=source.accumulate,
        scaling=words.scaling,
        strategies=words.strategies,
        servers=words.servers,
        jitter=standing.jitter if words.jitter is None else words.jitter,
        money=money,
        gathers=_gathers(model),
    )
    remedies = tuple(find_remedies(words, question, model, profile, sheet))
    return replace(question, remedies=remedies, roomier=tuple(_roomier(words, question, sheet)))


def _roomier(words: PredictRequest, question: Question, sheet: DeviceSheet | None) -> Iterator[Remedy]:
    """Of a device of the catalogue: half as wide numbers, then devices with more memory, the smallest first."""
    if words.device is None or sheet is None:
        return
    narrow = _narrowest(sheet)
    if narrow is not None and not _is_mixed(words):
        yield _elsewhere("precision", replace(words, precision=narrow), question, sheet)
    larger = (one for one in all_devices().values() if one.kind == sheet.kind and one.memory > sheet.memory)
    for other in sorted(larger, key=lambda one: one.memory) if words.memory is None else ():
        with suppress(UsageError):  # it has no matrix units for the asked precision
            yield _elsewhere("device", replace(words, device=other.name), question, other)


def _elsewhere(option: str, words: PredictRequest, question: Question, sheet: DeviceSheet) -> Remedy:
    """The same question of another device, or of the same in another precision."""
    model = question.model
    assert isinstance(model, Modelled)
    assert isinstance(model.source, Traced)
    model = replace(
        model,
        source=by_sheet(sheet, _roofline(words, sheet), model.source.batches, model.source.accumulate),
        room=_room(words, None, sheet),
        mixed=_is_mixed(words),
        costs={},
    )
    what = f"--{option} {getattr(words, option)}"
    return Remedy(kind=option, what=what, question=replace(question, model=model))


def _check_ways(words: PredictRequest) -> None:
    """Refuse servers and collectives that none of the strategies would use."""
    built = [specs.build(strategy, STRATEGIES, "strategy") for strategy in words.strategies]
    served = [strategy.served for strategy in built]
    named = " ".join(words.strategies)
    if words.servers != 1 and not any(served):
        raise UsageError(
            f"--servers {words.servers} has no place with --strategy {named}, which keeps no parameters on servers; "
            "leave it out, or choose ps, ssp or async"
        )
    if words.collective != NATIVE and all(served):
        raise UsageError(
            f"--collective {words.collective} has no place with --strategy {named}, whose workers reduce nothing "
            "among themselves; leave it out, or choose all-reduce or local-sgd"
        )


def _servers(words: PredictRequest, place: Place, profile: Profile | None) -> str:
    """Where servers are and how fast messages to them are encrypted, where there are servers."""
    built = [specs.build(strategy, STRATEGIES, "strategy") for strategy in words.strategies]
    if not any(strategy.served for strategy in built):
        return ""
    measured = profile.cipher if profile else None
    rate = f"{show_rate(measured or CIPHER)} a process ({'measured' if measured else 'assumed'})"
    return f"; {_where(words, place)}; messages to servers on other hosts are encrypted, at {rate}"


def _where(words: PredictRequest, place: Place) -> str:
    """On which hosts the servers are."""
    if isinstance(place, Described) and any(group.host.servers for group in place.whole.groups):
        hosts = place.whole.place_servers(words.servers)
        named = dict.fromkeys(place.whole.hosts[host].name for host in hosts)
        return f"servers are on {', '.join(named)}"
    if words.servers == 1:
        return "the server is on the first worker's host"
    return f"the {words.servers} servers are on the first worker's host and those after it, one each in turn"


def _gathers(model: Modelled) -> Gathers | None:
    if build_codec(model.codec).sums:
        return None
    return Gathers(codec=model.codec, plain=replace(model, codec="identity"))


def answer(words: PredictRequest, *, layers: bool = False, tell: Tell = quiet) -> Prediction:
    """Ask and predict; the prediction knows what it was asked, by which versions and when."""
    tell("reading")
    prediction = predict(ask(words), layers=layers, tell=tell)
    return replace(
        prediction,
        settings=words.to_json(),
        versions={"paceline": __version__, "torch": torch.__version__, "python": platform.python_version()},
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def find_subject(words: PredictRequest) -> Traceable | Job:
    """What is trained."""
    if words.job is not None:
        return traceable_of_job(words.job)
    if words.model is None:
        assert words.times is not None, "words that name nothing to train are refused"
        return traceable_of_job(read_run(RunFolder(words.times))[0].job)
    return traceable_of(
        words.model, shape=words.shape, classes=words.classes, optimizer=words.optimizer or "sgd"
    )


def find_profile(words: PredictRequest) -> Profile | None:
    """The profile, where one is named."""
    return None if words.profile is None else read_profile(words.profile, str(torch.__version__))


def _find_sheet(words: PredictRequest, place: Place) -> DeviceSheet | None:
    """The device that times are for: the named one, or that of the cluster's first worker."""
    if words.device is not None:
        return find_device(words.device)
    measured = words.profile is not None or words.times is not None
    return first_device(place.whole) if isinstance(place, Described) and not measured else None


def _with_devices(words: PredictRequest, place: Place, source: Source, batch: int) -> Place:
    """Where a described cluster names devices of the catalogue, each is as fast as its sheet says."""
    if not isinstance(place, Described) or not any(group.host.device.sheet for group in place.whole.groups):
        return place
    if not isinstance(source, Traced) or words.profile is not None:
        refuse_named(place.whole, "--times" if words.times is not None else "--profile")

    def seconds(sheet: DeviceSheet) -> float:
        return _compute(source, _roofline(words, sheet), batch)

    return Described(at_their_speeds(place.whole, source.cost(batch).compute, seconds))


def find_source(
    words: PredictRequest, subject: Traceable | Job, profile: Profile | None, sheet: DeviceSheet | None
) -> Source:
    """Where compute times come from; ``sheet`` is the device of the catalogue, where there is one."""
    batches = Batches(lambda samples: trace(subject, samples))
    times = words.accumulate or 1
    if words.times is not None:
        device: DeviceModel = (
            Nominal() if profile is None else read_fitted(profile.device, str(words.profile))
        )
        return recorded(RunFolder(words.times), device, batches, subject.accumulate)
    if profile is not None:
        return by_profile(profile, read_fitted(profile.device, str(words.profile)), batches, times)
    if sheet is None:
        raise UsageError(
            f"how fast does a worker compute? --cluster {words.cluster} names no device of the catalogue for its first "
            "worker; add --device, --profile or --times"
        )
    return by_sheet(sheet, _roofline(words, sheet), batches, times)


def recorded(folder: RunFolder, device: DeviceModel, batches: Batches, accumulate: int = 1) -> Recorded:
    """A run on one worker, whose typical step the device only divides among its operators."""
    return Recorded(
        typical=typical_step(folder),
        folder=str(folder.path),
        device=device,
        batches=batches,
        jitter=recorded_jitter(folder),
        more=_conditions(folder),
        accumulate=accumulate,
    )


def _conditions(folder: RunFolder) -> str:
    """With how many threads a run computed and what else did, as far as its record says so."""
    room = HostRoom.of_run(folder)
    told = "" if room is None else told_threads(room.threads)
    return told + told_disturbance(disturbance(recorded_loads(folder), "that run"))


def _as_trained(words: PredictRequest, subject: Traceable | Job) -> PredictRequest:
    """The words with what the job itself says of its steps, where nobody says otherwise."""
    if words.times is not None:  # the run says it itself
        return words
    accumulate = words.accumulate or subject.accumulate
    narrow = subject.precision != "fp32" and words.precision is None and words.device is not None
    return replace(words, accumulate=accumulate, precision=subject.precision if narrow else words.precision)


def _untold(subject: Traceable | Job) -> str:
    """What a profile cannot know: it was measured in FP32."""
    if subject.precision == "fp32":
        return ""
    return f"FP32, as it was measured, though the job computes in {subject.precision.upper()}"


def _batch(words: PredictRequest, source: Source) -> int:
    """Samples of a step: those that were measured, or so many mini-batches as 'paceline train' has them."""
    if words.batch is None and isinstance(source, Recorded):
        return source.typical.samples
    return (words.batch or USUAL_BATCH) * source.accumulate


def _roofline(words: PredictRequest, sheet: DeviceSheet) -> Roofline:
    if words.threads is not None and words.threads < 1:
        raise UsageError(f"--threads {words.threads} is too small: a worker needs at least 1")
    return Roofline(sheet=sheet, format=words.precision or TORCH, threads=words.threads or 0)


def _precision(words: PredictRequest, sheet: DeviceSheet, source: Source, batch: int) -> str:
    """In which format the device computes, and by how much one worker is faster in the narrowest that it has."""
    told = PRECISIONS[words.precision or TORCH]
    usual = words.precision is None or words.precision == TORCH
    if usual and "tf32" not in sheet.tensor_flops:
        told = PRECISIONS["fp32"]
    told = f"{told} (PyTorch's default)" if usual else told
    narrow = _narrowest(sheet)
    if narrow is None or words.device is None or _is_mixed(words):
        return told
    there = source.cost(batch).compute
    gain = there / _compute(source, _roofline(replace(words, precision=narrow), sheet), batch)
    faster = f"computes {gain:.2g}x as fast" if gain >= 1.05 else "is no faster"
    return f"{told}; with --precision {narrow} one worker {faster}"


def _compute(source: Source, device: DeviceModel, batch: int) -> float:
    """Seconds that a step of the source's operators computes on another device."""
    return accumulated(step_cost(source.trace(batch), device), source.accumulate).compute


def _narrowest(sheet: DeviceSheet) -> str | None:
    """The format of mixed precision that a device has matrix units for."""
    return next((name for name in ("bf16", "fp16") if name in sheet.tensor_flops), None)


def _is_mixed(words: PredictRequest) -> bool:
    return WIDTHS[words.precision or TORCH] < WIDTHS[TORCH]


def _room(words: PredictRequest, profile: Profile | None, sheet: DeviceSheet | None) -> Room:
    """The memory that --memory, the catalogue or a measured machine has."""
    if sheet is not None:
        room = Room(name=sheet.title, size=sheet.memory, shared=sheet.kind == "cpu")
    elif profile is not None:
        room = Room(name=profile.name, size=float(profile.machine.get("memory_bytes", 0)))
    else:
        room = Room(name="the machine of the run", size=_machine_memory(words))
    if words.memory is None:
        return room
    size = parse_bytes(words.memory)
    if not size:
        raise UsageError(f"--memory {words.memory} is too little: give a size such as '24 GiB'")
    return replace(room, size=size)


def _machine_memory(words: PredictRequest) -> float:
    """Of the machine on which the run of --times was recorded; 0 where it does not say."""
    if words.times is None:
        return 0.0
    try:
        return float(read_json(RunFolder(words.times).env).get("memory_bytes", 0))
    except (OSError, ValueError):
        return 0.0


def _money(words: PredictRequest, subject: Traceable | Job) -> Money:
    samples = subject.train_samples if words.samples is None else words.samples
    if words.samples is not None and words.epochs is None:
        raise UsageError(f"--samples {words.samples} of how many epochs? add --epochs, or leave it out")
    if words.epochs is not None and samples is None:
        raise UsageError(
            f"--epochs {words.epochs} of how many samples? model {subject.name!r} does not know: add --samples"
        )
    return Money(worker_hour=words.price, host_hour=words.host_price, samples=samples, epochs=words.epochs)
