"""``paceline simulate``: the same training in virtual time."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.api.clusters import ClusterRequest
from paceline.api.settings import run_arguments
from paceline.api.simulate import answer_scenario, refuse_others, repeat_run, run_simulation
from paceline.cli.importing import skip_compiler_import
from paceline.cli.options import JOB, LENGTH, WHERE, KeepOptions, RunOptions, Whole, given, given_for
from paceline.records.folder import named_path

MISSED = 3
"""The exit code of a run that did not reach its target, and of a replay that ends with other parameters."""


@Parameter(name="*")
@dataclass(kw_only=True)
class ClusterOptions:
    """None means that an option was not given."""

    cluster: Annotated[str | None, Parameter(group=WHERE)] = None
    """A .toml file, or inline: 'hosts=4,workers=2,bandwidth=1 Gbit/s,latency=50 us,forward=1 ms,backward=2 ms'."""
    workers: Annotated[int | None, Whole, Parameter(name=["--workers", "-np"], group=WHERE)] = None
    """Without --cluster: this many hosts with one worker each (default 2)."""
    times: Annotated[Path | None, Parameter(group=WHERE)] = None
    """A run folder, or 'latest': a step takes as long as the typical step of that run, without communication."""
    gradients: Annotated[bool, Parameter(group=WHERE)] = True
    """Compute real gradients in simulated time, or simulate time only."""
    horizon: Annotated[str | None, Parameter(group=LENGTH)] = None
    """End a run with servers at this time, such as '0.6 s'; what is unfinished then does not count."""

    def given(self) -> list[str]:
        names = ("cluster", "workers", "times", "horizon")
        given = [f"--{name}" for name in names if getattr(self, name) is not None]
        return given if self.gradients else [*given, "--no-gradients"]

    def request(self) -> ClusterRequest:
        times = None if self.times is None else named_path(self.times)
        return ClusterRequest(
            **given_for(ClusterRequest, self) | {"gradients": self.gradients, "times": times}
        )


def simulate(
    scenario: Path | None = None,
    /,
    *,
    replay: Annotated[Path | None, Parameter(group=JOB)] = None,
    options: RunOptions | None = None,
    where: ClusterOptions | None = None,
    keep: KeepOptions | None = None,
) -> int:
    """Run the same training in virtual time, on a cluster that you describe.

    The strategy's program is the one that 'paceline train' runs. Time comes from the cluster's description:
    links by latency, bandwidth and fair sharing, steps by the times that it states. Same seed, same record,
    byte for byte. Exit code 3 where it did not reach --target-accuracy.

    Args:
        scenario: A .toml file that says what is given and what is asked, instead of all options; see docs/scenarios.md.
        replay: The folder of a run with servers, live or simulated: repeat it message by message.
    """
    options, where, keep = options or RunOptions(), where or ClusterOptions(), keep or KeepOptions()
    others = [*given(options), *(option[2:].replace("-", "_") for option in where.given())]
    if scenario is not None:
        kept = [name for name in given(keep) if name != "as_json"]
        refuse_others([*(["replay"] if replay else []), *others, *kept], str(scenario))
        answer = answer_scenario(scenario)
        print(json.dumps(answer.to_dict()) if keep.as_json else answer)  # noqa: T201
        return 0
    skip_compiler_import()
    if replay is not None:
        refuse_others(others, f"--replay {replay}")
        done = repeat_run(replay, keep.parent, keep.name, keep.watching)
    else:
        done = run_simulation(
            run_arguments(given(options)), where.request(), keep.parent, keep.name, keep.watching
        )
    for text in (done.timeline, done.ending):
        if text and not keep.as_json:
            print(f"\n{text}" if text == done.timeline else text)  # noqa: T201
    return MISSED if done.summary.missed or done.differs else 0
