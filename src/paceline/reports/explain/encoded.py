"""What happens to encoded vectors: the codec's own reduction, run by all ranks on the values, played step by step."""

import inspect
from collections.abc import Iterator, Sequence
from itertools import count
from math import isqrt
from operator import add
from typing import Any

import torch
from torch import Tensor

from paceline import specs
from paceline.codecs import CODECS, build_codec, links
from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.exchanges import run_programs
from paceline.codecs.messages import CorruptMessage
from paceline.codecs.reduction import NotFinite, reduce
from paceline.codecs.state import CodecState
from paceline.collectives.schedule import Schedule, chunk_bounds
from paceline.errors import UsageError
from paceline.reports.explain import coded_sentences as words
from paceline.reports.explain import sentences
from paceline.reports.explain.coded_stages import CodedStages, memories
from paceline.reports.explain.document import Explanation, Values
from paceline.reports.explain.explanation import check_result, count_messages
from paceline.reports.explain.observed import ObservedRank, as_values
from paceline.reports.explain.playing import as_float32, in_chunks, play
from paceline.reports.explain.request import DisplayLimits, ExplainRequest, first_values
from paceline.reports.text import counted

USUAL_LENGTH, LONGER = 8, 16
"""Values a process; more for codecs of matrices, and where the data decide how many are sent."""
WHOLE = [float(number) for number in range(-28, 29)]
TENTHS = [number / 10 for number in range(-99, 100) if number % 10]
"""What 16 bits cannot hold."""
WITHOUT_SUMS = ("ring", "pairwise")
"""Schedules that go with messages which are not summed on the way."""


def explain_encoded(
    request: ExplainRequest, limits: DisplayLimits, hosts: tuple[int, ...], schedule: Schedule
) -> Explanation:
    if request.op not in ("sum", "mean"):
        raise UsageError(
            f"op {request.op} cannot be used with a codec, which is made for sums; choose sum or mean"
        )
    spec, note = _for_few_values(request.codec)
    codec, workers = build_codec(spec), len(hosts)
    usual = LONGER if codec.varies or len(_layout(codec, LONGER).shapes[0]) > 1 else USUAL_LENGTH
    values = first_values(request, workers, max(usual, workers), WHOLE)
    limits.check(workers, length := len(values[0]))
    if not torch.tensor(values).isfinite().all():
        raise UsageError("these values are too large for 32-bit numbers: choose smaller ones")
    layout = _layout(codec, length)
    if _sends_all_of(codec, values[0], layout):
        values = first_values(request, workers, length, TENTHS)
    share = 1 / workers if request.op == "mean" else 1.0
    states = [
        CodecState(codec, layout, {}, rank=rank, workers=workers, seed=request.random_seed)
        for rank in range(workers)
    ]

    def begin(step: int) -> Iterator[tuple[Tensor, Context]]:
        for row, state in zip(values, states, strict=True):
            yield torch.tensor(row).mul_(share), state.context(0, length, step, share)

    try:
        if workers > 1:
            run_programs([reduce(codec, vector, context) for vector, context in begin(0)])
        ranks = [ObservedRank(codec, vector, context) for vector, context in begin(1)]
        stages = CodedStages(ranks, schedule, hosts)
        if workers > 1:
            run_programs([rank.program() for rank in ranks], stages.exchange)
    except (NotFinite, CorruptMessage) as error:
        raise UsageError(
            f"these values are too large for 32-bit numbers: {error}; choose smaller ones"
        ) from error
    _check_schedule(request, stages.kinds)
    stages.close()
    ends = [as_values(rank.vector) for rank in ranks]
    check_result(request, ends, bits=32)
    balance = _balance(stages, ranks)
    totals = _totals(stages, schedule, hosts, values)
    return Explanation(
        schedule=schedule.name,
        op=request.op,
        codec=spec,
        workers=workers,
        hosts=hosts,
        segments=request.segments,
        about=_about(spec),
        how=words.how(stages.kinds, sentences.about(request.schedule)[0]),
        opening=_opening(workers, layout, note, words.HAVE_LEFT_OUT if stages.memories else ""),
        stages=tuple(stages.made),
        result=ends[0],
        balance=balance,
        totals=totals,
        summary=[
            f"{request.op}: {sentences.outcome(ends[0], workers)}",
            *words.balanced(balance, request.op),
            *words.traffic(totals, hosts),
        ],
    )


