"""Hardware that can be had, and what it costs: inline, ``a100:price=2.5,network=25gbit,most=32``, or a TOML file."""

from dataclasses import dataclass
from pathlib import Path

from paceline import specs
from paceline.clusters import toml_reader as toml
from paceline.clusters.catalogue import find_device, find_network
from paceline.clusters.profile import MACHINE, named_profile
from paceline.errors import UsageError
from paceline.runtimes.threads import usual_threads
from paceline.studies.predict.deployment import MEASURED
from paceline.studies.predict.request import MOST_WORKERS

USUAL_MOST = 32
"""Workers that can be had where an offer does not say."""
PROFILE = ".json"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Equal hosts of one kind, paid by the hour; None means that a setting was not given."""

    device: toml.Name
    """A name of the catalogue, the file of a profile, which ends in .json, or "machine": this one, as it is kept."""
    network: toml.Name | None = None
    per_host: toml.Count | None = None
    """Workers of a host: more share its link, and pay together where the host has a price."""
    inside: toml.Name | None = None
    threads: toml.Count | None = None
    memory: toml.Name | None = None
    price: toml.PositiveNumber | None = None
    """Of a worker and hour, in any currency."""
    host_price: toml.PositiveNumber | None = None
    """Of a host and hour, instead; one that is partly used is paid whole."""
    most: toml.Count = USUAL_MOST
    """Workers that can be had."""

    def __post_init__(self) -> None:
        if not self.is_profile:
            find_device(self.device)
        for network in (self.network, self.inside):
            if network is not None and network != MEASURED:
                find_network(network)
        if (self.price is None) == (self.host_price is None):
            raise UsageError(
                f"exactly one of price and host-price of {self.device} is needed, by the hour; price=1 counts "
                "worker-hours"
            )
        if self.most > MOST_WORKERS:
            raise UsageError(f"most={self.most} is too many: at most {MOST_WORKERS:,}")

    @property
    def is_profile(self) -> bool:
        return self.device.endswith(PROFILE) or self.device == MACHINE

    @property
    def profile(self) -> Path | None:
        if not self.is_profile:
            return None
        return named_profile(Path(self.device), self.threads or usual_threads())

    @property
    def label(self) -> str:
        name = Path(self.device).stem if self.is_profile else find_device(self.device).name
        return name if self.network is None else f"{name} at {self.network}"

    @property
    def on_gpus(self) -> bool:
        return not self.is_profile and find_device(self.device).kind == "gpu"

    @property
    def counts(self) -> tuple[int, ...]:
        """Powers of two within a host, doubled hosts, and the most whole hosts there are."""
        whole = min(self.per_host or 1, self.most)
        within = {2**power for power in range(whole.bit_length())}
        hosts = self.most // whole
        doubled = {whole * 2**power for power in range(hosts.bit_length())}
        return tuple(sorted(within | doubled | {whole * hosts}))

    def fills_hosts(self, workers: int) -> bool:
        """Whether every host has equally many workers, as 'paceline train' needs them."""
        return workers <= (self.per_host or 1) or workers % (self.per_host or 1) == 0


def parse_offer(text: str) -> Offer:
    """Read "a100:price=2.5,network=25gbit,per-host=8,most=32"."""
    name = text.strip().partition(":")[0].strip()
    if not name:
        raise UsageError(f"hardware {text!r} names no device; write a100:price=2.5,most=8")
    settings = specs.split(text, {name: ""})[1]
    values = {key.replace("_", "-"): value for key, value in settings.items()}
    return _read(toml.Reader(f"hardware {name!r}", "", {"device": name, **values}))


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Every ``[[hardware]]`` table of a file."""
    reader = toml.read_toml(path, "file of offers")
    tables = reader.tables("hardware")
    reader.finish()
    if not tables:
        raise UsageError(f"{path} offers no hardware: write [[hardware]] and below it device = 'a100'")
    return tuple(map(_read, tables))


def _read(reader: toml.Reader) -> Offer:
    reader.need("device = 'a100'")
    reader.only(Offer)
    return reader.fill(Offer)
