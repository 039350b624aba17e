"""The catalogue: what a name stands for, whose figures those are, and what a name that nobody knows is answered."""

import json
import subprocess
import sys

import pytest

from paceline.cli.main import main
from paceline.clusters.catalogue import all_devices, all_networks, find_device, find_network
from paceline.errors import UsageError

PALEO = {
    "titan-x": (6144, 336.5),
    "k20": (3520, 208),
    "k20x": (3935, 250),
    "k40": (4290, 288),
    "k80": (5600, 480),
    "gtx-780-ti": (5040, 336),
    "gt-750m": (722.7, 80),
    "i7-5930k": (289, 68),
}
PALEO_NETWORKS = {"aws": 2, "ethernet": 10, "ethernet20": 20, "infiniband": 70, "pcie2": 64, "pcie3": 128}


def test_paleos_devices_and_networks_have_paleos_figures() -> None:
    for name, (gigaflops, gigabytes) in PALEO.items():
        assert (all_devices()[name].flops, all_devices()[name].bandwidth) == pytest.approx(
            (gigaflops * 1e9, gigabytes * 1e9)
        )
    rates = {name: all_networks()[name].bandwidth * 8 / 1e9 for name in PALEO_NETWORKS}
    assert rates == pytest.approx(PALEO_NETWORKS)


NEW = {
    # name: fp32, bf16, memory GB/s, dense, as the data sheets print them; MiB as their drivers report them
    "h200": (66.9, 989.4, 4800, 143_771),
    "b200": (80, 2250, 8000, 183_359),
    "mi300x": (163.4, 1307.4, 5300, 196_592),
    "l40s": (91.6, 362.05, 864, 46_068),
}
NEW_NETWORKS = {
    "200gbit": 200,
    "400gbit": 400,
    "efa-100": 100,
    "efa-400": 400,
    "efa-3200": 3200,
    "nvlink5": 7200,
}


def test_what_people_ask_about_now_has_its_data_sheets_figures() -> None:
    for name, (teraflops, half, gigabytes, memory) in NEW.items():
        sheet = all_devices()[name]
        found = (
            sheet.flops / 1e12,
            sheet.tensor_flops["bf16"] / 1e12,
            sheet.bandwidth / 1e9,
            sheet.memory / 2**20,
        )
        assert found == pytest.approx((teraflops, half, gigabytes, memory)), name
    assert (all_devices()["grace"].cores, all_devices()["grace"].bandwidth) == (72, 500e9)
    assert all_devices()["grace"].flops == pytest.approx(72 * 3.1e9 * 32)
    rates = {name: all_networks()[name].bandwidth * 8 / 1e9 for name in NEW_NETWORKS}
    assert rates == pytest.approx(NEW_NETWORKS)


def test_devices_are_connected_by_links_that_there_are() -> None:
    """A remedy is drawn from these names: one that is unknown, or between hosts, would be refused when it is typed."""
    for device in all_devices().values():
        assert all(all_networks()[name].inside for name in device.inside), device.name


def test_every_figure_can_be_and_has_a_source_and_a_date() -> None:
    for device in all_devices().values():
        assert 1e11 < device.flops < 1e15
        assert 1e10 < device.bandwidth < 1e13
        # A matrix unit that is slower than none at all would be a slip, and so would one counted with sparsity.
        assert all(device.flops <= peak <= 29 * device.flops for peak in device.tensor_flops.values()), (
            device.name
        )
    for network in all_networks().values():
        assert 1e8 <= network.bandwidth < 1e12
        assert 1e-7 < network.latency < 1e-3
    for sheet in (*all_devices().values(), *all_networks().values()):
        assert sheet.source
        assert len(sheet.date) == len("2026-11")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "a100"),
        ("NVIDIA A100", "a100"),
        ("a100-40gb", "a100"),
        ("Tesla V100", "v100"),
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA Grace CPU", "grace"),
    ],
)
def test_a_device_is_found_however_it_is_spelt(text: str, name: str) -> None:
    assert find_device(text).name == name


@pytest.mark.parametrize(
    ("text", "gigabits", "microseconds"),
    [
        ("25gbit", 25, 20),
        ("25GbE", 25, 20),
        ("25 Gbit/s", 25, 20),
        ("25gbps", 25, 20),
        ("25 Gbit/s, 7 us", 25, 7),
        ("30 Gbit/s", 30, 20),
        ("100 Mbit/s", 0.1, 50),
        ("3 GB/s", 24, 20),
        ("NVLink 3", 2400, 1.9),
        ("edr,1 us", 100, 1),
    ],
)
def test_a_network_is_found_by_name_or_by_rate(text: str, gigabits: float, microseconds: float) -> None:
    found = find_network(text)
    assert (found.bandwidth * 8 / 1e9, found.latency * 1e6) == pytest.approx((gigabits, microseconds))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("infinband", ["unknown network 'infinband'", "did you mean 'infiniband'", "paceline networks"]),
        ("10 Gb", ["'10 Gb' may be bits or bytes", "'10 Gbit/s' or '10 GB/s'"]),
        ("-1 Gbit/s", ["'-1 Gbit/s'", "more than zero"]),
        ("25gbit,fast", ["'fast' is not a time", "'50 us'"]),
    ],
)
def test_what_is_no_network_is_said_in_a_sentence(text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        find_network(text)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_an_unknown_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown device 'a1000'; did you mean 'a100'\?.*paceline devices"):
        find_device("a1000")


@pytest.mark.parametrize(("command", "sheets"), [("devices", all_devices()), ("networks", all_networks())])
def test_the_lists_name_everything_with_unit_and_source(command, sheets, capsys) -> None:
    assert main([command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert list(document["entries"]) == list(sheets)
    assert all(entry["bandwidth"] == sheets[name].bandwidth for name, entry in document["entries"].items())
    assert main([command]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for sheet in sheets.values():
        assert f"{sheet.name} {sheet.title}" in text
        assert f"{sheet.source} ({sheet.date})" in text
    assert ("TFLOP/s" if command == "devices" else "Gbit/s") in text


def test_the_lists_are_quick_because_they_leave_torch_alone() -> None:
    script = "import sys; from paceline.cli.main import main; main(['devices']); main(['networks']); "
    out = subprocess.run(
        [sys.executable, "-c", script + "print('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert out.stdout.splitlines()[-1] == "False"
