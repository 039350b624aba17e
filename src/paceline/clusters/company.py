"""How much longer computing takes in company: workers of one machine share its cores, caches and memory."""

from collections.abc import Sequence

from paceline.errors import UsageError


def check_company(company: Sequence[float], whose: str) -> None:
    """Refuse factors that cannot be; ``whose`` names the host or the cluster."""
    if not company:
        return
    if company[0] != 1:
        raise UsageError(
            f"company of {whose} begins with {company[0]:g}: one worker alone takes 1 times as long"
        )
    if not all(1 <= factor < float("inf") for factor in company):
        least = min(company)
        raise UsageError(
            f"company of {whose} has {least:g}: nobody computes faster in company; write 1 or more for each"
        )


def company_factor(company: Sequence[float], workers: int) -> float:
    """How many times as long computing takes with so many workers at it; 1 where nobody says.

    Beyond the numbers that are known it goes on as it did between the last two.
    """
    if not company or workers < 1:
        return 1.0
    if workers <= len(company):
        return company[workers - 1]
    slope = company[-1] - company[-2] if len(company) > 1 else 0.0
    return company[-1] + max(0.0, slope) * (workers - len(company))
