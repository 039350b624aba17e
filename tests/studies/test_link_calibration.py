"""From times of all-reduces behind computing to a link, and to the contention of workers on one host."""

from collections import Counter
from dataclasses import replace
from math import log

import pytest

from collective_prices import predict_all_reduce
from paceline.clusters.cluster import Cluster, Host, Link
from paceline.clusters.profile import SLICE, LinkFit, Profile
from paceline.costs.topology import Topology
from paceline.errors import UsageError
from paceline.studies.calibrate.link_fit import AveragedStep, add_links, fit_contention, fit_link, fit_wire
from paceline.studies.collectives.probe import AlphaBeta, least_squares

SIZES = ((6_000,), (150_000,), (800_000,), (2_500_000, 40_000), (6_000_000,))
LINK = Link(latency=3e-4, bandwidth=2e9)


def points(way: str, hosts: tuple[int, ...], link: Link = LINK) -> list[AveragedStep]:
    """What the model itself would have measured."""
    cluster = Cluster.of(
        tuple(
            Host(
                name=str(host),
                link=link,
                inside=link,
                workers=count,
                backend="shm" if way == "memory" else "gloo",
            )
            for host, count in Counter(hosts).items()
        )
    )
    return [
        AveragedStep(
            sizes=sizes, added=sum(predict_all_reduce("native", cluster, s) for s in sizes), beside=4e-3
        )
        for sizes in SIZES
    ]


@pytest.mark.parametrize(
    ("way", "hosts"),
    [("memory", (0, 0, 0)), ("loopback", (0, 0)), ("loopback", (0, 0, 0)), ("network", (0, 1, 2))],
)
def test_a_fit_gives_back_the_link_that_made_the_times(way: str, hosts: tuple[int, ...]) -> None:
    """Fit and prediction use the same prices, whichever way messages go and however many workers there are."""
    fit = fit_link(way, hosts, points(way, hosts))
    assert (fit.latency, fit.bandwidth) == pytest.approx((LINK.latency, LINK.bandwidth), rel=1e-6)
    assert fit.spread == pytest.approx(0, abs=1e-6)
    assert fit.workers == len(hosts)


def test_messages_go_to_a_server_and_back() -> None:
    """Each delay counts twice, and the server's end carries everybody's tensor each way."""
    made = [AveragedStep(sizes=(s,), added=2 * (1e-3 + 3 * s / 1e9), beside=1e-3) for s in (1_000, 1_000_000)]
    fit = fit_link("messages", (0, 0, 0), made)
    assert (fit.latency, fit.bandwidth) == pytest.approx((1e-3, 1e9), rel=1e-6)


def test_noise_makes_no_figure_negative() -> None:
    """An all-reduce that seemed to take less than nothing is one of no time, not a link into the past."""
    shrunk = [
        AveragedStep(sizes=p.sizes, added=p.added - 1e-3, beside=p.beside) for p in points("memory", (0, 0))
    ]
    fit = fit_link("memory", (0, 0), shrunk)
    assert fit.latency == 0
    assert fit.bandwidth > 0
    assert fit.spread > 0


def test_nonsense_is_refused() -> None:
    """Faster than the memory that messages lie in, as the profile's device knows it, or fitted to a single step."""
    fit = fit_link("memory", (0, 0), points("memory", (0, 0)))
    quick, slow = (
        replace(profile(), device={"limits": {"bandwidth": rate}, "curves": {"mm": {}}})
        for rate in (4e9, 1e9)
    )
    assert add_links(quick, [fit]).links == (fit,)
    with pytest.raises(UsageError, match=r"memory: 2 GB/s is more than the memory's own 1 GB/s"):
        add_links(slow, [fit])
    with pytest.raises(UsageError, match="messages: 2 GB/s"):
        add_links(slow, [replace(fit, name="messages")])
    across, unknown = replace(fit, name="network"), replace(slow, device={**slow.device, "curves": {}})
    assert add_links(slow, [across]).links == (across,), "a network's card has its own way to memory"
    assert add_links(unknown, [fit]).links == (fit,), "a record knows no memory's rate"
    with pytest.raises(UsageError, match="1 steps"):
        fit_link("memory", (0, 0), points("memory", (0, 0))[:1])


def profile(**more: object) -> Profile:
    known: dict[str, object] = {"name": "here", "made": "", "versions": {}, "machine": {}, "device": {}}
    return Profile(**known | more)  # type: ignore[arg-type]


def test_contention_lies_between_what_was_measured() -> None:
    """Workers that synchronise often are slowed down more, up to a point; others lose some slices at each barrier."""
    known = profile(contention=(1.0, 1.2, 1.8), contention_short=(1.0, 1.4, 2.6))
    assert known.contention_between(0.0) == pytest.approx((1.0, 1.4, 2.6))
    assert known.contention_between(1e6) == pytest.approx((1.0, 1.2, 1.8))
    assert known.contention_between(SLICE) == pytest.approx((1.0, 1.3, 2.2))
    lost = [apart * (known.contention_between(apart)[2] - 1.8) for apart in (1.0, 2.0)]
    assert lost[0] == pytest.approx(lost[1], rel=1e-2)
    assert profile(contention=(1.0, 1.5)).contention_between(0.01) == (1.0, 1.5)


