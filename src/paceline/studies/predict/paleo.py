"""Paleo's model (Qi et al., 2017) as a cost model: its cases are its schemes to sum gradients, and nothing overlaps."""

from dataclasses import dataclass, fields, replace

from paceline.clusters.catalogue import find_device, find_network
from paceline.clusters.cluster import MEMORY, Link
from paceline.costs.device import StepCost
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_layers, paleo_step
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.studies.predict.compute import BatchTraces, find_subject
from paceline.studies.predict.deployment import Deployment, equal_hosts
from paceline.studies.predict.model import Case
from paceline.studies.predict.prediction import Basis, ModuleCost, PredictedStep, StepBounds, Where, Wire
from paceline.studies.predict.request import MOST_WORKERS, USUAL_BATCH, USUAL_NETWORK, PredictRequest
from paceline.units import show_rate

SETTINGS = (
    "model",
    "job",
    "shape",
    "classes",
    "optimizer",
    "device",
    "network",
    "workers",
    "batch_size",
    "scaling",
)
"""Settings of a request that Paleo's model has, beside its own."""


@dataclass(frozen=True, kw_only=True)
class PaleoModel:
    """One device a host, all on one network."""

    request: PredictRequest
    model: Paleo
    traces: BatchTraces
    title: str
    deployment: Deployment
    name: str = "paleo"
    strategies: tuple[str, ...] = tuple(SCHEMES)
    explains: bool = False
    accumulate: int = 1
    epoch_samples: int | None = None

    @property
    def batch(self) -> int:
        return self.request.batch_size or USUAL_BATCH

    @property
    def basis(self) -> Basis:
        return Basis(
            level="catalogue",
            compute=f"{self.model.device.title} at {self.model.compute:g} of its peak",
            links=self.deployment.words,
            interval="none",
        )

    def step(self, case: Case) -> PredictedStep:
        breakdown = paleo_step(self.model, self.traces.trace(case.batch), case.workers, case.strategy)
        return PredictedStep(breakdown=breakdown, sent=0.0, rate=case.workers * case.batch / breakdown.total)

    def bounds(self, case: Case) -> StepBounds:  # noqa: ARG002
        return StepBounds()

    def cost(self, batch: int) -> StepCost:
        step = paleo_step(self.model, self.traces.trace(batch))
        return StepCost(samples=batch, step=step, ready=(), spread=0.0)

    @property
    def parameters(self) -> int:
        return self.traces.trace(self.batch).size

    def modules(self) -> tuple[ModuleCost, ...]:
        layers = paleo_layers(self.model, self.traces.trace(self.batch))
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

    def wire(self, case: Case, where: Where) -> Wire:
        return self.deployment.wire(self.deployment.layout(case.workers, False, 0.0), where)

    def changed(self, request: PredictRequest) -> "PaleoModel":
        return find_paleo_model(request)


def find_paleo_model(request: PredictRequest) -> PaleoModel:
    """A UsageError names what Paleo's model does not have: strategies, profiles, several devices a host."""
    _check(request)
    assert request.device is not None, "other sources of compute times are refused"
    subject = find_subject(
        request if request.model is None else replace(request, model=as_paleo(request.model))
    )
    network = find_network(request.network or USUAL_NETWORK)
    model = Paleo(
        device=find_device(request.device),
        bandwidth=network.bandwidth,
        compute=1.0 if request.ppp_comp is None else request.ppp_comp,
        network=1.0 if request.ppp_comm is None else request.ppp_comm,
    )
    return PaleoModel(
        request=request,
        model=model,
        traces=BatchTraces(lambda samples: trace(subject, samples)),
        title=subject.name,
        deployment=Deployment(
            layout=equal_hosts(Link.of(network), 1, lambda _: MEMORY, ()),
            most=MOST_WORKERS,
            words=f"links of {show_rate(model.bandwidth)} at {model.network:g}",
            spread=0.0,
        ),
    )


def _check(request: PredictRequest) -> None:
    if request.device is None:
        raise UsageError("cost model paleo needs a device of the catalogue: name one, such as k40")
    known = (*SETTINGS, "cost_model", "ppp_comp", "ppp_comm")
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name not in known and value != field.default:
            raise UsageError(
                f"{field.name.replace('_', ' ')} {value}: Paleo's model does not have it; leave it out, or use "
                "Paceline's cost model"
            )
