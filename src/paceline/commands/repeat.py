"""The line that repeats a recorded run, from its resolved settings: what has its default is left out."""

import shlex
from dataclasses import asdict
from typing import Any

from paceline import jobs, specs
from paceline.clusters.cluster import Cluster
from paceline.clusters.description import read_cluster
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.files import from_document, to_document
from paceline.runtimes.config import Config, resolved
from paceline.runtimes.prepare import short_codec
from paceline.runtimes.settings import DEFAULT_EPOCHS, DEFAULT_WORKERS, Settings
from paceline.strategies import STRATEGIES
from paceline.units import parse_seconds

_TABLES = {
    "data": jobs.DATA,
    "model": jobs.MODELS,
    "optimizer": jobs.OPTIMIZERS,
    "schedule": jobs.SCHEDULES,
    "strategy": STRATEGIES,
}
_MACHINERY = {
    "device": "cpu",
    "backend": None,
    "timeout": 300.0,
    "threads": None,
    "silence": 20.0,
    "hang_timeout": None,
}
"""What a live run is told of its machine, to what it is where nothing was said; threads depend on the environment."""


def repeat_command(config: Config) -> str:
    """The line to type; empty where none can say it, as for a script's own arguments or a cluster from a file."""
    if config.settings.job.is_script:
        return ""
    given = _settings(config.settings)
    if config.runtime == "live":
        hosts = len({*config.placement.workers}) or 1
        place = {"workers": config.settings.workers // hosts, **({"nodes": hosts} if hosts > 1 else {})}
        place = {
            name: value for name, value in place.items() if (name, value) != ("workers", DEFAULT_WORKERS)
        }
        machinery = {key: value for key, value in config.machinery.items() if value != _MACHINERY.get(key)}
        return _line("train", {**place, **given, **machinery})
    if replayed := config.machinery.get("replay"):
        return _line("simulate", {"replay": replayed})
    cluster = _cluster(config.machinery.get("cluster"))
    gradients = {} if config.machinery.get("gradients", True) else {"no_gradients": True}
    return _line("simulate", {"cluster": cluster, **given, **gradients}) if cluster else ""


def _settings(settings: Settings) -> dict[str, Any]:
    """Options by name, those that differ from what they are where nothing is said."""
    length: dict[str, Any] = {"iterations": 1} if settings.epochs is None else {"epochs": DEFAULT_EPOCHS}
    plain = Settings(job=JobSpec(path=settings.job.path), batch_sizes=settings.batch_sizes, **length)
    usual, asked = (_options(resolved(one)) for one in (plain, settings))
    return (
        {name: value for name, value in asked.items() if name == "batch_size" or value != usual.get(name)}
        | ({"job": settings.job.path} if settings.job.path else {})
        | _batches(settings)
    )


def _options(settings: Settings) -> dict[str, Any]:
    flat = {**to_document(settings.job), **to_document(settings)}
    for name in ("job", "path", "batch_sizes"):
        flat.pop(name, None)
    for name, table in _TABLES.items():
        if settings.job.path is None or name == "strategy":
            flat[name] = specs.shorten(flat[name], table)
        else:
            flat.pop(name)
    flat["codec"] = short_codec(settings.codec)
    flat["slow"] = [f"{rank}={factor:g}" for rank, factor in settings.slow.items()]
    flat["evaluate_every"], flat["checkpoint_every"] = str(settings.evaluate), str(settings.checkpoint)
    for name in ("evaluate", "checkpoint"):
        flat.pop(name)
    return flat


def _batches(settings: Settings) -> dict[str, str]:
    sizes = [*map(str, settings.batch_sizes)]
    shown = sizes[0] if len({*sizes}) == 1 else ",".join(sizes)
    return {} if shown == "32" else {"batch_size": shown}


def _cluster(document: Any) -> str:
    """Equal hosts with stated times as an inline description, checked by reading it; empty for any other cluster."""
    try:
        cluster = from_document(document, Cluster)
        (group,) = cluster.groups
        host, step = group.host, cluster.times.step
    except (AttributeError, ValueError):
        return ""
    if step is None:
        return ""
    parts = {
        "hosts": group.count,
        "workers": host.workers,
        "bandwidth": f"{8 * host.link.bandwidth / 1e9:.12g} Gbit/s",
        "latency": _seconds(host.link.latency),
    }
    parts |= {name: _seconds(value) for name, value in asdict(step).items() if value}
    text = ",".join(f"{name}={value}" for name, value in parts.items())
    try:
        return text if read_cluster(text) == cluster else ""
    except UsageError:
        return ""


def _seconds(value: float) -> str:
    """The first of some units in which a few digits say all of it; else as many as it takes."""
    texts = [f"{value * many:.6g} {unit}" for unit, many in (("s", 1), ("ms", 1e3), ("us", 1e6))]
    return next((text for text in texts if parse_seconds(text) == value), f"{value!r} s")


def _line(command: str, options: dict[str, Any]) -> str:
    words = ["paceline", command]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [option] if one is True else [option, f"{one:g}" if isinstance(one, float) else str(one)]
    return shlex.join(words)
