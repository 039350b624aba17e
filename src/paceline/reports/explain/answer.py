"""From a request to its story."""

from paceline.collectives import build_schedule
from paceline.collectives.schedule import pipelined
from paceline.errors import unknown
from paceline.reports.explain.request import Limits, Request, first_values, host_of_each
from paceline.reports.explain.story import OPERATIONS, Story, tell


def answer(request: Request, limits: Limits) -> Story:
    """Play what was asked for; a ``UsageError`` where it cannot be shown within the limits."""
    if request.op not in OPERATIONS:
        raise unknown("operation", request.op, OPERATIONS)
    hosts = host_of_each(request, limits)
    limits.check(len(hosts))
    whole = build_schedule(request.schedule, hosts)
    schedule = pipelined(whole, request.segments)
    values = first_values(request, len(hosts), max(len(hosts), schedule.chunks))
    limits.check(len(hosts), len(values[0]))
    return tell(schedule, request.op, hosts, values, schedule.chunks // whole.chunks)