def test_a_link_is_that_of_as_many_workers() -> None:
    """Or of the number next to it; a link that was not measured is none."""
    fits = tuple(
        LinkFit(name="loopback", bandwidth=1e9 * n, latency=0, spread=0, points=5, workers=n) for n in (2, 3)
    )
    known = profile(links=fits)
    assert [known.link("loopback", n).workers for n in (2, 3, 8)] == [2, 3, 3]  # type: ignore[union-attr]
    assert known.link("network", 2) is None


def test_a_wire_is_as_uncertain_as_its_line() -> None:
    """The spread is what the line misses, no figure of ours."""
    line = AlphaBeta(latency=1e-4, byte_seconds=1e-8)
    exact = [(float(size), line.seconds(size)) for size in (1_000, 1_000_000, 10_000_000)]
    fit = fit_wire(line, exact, workers=3)
    assert (fit.name, fit.latency, fit.bandwidth, fit.workers, fit.points) == ("wire", 1e-4, 1e8, 3, 3)
    assert fit.spread == 0
    uneven = [
        (size, seconds * factor) for (size, seconds), factor in zip(exact, (1.1, 1, 1 / 1.1), strict=True)
    ]
    assert fit_wire(line, uneven, workers=3).spread == pytest.approx(log(1.1) * (2 / 3) ** 0.5)


def test_small_tensors_do_not_make_a_network_faster_than_its_wire() -> None:
    """A shaper lets some bytes through at once: what takes no time has no latency, and says nothing of the rate."""
    made = points("network", (0, 1, 2), Link(latency=0.0, bandwidth=1e7))
    saved = [AveragedStep(sizes=p.sizes, added=max(0.0, p.added - 20e-3), beside=p.beside) for p in made]
    fit = fit_link("network", (0, 1, 2), saved, wire=1e-7)
    assert (fit.latency, fit.bandwidth) == (0, pytest.approx(1e7))


def test_a_network_may_be_slower_in_a_step_than_its_wire() -> None:
    """Cores that compute have less time for packets; the delay of small tensors is what is left."""
    made = points("network", (0, 1, 2), Link(latency=0.0, bandwidth=1e7))
    fit = fit_link("network", (0, 1, 2), made, wire=0.5e-7)
    assert (fit.latency, fit.bandwidth) == pytest.approx((0, 1e7), abs=1e-9)


def test_contention_is_fitted_to_all_networks() -> None:
    """The fit gives back what made its points; contention that seems to help is noise."""
    known = profile(contention=(1.0, 1.8), contention_short=(1.0, 3.0))
    points = [(t, known.contention_between(t)[1]) for t in (1e-3, 4e-3, 2e-2, 0.3)]
    assert fit_contention(points) == pytest.approx((3.0, 1.8, 0.0), abs=1e-9)
    assert fit_contention([(1e-3, 0.9), (1.0, 0.8)]) == (1.0, 1.0, 0.0)


def test_a_barrier_is_not_taken_for_contention() -> None:
    """It takes 0.2 ms whatever is computed: a step of 0.2 ms is twice as long with it, one of 4 ms a twentieth. Taken
    for a factor, it would make short steps of other models longer than they are, and leave the link its bytes alone."""
    known = profile(contention=(1.0, 1.05), contention_short=(1.0, 1.1))
    alone = (2e-4, 6e-4, 1.5e-3, 4e-3)
    short = [(t, known.contention_between(t)[1] + 2e-4 / t) for t in alone]
    long = [(32 * t, known.contention_between(32 * t)[1] + 2e-4 / (32 * t)) for t in alone[1:3]]
    assert fit_contention([*short, *long]) == pytest.approx((1.1, 1.05, 2e-4))


def test_workers_that_take_all_cores_hide_no_transfers() -> None:
    """Also where they do not slow each other down: there is no core left that could copy behind backward."""
    cores = profile(contention=(1.0, 1.0, 1.0), machine={"threads": 1, "usable_cores": 3})
    hidden = [
        Topology(
            Cluster.of([Host(name="here", link=LINK, workers=n, contention=cores.contention_between(1e-3))])
        ).hides
        for n in (1, 2, 3)
    ]
    assert hidden == [True, True, False]


@pytest.mark.parametrize("wanted", [(2.0, 3.0, 0.5), (2.0, 0.0, 0.5), (0.0, 0.0, 0.5)])
def test_least_squares_finds_any_number_of_coefficients(wanted: tuple[float, ...]) -> None:
    """Exact points give back what made them; one that would be negative is 0, and the others are then the best."""
    columns = [[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 4.0, 8.0], [5.0, 1.0, 0.2, 3.0]]
    values = [sum(c * one[at] for c, one in zip(wanted, columns, strict=True)) for at in range(4)]
    assert least_squares(columns, values, [1.0, 2.0, 3.0, 4.0]) == pytest.approx(wanted, abs=1e-9)
    falling = [3.0, 2.0, 1.0, 0.0]
    assert least_squares(columns[:2], falling, [1.0] * 4) == pytest.approx((1.5, 0.0))
