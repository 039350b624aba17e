"""Paleo's table for a question in the user's words."""

from dataclasses import replace
from typing import cast

from paceline.clusters.devices import find_device
from paceline.clusters.networks import find_network
from paceline.costs.paleo.model import Paleo
from paceline.costs.paleo.table import PaleoTable, as_paleo, paleo_table
from paceline.costs.trace.tracer import trace
from paceline.errors import Mistake
from paceline.studies.predict.asking import find_subject
from paceline.studies.predict.model import CostModel
from paceline.studies.predict.question import MOST_WORKERS, Question
from paceline.studies.predict.words import USUAL_BATCH, USUAL_NETWORK, Words


def answer_by_paleo(words: Words, *, layers: bool = False) -> PaleoTable:
    """Ask Paleo's model. A Mistake names what it does not know: strategies, profiles, several devices a host."""
    _check(words)
    assert words.device is not None, "other ways to say how fast a worker computes are refused"
    model = Paleo(
        device=find_device(words.device),
        bandwidth=find_network(words.network or USUAL_NETWORK).bandwidth,
        compute=1.0 if words.ppp_comp is None else words.ppp_comp,
        network=1.0 if words.ppp_comm is None else words.ppp_comm,
    )
    subject = find_subject(words if words.model is None else replace(words, model=as_paleo(words.model)))
    asked = _ask(words, subject.name)
    return paleo_table(
        lambda samples: trace(subject, samples),
        model,
        workers=asked.workers,
        batch=asked.batch,
        scaling=asked.scaling,
        layers=layers,
    )


class _Room:
    """Of a cost model, all that a question looks at before it is priced."""

    most = MOST_WORKERS


def _ask(words: Words, name: str) -> Question:
    """The question as any cost model is asked it, so that what makes no sense is refused in the same words."""
    batch = words.batch or USUAL_BATCH
    return Question(
        name=name,
        model=cast("CostModel", _Room()),
        workers=words.counts(MOST_WORKERS, batch),
        batch=batch,
        scaling=words.scaling,
    )


def _check(words: Words) -> None:
    if words.device is None:
        raise Mistake("--cost-model paleo needs a device of the catalogue: add --device, such as k40")
    unknown = {
        "--cluster": words.cluster,
        "--per-host": words.per_host,
        "--inside": words.inside,
        "--precision": words.precision,
        "--threads": words.threads,
        "--jitter": words.jitter,
        "--strategy": None if words.strategies == ("all-reduce",) else " ".join(words.strategies),
        "--collective": None if words.collective == "native" else words.collective,
        "--servers": None if words.servers == 1 else words.servers,
        "--codec": None if words.codec == "identity" else words.codec,
        "--price": words.price or None,
        "--host-price": words.host_price or None,
        "--epochs": words.epochs,
        "--samples": words.samples,
    }
    for option, value in unknown.items():
        if value is not None:
            raise Mistake(
                f"{option} {value}: Paleo's model knows nothing of it; leave it out, or leave --cost-model paleo out"
            )
