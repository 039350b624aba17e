"""The profile of this machine, from what was measured of it."""

import socket
from dataclasses import replace
from datetime import UTC, datetime

from paceline.clusters.profile import DISTURBED, Profile
from paceline.costs.devices.fitted import Fitted
from paceline.records.create import environment


def make_profile(
    device: Fitted,
    threads: int,
    name: str | None = None,
    disturbed: str = "",
    *,
    cipher: float | None = None,
) -> Profile:
    """A profile of the device alone; links and contention are added by ``dataclasses.replace``.

    ``disturbed`` says what else computed meanwhile; ``cipher`` is the rate of encryption, where it was measured.
    """
    here = environment()
    return Profile(
        name=name or socket.gethostname(),
        made=_now(),
        versions={part: str(here[part]) for part in ("paceline", "torch", "python")},
        machine={part: here[part] for part in ("cpu", "cores", "usable_cores", "memory_bytes", "platform")}
        | {"threads": threads, **({DISTURBED: disturbed} if disturbed else {})},
        device=device.to_json(),
        cipher=cipher,
    )


def with_device(profile: Profile, device: Fitted, name: str | None = None) -> Profile:
    """The profile with another device, of now; links, contention, threads and, unless there is another, name stay."""
    return replace(profile, device=device.to_json(), made=_now(), name=name or profile.name)


def mark_disturbed(profile: Profile, disturbed: str) -> Profile:
    """The profile, which says so where a part of it was measured while something else computed."""
    return replace(profile, machine={**profile.machine, DISTURBED: disturbed}) if disturbed else profile


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
