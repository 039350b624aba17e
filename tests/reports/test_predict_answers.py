"""The answers that people get to "two are slower than one: why?", held against predictions of what they say."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from paceline.clusters.catalogue import find_network
from paceline.records.files import from_document, to_document
from paceline.reports.predict.chart import picture
from paceline.reports.predict.text import text_lines
from paceline.studies.predict import Prediction, PredictRequest, predict
from paceline.studies.predict.model import find_model

TWO_IN_A_HOST = PredictRequest(
    model="vgg16",
    device="rtx-4090",
    per_host=2,
    inside="pcie3-x16",
    workers=(1, 2),
    batch_size=16,
    scaling="strong",
    precision="bf16",
)
USUAL = PredictRequest(model="resnet50", device="a100")
SLOW = PredictRequest(model="vgg16", device="a100", network="1gbit")
SMALL = PredictRequest(model="mlp:hidden=1500", shape=(1, 28, 28), classes=10, device="v100", network="1gbit")


def told(words: PredictRequest) -> tuple[Prediction, list[str]]:
    prediction = predict(words)
    return prediction, text_lines(prediction)


model_of = cache(find_model)


def rate(words: PredictRequest, workers: int) -> float:
    model = model_of(words)
    return model.rate(model.setup(words.strategies[0], workers))


def speed_up(words: PredictRequest, workers: int) -> float:
    return rate(words, workers) / model_of(words).alone


def test_two_workers_of_one_host_hear_of_the_link_that_they_share_and_of_no_other():
    prediction, lines = told(TWO_IN_A_HOST)
    assert lines[0] == (
        "Slower than one worker: 2 workers (0.69x); 2 workers are limited by the bandwidth inside the host "
        "(PCIe 3 x16, 126 Gbit/s)."
    )
    text = "\n".join(lines)
    assert "the link inside the host has 126 Gbit/s" in text, "as 'paceline networks' has it"
    assert "--inside pcie4-x16" in text
    assert "nvlink" not in text, "such a device has none"
    assert "network" not in text
    assert "Ethernet" not in text
    assert "Knee" not in text, "nothing that was asked about is faster than one"
    limit = prediction.series[0].findings.limit
    assert limit.wire.bandwidth == find_network("pcie3-x16").bandwidth


def test_another_network_between_hosts_changes_nothing_inside_one_and_is_said_to():
    plain, other = predict(TWO_IN_A_HOST), predict(replace(TWO_IN_A_HOST, network="25gbit"))
    assert other.series == plain.series
    assert "nothing crosses network 25gbit" in other.basis.links
    assert not any(dict(one.change).get("network") for one in other.series[0].findings.helps)


def test_eight_devices_with_links_of_their_own_have_what_the_catalogue_says_of_one():
    words = replace(TWO_IN_A_HOST, per_host=8, workers=(8,), scaling="weak")
    assert predict(words).series[0].findings.bandwidth.wire.bandwidth == find_network("pcie3-x16").bandwidth


def test_slower_than_one_comes_first_with_why_and_from_where_on_it_pays_off():
    _, lines = told(USUAL)
    assert lines[0] == (
        "Slower than one worker: 2 workers (0.68x), 4 workers (0.94x); 2 workers are limited by the bandwidth of "
        "the network (10 Gbit/s Ethernet); from 5 workers on it is faster; 128 workers are 20.5x as fast (16 % "
        "efficiency)."
    )
    (knee,) = [line for line in lines if line.startswith("Knee")]
    assert knee.startswith("Knee: none up to 128 workers;"), "438 is beyond what was asked"
    assert "beyond what was asked it ends at 438 workers" in knee
    assert "FP32 with TF32 tensor cores" in "\n".join(lines)
    assert "--precision bf16" in "\n".join(lines)
    assert speed_up(USUAL, 4) < 1 < speed_up(USUAL, 5)


def test_where_no_count_that_was_asked_for_is_faster_no_knee_is_told_but_how_many_it_takes():
    _, lines = told(SLOW)
    assert lines[0] == (
        "Slower than one worker: 2 workers (0.026x) to 128 workers (0.85x); 2 workers are limited by the bandwidth of "
        "the network (1 Gbit/s Ethernet); from 152 workers on it is faster."
    )
    assert not any(line.startswith("Knee") for line in lines)
    assert speed_up(SLOW, 151) <= 1 < speed_up(SLOW, 152)


def test_a_job_that_scales_is_told_by_what_was_asked_and_not_by_thousands_of_workers():
    """A slow device: it scales to thousands of workers that nobody asked about."""
    _, lines = told(PredictRequest(model="resnet18", device="gt-750m", workers=(1, 2, 4, 8)))
    assert lines[0].startswith("Faster than one worker: 8 workers are 7.")
    assert "000" not in lines[0]
    (knee,) = [line for line in lines if line.startswith("Knee")]
    assert knee == "Knee: none up to 8 workers; doubling gives at least 1.5x."


def typed(words: PredictRequest, change) -> PredictRequest:
    """The request with a setting more, as somebody would type it."""
    ((setting, value),) = change
    if setting == "strategy":
        return replace(words, strategies=(value,), servers=1)
    if setting == "codec":
        return replace(words, codecs=(value,))
    return replace(words, **{setting: int(value) if value.isdecimal() else value})


@pytest.mark.parametrize(
    "words",
    [
        TWO_IN_A_HOST,
        replace(SMALL, workers=(1, 4)),
        replace(SMALL, workers=(1, 8), per_host=4, inside="pcie3-x16", network="10gbit"),
        replace(SMALL, workers=(1, 64), network="10 Gbit/s,200 us"),
        replace(SMALL, workers=(1, 4), strategies=("ps",)),
        replace(SMALL, workers=(1, 4), strategies=("ssp",), servers=2),
        replace(SMALL, workers=(1, 8), scaling="strong", batch_size=64),
    ],
    ids=["inside", "bandwidth", "several a host", "latency", "ps", "ssp", "strong"],
)
def test_every_remedy_that_is_printed_does_what_it_says_when_it_is_typed(words):
    """If this fails, somebody buys a network that changes nothing."""
    prediction, lines = told(words)
    now, (found,) = prediction.series[0].rows[-1], [series.findings for series in prediction.series]
    assert found.helps, "there is something to check"
    for one in found.helps:
        then = typed(words, one.change)
        assert one.workers == now.workers
        assert one.gain == pytest.approx(rate(then, now.workers) / now.rate, rel=1e-6), one.change
        assert one.speed_up == pytest.approx(speed_up(then, now.workers), rel=1e-6), one.change
        assert one.gain >= 1.1
        ((setting, value),) = one.change
        option = f"--{setting.replace('_', '-')} {value}"
        assert any(line.startswith(f"What would help: {option} makes") for line in lines)


def test_the_limit_is_what_perfecting_it_removes():
    """Latency where messages are many and small, bandwidth where they are large: each checked by taking it away."""
    for network, bound in (("10 Gbit/s,5 ms", "latency"), ("1gbit", "bandwidth")):
        words = replace(SMALL, workers=(2, 16), network=network)
        limit = predict(words).series[0].findings.limit
        assert (limit.bound, limit.wire.where) == (bound, "network")
        perfect = {"latency": f"{network.split(',')[0]},0 us", "bandwidth": "100000 Gbit/s,50 us"}[bound]
        then = speed_up(replace(words, network=perfect), limit.workers)
        assert limit.without == pytest.approx(then, rel=3e-3)


def test_one_worker_hears_of_no_link():
    _, lines = told(replace(SMALL, workers=(1,), network=None))
    assert "Links: none, for all workers are on one host." in lines


def test_strategies_that_are_all_slower_than_one_worker_are_said_to_be():
    words = replace(SMALL, workers=(1, 2, 4), strategies=("all-reduce", "ps"))
    assert " No strategy makes 2 or 4 workers as fast as one." in told(words)[1][0]


def test_what_is_written_is_read_back_with_its_links(tmp_path: Path):
    prediction = predict(TWO_IN_A_HOST)
    document = json.loads(json.dumps(to_document(prediction)))
    assert from_document(document, Prediction).series[0].findings == prediction.series[0].findings


@pytest.mark.parametrize(
    ("strategy", "network", "workers"),
    [("ps", "400gbit", (1, 4, 8)), ("async", "25gbit", (1, 4)), ("async", "400gbit", (1, 8))],
)
def test_what_encryption_limits_is_said_to_be_limited_by_it_everywhere(strategy, network, workers):
    """If this failed, people would buy a faster network, or be told of a latency, and gain nothing."""
    words = replace(USUAL, strategies=(strategy,), network=network, workers=workers, batch_size=64)
    prediction, lines = told(words)
    found = prediction.series[0].findings
    assert found.limit.bound == found.knee.bound == "encryption"
    assert "limited by encryption of messages to servers (16 Gbit/s per process)" in lines[0]
    assert found.bandwidth.needed is None, "no network makes it compute-bound"
    assert not any("bit/s makes" in line for line in lines)
    much = speed_up(replace(words, network="4000 Gbit/s,20 us"), workers[-1])
    assert much < 1.02 * prediction.series[0].rows[-1].speed_up


def test_the_bandwidth_that_is_said_to_make_servers_compute_bound_does_when_it_is_predicted():
    words = replace(
        USUAL, strategies=("ps",), network="1gbit", workers=(1, 2), batch_size=2048, memory="4 TB"
    )
    prediction = predict(words)
    bandwidth = prediction.series[0].findings.bandwidth
    assert bandwidth.needed is not None
    assert bandwidth.needed > bandwidth.wire.bandwidth
    other = predict(replace(words, network=f"{bandwidth.needed * 8 / 1e9:.4f} Gbit/s,20 us"))
    row = other.series[0].rows[-1]
    assert row.step <= 1.11 * (row.breakdown.compute + row.breakdown.wait)
    assert row.breakdown.communicate < 0.12 * row.step


def test_one_worker_with_a_server_is_said_to_be_slower_than_one_without_and_where_the_server_is():
    words = replace(USUAL, strategies=("ps",), network="10gbit", workers=(1, 4), batch_size=64)
    _, lines = told(words)
    assert lines[0].startswith("Slower than one worker: 4 workers (0.44x); ")
    assert lines[0].endswith("is faster. One worker with ps is 0.54x as fast as in plain training.")
    assert "the server's link (10 Gbit/s Ethernet)" in lines[0]
    assert any(line.startswith("Links:") and "servers are on the workers' hosts" in line for line in lines)


@pytest.mark.parametrize(
    ("device", "link"), [("rtx-4090", "pcie4-x16"), ("v100", "pcie3-x16"), ("k40", "pcie3-x16")]
)
def test_gpus_of_a_host_are_connected_by_their_own_pcie_unless_told(device, link):
    """If this failed, GPUs would be priced over a CPU's shared memory and two be slower than one."""
    words = PredictRequest(model="vgg16", device=device, per_host=4, workers=(1, 2, 4))
    plain, said = predict(words), predict(replace(words, inside=link))
    assert plain.series == said.series
    assert f"no link inside is given, so {find_network(link).title}" in plain.basis.links
    assert "no link inside is given" not in said.basis.links


def test_workers_on_a_cpu_share_its_memory_unless_told():
    prediction = predict(PredictRequest(model="mlp", device="epyc-7763", per_host=4, workers=(1, 4)))
    assert "no link inside is given, so shared memory" in prediction.basis.links


def test_the_legend_of_the_picture_tells_the_ideal_from_the_edge_of_an_interval():
    """Edges of intervals may be dashed as well, but only references are grey."""
    svg = picture(predict(replace(USUAL, workers=(1, 2), strategies=("all-reduce", "local-sgd:period=4"))))
    assert "grey dashes: ideal; grey dots: one worker" in svg
    assert svg.count('class="reference"') == 2
