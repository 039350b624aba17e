"""Which codec pays: a step with each against one without, and the bandwidth below which it is the faster one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean
from typing import ClassVar

from torch import Tensor

from paceline.codecs import NO_CODEC
from paceline.codecs.base import Codec
from paceline.codecs.context import Context
from paceline.codecs.messages import Message, message_kinds
from paceline.costs.coding import UNCODED
from paceline.studies.predict.model import PacelineModel
from paceline.studies.predict.prediction import (
    CodecComparison,
    CodecStep,
    LimitingLink,
    Pays,
    PredictedStep,
    Where,
)
from paceline.studies.predict.search import least_factor
from paceline.studies.predict.setup import PERFECT, Setup, with_link, with_slower
from paceline.studies.predict.step import find_bounds, predict_step, quick_seconds

PAYS = 1.01
"""A codec pays where a step is at least this many times as fast: less may be the simulation's own inaccuracy."""
FAR = 1e6
"""Links of at most this many times the bandwidth are tried, and of as many times less."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCodec(Codec):
    """A codec of which only data tell how long its messages are, with the lengths that a real gradient had."""

    codec: Codec
    lengths: tuple[tuple[str, float], ...]
    """For each parameter, by its name, the elements of a message over its own."""
    varies: ClassVar[bool] = True

    def encode(self, vector: Tensor, context: Context) -> Message:
        parts, layout = dict(self.lengths), context.layout
        usual = fmean(parts.values())  # of a chunk that is named after no parameter
        many = sum(
            parts.get(name, usual) * prod(shape)
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        )
        return tuple(one.new_empty(round(many)) for one in self.codec.encode(vector, context))

    def decode(self, message: Message, context: Context) -> Tensor:
        return self.codec.decode(message, context)

    def add(self, message: Message, out: Tensor, context: Context, alpha: float = 1.0) -> None:
        self.codec.add(message, out, context, alpha)

    def without_memory(self) -> Codec:
        """Differences of parameters are no gradients: of their messages the codec's own guess is all there is."""
        return self.codec.without_memory()

    def initial_state(self, shape: tuple[int, ...], seed: int) -> dict[str, Tensor]:
        return self.codec.initial_state(shape, seed)

    def prepare(self, vector: Tensor, context: Context) -> None:
        self.codec.prepare(vector, context)

    def on_dense_send(self, context: Context) -> None:
        self.codec.on_dense_send(context)


def assumed_part(setup: Setup) -> float | None:
    """The part of a vector's elements that a message is taken to have; None where that is known, or was measured."""
    codec, shape = setup.coding.codec, setup.shape
    if not codec.varies or (isinstance(codec, MeasuredCodec) and not setup.program.served):
        return None
    kinds = message_kinds(codec.without_memory(), shape.layout, shape.dtype)
    return max(many for _, many in kinds) / max(1, shape.layout.elements)


def compare_codecs(model: PacelineModel) -> Iterator[CodecComparison]:
    """One a strategy, with the most workers asked for; none where nothing is encoded, or nothing sent."""
    specs = [spec for spec in model.request.codecs if model.coding_by(spec).compresses]
    workers = max(model.workers)
    for strategy in model.strategies if specs else ():
        plain = replace(model.setup(strategy, workers), coding=UNCODED)
        if workers > 1 or plain.server_hosts:
            coded = {spec: replace(plain, coding=model.coding_by(spec)) for spec in specs}
            wire = model.deployment.wire(plain.cluster, link_in_question(plain))
            steps = compare_steps(plain, coded, wire, model.step)
            yield CodecComparison(strategy=strategy, workers=workers, wire=wire, steps=steps)


def link_in_question(plain: Setup) -> Where:
    """The network where a step would gain from more of it, else what else a step would gain most from."""
    wider = quick_seconds(with_link(plain, "network", bandwidth=2.0))
    return "network" if PAYS * wider < quick_seconds(plain) else find_bounds(plain).carrier


def compare_steps(
    plain: Setup,
    coded: dict[str, Setup],
    wire: LimitingLink,
    step: Callable[[Setup], PredictedStep] = predict_step,
) -> tuple[CodecStep, ...]:
    """A step without a codec, then the same setup with each; ``wire`` is the link whose bandwidth is varied."""
    without = step(plain)
    found = [CodecStep(codec=NO_CODEC, sent=without.sent, coding=0.0, step=without.seconds, gain=1.0)]
    for name, setup in coded.items():
        encoded = step(setup)
        gain = encoded.rate / without.rate
        pays, factor = _pays(plain, setup, wire.where, now=gain >= PAYS)
        found.append(
            CodecStep(
                codec=name,
                sent=encoded.sent,
                coding=max(0.0, _unhindered(setup) - _unhindered(plain)),
                step=encoded.seconds,
                gain=gain,
                pays=pays,
                below=None if factor is None else factor * wire.bandwidth,
                assumed=assumed_part(setup),
            )
        )
    return tuple(found)


def _unhindered(setup: Setup) -> float:
    return quick_seconds(with_slower(setup, transfers=PERFECT))


def _pays(plain: Setup, coded: Setup, where: Where, *, now: bool) -> tuple[Pays, float | None]:
    """Where a codec pays, by a factor on the bandwidth; ``now`` says whether it does at a factor of 1."""

    def loses(factor: float) -> bool:
        without, encoded = (quick_seconds(with_link(one, where, bandwidth=factor)) for one in (plain, coded))
        return without < PAYS * encoded

    if now:
        factor = least_factor(loses, 1.0, FAR)
        return ("always", None) if factor is None else ("below", factor)
    if loses(1 / FAR):
        return "never", None
    return "below", least_factor(lambda factor: factor == 1.0 or loses(factor), 1 / FAR, 1.0)
