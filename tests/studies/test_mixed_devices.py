"""Clusters whose hosts name their devices."""

import pytest

from paceline.errors import UsageError
from paceline.studies.predict import predict
from paceline.studies.predict.request import PredictRequest

MIXED = """
[[hosts]]
name = "quick"
device = "a100"
network = "100gbit"
[[hosts]]
name = "slow"
device = "t4"
network = "100gbit"
"""


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    return str(path)


def compute(device: str | None, cluster: str | None, workers: int) -> float:
    words = PredictRequest(model="resnet18", device=device, cluster=cluster, workers=(workers,), batch_size=8)
    row = predict(words).series[0].rows[0]
    return row.breakdown.compute + row.breakdown.wait


@pytest.mark.parametrize("device", [None, "v100"])
def test_each_host_is_as_fast_as_its_sheet_says(mixed, device):
    """The slower one sets the pace, whichever device is named to reckon from."""
    assert compute(device, mixed, 1) == pytest.approx(compute("a100", None, 1), rel=1e-6)
    assert compute(device, mixed, 2) == pytest.approx(compute("t4", None, 1), rel=0.02)


def test_a_cluster_that_names_no_device_needs_one():
    with pytest.raises(UsageError, match="names no device"):
        predict(PredictRequest(model="mlp", cluster="hosts=2"))


def test_the_network_to_a_server_counts_as_one(tmp_path):
    """One host of workers beside a server's: what limits it is the link between them, not what is inside."""
    path = tmp_path / "served.toml"
    path.write_text(
        '[[hosts]]\nworkers = 2\nbandwidth = "10 Gbit/s"\n'
        '[[hosts]]\nname = "keeper"\nworkers = 0\nservers = 1\nbandwidth = "1 Gbit/s"\n'
    )
    words = PredictRequest(model="mlp", device="a100", cluster=str(path), workers=(2,), strategies=("ps",))
    assert predict(words).series[0].findings.bandwidth.wire.bandwidth == 1e9 / 8
