"""Sentences about encoded vectors, the same ones in the text, on the page and in the JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.reports.explain.document import (
    Encoded,
    ExplainedRound,
    RankValues,
    Receipt,
    ShownMessage,
    Values,
    numbers_in,
)
from paceline.reports.explain.observed import Encoding
from paceline.reports.explain.sentences import SPELLED, cell, number, numbers, rounds_and_messages
from paceline.units import show_bytes


class Exchanged(NamedTuple):
    """What an exchange carries, in words."""

    title: str = ""
    column: str = "chunk"
    """What stands above a column."""
    how: str = ""
    decoded: str = ""


SUM = Exchanged(
    how="Messages are summed on the way, as vectors are.",
    decoded="Every process decodes the sum.",
)
LENGTHS = Exchanged(
    title="gather the lengths",
    column="length",
    how="The data decide how long a message is, so lengths are exchanged first.",
)
MESSAGES = Exchanged(
    title="gather the messages",
    column="message",
    how="Messages cannot be summed on the way: each travels round a ring as it is, and every process adds up all of "
    "them.",
    decoded="Every process decodes all messages and adds them up, in the order of ranks.",
)
SCATTER = Exchanged(title="sum chunk r at process r")
ENCODED_SUMS = Exchanged(
    title="gather the sums, encoded",
    how="Messages cannot be summed on the way: process r sums chunk r for all (a reduce-scatter), encodes the sum, and "
    "all gather these; what a process sends does not grow with the number of processes.",
    decoded="Every process decodes the sums of all chunks.",
)
DENSE_SUMS = Exchanged(
    title="gather the sums",
    how="So many messages would be longer than the vectors: process r sums chunk r for all (a reduce-scatter), where "
    "equal indices meet, and sends it on as it is.",
    decoded="Every process has the sums of all chunks.",
)
PREPARED = (
    "The codec changes the gradients before the memory is added: momentum and clipping have their place here."
)
ADDED = "Every process adds its error memory: what its messages have left out so far."
HAVE_LEFT_OUT = "The memories are what a step before, on the same values, has left out."


def how(kinds: Sequence[Exchanged], schedule: str) -> str:
    """Which way messages go; ``schedule`` is a sentence about the one that sums."""
    if [*kinds] == [LENGTHS, SUM]:
        return f"{LENGTHS.how} Here the messages would be longer than the vectors, so these are summed. {schedule}"
    return " ".join([kind.how for kind in dict.fromkeys(kinds) if kind.how] + [schedule] * (SUM in kinds))


def balanced(balance: Mapping[str, Values], op: str) -> list[str]:
    """The numbers one below the other: values + memories before = result + memories after."""
    labels = {
        "values": f"{op} of the values",
        "prepared": f"{op} of the values, prepared",
        "memories before": "+ memories before",
        "result": "= result",
        "memories after": "+ memories after",
        "lost": "+ what is lost",
        "identity": "without a codec",
    }
    rows = {labels[name]: [number(value) for value in values] for name, values in balance.items()}
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    first = max(map(len, rows))
    return [
        f"{label.ljust(first)}  {'  '.join(text.rjust(width) for text, width in zip(row, widths, strict=True))}"
        for label, row in rows.items()
    ]


def traffic(totals: Mapping[str, Any], hosts: Sequence[int]) -> list[str]:
    total = rounds_and_messages(totals, hosts)
    if len(hosts) == 1:
        return [total, "one process sends nothing, so the codec is not used"]
    sent, dense = (_each(totals[name]) for name in ("bytes_sent", "identity_bytes_sent"))
    return [total, f"each process sends {sent}; with identity, {dense}"]


def _each(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return show_bytes(most) if least == most else f"{show_bytes(least)} to {show_bytes(most)}"


def added(memories: Sequence[Values]) -> tuple[Receipt, ...]:
    return tuple(Receipt(rank, f"p{rank} adds {numbers(memory)}") for rank, memory in enumerate(memories))


def divided(workers: int) -> str:
    return f"Every process divides by {workers}, so that the sum of all is the mean."


def encoding(message: Encoded, *, has_memory: bool, parted: bool) -> str:
    many = "a message for each other process, of the chunk that the other one sums" if parted else "a message"
    rest = "stays in the error memory" if has_memory else "is lost"
    own = " Its own chunk a process need not encode." if parted else ""
    if "indices" in message.contents:
        return f"Every process makes {many}: what is marked, with its index; the rest {rest}.{own}"
    return f"Every process makes {many}, which stands for the new values; the difference {rest}.{own}"


def sends(rank: int, messages: Iterable[tuple[Encoding, str]]) -> Receipt:
    """Each message with whom it is for; and the bytes of each."""
    found = [*messages]
    words = ", ".join(f"{cell(one.cell())}{whom}" for one, whom in found)
    size = _each([one.bytes for one, _ in found])
    return Receipt(rank, f"p{rank} encodes {words} ({size}{' each' if len(found) > 1 else ''})")


def passed_on(kind: Exchanged, first: object) -> str:
    sparse = isinstance(first, Encoded) and "indices" in first.contents
    how = "; indices travel with their values, and nothing is merged on the way" if sparse else ", as it is"
    return f"Every process passes one {kind.column} on to its right neighbour{how}."


def arrived(after: ExplainedRound, kind: Exchanged) -> str:
    cells = [held for row in after.cells for held in row]
    return f"afterwards {sum(held != () for held in cells)} of {len(cells)} {kind.column}s are there"


def gathered(after: ExplainedRound, kind: Exchanged) -> tuple[Receipt, ...]:
    return tuple(
        Receipt(
            m.target, f"p{m.target} receives {kind.column} {m.start} from p{m.source}: {cell(m.cells[0])}"
        )
        for m in sorted(after.messages, key=lambda m: m.target)
    )


def scattered(after: ExplainedRound) -> str:
    first = after.messages[0]
    far = (first.target - first.source) % len(after.cells)
    whom = "its right neighbour" if far == 1 else f"the process {far} to its right"
    return (
        f"Every process sends to {whom} the message of that one's chunk; the receiver decodes it and adds it."
    )


def merged(before: RankValues, after: ExplainedRound, starts: Sequence[int]) -> tuple[Receipt, ...]:
    """What meets at process r: "p0 receives chunk 0 from p3: 1: 2.5 + 9.1 = 11.6"."""
    found = []
    for m in sorted(after.messages, key=lambda m: m.target):
        had, has = (numbers_in([state.cells[m.target][m.start]]) for state in (before, after))
        came = m.cells[0]
        assert isinstance(came, Encoded)
        if "indices" in came.contents:
            places = [(int(index), int(index) - starts[m.start]) for index in came.contents["indices"]]
            sums = ", ".join(
                f"{index}: {_sum([had[at], came.stands_for[at]])} = {number(has[at])}" for index, at in places
            )
        elif len(has) <= SPELLED:
            sums = f"sum({numbers(had)}, {numbers(came.stands_for)}) = {numbers(has)}"
        else:
            sums = cell(came)
        found.append(Receipt(m.target, f"p{m.target} receives chunk {m.start} from p{m.source}: {sums}"))
    return tuple(found)


def union(messages: Sequence[ShownMessage], workers: int) -> str:
    """Where entries have come in so far: it grows from round to round."""
    found: list[set[int]] = [set() for _ in range(workers)]
    for message in messages:
        came = message.cells[0]
        if isinstance(came, Encoded) and "indices" in came.contents:
            found[message.target] |= {int(index) for index in came.contents["indices"]}
    if not any(found):
        return ""
    words = ", ".join(
        f"p{rank} at {' '.join(map(str, sorted(some)))}" for rank, some in enumerate(found) if some
    )
    return f"; entries have come to {words}"


def met(messages: Sequence[Encoded]) -> str:
    """The indices of all messages: equal ones are added up."""
    terms: dict[int, list[float]] = {}
    for message in messages:
        for index in message.contents.get("indices", ()):
            terms.setdefault(int(index), []).append(message.stands_for[int(index)])
    words = [
        f"{index}: {_sum(some)}{f' = {number(sum(some))}' if len(some) > 1 else ''}"
        for index, some in sorted(terms.items())
    ]
    return f"from the messages: {', '.join(words)}" if words else ""


def _sum(terms: Sequence[float]) -> str:
    return " + ".join(map(number, terms)).replace("+ -", "- ")


def kept(kinds: Sequence[Exchanged]) -> str:
    if ENCODED_SUMS in kinds:
        more = "; of the chunk that a process summed, what the second encoding left out"
    elif DENSE_SUMS in kinds:
        more = "; nothing of the chunk that a process summed, which was sent as it is"
    else:
        more = ""
    return f"What the messages of a process left out stays in its memory, for the next round{more}."
