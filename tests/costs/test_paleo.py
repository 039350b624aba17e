"""Paleo's model against figures that Paleo's own code printed; ``benchmarks/paleo_model.py`` compares many more."""

import pytest

from paceline.clusters.catalogue import all_devices, all_networks
from paceline.costs.paleo import SCHEMES, Paleo, as_paleo, paleo_layers, paleo_step
from paceline.costs.trace.trace import trace
from paceline.errors import UsageError
from paceline.jobs.build import traceable_of


def traced(model):
    subject = traceable_of(as_paleo(model))
    return lambda samples: trace(subject, samples)


def paleo(device="k40", network="ethernet", compute=0.62, share=0.72):
    return Paleo(
        device=all_devices()[device],
        bandwidth=all_networks()[network].bandwidth,
        compute=compute,
        network=share,
    )


def milliseconds(model, trace, workers):
    steps = [paleo_step(model, trace, workers, scheme) for scheme in SCHEMES]
    step = steps[0]
    return [1e3 * one for one in (step.forward, step.backward, step.apply, *(s.communicate for s in steps))]


def test_the_table_for_inception_v3_comes_out():
    trace_of = traced("inception-v3")
    assert trace_of(64).size == 23_734_312
    expected = (
        (314.762, 676.009, 0.932, 0, 0, 0),
        (157.629, 338.499, 0.932, 210.972, 210.972, 105.486),
        (79.062, 169.745, 0.932, 632.915, 421.943, 210.972),
        (39.778, 85.367, 0.932, 1476.802, 632.915, 316.457),
    )
    compute = (991.704, 497.060, 249.738, 126.077)
    for workers, printed, computing in zip((1, 2, 4, 8), expected, compute, strict=True):
        found = milliseconds(paleo(), trace_of(64 // workers), workers)
        assert found == pytest.approx(printed, rel=1e-3)
        assert sum(found[:3]) == pytest.approx(computing, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "device", "network", "batch", "shares", "workers", "printed"),
    [
        # Dropout, a stride of 4 that leaves gaps in the gradient, dense layers that are convolutions.
        (
            "alexnet-v2",
            "titan-x",
            "pcie3",
            32,
            (1, 1),
            4,
            (8.70796, 23.1061, 1.68709, 75.4559, 50.3039, 25.1520),
        ),
        ("nin", "i7-5930k", "aws", 7, (0.5, 0.9), 50, (97.6501, 184.555, 1.30082, 13232.5, 1620.30, 810.152)),
        ("vgg16", "k80", "ethernet20", 256, (0.62, 1), 1, (2382.90, 5446.62, 3.27080, 0, 0, 0)),
    ],
)
def test_other_networks_devices_and_links(model, device, network, batch, shares, workers, printed):
    found = milliseconds(paleo(device, network, *shares), traced(model)(batch), workers)
    assert found == pytest.approx(printed, rel=1e-4)


def test_layers_add_up_to_the_step():
    found = traced("alexnet-v2")(8)
    step, layers = paleo_step(paleo(), found), paleo_layers(paleo(), found)
    assert sum(layer.forward for layer in layers) == pytest.approx(step.forward)
    assert sum(layer.backward for layer in layers) == pytest.approx(step.backward)
    assert [layer.layer for layer in layers][:3] == ["conv1", "pool1", "conv2"]


def test_a_part_of_the_peak_lies_between_0_and_1():
    with pytest.raises(UsageError, match=r"ppp-comp 1.2 is out of range"):
        paleo(compute=1.2)
    with pytest.raises(UsageError, match=r"ppp-comm 0 is out of range"):
        paleo(share=0)
