"""Paleo's model (Qi et al., 2017) as a cost model: its cases are its schemes to sum gradients, and nothing overlaps."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from paceline.clusters.catalogue import find_device, find_network
from paceline.costs.device import StepCost
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_layers, paleo_step
from paceline.errors import UsageError
from paceline.studies.predict.model import Case, PacelineModel, Progress, find_model
from paceline.studies.predict.prediction import Basis, ModuleCost, PredictedStep, StepBounds
from paceline.studies.predict.request import USUAL_NETWORK, PredictRequest
from paceline.units import show_rate

SETTINGS = (
    *(
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
    ),
    *("cost_model", "ppp_comp", "ppp_comm"),
)


@dataclass(frozen=True, kw_only=True)
class PaleoModel(PacelineModel):
    """One device a host, all on one network; it knows neither memory nor what bounds a step."""

    paleo: Paleo
    name: ClassVar[str] = "paleo"
    explains: ClassVar[bool] = False

    @property
    def strategies(self) -> tuple[str, ...]:
        return tuple(SCHEMES)

    @property
    def basis(self) -> Basis:
        return Basis(
            level="catalogue",
            compute=f"{self.paleo.device.title} at {self.paleo.compute:g} of its peak",
            links=f"links of {show_rate(self.paleo.bandwidth)} at {self.paleo.network:g}",
            interval="none",
        )

    def find_step(self, case: Case) -> PredictedStep:
        trace = self.compute.traces.trace(case.batch)
        breakdown = paleo_step(self.paleo, trace, case.workers, case.strategy)
        return PredictedStep(breakdown=breakdown, sent=0.0, rate=case.workers * case.batch / breakdown.total)

    def find_bounds(self, case: Case) -> StepBounds:  # noqa: ARG002
        return StepBounds()

    def cost(self, batch: int) -> StepCost:
        step = paleo_step(self.paleo, self.compute.traces.trace(batch))
        return StepCost(samples=batch, step=step, ready=(), spread=0.0)

    def modules(self) -> tuple[ModuleCost, ...]:
        layers = paleo_layers(self.paleo, self.compute.traces.trace(self.batch))
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

    def find_memory(self, case: Case) -> None:
        """Not predicted."""


def find_paleo_model(request: PredictRequest, progress: Progress) -> PaleoModel:
    if request.device is None:
        raise UsageError("cost model paleo needs a device of the catalogue: name one, such as k40")
    for field in fields(request):
        value = getattr(request, field.name)
        if field.name not in SETTINGS and value != field.default:
            name = field.name.replace("_", " ")
            raise UsageError(
                f"{name} {value}: Paleo's model does not have it; leave it out, or use Paceline's cost model"
            )
    paleo = Paleo(
        device=find_device(request.device),
        bandwidth=find_network(request.network or USUAL_NETWORK).bandwidth,
        compute=1.0 if request.ppp_comp is None else request.ppp_comp,
        network=1.0 if request.ppp_comm is None else request.ppp_comm,
    )
    model = request.model and as_paleo(request.model)
    return PaleoModel(**vars(find_model(replace(request, model=model), progress=progress)), paleo=paleo)
