"""All-reduces over links shaped to 1 Gbit/s: what was predicted against what was measured. Needs root.

Hosts are network namespaces behind a switch, one worker each. Every cable is shaped in both directions by tc's token
bucket. 'paceline bench collectives' runs on them: its probe measures the link first, by exchanges of point-to-point
messages, its predictions are made from that alone, and then the cells are measured.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

SIZES = "100kB,1MB,10MB,40MB"
MOST = 10.0
"""Per cent that the median absolute error of a schedule may be, at each number of hosts."""
RATE = "1gbit"
BURST = "72kb"
"""A little more than the largest packet, or tbf would cut every packet, which costs more than there are cores for.
What the bucket holds after a pause leaves unshaped, which matters for the smallest tensors."""
SLOW_BURST, SLOW_PACKET = "8kb", 6000
"""The same of 100 Mbit/s, where packets are few enough to be small: else a gradient of 72 kB would leave unshaped."""
QUEUES = {"1gbit": "4mb", "100mbit": "1mb"}
"""By rate: long enough that nothing is dropped while two hosts send to one, and no longer, or acknowledgements of one
direction wait behind the data of the other."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def shape(namespace: str, device: str, rate: str) -> None:
    burst = BURST
    if rate == "100mbit":
        burst = SLOW_BURST
        ip("-n", namespace, "link", "set", "dev", device, "gso_max_size", str(SLOW_PACKET))
    bucket = ["rate", rate, "burst", burst, "limit", QUEUES[rate]]
    subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket], check=True)


@contextmanager
def namespace(name: str) -> Iterator[str]:
    ip("netns", "add", name)
    try:
        yield name
    finally:
        ip("netns", "del", name)


def plug(switch: str, host: str, address: str, rate: str) -> None:
    port = f"port{address.rpartition('.')[2]}"
    ip("link", "add", "name", "eth0", "netns", host, "type", "veth", "peer", "name", port, "netns", switch)
    ip("-n", switch, "link", "set", port, "master", "switch")
    ip("-n", switch, "link", "set", port, "up")
    ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        ip("-n", host, "link", "set", device, "up")
    shape(host, "eth0", rate)
    shape(switch, port, rate)


@contextmanager
def hosts(count: int, rate: str = RATE, network: str = "10.79.0") -> Iterator[list[str]]:
    """Namespaces behind a switch, on cables of a rate, with addresses from .1 on; they go whatever happens."""
    tag = f"paceline-bench-{os.getpid()}"
    with ExitStack() as stack:
        switch = stack.enter_context(namespace(f"{tag}-switch"))
        ip("-n", switch, "link", "add", "name", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        names = [stack.enter_context(namespace(f"{tag}-{number}")) for number in range(count)]
        for number, name in enumerate(names):
            plug(switch, name, f"{network}.{number + 1}", rate)
        yield names


def start(host: str, number: int, command: list[str]) -> "subprocess.Popen[str]":
    rename = f'hostname host-{number}; export OMP_NUM_THREADS=1; exec "$@"'
    inside = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", rename, "sh", *command]
    return subprocess.Popen(inside, stdout=subprocess.PIPE if number == 0 else subprocess.DEVNULL, text=True)


def measure(count: int, sizes: str, cell_seconds: float) -> dict[str, Any]:
    """The command's document from so many hosts."""
    with hosts(count) as names:
        command = [sys.executable, "-m", "paceline", "bench", "collectives", "--json", "--sizes", sizes]
        command += ["--cell-seconds", str(cell_seconds), "-n", str(count), "-np", "1", "-a", "10.79.0.1"]
        launchers = [start(name, number, [*command, "-nr", str(number)]) for number, name in enumerate(names)]
        try:
            out, _ = launchers[0].communicate()
            codes = [launcher.wait() for launcher in launchers]
        finally:
            for launcher in launchers:
                if launcher.poll() is None:
                    launcher.send_signal(signal.SIGTERM)
                    launcher.wait()
    assert codes == [0] * count, f"exit codes {codes}"
    document: dict[str, Any] = json.loads(out)
    assert all(cell["measured_at"] > document["prediction"]["made_at"] for cell in document["cells"])
    return document


def errors(document: dict[str, Any]) -> dict[str, list[float]]:
    """Absolute errors in per cent, by schedule, in the order of sizes."""
    found: dict[str, list[float]] = {}
    for cell in document["cells"]:
        found.setdefault(cell["what"], []).append(100 * abs(cell["error"]))
    return found


def show(count: int, document: dict[str, Any]) -> None:
    print(f"\n{count} hosts; {'; '.join(document['prediction']['how'])}")
    sizes = document["settings"]["request"]["sizes"]
    print(f"  {'':16}" + "".join(f"{size / 1e6:>19g} MB" for size in sizes) + f"{'median error':>16}")
    for what, found in errors(document).items():
        cells = [cell for cell in document["cells"] if cell["what"] == what]
        texts = (
            f"{1e3 * cell['median']:>9.2f} ms {100 * cell['error']:>+6.1f} %  "
            for cell in sorted(cells, key=lambda cell: int(cell["size"]))
        )
        missed = "  MISSED" if what != "gloo" and statistics.median(found) >= MOST else ""
        print(f"  {what:16}" + "".join(texts) + f"{statistics.median(found):>12.1f} %{missed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, action="append", help="2 and 3 by default")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--cell-seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        print("needs root, ip and tc: not measured", file=sys.stderr)
        return 0
    # A terminal that goes away must not leave namespaces behind.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.default_int_handler)
    found = {count: measure(count, options.sizes, options.cell_seconds) for count in options.hosts or (2, 3)}
    medians = {
        count: {what: statistics.median(some) for what, some in errors(document).items()}
        for count, document in found.items()
    }
    everything = [
        error
        for document in found.values()
        for what, some in errors(document).items()
        if what != "gloo"
        for error in some
    ]
    met = all(error < MOST for some in medians.values() for what, error in some.items() if what != "gloo")
    if options.json:
        print(
            json.dumps({"schema": 1, "most": MOST, "met": met, "medians": medians, "found": found}, indent=2)
        )
    else:
        print(
            f"links of {RATE} by tbf, burst {BURST}; times and errors of predictions from each link's own probe"
        )
        for count, document in found.items():
            show(count, document)
        print(
            f"\nmedian error of all schedules: {statistics.median(everything):.1f} %; each under {MOST:g} %: {met}"
        )
    return 0 if met else 3


if __name__ == "__main__":
    sys.exit(main())
