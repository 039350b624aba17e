"""A short served run read by read and update by update, and how far it can be from sequential SGD."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.records.servers import Entry, Received, Updated
from paceline.records.summary import Summary
from paceline.reports.text import counted

MOST = 24


def is_short(summary: Summary) -> bool:
    return len(summary.servers) == 1 and 0 < summary.servers[0].updates <= MOST


def sequential_updates(gradient: float, horizon: float) -> int:
    """How many updates one worker alone makes within ``horizon`` seconds, at ``gradient`` seconds each."""
    return int(horizon / gradient * (1 + 1e-9))


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far two runs of SGD can have diverged, in units of learning rate times largest gradient norm."""

    updates: int
    sequential: int
    astray: int

    @property
    def bound(self) -> int:
        """2 for two updates that point in opposite directions, 1 for an update that only one of the two makes."""
        return 2 * self.astray + abs(self.updates - self.sequential)


def distance_to_sequential(staleness: Sequence[int], sequential: int | None = None) -> Distance:
    """Compare updates, by the staleness of each, with a sequential run, by default of as many updates.

    Until the first stale update both runs are at the same place; from there on no gradient need be the same, also
    where it is not stale itself.
    """
    updates = len(staleness)
    sequential = updates if sequential is None else sequential
    same = next((place for place, missed in enumerate(staleness) if missed), updates)
    return Distance(updates=updates, sequential=sequential, astray=max(0, min(updates, sequential) - same))


def timeline_text(entries: Sequence[Entry], sequential: int | None = None) -> str:
    """What one server recorded, as a table in order of time, and the bound; without a last line break.

    ``sequential`` is how many updates one worker alone makes in the same time, where that is known.
    """
    rows = list(_rows(entries))
    longest = max((at for at, _, _ in rows), default=0.0)
    unit, scale = ("s", 1.0) if longest >= 0.1 else ("ms", 1e-3) if longest >= 1e-4 else ("us", 1e-6)
    lines = [f"{f'at {unit}':>9}   worker   what it did"]
    lines += [f"{at / scale:9.3f}   {worker:>6}   {what}" for at, worker, what in rows]
    updates = [entry for entry in entries if isinstance(entry, Updated)]
    stale = [max((one.staleness for one in update.used), default=0) for update in updates]
    return "\n".join([*lines, "", distance_text(distance_to_sequential(stale, sequential))])


def distance_text(distance: Distance) -> str:
    if not distance.bound:
        return "as many updates of sequential SGD lead to the same place: none of these is stale"
    more = distance.updates - distance.sequential
    other = "as many updates of sequential SGD"
    if more:
        other = f"sequential SGD, which makes {distance.sequential} updates in the same time"
    reasons = [
        f"{counted(updates, 'update')} that {which} {f'counts {weight}' if updates == 1 else f'count {weight} each'}"
        for updates, which, weight in (
            (distance.astray, "may differ from its own", 2),
            (more, "it does not make", 1),
            (-more, "only it makes", 1),
        )
        if updates > 0
    ]
    return (
        f"at most {distance.bound} eta Delta from {other}: {', '.join(reasons)} "
        "(for plain SGD; eta is the learning rate, Delta the largest gradient norm)"
    )


def _rows(entries: Sequence[Entry]) -> Iterator[tuple[float, int, str]]:
    """When, which worker, what it did, in the log's order.

    A read is known by the version that the worker's next gradient was computed on.
    """
    used = {
        (one.worker, one.clock): place
        for place, entry in enumerate(entries)
        if isinstance(entry, Updated)
        for one in entry.used
    }
    reads = _reads(entries)
    version = 0
    awaited: dict[int, int] = {}

    def read(worker: int) -> list[str]:
        """The words for a read that can have happened by now; it is then awaited no more."""
        happened = awaited.get(worker, version + 1) <= version
        return [f"reads version {awaited.pop(worker)}"] if happened else []

    for place, entry in enumerate(entries):
        if isinstance(entry, Updated):
            version = entry.version
            for one in entry.used:
                what = f"update {version}, computed on version {one.version}, staleness {one.staleness}"
                yield entry.at, one.worker, "; ".join([what, *read(one.worker)])
            for worker in sorted(awaited):
                for what in read(worker):
                    yield entry.at, worker, what
        elif isinstance(entry, Received):
            if place in reads:
                awaited[entry.worker] = reads[place]
            update = used.get((entry.worker, entry.clock))
            told = _message(entry, at_once=update == place + 1, used=update is not None)
            if told is not None:
                told = [*told, *read(entry.worker)]
            if entry.kind == "Join" and place not in reads:
                told = [f"reads version {version}, and hands nothing in before the end"]
            if told:
                yield entry.at, entry.worker, "; ".join(told)


def _reads(entries: Sequence[Entry]) -> dict[int, int]:
    """The place of a message to the version that its worker read next, where a later gradient tells it."""
    found: dict[int, int] = {}
    pushed: dict[int, int] = {}
    for place, entry in reversed(list(enumerate(entries))):
        if isinstance(entry, Received) and entry.kind in ("Join", "Push", "Pull"):
            if entry.worker in pushed:
                found[place] = pushed.pop(entry.worker)
            if entry.kind == "Push":
                pushed[entry.worker] = entry.version
    return found


def _message(entry: Received, *, at_once: bool, used: bool) -> list[str] | None:
    """The words for a message, none for a mere read; None for one whose update says it all, or that says nothing."""
    match entry.kind:
        case "Join" | "Pull":
            return []
        case "Push" if not used:
            return [f"a gradient computed on version {entry.version}, not used"]
        case "Push" if not at_once:
            return [f"hands in a gradient computed on version {entry.version}"]
        case "Leave" if entry.how != "finished":
            return ["dies" if entry.how == "died" else "leaves"]
    return None
