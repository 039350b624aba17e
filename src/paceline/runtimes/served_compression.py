"""What travels between workers and servers where a codec is in use; the same in both runtimes.

A worker's gradient is encoded with its error memory. A model that answers one travels as the encoded difference from
what that worker has, its *reference*. Both ends add what was sent to theirs, so the next difference holds what this one
left out: differences need no memory, whatever the codec's ``memory`` says of gradients.

Other models, the answers to Join and Pull, are exact, and the reference begins anew with them, as does what a codec
keeps from one difference to the next. Every worker pulls before a checkpoint and joins when a run resumes, so none of
this is saved, and a resumed run still equals one that was never stopped.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from paceline.codecs.base import Codec
from paceline.codecs.context import Context, Layout
from paceline.codecs.messages import CorruptMessage, from_bytes, message_kinds, to_bytes
from paceline.codecs.reduction import encode_once
from paceline.codecs.state import CodecState
from paceline.runtimes.prepare import JobInfo, Prepared
from paceline.strategies.base import Server, Worker, server_slices
from paceline.strategies.messages import Model, Push

OF_MODELS = 0x5EED
"""Added to the run's seed for models: their noise has nothing in common with that of gradients."""


@dataclass(frozen=True, kw_only=True)
class SliceCodec:
    """The codec on the slice that one server keeps: what both ends of a message know without sending it."""

    codec: Codec
    layout: Layout
    """Of the slice."""
    start: int
    dtype: torch.dtype
    seed: int

    def at(self, message: Push | Model) -> Codec:
        """By the worker's clock for a gradient, by the server's version for a model."""
        if isinstance(message, Push):
            return self.codec.at(message.clock)
        return self.codec.at(message.version).without_memory()

    def context(self, message: Push | Model, worker: int) -> Context:
        number, seed = message.version, self.seed + OF_MODELS
        if isinstance(message, Push):
            number, seed = message.clock, self.seed
        return Context(layout=self.layout, start=self.start, round=number, rank=worker, seed=seed)

    def add(self, message: Push | Model, worker: int, out: Tensor) -> None:
        """Add what an encoded message stands for to ``out``; CorruptMessage for what no encoder makes."""
        codec, context = self.at(message), self.context(message, worker)
        raw = _tensor(message).to(out.device)
        kinds = message_kinds(codec, self.layout, self.dtype, raw.device)
        codec.add(from_bytes(raw, kinds, varies=codec.varies), out, context)

    def fits(self, message: Push | Model) -> bool:
        """Whether an encoder makes so many bytes; where data decide, at most an element for each of the slice."""
        codec, raw = self.at(message), _tensor(message)
        found, kinds = raw.numel(), message_kinds(codec, self.layout, self.dtype, raw.device)
        if codec.varies:
            return found <= self.layout.elements * sum(kind.itemsize for kind, _ in kinds)
        return found == sum(kind.itemsize * many for kind, many in kinds)


class PlainMessages:
    """One end of the messages where nothing is encoded."""

    slices: tuple[SliceCodec, ...] = ()
    """How those of each server are encoded."""

    def encoded(self, peer: int, message: Any) -> Any:  # noqa: ARG002
        return message

    def decoded(self, peer: int, message: Any) -> Any:  # noqa: ARG002
        return message

    def forget(self, peer: int) -> None:
        pass


class WorkerMessages(PlainMessages):
    """A worker's end; the error memory and a codec's own state lie in ``me.state``, so checkpoints have them.

    The reference is a vector of its own, because a program may change ``me.params`` between two answers.
    """

    def __init__(self, me: Worker, layout: Layout, slices: tuple[SliceCodec, ...], workers: int) -> None:
        """``workers`` are those with which the run begins."""
        self._me, self.slices = me, slices
        self._references = server_slices(me.params.clone(), len(slices))
        self._state = CodecState(
            slices[0].codec,
            layout,
            me.state,
            dtype=me.params.dtype,
            device=me.params.device,
            rank=me.rank,
            workers=workers,
            seed=slices[0].seed,
        )

    @torch.no_grad()
    def encoded(self, peer: int, message: Any) -> Any:
        """A gradient as the server gets it; NotFinite names the parameter where it is not finite."""
        if not isinstance(message, Push):
            return message
        one, vector = self.slices[peer], message.grad.clone()
        stop = one.start + one.layout.elements
        context = self._state.context(one.start, stop, message.clock)
        if message.samples:
            coded = encode_once(one.codec, vector, context)
        else:  # it counts for nothing at the server, so nothing of the memory goes with it
            coded = one.at(message).without_memory().encode(vector, context)
        return replace(message, grad=to_bytes(coded))

    @torch.no_grad()
    def decoded(self, peer: int, message: Any) -> Any:
        """The model as the program gets it, of an encoded difference or of an exact one."""
        if not isinstance(message, Model):
            return message
        reference = self._references[peer]
        if not is_encoded(message):
            reference.copy_(message.params)
            return message
        self.slices[peer].add(message, self._me.rank, reference)
        return replace(message, params=reference)


