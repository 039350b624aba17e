"""From words to a question: everything is looked up, read and traced where it must be."""

from dataclasses import replace

from paceline.clusters.cluster import MEMORY, Link
from paceline.clusters.description import read_cluster
from paceline.clusters.devices import find_device
from paceline.clusters.networks import NETWORKS, find_network
from paceline.clusters.times import StepTimes
from paceline.collectives.choose import check_collective
from paceline.costs.devices.roofline import TORCH, Roofline
from paceline.costs.trace.tracer import trace
from paceline.errors import Mistake
from paceline.jobs.subject import Subject
from paceline.jobs.subjects import subject_of, subject_of_job
from paceline.studies.predict.batches import Batches
from paceline.studies.predict.modelled import Modelled
from paceline.studies.predict.places import Alike, Described, Place
from paceline.studies.predict.question import Faster, Money, Question
from paceline.studies.predict.sources import Source, by_sheet
from paceline.studies.predict.words import USUAL_NETWORK, Words


def ask(words: Words) -> Question:
    """The question that the words are. A Mistake says which of them cannot be."""
    check_collective(words.collective)
    place, links, jitter = find_place(words)
    subject = find_subject(words)
    model = Modelled(
        source=find_source(words, subject), place=place, links=links, collective=words.collective
    )
    return Question(
        name=subject.name,
        model=model,
        workers=words.counts(min(place.most, words.batch if words.scaling == "strong" else place.most)),
        batch=words.batch,
        scaling=words.scaling,
        strategies=words.strategies,
        servers=words.servers,
        jitter=jitter if words.jitter is None else words.jitter,
        money=_money(words, subject),
        networks=_faster(words),
    )


def find_subject(words: Words) -> Subject:
    """What is trained."""
    if words.job is not None:
        return subject_of_job(words.job)
    assert words.model is not None
    return subject_of(
        words.model, shape=words.shape, classes=words.classes, optimizer=words.optimizer or "sgd"
    )


def find_source(words: Words, subject: Subject) -> Source:
    """Where compute times come from."""
    batches = Batches(lambda samples: trace(subject, samples))
    assert words.device is not None
    sheet = find_device(words.device)
    if words.threads is not None and words.threads < 1:
        raise Mistake(f"--threads {words.threads} is too small: a worker needs at least 1")
    device = Roofline(sheet=sheet, format=words.precision or TORCH, threads=words.threads or 0)
    return by_sheet(sheet, device, batches)


def find_place(words: Words) -> tuple[Place, str, float]:
    """Where the workers stand, where that is from, and the spread of their compute times."""
    if words.cluster is not None:
        return _described(words.cluster)
    sheet = find_network(words.network or USUAL_NETWORK)
    inside = None if words.inside is None else find_network(words.inside)
    place = Alike(
        link=Link.of(sheet),
        per_host=1 if words.per_host is None else words.per_host,
        inside=lambda workers: MEMORY if inside is None else Link.of(inside, workers),
    )
    return place, f"{sheet.title} by its data sheet ({sheet.source}, {sheet.date})", 0.0


def _described(text: str) -> tuple[Place, str, float]:
    cluster = read_cluster(text)
    stated = replace(cluster.times, jitter=0.0, serve=0.0, aggregate=0.0)
    if stated != StepTimes():
        raise Mistake(
            f"--cluster {text} states how long a step takes, which is what is predicted here; leave its times "
            "out, or use 'paceline simulate'"
        )
    return Described(cluster), f"cluster {cluster.name}: {cluster}", cluster.times.jitter


def _faster(words: Words) -> tuple[Faster, ...]:
    """The catalogue's Ethernets that carry more than the one there is."""
    if words.cluster is not None:
        return ()
    there = find_network(words.network or USUAL_NETWORK)
    more = [sheet for sheet in NETWORKS.values() if not sheet.inside and sheet.bandwidth > there.bandwidth]
    return tuple(
        Faster(
            name=sheet.name,
            bandwidth=sheet.bandwidth / there.bandwidth,
            latency=sheet.latency / there.latency if there.latency else 1.0,
        )
        for sheet in sorted(more, key=lambda sheet: sheet.bandwidth)
    )


def _money(words: Words, subject: Subject) -> Money:
    samples = subject.train_samples if words.samples is None else words.samples
    if words.epochs is not None and samples is None:
        raise Mistake(
            f"--epochs {words.epochs} of how many samples? model {subject.name!r} does not know: add --samples"
        )
    return Money(worker_hour=words.price, host_hour=words.host_price, samples=samples, epochs=words.epochs)
