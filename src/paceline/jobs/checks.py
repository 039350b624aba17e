"""Settings that are numbers, checked in one way; whoever reads a spec adds which part they belong to."""


def at_least(least: float, **settings: float) -> None:
    """Each setting is a finite number of at least so much."""
    for name, value in settings.items():
        if not least <= value < float("inf"):
            raise ValueError(f"{name}={value:g} is out of range; it must be at least {least:g}")


def more_than(bound: float, **settings: float) -> None:
    """Each setting is a finite number of more than so much."""
    for name, value in settings.items():
        if not bound < value < float("inf"):
            raise ValueError(f"{name}={value:g} is out of range; it must be more than {bound:g}")


def fraction(**settings: float) -> None:
    """Each setting is at least 0 and less than 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value:g} is out of range; it must be at least 0 and less than 1")