def _for_few_values(spec: str) -> tuple[str, str]:
    """The spec to be explained, and a remark where it is not the user's."""
    first, *rest = links(spec)
    _, given = specs.split(first, CODECS)
    changed = {key: value for key, value in build_codec(first).example.items() if key not in given}
    if not changed:
        return spec, ""
    for key, value in changed.items():
        first = specs.with_setting(first, CODECS, key, value)
    return (
        shown := "+".join((first, *rest)),
        f"The codec is {shown}: on so few values its usual {' and '.join(changed)} would show nothing.",
    )


def _about(spec: str) -> str:
    kinds = (type(build_codec(link)) for link in links(spec))
    return " Of that, the floats: ".join((inspect.getdoc(kind) or "").partition("\n")[0] for kind in kinds)


def _layout(codec: Codec, length: int) -> Layout:
    """A matrix, nearly a square, for codecs that treat it in another way than a vector."""
    height = next(height for height in range(isqrt(length), 0, -1) if length % height == 0)
    shape = (height, length // height)
    state = codec.initial_state(shape, 0)
    is_matrix = height > 1 and any(one.numel() != length for one in state.values())
    return Layout(("values",), (shape,)) if is_matrix else Layout.of_vector(length, "values")


def _sends_all_of(codec: Codec, values: Values, layout: Layout) -> bool:
    context = CodecState(codec, layout, {}).context(0, layout.elements, 0)
    vector = torch.tensor(values)
    return torch.equal(codec.decode(codec.encode(vector, context), context), vector)


def _opening(workers: int, layout: Layout, *more: str) -> str:
    (shape,) = layout.shapes
    form = f", a matrix of {shape[0]} x {shape[1]}" if len(shape) > 1 else ""
    each = " each" if workers > 1 else ""
    first = f"{sentences.processes(workers)}, {counted(layout.elements, 'value')}{each}{form}."
    return " ".join(filter(None, (first, *more)))


def _check_schedule(request: ExplainRequest, kinds: Sequence[words.Exchanged]) -> None:
    if words.SUM in kinds or not kinds:
        return
    sum_up = ", ".join(name for name in CODECS if build_codec(name).sums)
    why = f"codec {request.codec!r}, whose messages are not summed on the way"
    if request.schedule not in WITHOUT_SUMS:
        raise UsageError(
            f"schedule {request.schedule!r} cannot be used with {why}: choose {' or '.join(WITHOUT_SUMS)}, "
            f"or a codec whose messages are ({sum_up})"
        )
    if request.segments > 1:
        raise UsageError(
            f"segments {request.segments} cannot be used with {why}: leave them out, "
            f"or choose a codec whose messages are ({sum_up})"
        )


def _balance(stages: CodedStages, ranks: Sequence[ObservedRank]) -> dict[str, Values]:
    """Over all ranks: what went in, and what became of it."""
    share = ranks[0].context.share
    result = ranks[0].vector
    went_in, given = _sum_of([rank.prepared for rank in ranks]), _sum_of(stages.values) * share
    balance = {"values" if torch.allclose(went_in, given) else "prepared": went_in}
    if stages.memories:
        balance["memories before"] = _sum_of(stages.memories) * share
    balance["result"] = result
    after = memories(ranks)
    balance["memories after" if after else "lost"] = _sum_of(after) * share if after else went_in - result
    balance["identity"] = given
    noise = 1e-6 * max(float(one.abs().max()) for one in balance.values())
    return {name: as_values(one.where(one.abs() > noise, 0.0)) for name, one in balance.items()}


def _sum_of(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([*rows]).double().sum(dim=0)


def _totals(
    stages: CodedStages, schedule: Schedule, hosts: Sequence[int], values: Sequence[Values]
) -> dict[str, Any]:
    steps = [step for stage in stages.made for step in stage.steps]
    start = in_chunks(values, chunk_bounds(len(values[0]), schedule.chunks).tolist())
    dense = [
        message for _, turn in play(schedule, start, count(), add, as_float32) for message in turn.messages
    ]
    return {
        **count_messages(hosts, [message for step in steps for message in step.messages]),
        "rounds": sum(step.round is not None for step in steps),
        "identity_bytes_sent": count_messages(hosts, dense)["bytes_sent"],
    }
