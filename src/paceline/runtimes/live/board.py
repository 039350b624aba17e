"""Words that workers leave for each other in their store, apart from the collectives."""

from collections.abc import Sequence

from torch.distributed.distributed_c10d import PrefixStore, Store


class Board:
    """One thread's own connection to the store: a connection answers one question at a time."""

    def __init__(self, store: Store) -> None:
        self._store = PrefixStore("board", store.clone())  # type: ignore[attr-defined]

    def post(self, name: str, word: str) -> None:
        """Leave a word for all."""
        self._store.set(name, word)

    def posted(self, names: Sequence[str]) -> list[str] | None:
        """The words, or None while one of them is missing; waits for nobody."""
        if not self._store.check(list(names)):
            return None
        return [self._store.get(name).decode() for name in names]
