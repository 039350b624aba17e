"""Send a run's metrics to MLflow or Weights & Biases: ``python send_metrics.py RUN``.

Any client with ``log_metrics(dict, step)`` (MLflow) or ``log(dict, step=)`` (wandb) does.
"""

import sys
from pathlib import Path

from paceline import RunFolder, read_metrics


def send_metrics(run, client):
    log = getattr(client, "log_metrics", None) or client.log
    for row in read_metrics(RunFolder(Path(run)).metrics):
        values = row.to_json()
        log(values, step=values.pop("step"))


if __name__ == "__main__":
    import mlflow  # or: import wandb; wandb.init(project="paceline"); send_metrics(sys.argv[1], wandb)

    send_metrics(sys.argv[1], mlflow)
