"""Where workers run: the options that training and benchmarks share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from paceline.cli.options import WHERE, whole
from paceline.errors import Mistake

if TYPE_CHECKING:
    from paceline.runtimes.live.place import Place
    from paceline.runtimes.live.plan import Launch


@Parameter(name="*")
@dataclass(kw_only=True)
class PlaceOptions:
    """None means that an option was not given."""

    workers: Annotated[int | None, Parameter(converter=whole, name=["--workers", "-np"], group=WHERE)] = None
    """Worker processes on this host (default 2)."""
    nodes: Annotated[int | None, Parameter(converter=whole, name=["--nodes", "-n"], group=WHERE)] = None
    """Hosts that take part (default 1); start the command on each."""
    node_rank: Annotated[int | None, Parameter(converter=whole, name=["--node-rank", "-nr"], group=WHERE)] = (
        None
    )
    """Which of the hosts this is, from 0."""
    address: Annotated[str | None, Parameter(name=["--address", "-a"], group=WHERE)] = None
    """The host of node rank 0, as the others reach it."""
    port: Annotated[int | None, Parameter(converter=whole, name=["--port", "-p"], group=WHERE)] = None
    """A free port on that host (default 29500)."""

    def plan(self, workers: int) -> "Launch":
        """The launch of so many workers on this host."""
        from paceline.runtimes.live.plan import Launch

        return Launch(
            nodes=1 if self.nodes is None else self.nodes,
            workers=workers,
            address=self.address,
            port=self.port,
            node_rank=self.node_rank or 0,
        )

    def refuse(self, place: "Place") -> None:
        """Under a launcher the launcher decides; saying it twice must not say two things."""
        decided = {
            "--nodes": self.nodes,
            "--node-rank": self.node_rank,
            "--address": self.address,
            "--port": self.port,
        }
        for option, given in decided.items():
            if given is not None:
                raise Mistake(
                    f"{option} {given} contradicts the launcher, which set RANK={place.rank}; "
                    "leave the option out, or unset RANK"
                )
        if self.workers is not None and self.workers != place.local_workers:
            raise Mistake(
                f"--workers {self.workers} differs from the {place.local_workers} that the launcher started "
                "on this host; leave the option out"
            )
