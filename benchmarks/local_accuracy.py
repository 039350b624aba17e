"""What training apart costs in accuracy: Fashion-MNIST, ``cnn``, 8 virtual workers, equal samples, several seeds.

All-reduce, local SGD, DiLoCo and post-local SGD, as a study of ``paceline bench convergence``: gradients are those of a
live run, and only time is simulated. DiLoCo with rounds of 50 steps must end within a point of all-reduce with a
fiftieth of its bytes, and post-local SGD not below local SGD. ``--results`` writes the table and the picture. What is
done is kept in ``--folder``: a run that was interrupted goes on there.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from textwrap import wrap
from typing import Any

from paceline.clusters.description import read_cluster
from paceline.jobs.spec import JobSpec
from paceline.reports.convergence import answer, document, picture
from paceline.runtimes.settings import Cadence, Settings
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.result import ConvergenceResult
from paceline.studies.convergence.run import run_study
from paceline.studies.convergence.study import ConvergenceStudy, select, with_evaluations

FIRST, LOCAL, DILOCO = "all-reduce", "local-sgd:period=16", "diloco:period=50"
WORKERS, BATCH, EPOCHS = 8, 32, 8
WITHIN, FEWER = 1.0, 50.0
"""DiLoCo: the most points that it may lose, and how many times fewer bytes it must send."""
CLUSTER = (
    f"hosts={WORKERS},bandwidth=1 Gbit/s,latency=50 us,data=0.1 ms,forward=3 ms,backward=6 ms,apply=0.1 ms"
)
OPTIMIZER = "adamw:lr=0.002"
"""The rate falls to 0 along a cosine: at a constant one the last steps move the accuracy by two points."""


def study_of(options: argparse.Namespace) -> ConvergenceStudy:
    """Post-local SGD switches in the middle: half of the steps are synchronous."""
    job = JobSpec(
        data=options.data,
        model="cnn",
        optimizer=options.optimizer,
        schedule=f"cosine:epochs={options.epochs}",
    )
    settings = Settings(job=job, batch_sizes=(BATCH,) * WORKERS, epochs=options.epochs, checkpoint=Cadence(0))
    return ConvergenceStudy(
        settings=settings,
        cluster=read_cluster(CLUSTER),
        sizes=settings.batch_sizes,
        strategies=(FIRST, LOCAL, DILOCO, f"post-local:period=16,switch={options.switch}"),
        seeds=tuple(range(1, options.seeds + 1)),
    )


def rows_of(result: ConvergenceResult) -> list[dict[str, Any]]:
    """In the order of the study: final accuracies in percent, and all bytes of the run."""
    rows = []
    for pair in result.study.pairs:
        row = next(one for one in result.rows if one.pair == pair)
        assert row.final is not None, f"{pair} failed: {row.failures[0]}"
        rows.append(
            {
                "strategy": pair.strategy,
                "accuracy": 100 * row.final.median,
                "low": 100 * row.final.low,
                "high": 100 * row.final.high,
                "sent": row.curve[-1].sent,
                "seconds": row.curve[-1].seconds,
            }
        )
    return rows


def judge(rows: list[dict[str, Any]]) -> bool:
    """Fill in what each row loses, how many times fewer bytes it sends, and whether it may."""
    first, local, diloco, post = rows
    for row in rows:
        row["lost"] = first["accuracy"] - row["accuracy"]
        row["fewer"] = first["sent"] / row["sent"]
        row["met"] = True
    diloco["met"] = diloco["lost"] <= WITHIN and diloco["fewer"] >= FEWER
    post["met"] = post["accuracy"] >= local["accuracy"]
    return all(row["met"] for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| strategy | accuracy, % | lowest .. highest | points lost | sent, MB | times fewer | simulated s | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| `{row['strategy']}` | {row['accuracy']:.2f} | {row['low']:.2f} .. {row['high']:.2f} | "
            f"{row['lost']:+.2f} | {row['sent'] / 1e6:,.1f} | {row['fewer']:.1f} | {row['seconds']:.1f} | "
            f"{'met' if row['met'] else 'MISSED'} |"
        )
    return "\n".join(lines)


def write_results(folder: Path, result: ConvergenceResult, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    settings = result.study.settings
    head = (
        f"# Local SGD and accuracy\n\n{result.job}, {WORKERS} virtual workers of batch {BATCH}, {settings.epochs} "
        f"epochs, {len(result.study.seeds)} seeds (medians);\noptimizer `{settings.job.optimizer}`, rate along a "
        f"cosine;\n`{CLUSTER}`.\n\n```\npython benchmarks/local_accuracy.py --results docs/results\n```\n"
    )
    picture_line = "![Accuracy against time, bytes and samples](local-accuracy.svg)"
    (folder / "local-accuracy.md").write_text(
        f"{head}\n{table(rows)}\n\n{chr(10).join(wrap(answer(result), 120))}\n\n{picture_line}\n"
    )
    (folder / "local-accuracy.svg").write_text(picture(result))


def run(options: argparse.Namespace, folder: Path) -> ConvergenceResult:
    study = study_of(options)
    selection = select(study)
    study = with_evaluations(study, selection.job)
    shown = -1.0

    def show(done: float, words: str) -> None:
        nonlocal shown
        if done >= shown + 0.05:
            print(f"{100 * done:3.0f} %  {words}", file=sys.stderr, flush=True)
            shown = done

    return run_study(
        study, selection, StudyFolder(folder), target=options.target, processes=options.processes, show=show
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--switch", type=int, default=940, help="steps of post-local SGD before it is local")
    parser.add_argument("--data", default="fashion-mnist", help="something smaller, for a quick look")
    parser.add_argument("--optimizer", default=OPTIMIZER)
    parser.add_argument("--target", type=float, help="the accuracy that the picture marks")
    parser.add_argument("--processes", type=int, help="runs at the same time; by default one a core")
    parser.add_argument("--folder", type=Path, help="keep runs here; an interrupted benchmark goes on")
    parser.add_argument("--results", type=Path, help="write local-accuracy.md and .svg into this folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = run(options, options.folder or Path(scratch, "study"))
    rows = rows_of(result)
    met = judge(rows)
    if options.results is not None:
        write_results(options.results, result, rows)
    if options.json:
        print(
            json.dumps(
                {"schema": 1, "rows": rows, "met": met, "target": document(result)["target"]}, indent=2
            )
        )
    else:
        print(f"{table(rows)}\n\n{answer(result)}")
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
