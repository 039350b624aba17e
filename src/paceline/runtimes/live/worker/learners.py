"""What a strategy leaves open of its learners, decided by a short measurement before the first step.

Gradients are those of replicas that are thrown away; the data are taken beside the training's own loader, and random
streams are put back.
"""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Literal

import torch

from paceline.jobs.job import Job
from paceline.jobs.sharding import Shards
from paceline.runtimes.learners import NotTogether, find_count
from paceline.runtimes.live.heartbeat import Heartbeat
from paceline.runtimes.live.worker.comm import SoloComm
from paceline.runtimes.prepare import Prepared, prepare_job, scale_rate
from paceline.runtimes.randomness import AllStreams, undisturbed
from paceline.runtimes.replica import Replica
from paceline.runtimes.settings import Settings
from paceline.strategies import build_strategy
from paceline.strategies.base import LearnerPlan

ENOUGH, FEWEST, LONGEST = 0.5, 8, 3.0
"""Seconds of steps, and steps, whose lower quartile is the time of a step: other processes only make it longer. Of long
steps there are fewer, in at most so many seconds, or one."""

Way = Literal["together", "in-turn"]


def decide_learners(
    settings: Settings,
    prepared: Prepared[Job],
    comm: SoloComm,
    device: torch.device,
    heartbeat: Heartbeat,
    note: Callable[[str], None],
) -> Prepared[Job]:
    """The run as it is prepared, unless ``settings`` leave learners open; all workers call this, and decide alike."""
    strategy = build_strategy(settings.strategy)
    asked = strategy.learner_plan
    if not asked.is_open:
        return prepared
    trials = LearnerTrials(settings, prepared.job, comm, device, heartbeat, asked)
    with undisturbed(AllStreams()):
        count = asked.count or find_count(trials.rates, trials.most)
        plan = LearnerPlan(count=count, compute=trials.fastest(count))
    if comm.rank == 0:
        note(trials.told(plan))
    return scale_rate(prepare_job(settings, prepared.job, strategy, plan))


class LearnerTrials:
    """Steps of replicas with different numbers of learners, timed by all workers at the same time."""

    def __init__(
        self,
        settings: Settings,
        job: Job,
        comm: SoloComm,
        device: torch.device,
        heartbeat: Heartbeat,
        asked: LearnerPlan,
    ) -> None:
        self._settings, self._job, self._comm, self._device = settings, job, comm, device
        self._heartbeat, self._asked = heartbeat, asked
        self._found: dict[tuple[int, Way], list[float]] = {}
        # By the CPU time of one thread, so that what other processes take does not decide.
        alone = device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = process_time if alone else perf_counter
        self._why = ""
        """Why learners cannot be computed together; empty where they can."""

    @property
    def most(self) -> int:
        """Learners for which there is data."""
        return self._job.train_samples // (self._job.accumulate * sum(self._settings.batch_sizes))

    def rates(self, count: int) -> list[float]:
        """Samples a second of each worker; together where that is possible, as more learners gain nothing in turn."""
        together = count > 1 and self._asked.compute != "in-turn" and self._measured(count, "together")
        return together or self._measured(count, "in-turn")

    def fastest(self, count: int) -> Way:
        """The way that is faster for all workers together, or the one that was asked for."""
        if self._asked.compute != "auto":
            return self._asked.compute
        ways: tuple[Way, ...] = ("in-turn", "together") if count > 1 else ("in-turn",)
        return max(ways, key=lambda way: sum(self._measured(count, way)))

    def _measured(self, count: int, way: Way) -> list[float]:
        """Of every worker; empty where learners cannot be computed together and need not be."""
        if (count, way) not in self._found:
            self._heartbeat.enter("exchange")
            self._comm.barrier()  # all compute at the same time, as they do in a step
            rate, why = 0.0, ""
            try:
                rate = self._rate(LearnerPlan(count=count, compute=way))
            except NotTogether as error:
                if self._asked.compute == "together":
                    raise
                why = error.why
            self._heartbeat.enter("exchange")
            everyone = self._comm.exchange({"rate": rate, "why": why})
            reasons = [one["why"] for one in everyone if one["why"]]
            self._why = self._why or next(iter(reasons), "")
            self._found[count, way] = [] if reasons else [one["rate"] for one in everyone]
        return self._found[count, way]

    def _rate(self, plan: LearnerPlan) -> float:
        settings, job, rank = self._settings, self._job, self._comm.rank
        assert plan.count is not None, "tried one by one"
        sizes = tuple(size * job.accumulate * plan.count for size in settings.batch_sizes)
        shards = Shards(job.train_samples, sizes, settings.seed)
        replica = Replica(job, shards, rank, settings.seed, self._device, plan=plan)
        taken: list[float] = []
        try:
            for step in range(2):  # the first one traces
                self._step(replica, step)
            while sum(taken) < ENOUGH or (len(taken) < FEWEST and sum(taken) < LONGEST):
                taken.append(self._step(replica, len(taken) % max(1, shards.steps_per_epoch - 1)))
        finally:
            replica.close()
        return sizes[rank] / sorted(taken)[len(taken) // 4]

    def _step(self, replica: Replica, step: int) -> float:
        self._heartbeat.enter("forward")
        begun = self._clock()
        replica.gradient(step, 1.0)
        replica.apply(0.0, 0.0)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock() - begun

    def told(self, plan: LearnerPlan) -> str:
        """What was decided, and the samples a second that decided it."""
        assert plan.count is not None, "decided"
        rates = {key: sum(found) for key, found in self._found.items() if found}
        named = {(count, way): f"{way.replace('-', ' ')} with {count}" for count, way in rates}
        if self._asked.count is not None:
            named = {(count, way): way.replace("-", " ") for count, way in rates}
        listed = ", ".join(f"{rate:,.0f} {named[key]}" for key, rate in sorted(rates.items()))
        many = "1 learner" if plan.count == 1 else f"{plan.count} learners"
        why = f"; they cannot be computed together: {self._why}" if self._why else ""
        return f"{many} a worker, computed {plan.compute.replace('-', ' ')}: samples/s were {listed}{why}"
