"""A small all-reduce that has been done before: what depends on its type, length and operation only."""

from dataclasses import dataclass

from torch import Tensor

from paceline.shm.operations import Operation
from paceline.shm.table import Table

MOST = 256
"""Routines that a team keeps; a script with more lengths than that has no routine."""


@dataclass(frozen=True, slots=True)
class Routine:
    """The call as bytes, and this length's parts of all slots, by turn and rank."""

    packed: bytes
    slots: tuple[list[Tensor], list[Tensor]]
    how: Operation

    def carry_out(self, table: Table, flat: Tensor) -> None:
        """One meeting, and everybody combines all slots in the order of ranks."""
        turn = table.turn
        slots, into = self.slots[turn], self.how.into
        slots[table.rank].copy_(flat)
        table.ask(self.packed)
        table.meeting.doing = "all_reduce"
        table.meeting.meet()
        table.expect(self.packed)
        into(slots[0], slots[1], out=flat)
        for slot in slots[2:]:
            into(flat, slot, out=flat)
        self.how.average(flat, table.size)


def make_routine(table: Table, flat: Tensor, packed: bytes, how: Operation) -> Routine:
    """The routine of tensors like this one."""
    first, second = ([slot[: len(flat)] for slot in turn[: table.size]] for turn in table.slots(flat.dtype))
    return Routine(packed, (first, second), how)
