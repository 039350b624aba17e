"""One to all: a master gathers every tensor and sends the result back, as a parameter server does."""

from paceline.collectives.schedule import Hosts, Round, Schedule, Then, Transfer


def one_to_all(hosts: Hosts) -> Schedule:
    """Two rounds, and n - 1 whole tensors through rank 0's link in each: the master is the limit."""
    workers = len(hosts)
    others = range(1, workers)
    gather = Round("gather", tuple(Transfer(rank, 0, 0, 1, Then.REDUCE) for rank in others))
    back = Round("send back", tuple(Transfer(0, rank, 0, 1, Then.REPLACE) for rank in others))
    return Schedule("one-to-all", workers, 1, (gather, back) if others else ())
