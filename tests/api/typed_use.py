"""What a user's code may say: ``make lint`` checks it with mypy --strict, and that the marked mistakes are found."""

from dataclasses import dataclass

from torch import nn

import paceline
from paceline import *  # noqa: F403


@dataclass(frozen=True, kw_only=True)
class Baton(paceline.Strategy):
    """Neither ``server`` nor ``with_learners`` is for it to define."""

    period: int = 4
    sync_point = paceline.SyncPoint.EVERY_STEP

    def worker(self, me: paceline.Worker) -> paceline.Program:
        while True:
            yield paceline.Gradient()
            yield paceline.Apply()

    def central(self, me: paceline.Worker) -> paceline.Program:
        yield paceline.AllReduce(me.params)
        return me.params


def star_import() -> str:
    run = load_run("latest")  # noqa: F405
    return str(compare(run, predict("resnet50", strategy=Baton(period=8))))  # noqa: F405


def study() -> None:
    found = paceline.predict(nn.Linear(3, 2), input=(3,), device="a100", workers=[1, 8], strategy="ps")
    step: float = found.value.series[0].rows[0].step
    workers = [row["workers"] for row in found.rows]
    run = paceline.simulate(workers=2, epochs=1, slow={1: 2.5}, strategy="local-sgd:period=4")
    accuracy: float = run.value.summary.final["accuracy"]
    answer = paceline.simulate("examples/master-six-workers.toml").to_dict()["answer"]
    text: str = paceline.compare(run, found, max_slowdown="5%").to_json()
    trained = paceline.train(job="my:build", workers=2, batch_size=[16, 32], show=False)
    page: str = paceline.report(trained).as_uri()
    plan = paceline.plan("mlp", samples=10, hardware=["a100:price=1"], strategy=["all-reduce"])
    met: bool = plan.value.met
    rounds = len(paceline.explain("ring", workers=4).value.stages)
    sweep = paceline.bench_scaling(workers=[1, 2], batch_size=[16, 64], model="mlp").value.rows
    profile = paceline.calibrate("device", seconds=60).value["profile"]
    print(step, workers, accuracy, answer, text, page, met, rounds, sweep, profile)  # noqa: T201


def mistakes() -> None:
    paceline.predict("resnet50", devise="a100")  # type: ignore[call-arg]
    paceline.predict("resnet50", batch_size="32")  # type: ignore[arg-type]
    paceline.train(epochs="2")  # type: ignore[arg-type]
    paceline.simulate(epoch=2)  # type: ignore[call-overload]
    paceline.nothing()  # type: ignore[attr-defined]
