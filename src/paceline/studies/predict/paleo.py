"""Paleo's model (Qi et al., 2017) as a cost model: its strategies are ways to sum gradients, and nothing overlaps."""

from dataclasses import dataclass, fields, replace

import torch

from paceline.clusters.catalogue import find_device, find_network
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_layers, paleo_step
from paceline.costs.roofline import TORCH, dtype_name
from paceline.errors import UsageError
from paceline.studies.predict.model import PacelineModel, ShowProgress, find_model
from paceline.studies.predict.prediction import Basis, ModuleCost, PredictedStep, PredictionRow
from paceline.studies.predict.request import USUAL_NETWORK, PredictRequest
from paceline.units import show_rate

WHAT = ("model", "job", "shape", "classes", "optimizer", "batch_size", "scaling")
SETTINGS = (*WHAT, "device", "network", "workers", "cost_model", "ppp_comp", "ppp_comm")


@dataclass(frozen=True, kw_only=True)
class PaleoModel(PacelineModel):
    """One device a host, all on one network; it knows neither memory nor what bounds a step."""

    paleo: Paleo

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

    def check(self) -> None:
        super().check()
        own = [dtype_name(one) for one in self.compute.trace(self.batch).dtypes if one != torch.float32]
        if self.request.precision not in (None, TORCH, "fp32"):  # the job's own
            own.append(str(self.request.precision))
        if own:
            raise UsageError(
                f"Paleo's model knows numbers of 32 bits only, and {self.subject.name!r} computes in {own[0]}; let it "
                "compute in float32, or use Paceline's cost model"
            )

    def row(self, strategy: str, workers: int) -> PredictionRow:
        step, alone = self._step(strategy, workers), self._step(strategy, 1)
        return self._row(workers, step, alone.rate, low=step.seconds, high=step.seconds, bound="compute")

    def _step(self, scheme: str, workers: int) -> PredictedStep:
        batch = self.largest_share(workers)
        breakdown = paleo_step(self.paleo, self.compute.trace(batch), workers, scheme)
        return PredictedStep(breakdown=breakdown, sent=0.0, rate=workers * batch / breakdown.total)

    def modules(self) -> tuple[ModuleCost, ...]:
        layers = paleo_layers(self.paleo, self.compute.trace(self.batch))
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


def find_paleo_model(request: PredictRequest, progress: ShowProgress) -> PaleoModel:
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
    found = find_model(replace(request, model=request.model and as_paleo(request.model)), progress=progress)
    return PaleoModel(**{field.name: getattr(found, field.name) for field in fields(found)}, paleo=paleo)
