"""Local SGD and its descendants against what their papers say, in virtual time."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from virtual_helpers import Kept, make_cluster, make_job, plain_model, time_only, with_gradients

from paceline.codecs import build_codec
from paceline.codecs.exchanges import run_programs
from paceline.errors import RunFailed, UsageError
from paceline.jobs.sharding import Shards
from paceline.runtimes.compression import Compressor
from paceline.runtimes.virtual.shape import JobShape
from paceline.strategies import build_strategy
from paceline.strategies.base import Strategy, SyncPoint, Worker
from paceline.strategies.effects import Apply, Gradient, Program, StartAllReduce

AVERAGE = "local-sgd:period=4"


def trained(strategy: str, workers: int = 2, job=None, **changes) -> Kept:
    return with_gradients(
        job or make_job(), make_cluster(workers), strategy_name=strategy, **{"iterations": 16, **changes}
    )[1]


def distance(one: Kept, other: Kept) -> float:
    return max(float((one.model[name] - other.model[name]).abs().max()) for name in one.model)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def test_diloco_is_the_loop_that_its_paper_writes() -> None:
    """Two workers, AdamW inside, torch's own SGD with Nesterov momentum outside."""
    job, steps, period, sizes = replace(make_job(), optimizer=adamw), 15, 5, (8, 8)
    shards = Shards(samples=len(job.train), batch_sizes=sizes, seed=1)
    torch.manual_seed(1)
    start = plain_model()
    replicas = [plain_model() for _ in sizes]
    for replica in replicas:
        replica.load_state_dict(start.state_dict())
    inner = [adamw(replica.parameters()) for replica in replicas]
    outer = torch.optim.SGD(start.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    for step in range(steps):
        for rank, (replica, optimizer) in enumerate(zip(replicas, inner, strict=True)):
            inputs, targets = job.train.take(shards.indices(rank, step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(replica(inputs), targets).backward()
            optimizer.step()
        if (step + 1) % period == 0:
            for place, shared in enumerate(start.parameters()):
                others = [list(replica.parameters())[place].detach() for replica in replicas]
                shared.grad = shared.detach() - sum(others) / len(others)
            outer.step()
            for replica in replicas:
                replica.load_state_dict(start.state_dict())
    found = trained(f"diloco:period={period}", job=job, batch_sizes=sizes, iterations=steps).model
    for name, tensor in start.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


def test_diloco_has_the_defaults_of_its_paper() -> None:
    spelled = build_strategy("diloco:period=500,outer=nesterov,outer_lr=0.7,outer_momentum=0.9")
    assert build_strategy("diloco") == spelled
    assert build_strategy("local-sgd:outer=nesterov")._optimizer == build_strategy("diloco")._optimizer


def test_an_average_that_comes_late_keeps_what_was_learnt_meanwhile() -> None:
    """Four steps, two more, and then the average of the four: the workers have moved, and their mean has not."""
    late, never = (trained(f"local-sgd:period={spec}", iterations=6) for spec in ("4,overlap=2", "1000"))
    assert distance(late, never) < 1e-6
    assert distance(late, trained("local-sgd:period=4", iterations=6)) > 1e-4


def test_an_overlap_hides_the_exchange_and_waits_for_what_is_left_of_it() -> None:
    """A step takes 3.75 s and the vector 4,000 bytes over a link that the test chooses."""

    def spans(bandwidth: float, overlap: int) -> tuple[float, float]:
        cluster = make_cluster(2, bandwidth=bandwidth)
        spec = f"local-sgd:period=4,overlap={overlap}"
        _, kept = time_only(cluster, strategy_name=spec, iterations=16)
        steps = [record for record in kept.records[0] if record.is_step]
        shown = sum(span.length for one in steps for span in one.spans if span.kind == "communicate")
        return shown, sum(span.length for one in steps for span in one.hidden)

    sent = spans(1e3, 0)[0] / 4
    assert sent == pytest.approx(4.064, rel=0.01)
    shown, hidden = spans(1e3, 2)  # of the four rounds, the last one is waited for when the run ends
    assert shown == pytest.approx(sent)
    assert hidden == pytest.approx(3 * sent)
    shown, hidden = spans(200, 4)
    assert shown == pytest.approx(3 * (5 * sent - 4 * 3.75) + 5 * sent)
    assert hidden == pytest.approx(3 * 4 * 3.75)


def test_time_and_bytes_do_not_depend_on_whether_gradients_are_computed() -> None:
    job, cluster = make_job(), make_cluster(3, bandwidth=1e3)
    for codec in ("identity", "int8", "top-k"):
        settings = {
            "strategy_name": "diloco:period=6,overlap=3,fragments=2",
            "codec": codec,
            "iterations": 14,
        }
        computed = with_gradients(job, cluster, **settings)[0]
        timed = time_only(cluster, JobShape.of(job), **settings)[0]
        assert computed.totals[1].sent == timed.totals[1].sent > 0
        assert computed.seconds == pytest.approx(timed.seconds)


def test_fragments_keep_the_link_busy_evenly() -> None:
    _, kept = time_only(make_cluster(2), strategy_name="local-sgd:period=8,fragments=4", iterations=16)
    sent = [record.sent for record in kept.records[0] if record.is_step]
    assert [bool(one) for one in sent] == [False, True] * 8
    assert len({one for one in sent if one}) == 1


def test_a_period_adapts_to_a_share_of_the_time() -> None:
    for share, bandwidth in ((0.05, 1e3), (0.2, 2e2)):
        _, kept = time_only(
            make_cluster(3, bandwidth=bandwidth), strategy_name=f"local-sgd:comm={share:.0%}", iterations=2000
        )
        late = [record for record in kept.records[1] if record.is_step][1000:]
        spans = [span for record in late for span in record.spans]
        talked = sum(span.length for span in spans if span.kind == "communicate")
        assert talked / sum(span.length for span in spans) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("codec", ["int8:memory=error", "top-k:ratio=0.1", "sign"])
def test_an_outer_gradient_is_what_was_sent_and_what_is_kept(codec: str) -> None:
    """In two fragments, each with its part of the error memory."""
    layout = JobShape.of(make_job()).layout
    length, pair = layout.elements, []
    for rank in range(2):
        me = Worker(rank, 2, torch.zeros(length), torch.zeros(length), torch.zeros(0))
        pair.append((me, Compressor(build_codec(codec), me, layout, 1)))
    for _ in range(3):
        for start, stop in ((0, length // 2), (length // 2, length)):
            shares = [torch.randn(stop - start) / 2 for _ in pair]
            given = sum(shares) + sum(me.state["codec.memory"][start:stop] for me, _ in pair) / 2
            programs = [one.reduce_update(part, start) for (_, one), part in zip(pair, shares, strict=True)]
            run_programs(programs)
            kept = sum(me.state["codec.memory"][start:stop] for me, _ in pair) / 2
            assert torch.equal(*shares)
            torch.testing.assert_close(shares[0] + kept, given, rtol=0, atol=1e-5)
    assert all(me.state["codec.memory"].any() for me, _ in pair)


def test_a_codec_that_leaves_nothing_out_changes_nothing() -> None:
    spec = "local-sgd:period=6,overlap=3,fragments=2"
    assert distance(trained(spec, codec="top-k:ratio=1"), trained(spec)) < 1e-6
    assert distance(trained(spec, codec="top-k:ratio=0.1"), trained(spec)) > 1e-6


def test_what_gradients_left_out_is_dropped_when_differences_of_parameters_follow() -> None:
    """If it were kept, it would be added to differences that are smaller by the learning rate."""
    codec = "top-k:ratio=0.02"
    synchronous = trained("post-local:switch=12,period=4", codec=codec, iterations=12)
    after = trained("post-local:switch=12,period=4", codec=codec, iterations=16)
    assert distance(after, synchronous) < 3 * distance(
        trained(AVERAGE, iterations=4), trained(AVERAGE, iterations=1)
    )


@dataclass(frozen=True, kw_only=True)
class StartedByTheClock(Strategy):
    """Workers that count time, and never wait for the average that they have started."""

    sync_point = SyncPoint.AFTER_ROUND

    def worker(self, me: Worker) -> Program:
        difference = me.state.setdefault("difference", torch.zeros_like(me.params))
        while True:
            yield Gradient()
            yield Apply()
            yield StartAllReduce(difference, offset=0)

    def central(self, me: Worker) -> Program:
        yield from ()
        return me.params


def test_only_workers_that_take_equal_steps_may_start_a_reduction() -> None:
    """If this failed, nothing would count the progress of a run by rounds, and it would never end."""
    with pytest.raises(RunFailed, match="asks for StartAllReduce, which only workers that all take the same"):
        time_only(make_cluster(2), strategy=StartedByTheClock())


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("local-sgd:outer_lr=0.5", "outer=average has none; choose outer=nesterov"),
        ("local-sgd:period=1s,overlap=2", "overlap=2 counts steps, and period=1s is a time"),
        ("local-sgd:period=1s,fragments=2", "fragments=2 counts steps"),
        ("local-sgd:period=1s,growth=2,longest=9", "growth=2 counts steps"),
        ("local-sgd:period=1s,comm=5%", "comm=5% counts steps, and period=1s is a time"),
        (
            "local-sgd:comm=5%,overlap=2",
            "comm=5% finds the period as it goes, and overlap=2 needs one that is known",
        ),
        ("local-sgd:comm=5%,growth=2,longest=99", "and growth=2 needs one that is known"),
        ("local-sgd:growth=2", "growth=2 and longest=None go together"),
        ("local-sgd:longest=20", "go together"),
        ("local-sgd:growth=1.001,longest=20", "1 for rounds of one length, or 1.01 to 1000"),
        ("local-sgd:growth=2,longest=8", "longest=8 is shorter than the first round, period=16"),
        ("local-sgd:overlap=17", "choose at most 16, or a longer period"),
        ("local-sgd:overlap=9,fragments=2", "longer than the 8 steps from one average to the next"),
        ("local-sgd:fragments=17", "fragments=17 are more than the steps of period=16"),
        ("local-sgd:comm=120%", "at least 0% and less than 100%"),
        ("local-sgd:comm=much", "'much' is not a share"),
        ("post-local:period=1s", "give it in steps, or choose local-sgd"),
        ("post-local:switch=0", "at least 1"),
    ],
)
def test_what_makes_no_sense_together_is_refused(spec: str, told: str) -> None:
    with pytest.raises(UsageError) as raised:
        build_strategy(spec)
    assert told in str(raised.value)