class ServerMessages(PlainMessages):
    """A server's end: what each worker has, and what the codec keeps from one difference to the next."""

    def __init__(self, me: Server, one: SliceCodec) -> None:
        self._me, self._slice = me, one
        self.references: dict[int, Tensor] = {}
        self._states: dict[int, CodecState] = {}

    def forget(self, peer: int) -> None:
        """The next model for this worker is exact."""
        self.references.pop(peer, None)
        self._states.pop(peer, None)

    @torch.no_grad()
    def decoded(self, peer: int, message: Any) -> Any:
        """A gradient as the program gets it; CorruptMessage for what no encoder makes."""
        if not isinstance(message, Push):
            self.forget(peer)
            return message
        grad = self._me.grad.new_zeros(self._me.grad.shape)
        self._slice.add(message, peer, grad)
        return replace(message, grad=grad)

    @torch.no_grad()
    def encoded(self, peer: int, message: Any) -> Any:
        """A model as a worker gets it; exact where it is not finite, or too large for the codec.

        Such a model the worker then reports.
        """
        if not isinstance(message, Model):
            return message
        if peer in self.references:
            difference = message.params - self.references[peer]
            with suppress(CorruptMessage):
                if difference.is_meta or isfinite(difference.sum().item()):
                    return replace(message, params=self._encode(peer, message, difference))
        one, params = self._slice, message.params
        self.references[peer] = params.clone()
        self._states[peer] = CodecState(
            one.codec.without_memory(), one.layout, {}, dtype=one.dtype, device=params.device, seed=one.seed
        )
        return message

    def _encode(self, peer: int, message: Model, difference: Tensor) -> Tensor:
        codec, context = self._slice.at(message), self._slice.context(message, peer)
        kept = self._states[peer].context(0, difference.numel(), message.version).state
        coded = codec.encode(difference, replace(context, state=kept))
        codec.add(coded, self.references[peer], context)
        return to_bytes(coded)


def slices_of(prepared: Prepared[JobInfo], layout: Layout, dtype: torch.dtype) -> tuple[SliceCodec, ...]:
    """One for each server; none where nothing is encoded."""
    if not (prepared.compresses and prepared.servers):
        return ()
    return tuple(
        SliceCodec(
            codec=prepared.codec,
            layout=layout.between(start, stop),
            start=start,
            dtype=dtype,
            seed=prepared.settings.seed,
        )
        for start, stop in slice_bounds(layout.elements, prepared.servers)
    )


def slice_bounds(elements: int, servers: int) -> list[tuple[int, int]]:
    parts = server_slices(torch.zeros(1).expand(elements), servers)
    return list(pairwise(accumulate((part.numel() for part in parts), initial=0)))


def worker_messages(prepared: Prepared[JobInfo], me: Worker, layout: Layout) -> PlainMessages:
    slices = slices_of(prepared, layout, me.params.dtype)
    return WorkerMessages(me, layout, slices, prepared.settings.workers) if slices else PlainMessages()


def server_messages(prepared: Prepared[JobInfo], me: Server, layout: Layout) -> PlainMessages:
    slices = slices_of(prepared, layout, me.params.dtype)
    return ServerMessages(me, slices[me.rank]) if slices else PlainMessages()


def is_encoded(message: Push | Model) -> bool:
    return _tensor(message).dtype is torch.uint8


def _tensor(message: Push | Model) -> Tensor:
    return message.grad if isinstance(message, Push) else message.params
