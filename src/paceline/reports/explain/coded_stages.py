"""The stages of a reduction of encoded vectors: before the first exchange, each exchange, and after the last."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from operator import add

import numpy as np
import torch
from torch import Tensor

from paceline.codecs.exchanges import AllGather, AllToAll, Exchanges, Gathered, Sum, exchange_all
from paceline.collectives.algorithms import all_gather, pairwise
from paceline.collectives.schedule import Ranks, Schedule, chunk_bounds
from paceline.errors import UsageError
from paceline.reports.explain import coded_sentences as words
from paceline.reports.explain import sentences
from paceline.reports.explain.document import (
    Cell,
    ExplainedRound,
    ExplainedStage,
    RankValues,
    Receipt,
    ShownMessage,
    numbers_in,
)
from paceline.reports.explain.observed import ObservedRank, as_values
from paceline.reports.explain.playing import explained_rounds, in_chunks, play


class CodedStages:
    """Makes stages of what the programs of all ranks do; ``exchange`` carries out what they ask for."""

    def __init__(self, ranks: Sequence[ObservedRank], schedule: Schedule, hosts: Sequence[int]) -> None:
        self.made: list[ExplainedStage] = []
        self.kinds: list[words.Exchanged] = []
        self.values = self.inputs = [rank.vector / rank.context.share for rank in ranks]
        self.memories = memories(ranks)
        self._sent = self.inputs
        self._ranks, self._schedule, self._hosts = ranks, schedule, np.asarray(hosts)
        self._numbers = count(1)

    def exchange(self, exchanges: Exchanges) -> Gathered:
        if isinstance(exchanges[0], AllToAll):
            for number, rank in enumerate(self._ranks):
                del rank.encodings[number : number + 1]  # of its own chunk, which it does not send
        if not self.made:
            self._sent = self.inputs = [rank.vector.clone() for rank in self._ranks]
            self.made.append(_by_element(self.values, self._before(isinstance(exchanges[0], AllToAll))))
        match exchanges[0]:
            case Sum():
                return self._sum([one for one in exchanges if isinstance(one, Sum)])
            case AllGather():
                self._gather([one.vector for one in exchanges if isinstance(one, AllGather)])
            case AllToAll():
                self._scatter(exchanges[0].vectors[0].nbytes)
        return exchange_all(exchanges)

    def close(self) -> None:
        """Add what all have in the end."""
        if not self.made:
            self.made.append(_by_element(self.values, ()))
            return
        last, progress = self.kinds[-1], ""
        if last == words.MESSAGES:
            progress = words.met([rank.encodings[-1].cell() for rank in self._ranks])
        step = _step(
            "decode", last.decoded, [rank.vector for rank in self._ranks], progress=progress, done=True
        )
        self.made.append(_by_element(self._sent, [step]))
        if self.memories:
            step = _step("keep the rest", words.kept(self.kinds), memories(self._ranks))
            self.made.append(_by_element(self.memories, [step], "error memory"))

    def _before(self, parted: bool) -> Iterator[ExplainedRound]:
        share, workers = self._ranks[0].context.share, len(self._ranks)
        rows = [rank.prepared / share for rank in self._ranks]
        if not all(map(torch.equal, rows, self.values)):
            yield _step("prepare the gradients", words.PREPARED, rows)
        if self.memories:
            rows = [row + memory for row, memory in zip(rows, self.memories, strict=True)]
            added = words.added([*map(as_values, self.memories)])
            yield _step("add the error memory", words.ADDED, rows, received=added)
        if share != 1:
            yield _step(f"divide by {workers}", words.divided(workers), self.inputs)
        if all(rank.encodings for rank in self._ranks):
            yield self._encode(parted)

    def _encode(self, parted: bool) -> ExplainedRound:
        """``parted``: the k-th message of a rank is for the k-th other one."""
        rows = [vector.clone() for vector in self.inputs]
        self._sent = [vector.clone() for vector in self.inputs]
        encoded, received = [], []
        for number, rank in enumerate(self._ranks):
            for one in rank.encodings:
                self._sent[number][one.where] = one.stands_for()
                if not one.is_sparse:
                    rows[number][one.where] = one.stands_for()
            encoded.append(tuple(column for one in rank.encodings for column in one.columns))
            others = [f" for p{other}" for other, _ in enumerate(self._ranks) if other != number]
            received.append(words.sends(number, zip(rank.encodings, others if parted else [""], strict=True)))
        first = self._ranks[0].encodings[0].cell()
        sentence = words.encoding(first, has_memory=bool(self.memories), parted=parted)
        return _step("encode", sentence, rows, encoded=tuple(encoded), received=tuple(received))

    def _chunks(self) -> list[slice]:
        return [self._ranks[0].context.chunk(rank)[0] for rank, _ in enumerate(self._ranks)]

    def _sum(self, sums: Sequence[Sum]) -> Gathered:
        tensors = [one.tensor for one in sums]
        dtype, width = tensors[0].dtype, tensors[0].itemsize

        def rounded(one: float, other: float) -> float:
            return as_values(torch.tensor([one], dtype=dtype) + torch.tensor([other], dtype=dtype))[0]

        bounds = chunk_bounds(tensors[0].numel(), self._schedule.chunks).tolist()
        start = in_chunks([*map(as_values, tensors)], bounds)
        rounds = explained_rounds(
            self._schedule, "sum", start, self._numbers, rounded, lambda cells: width * len(numbers_in(cells))
        )
        title = sums[0].what or ("sum the vectors" if words.LENGTHS in self.kinds else "sum the messages")
        self._add(words.SUM, sentences.chunk_columns(self._schedule.chunks), start, rounds, title)
        for tensor, row in zip(tensors, self.made[-1].states[-1].values, strict=True):
            tensor.copy_(torch.tensor(row))
        return [None] * len(sums)

    def _gather(self, raws: Sequence[Tensor]) -> None:
        kind, own, parts = self._gathered(raws)
        ranks = range(len(raws))
        start = RankValues(
            cells=tuple(tuple(own[of] if of == rank else () for of in ranks) for rank in ranks),
            parts=tuple(tuple(parts[of] if of == rank else () for of in ranks) for rank in ranks),
        )
        rounds = play(_ring(self._hosts), start, self._numbers, lambda _, new: new, lambda _: raws[0].nbytes)
        steps = (
            replace(
                after,
                sentence=words.passed_on(kind, own[0]),
                progress=words.arrived(after, kind),
                received=words.gathered(after, kind),
            )
            for _, after in rounds
        )
        columns = tuple(f"{kind.column} {rank}" for rank in ranks)
        self._add(kind, columns, start, steps)

    def _gathered(
        self, raws: Sequence[Tensor]
    ) -> tuple[words.Exchanged, list[Cell], Sequence[tuple[int, ...]]]:
        """What each rank brings, and whose values are in that."""
        alone, all_ranks = [(rank,) for rank in range(len(raws))], [tuple(range(len(raws)))] * len(raws)
        if raws[0].dtype != torch.uint8:
            return words.LENGTHS, [as_values(raw) for raw in raws], alone
        if words.SCATTER not in self.kinds:
            self._check_encodings()
            return words.MESSAGES, [rank.encodings[-1].cell() for rank in self._ranks], alone
        if all(rank.encodings for rank in self._ranks):
            self.made.append(self._requantise())
            return words.ENCODED_SUMS, [rank.encodings[-1].cell() for rank in self._ranks], all_ranks
        dtype = self.inputs[0].dtype
        dense = [
            as_values(raw[: (where.stop - where.start) * dtype.itemsize].view(dtype))
            for raw, where in zip(raws, self._chunks(), strict=True)
        ]
        return words.DENSE_SUMS, list[Cell](dense), all_ranks

    def _check_encodings(self) -> None:
        if not all(rank.encodings for rank in self._ranks):
            raise UsageError(
                "this codec has a reduction of its own, which does not send what it encodes: it cannot be shown"
            )

    def _scatter(self, size: int) -> None:
        self._check_encodings()
        chunks = self._chunks()
        cells = []
        for number, (rank, vector) in enumerate(zip(self._ranks, self.inputs, strict=True)):
            held: list[Cell] = [one.cell() for one in rank.encodings]
            held.insert(number, as_values(vector[chunks[number]]))
            cells.append(tuple(held))
        start = RankValues(
            cells=tuple(cells), parts=tuple(((rank,),) * len(chunks) for rank in range(len(cells)))
        )
        steps: list[ExplainedRound] = []
        sent_so_far: list[ShownMessage] = []
        schedule = _reduce_scatter(self._hosts)
        for before, after in play(schedule, start, self._numbers, add, lambda _: size):
            sent_so_far += after.messages
            steps.append(
                replace(
                    after,
                    sentence=words.scattered(after),
                    progress=sentences.progress(after.parts) + words.union(sent_so_far, len(cells)),
                    received=words.merged(before, after, [where.start for where in chunks]),
                )
            )
        columns = sentences.chunk_columns(len(chunks))
        self._add(words.SCATTER, columns, start, steps)
        for rank in self._ranks:
            rank.encodings.clear()

    def _requantise(self) -> ExplainedStage:
        """Each rank encodes the sum of its chunk."""
        rest = "stays in its memory" if self.memories else "is lost"
        sums, after = [], []
        for one in (rank.encodings[-1] for rank in self._ranks):
            sums.append(as_values(one.vector))
            after.append((sums[-1], one.cell(), as_values(one.vector - one.stands_for())))
        parts = tuple(((*range(len(sums)),), (), ()) for _ in sums)
        step = ExplainedRound(
            phase="encode",
            title="encode the sums",
            sentence=f"Every process encodes the sum of its chunk; what that leaves out {rest}.",
            cells=tuple(after),
            parts=parts,
        )
        start = RankValues(cells=tuple((one, (), ()) for one in sums), parts=parts)
        return ExplainedStage(columns=("sum of its chunk", "message", rest), start=start, steps=(step,))

    def _add(
        self,
        kind: words.Exchanged,
        columns: tuple[str, ...],
        start: RankValues,
        steps: Iterable[ExplainedRound],
        title: str = "",
    ) -> None:
        self.kinds.append(kind)
        stage = ExplainedStage(title=title or kind.title, columns=columns, start=start, steps=tuple(steps))
        self.made.append(stage)


def memories(ranks: Iterable[ObservedRank]) -> list[Tensor]:
    """What each rank has left out so far; empty without error memory."""
    return [rank.context.memory.clone() for rank in ranks if rank.context.memory is not None]


def _step(
    title: str,
    sentence: str,
    rows: Sequence[Tensor],
    *,
    progress: str = "",
    received: tuple[Receipt, ...] = (),
    encoded: tuple[tuple[int, ...], ...] = (),
    done: bool = False,
) -> ExplainedRound:
    """What every rank does with its vector by itself."""
    state = in_chunks([*map(as_values, rows)], range(len(rows[0]) + 1))
    everyone = (tuple(range(len(rows))),) * len(rows[0])
    return ExplainedRound(
        phase=title,
        title=title,
        sentence=sentence,
        progress=progress,
        received=received,
        encoded=encoded,
        cells=state.cells,
        parts=(everyone,) * len(rows) if done else state.parts,
    )


def _by_element(rows: Sequence[Tensor], steps: Iterable[ExplainedRound], title: str = "") -> ExplainedStage:
    start = in_chunks([*map(as_values, rows)], range(len(rows[0]) + 1))
    return ExplainedStage(
        title=title, columns=tuple(map(str, range(len(rows[0])))), start=start, steps=tuple(steps)
    )


def _ring(hosts: Ranks) -> Schedule:
    """The all-gather whose chunk r is what rank r brings."""
    schedule = all_gather(hosts)
    rounds = []
    for turn in schedule.each_round():
        starts = (turn.starts - 1) % len(hosts)
        rounds.append(replace(turn, phase=schedule.name, starts=starts, stops=starts + 1))
    return replace(schedule, rounds=tuple(rounds))


def _reduce_scatter(hosts: Ranks) -> Schedule:
    """The first half of a pairwise exchange."""
    schedule = pairwise(hosts)
    return replace(schedule, rounds=schedule.rounds[: len(schedule.rounds) // 2])
