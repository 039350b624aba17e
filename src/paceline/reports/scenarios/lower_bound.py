"""The least that an all-reduce must move."""

from dataclasses import asdict

from paceline.reports.scenarios.told import Told, exact_seconds
from paceline.reports.text import percent
from paceline.studies.scenarios.answers import LeastTraffic
from paceline.units import show_rate


def tell_least_traffic(answer: LeastTraffic) -> Told:
    """The bound and, where a time is known, the use it makes of a link."""
    n, items = answer.processes, answer.items
    words = (
        f"In any all-reduce of {items:,} items of {answer.item_size} B among {n} processes, some process must send at "
        f"least {answer.bound:,} B."
    )
    lines = [f"ceil(2 x {n - 1}/{n} x {items:,}) items x {answer.item_size} B = {answer.bound:,} B"]
    if answer.use is not None and answer.seconds is not None:
        words += f" Done in {exact_seconds(answer.seconds)}, that uses {show_rate(answer.use)}"
        words += f", {percent(round(answer.use / answer.link, 3))} of the link." if answer.link else "."
        lines.append(f"{answer.bound:,} B / {exact_seconds(answer.seconds)} = {answer.use:,.0f} B/s")
    elif answer.link is not None:
        least = exact_seconds(answer.bound / answer.link)
        words += f" Over {show_rate(answer.link)} it takes at least {least}."
        lines.append(f"{answer.bound:,} B / {answer.link:,.0f} B/s = {least}")
    return Told(answer=words, lines=lines, document=asdict(answer))
