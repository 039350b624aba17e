"""Paleo's table for a question in the user's words."""

from dataclasses import replace

from paceline.clusters.catalogue import find_device, find_network
from paceline.costs.paleo.model import Paleo
from paceline.costs.paleo.table import PaleoTable, as_paleo, paleo_table
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.studies.predict.asking import find_subject
from paceline.studies.predict.question import MOST_WORKERS, check_batch, check_counts
from paceline.studies.predict.words import USUAL_BATCH, USUAL_NETWORK, PredictRequest


def answer_by_paleo(words: PredictRequest, *, layers: bool = False) -> PaleoTable:
    """Ask Paleo's model. A UsageError names what it does not know: strategies, profiles, several devices a host."""
    _check(words)
    assert words.device is not None, "other ways to say how fast a worker computes are refused"
    model = Paleo(
        device=find_device(words.device),
        bandwidth=find_network(words.network or USUAL_NETWORK).bandwidth,
        compute=1.0 if words.ppp_comp is None else words.ppp_comp,
        network=1.0 if words.ppp_comm is None else words.ppp_comm,
    )
    subject = find_subject(words if words.model is None else replace(words, model=as_paleo(words.model)))
    batch = words.batch or USUAL_BATCH
    workers = words.counts(MOST_WORKERS, batch)
    check_counts(workers)
    check_batch(batch, workers, words.scaling)
    return paleo_table(
        lambda samples: trace(subject, samples),
        model,
        workers=workers,
        batch=batch,
        scaling=words.scaling,
        layers=layers,
    )


def _check(words: PredictRequest) -> None:
    if words.device is None:
        raise UsageError("--cost-model paleo needs a device of the catalogue: add --device, such as k40")
    unknown = {
        "--cluster": words.cluster,
        "--per-host": words.per_host,
        "--inside": words.inside,
        "--precision": words.precision,
        "--accumulate": words.accumulate,
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
            raise UsageError(
                f"{option} {value}: Paleo's model knows nothing of it; leave it out, or leave --cost-model paleo out"
            )
