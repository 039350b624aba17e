"""Which faults hit which run, and when: a pure function of a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

HANG, SILENCE = 5, 4
"""What the runs get as --hang-timeout and --silence, in seconds."""

Kind = Literal["kill", "stop", "interrupt", "full disk", "cut link", "delete folder", "truncate", "flip"]

STRATEGIES = ("all-reduce", "local-sgd:period=4", "ps", "ssp:staleness=2", "async")
LENGTHS = (("mlp", 900, 30), ("mlp", 1200, 150), ("cnn", 300, 20))
"""Model, steps and steps between checkpoints: one to three seconds of training."""

WEIGHTS: dict[Kind, int] = {
    "kill": 6,
    "stop": 4,
    "interrupt": 2,
    "full disk": 2,
    "delete folder": 1,
    "cut link": 6,
}
"""How often each fault of a run under way is drawn; links are cut only where there are any."""

DAMAGED = ("checkpoint", "checkpoint", "config", "events", "metrics")


@dataclass(frozen=True)
class Moment:
    """When a fault happens, by what can be seen of the run; the delay follows in seconds."""

    event: Literal["start", "processes", "folder", "checkpoint", "stopped"]
    """Launched; all processes there; config.json there; checkpoint number ``number`` begun; the run has ended."""
    number: int = 0
    delay: float = 0.0

    def __str__(self) -> str:
        """As the table of seeds has it."""
        if self.event == "stopped":
            return "before the resume"
        place = {
            "start": "launch",
            "processes": "start-up",
            "folder": "the first step",
            "checkpoint": f"checkpoint {self.number}",
        }[self.event]
        return f"at {place}" + (f" + {self.delay:.2f} s" if self.delay else "")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    target: str
    """``rank-1``, ``server-0``, ``launcher-0``, ``host-1``, or the kind of file that is damaged."""
    moment: Moment
    lasts: float | None = None
    """Seconds until it is undone; None is for good, or until the run has ended."""
    launch: int = 0
    """0 is the first launch, 1 the first resume."""
    place: float = 0.0
    """Where in a file, as a fraction of its bytes; how much of a disk stays free, as a fraction of 256 kB."""

    def __str__(self) -> str:
        """As the table of seeds has it."""
        length = "" if self.lasts is None else f" for {self.lasts:g} s"
        again = " of the resumed run" if self.launch and self.live else ""
        return f"{self.kind} {self.target} {self.moment}{again}{length}"

    @property
    def live(self) -> bool:
        """Whether it hits a run under way."""
        return self.moment.event != "stopped"

    @property
    def harmless(self) -> bool:
        """Whether a run must go on as if nothing had been."""
        return self.lasts is not None and (
            (self.kind == "stop" and self.lasts <= 2) or (self.kind == "cut link" and self.lasts <= 1)
        )


@dataclass(frozen=True)
class Scenario:
    """A run and its faults."""

    seed: int
    strategy: str
    servers: int
    hosts: int
    workers: int
    """On each host."""
    model: str
    steps: int
    every: int
    faults: tuple[Fault, ...] = ()

    @property
    def deterministic(self) -> bool:
        """Whether two runs end in the same bits."""
        return not self.servers

    @property
    def needs_root(self) -> bool:
        """Whether it takes network namespaces or a file system of its own."""
        return self.hosts > 1 or any(fault.kind == "full disk" for fault in self.faults)

    @property
    def undisturbed(self) -> "Scenario":
        """The same run without faults; equal for all seeds with these settings."""
        return replace(self, seed=0, faults=())

    def host_of(self, target: str) -> int:
        """Where a target is: servers take turns on hosts, ranks fill one after the other."""
        role, _, number = target.partition("-")
        match role:
            case "rank":
                return int(number) // self.workers
            case "server":
                return int(number) % self.hosts
            case "launcher" | "host":
                return int(number)
        return 0

    def __str__(self) -> str:
        """As the table of seeds has it."""
        where = f"{self.hosts} hosts" if self.hosts > 1 else f"{self.workers} workers"
        served = f" + {self.servers} server{'s' * (self.servers > 1)}" if self.servers else ""
        run = f"{self.strategy}, {where}{served}, {self.model} {self.steps}/{self.every}"
        return f"{run}: {'; '.join(map(str, self.faults)) or 'no fault'}"


def scenario(seed: int) -> Scenario:
    """Draw a run and one to three faults."""
    dice = random.Random(f"paceline faults {seed}")
    strategy = dice.choice(STRATEGIES)
    servers = 0 if strategy.startswith(("all-reduce", "local-sgd")) else dice.choice((1, 1, 2))
    hosts = dice.choice((1, 1, 1, 2))
    workers = 1 if hosts > 1 else dice.choice((2, 2, 2, 3))
    model, steps, every = dice.choice(LENGTHS)
    run = Scenario(seed, strategy, servers, hosts, workers, model, steps, every)
    faults = [_live(dice, run, launch=0)]
    for _ in range(dice.choice((0, 0, 1, 1, 2))):
        what = dice.choice(("damage", "live", "resumed"))
        faults.append(_damage(dice) if what == "damage" else _live(dice, run, launch=int(what == "resumed")))
    return replace(run, faults=_bounded(faults))


def _live(dice: random.Random, run: Scenario, launch: int) -> Fault:
    weights = WEIGHTS if run.hosts > 1 else {**WEIGHTS, "cut link": 0}
    (kind,) = dice.choices(list(weights), list(weights.values()))
    processes = [f"rank-{rank}" for rank in range(run.hosts * run.workers)]
    processes += [f"server-{number}" for number in range(run.servers)]
    host = dice.randrange(run.hosts)
    match kind:
        case "kill" | "stop":
            target = dice.choice([*processes, *processes, f"launcher-{host}"])
        case "interrupt":
            target = f"launcher-{host}"
        case _:
            target = f"host-{host}"
    lasts = dice.choice({"stop": (0.7, 2.0, 8.0, None), "cut link": (0.5, 1.0, 8.0, None)}.get(kind, (None,)))
    if kind == "stop" and target.startswith("launcher"):
        lasts = lasts or 8.0  # a stopped launcher cannot end, so it must be let go on
    return Fault(kind, target, _moment(dice, run, kind), lasts, launch, dice.random())


def _moment(dice: random.Random, run: Scenario, kind: Kind) -> Moment:
    last = run.steps // run.every
    if kind == "delete folder":  # early, so that the end of the run cannot come first
        return Moment("checkpoint", dice.randint(1, last // 2), round(dice.uniform(0, 0.05), 3))
    moments: Sequence[Moment] = (
        # A host waits for five minutes for one that has not come yet, as it says: faults come after that.
        Moment("start", 0, round(dice.uniform(0.3, 6.0), 2)) if run.hosts == 1 else Moment("processes"),
        Moment("processes", 0, round(dice.uniform(0, 3.0), 2)),
        Moment("folder", 0, round(dice.uniform(0, 0.1), 3)),
        Moment("checkpoint", 1),
        Moment("checkpoint", 1),
        Moment("checkpoint", dice.randint(2, last)),
        Moment("checkpoint", dice.randint(1, last - 1), round(dice.uniform(0, 0.15), 3)),
        Moment("checkpoint", dice.randint(1, last - 1), round(dice.uniform(0, 0.15), 3)),
    )
    return dice.choice(moments)


def _damage(dice: random.Random) -> Fault:
    kind: Kind = dice.choice(("truncate", "flip"))
    return Fault(kind, dice.choice(DAMAGED), Moment("stopped"), None, 0, dice.random())


def _bounded(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Nobody can end a stopped process whose launcher was killed: such a process goes on later."""
    killed = {fault.launch for fault in faults if fault.kind == "kill" and "launcher" in fault.target}
    return tuple(
        replace(fault, lasts=fault.lasts or 8.0) if fault.kind == "stop" and fault.launch in killed else fault
        for fault in faults
    )
