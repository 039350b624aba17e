"""Paleo's model (Qi et al., 2017) as a cost model: its cases are its schemes to sum gradients, and nothing overlaps."""

from dataclasses import dataclass, replace

from paceline.clusters.catalogue import find_device, find_network
from paceline.costs.device import StepCost
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_layers, paleo_step
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.studies.predict.compute import BatchTraces, find_subject
from paceline.studies.predict.model import Case
from paceline.studies.predict.prediction import Basis, ModuleCost, PredictedStep, Where, Wire
from paceline.studies.predict.request import MOST_WORKERS, USUAL_BATCH, USUAL_NETWORK, PredictRequest
from paceline.units import show_rate


@dataclass(frozen=True, kw_only=True)
class PaleoModel:
    """One device a host, all on one network."""

    request: PredictRequest
    model: Paleo
    traces: BatchTraces
    title: str
    name: str = "paleo"
    strategies: tuple[str, ...] = tuple(SCHEMES)
    explains: bool = False
    accumulate: int = 1
    epoch_samples: int | None = None
    most: int = MOST_WORKERS
    jitter: float = 0.0
    links_spread: float = 0.0

    @property
    def batch(self) -> int:
        return self.request.batch_size or USUAL_BATCH

    @property
    def basis(self) -> Basis:
        device, network = self.model.device, show_rate(self.model.bandwidth)
        return Basis(
            level="catalogue",
            compute=f"{device.title} at {self.model.compute:g} of its peak",
            links=f"links of {network} at {self.model.network:g}",
            interval="none",
        )

    def step(self, case: Case) -> PredictedStep:
        breakdown = paleo_step(self.model, self.traces.trace(case.batch), case.workers, case.strategy)
        rate = case.workers * case.batch / breakdown.total
        return PredictedStep(breakdown=breakdown, sent=0.0, rate=rate)

    def explain(self, case: Case) -> PredictedStep:
        return self.step(case)

    def cost(self, batch: int) -> StepCost:
        step = paleo_step(self.model, self.traces.trace(batch))
        return StepCost(samples=batch, step=step, ready=(), spread=0.0)

    def parameters(self) -> int:
        return self.traces.trace(self.batch).size

    def modules(self, batch: int) -> tuple[ModuleCost, ...]:
        layers = paleo_layers(self.model, self.traces.trace(batch))
        whole = sum(layer.forward + layer.backward for layer in layers)
        return tuple(
            ModuleCost(
                module=layer.layer,
                kinds=layer.kind,
                flops=None,
                bytes=None,
                forward=layer.forward,
                backward=layer.backward,
                share=(layer.forward + layer.backward) / whole,
            )
            for layer in layers
        )

    def memory(self, case: Case) -> None:
        """Paleo's model does not predict it."""

    def hosts(self, workers: int) -> int:
        return workers

    def wire(self, case: Case, where: Where) -> Wire:  # noqa: ARG002
        return Wire(where=where, name="", bandwidth=self.model.bandwidth, latency=0.0)

    def changed(self, request: PredictRequest) -> "PaleoModel":
        return find_paleo_model(request)


def find_paleo_model(request: PredictRequest) -> PaleoModel:
    """A UsageError names what Paleo's model does not have: strategies, profiles, several devices a host."""
    _check(request)
    assert request.device is not None, "other sources of compute times are refused"
    subject = find_subject(
        request if request.model is None else replace(request, model=as_paleo(request.model))
    )
    return PaleoModel(
        request=request,
        model=Paleo(
            device=find_device(request.device),
            bandwidth=find_network(request.network or USUAL_NETWORK).bandwidth,
            compute=1.0 if request.ppp_comp is None else request.ppp_comp,
            network=1.0 if request.ppp_comm is None else request.ppp_comm,
        ),
        traces=BatchTraces(lambda samples: trace(subject, samples)),
        title=subject.name,
    )


def _check(request: PredictRequest) -> None:
    if request.device is None:
        raise UsageError("cost model paleo needs a device of the catalogue: name one, such as k40")
    unknown = {
        "cluster": request.cluster,
        "per-host": request.per_host,
        "inside": request.inside,
        "precision": request.precision,
        "accumulate": request.accumulate,
        "threads": request.threads,
        "jitter": request.jitter,
        "strategy": None if request.strategies == ("all-reduce",) else " ".join(request.strategies),
        "collective": None if request.collective == "native" else request.collective,
        "servers": None if request.servers == 1 else request.servers,
        "codec": None if request.codec == "identity" else request.codec,
        "price": request.price or None,
        "host-price": request.host_price or None,
        "epochs": request.epochs,
        "samples": request.samples,
    }
    for setting, value in unknown.items():
        if value is not None:
            raise UsageError(
                f"{setting} {value}: Paleo's model does not have it; leave it out, or use Paceline's cost model"
            )
