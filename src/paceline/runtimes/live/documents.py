"""What workers tell each other before and after the tensors: JSON documents, through a store."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from paceline.errors import Mistake
from paceline.runtimes.live.place import Place


class Documents:
    """The store of all workers. All must make the same calls in the same order."""

    def __init__(self, place: Place, timeout: timedelta) -> None:
        """Meet the others; raises if they do not come in time. Servers come too, and exchange nothing."""
        self._rank, self._workers, self._exchanges = place.rank, place.workers, 0
        host = f"[{place.address}]" if ":" in place.address else place.address
        number = place.rank + (place.workers if place.role == "server" else 0)
        where = f"tcp://{host}:{place.port}?rank={number}&world_size={place.workers + place.servers}"
        self.store: Store = next(iter(rendezvous(where, timeout=timeout)))[0]

    def exchange(self, document: Any) -> list[Any]:
        """Put one document into the store, and take every worker's out, by rank."""
        self._exchanges += 1
        self.store.set(self._key(self._rank), json.dumps(document))
        return [json.loads(self.store.get(self._key(rank))) for rank in range(self._workers)]

    def part(self) -> None:
        """Say goodbye. Rank 0 waits for all, because its store must outlive the others' last use of it."""
        self._exchanges += 1
        self.store.set(self._key(self._rank), "left")
        if self._rank == 0:
            for rank in range(self._workers):
                self.store.get(self._key(rank))

    def _key(self, rank: int) -> str:
        return f"paceline/{self._exchanges}/{rank}"


def check_equal(asked: Sequence[Mapping[str, Any]]) -> None:
    """Refuse workers that were not all asked for the same; ``asked`` is what each was, by rank."""
    for rank, other in enumerate(asked):
        if differing := [key for key in asked[0] if other[key] != asked[0][key]]:
            key = differing[0]
            raise Mistake(
                f"rank {rank} was started for something else than rank 0: {key} is {other[key]} there and "
                f"{asked[0][key]} on rank 0; start every host with the same options"
            )
