"""A plan on small models and catalogue hardware: what is ranked first, what is left out, what a study changes."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convergence_studies import cell_result, study_of, three_seeds
from paceline.clusters.profile import LinkFit, Profile, write_profile
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.reports.plan import answer, short, text_lines
from paceline.reports.plan_chart import chart_lines, picture
from paceline.studies.calibrate.record import plain_device
from paceline.studies.convergence.folder import StudyFolder
from paceline.studies.convergence.study import Pair
from paceline.studies.plan import PlanRequest, make_plan, parse_offer, read_offers
from paceline.studies.plan.candidates import Candidate, Priced
from paceline.studies.plan.factors import SampleFactors
from paceline.studies.plan.ranking import Aim, distinct, pareto_front, without_dominated
from paceline.units import parse_seconds

MLP = {"model": "mlp:hidden=2000", "shape": (1, 28, 28), "classes": 10, "samples": 10_000_000}
CHEAP, FAST = "v100:price=1,network=1gbit,most=4", "h100:host_price=40,network=100gbit,per_host=2,most=4"


def candidate(time: float, cost: float, **more) -> Candidate:
    usual = {
        "hardware": "a100",
        "strategy": "all-reduce",
        "codec": "identity",
        "workers": 2,
        "hosts": 1,
        "servers": 0,
        "batch": 32,
        "global_batch": 64,
        "steps": 1,
        "factor": 1.0,
        "unknowns": (),
        "step": 1.0,
        "rate": 64.0,
        "sent": 1.0,
        "memory": 1.0,
    }
    edges = {"time_low": time, "time_high": time, "cost_low": cost, "cost_high": cost}
    return Candidate(**(usual | edges | more), time=time, cost=cost)


def plan_of(*hardware: str, factors: SampleFactors | None = None, **more):
    offers = tuple(map(parse_offer, hardware or (CHEAP, FAST)))
    asked = {"strategies": ("all-reduce", "local-sgd:period=8"), "codecs": ("identity", "int8")}
    return make_plan(PlanRequest(**(MLP | asked | {"batch_sizes": (32, 64)} | more), offers=offers), factors)


FIGURE = st.floats(0.1, 100)


@given(st.lists(st.tuples(FIGURE, FIGURE), min_size=1, max_size=30))
def test_the_front_is_what_nothing_else_beats(figures):
    every = [candidate(time, cost) for time, cost in figures]
    front = pareto_front(every)
    assert [one.time for one in front] == sorted(one.time for one in front)
    for one in every:
        at_least_as_good = [two for two in front if two.time <= one.time and two.cost <= one.cost]
        assert at_least_as_good, "everything is matched by the front"
        if one in front:
            assert {(two.time, two.cost) for two in at_least_as_good} == {(one.time, one.cost)}


@given(st.lists(st.tuples(FIGURE, FIGURE), min_size=1, max_size=20), FIGURE, FIGURE)
def test_what_is_ranked_meets_the_aim_and_is_in_order(figures, deadline, budget):
    every = [candidate(time, cost) for time, cost in figures]
    both = Aim(deadline=deadline, budget=budget).rank(every)
    assert all(one.time <= deadline and one.cost <= budget for one in both)
    assert [one.cost for one in both] == sorted(one.cost for one in both)
    by_time = [one.time for one in Aim(budget=budget).rank(every)]
    assert by_time == sorted(one.time for one in every if one.cost <= budget)
    nearest = Aim(deadline=deadline, budget=budget).nearest(every)[0]
    assert Aim(deadline=deadline, budget=budget).excess(nearest) == pytest.approx(
        min(max(one.time / deadline, one.cost / budget) for one in every)
    )


def priced(*candidates: Candidate) -> list[Priced]:
    return [Priced(one, None, None, None) for one in candidates]


def test_a_candidate_with_more_unknowns_must_gain_something():
    plain = candidate(100, 10)
    slow, little, much = (candidate(time, 10, unknowns=("codec",), codec="int8") for time in (101, 99, 90))
    large = candidate(99, 10, unknowns=("batch",))
    both = candidate(98, 10, unknowns=("batch", "codec"))
    found = without_dominated(priced(plain, slow, little, much, large, both), Aim())
    assert [one.candidate for one in found] == [plain, much]
    assert distinct([plain, replace(plain, batch=64), much]) == [plain, much]


def test_what_alone_meets_the_aim_is_not_left_out_for_one_that_misses_it():
    """Else nothing would meet a deadline that int8 meets, with 1 % to spare, and the command would exit with 3."""
    plain, coded = candidate(10.1, 10), candidate(9.95, 10, unknowns=("codec",), codec="int8")
    assert [one.candidate for one in without_dominated(priced(plain, coded), Aim(deadline=10))] == [
        plain,
        coded,
    ]
    assert [one.candidate for one in without_dominated(priced(plain, coded), Aim(deadline=11))] == [plain]
    assert [one.candidate for one in without_dominated(priced(plain, coded), Aim(deadline=9))] == [plain]


@pytest.fixture(scope="module")
def free():
    return plan_of()


def test_without_an_aim_the_table_is_the_front(free):
    assert free.met
    assert {*free.best} <= {*free.front}
    assert all(one.time_low <= one.time <= one.time_high for one in free.candidates)
    assert all(one.cost_low <= one.cost <= one.cost_high for one in free.candidates)
    assert {one.interval for one in free.front} == {"simulated"}
    one = next(one for one in free.candidates if one.workers == 1 and one.hardware == "v100 at 1gbit")
    assert one.cost == pytest.approx(one.time / 3600)
    host = next(one for one in free.candidates if one.hardware.startswith("h100") and one.workers == 1)
    assert host.cost == pytest.approx(40 * host.time / 3600), "a host that is partly used is paid whole"


def test_a_deadline_and_a_budget_choose_from_the_front(free):
    fastest, cheapest = free.front[0], free.front[-1]
    assert fastest.time < cheapest.time
    late = plan_of(deadline=2 * cheapest.time)
    assert (late.met, late.first.cost) == (True, pytest.approx(cheapest.cost))
    soon = plan_of(deadline=1.01 * fastest.time)
    assert soon.first.time <= 1.01 * fastest.time
    rich = plan_of(budget=2 * fastest.cost)
    assert rich.first.time == pytest.approx(fastest.time)
    assert answer(rich).endswith("that do.")


def test_what_cannot_be_met_names_the_nearest_and_what_it_takes(free):
    fastest, cheapest = free.front[0], free.front[-1]
    missed = plan_of(deadline=fastest.time / 2)
    assert not missed.met
    assert missed.first.time == pytest.approx(fastest.time)
    assert "Nothing meets the deadline" in answer(missed)
    assert "It would take a deadline of" in answer(missed)
    between = plan_of(deadline=1.01 * fastest.time, budget=1.01 * cheapest.cost)
    assert not between.met
    assert "at that budget or a budget of" in answer(between)
    hopeless = answer(plan_of(deadline=fastest.time / 2, budget=cheapest.cost / 2))
    assert " and a budget of " in hopeless.partition("It would take")[2]


@given(st.floats(1e-3, 1e8), st.floats(1e-3, 1e8))
def test_the_deadline_and_the_budget_that_it_would_take_are_enough_as_they_are_told(free, time, cost):
    """Rounded to nearest, 10.14 h would be told as 10.1 h, and the plan for that would fail as well."""
    one = candidate(time, cost)
    missed = replace(free, aim=Aim(deadline=time / 2, budget=cost / 2), met=False, best=(one,), front=(one,))
    found = re.search(r"It would take a deadline of (.+) and a budget of (\S+)\.$", answer(missed))
    assert found, answer(missed)
    typed = Aim(deadline=parse_seconds(found[1]), budget=float(found[2]))
    assert typed.met_by(one)
    assert typed.excess(one) > 0.99


def test_what_does_not_go_together_or_fit_is_left_out_with_its_reason():
    found = plan_of(
        "v100:price=1,per_host=4,most=8",
        workers=(1, 4, 6, 8, 16),
        batch_sizes=(32, 2_000_000),
        codecs=("identity", "dgc"),
        largest_batch=9_000_000,
    )
    reasons = " ".join(one.reason for one in found.left_out)
    assert "more workers than the 8" in reasons
    assert "whole hosts of 4" in reasons
    assert "global batch of more than 9,000,000" in reasons
    assert "adds momentum" in reasons
    assert "needs more memory than NVIDIA V100" in reasons
    assert {one.workers for one in found.candidates} == {1, 4, 8}
    assert all(one.count > 0 and one.example for one in found.left_out)
    assert "left out" in " ".join(text_lines(found))


def test_the_largest_batch_is_of_a_step_with_all_learners_and_mini_batches():
    """Else a plan that is bounded by 128 would come first with a step of 256."""
    asked = {"workers": (2, 4), "batch_sizes": (32,), "codecs": ("identity",)}
    found = plan_of(CHEAP, strategies=("sma:learners=2",), largest_batch=128, **asked)
    assert [(one.workers, one.global_batch) for one in found.candidates] == [(2, 128)]
    job = JobSpec(data="digits", model="mlp", accumulate=2)
    parts = {"model": None, "shape": None, "classes": None, "samples": None, "job": job, "epochs": 1}
    found = plan_of(CHEAP, strategies=("all-reduce",), largest_batch=128, **parts, **asked)
    assert [(one.workers, one.global_batch) for one in found.candidates] == [(2, 128)]


def test_numbers_of_workers_that_a_strategy_has_no_use_for_are_refused_as_in_a_run():
    with pytest.raises(
        UsageError, match="'ps:backup=2' needs at least 3 workers, and this run has 2; use more"
    ):
        plan_of(CHEAP, strategies=("ps:backup=2",), workers=(2,), batch_sizes=(32,), codecs=("identity",))


def test_an_interval_that_is_not_worked_out_is_not_said_to_be():
    found = plan_of(
        CHEAP, strategies=("ssp:staleness=2",), workers=(2,), batch_sizes=(32,), codecs=("identity",)
    )
    assert {one.interval for one in found.front} == {"by parts"}


def test_nothing_that_fits_is_refused_with_the_reason():
    with pytest.raises(UsageError, match=r"nothing can be planned: .* needs more memory"):
        plan_of("v100:price=1,most=1", batch_sizes=(5_000_000,))
    with pytest.raises(UsageError, match="unknown model 'resnet5'"):
        plan_of(model="resnet5", shape=None, classes=None)


def test_unknowns_are_named_by_row():
    found = plan_of("v100:price=1,network=1gbit,most=4", deadline=1e9, reference_batch=4, workers=(2, 4))
    assert any("batch" in one.unknowns for one in found.best)
    assert any("strategy" in one.unknowns for one in found.best)
    said = next(
        line
        for line in text_lines(found)
        if line.startswith("Unknowns: every row has the same number of samples")
    )
    assert "global batch above 8 x 4" in said
    assert "drift apart" in said


def test_the_front_is_drawn(free):
    drawn = chart_lines(free)
    assert drawn[0].startswith("time by cost")
    plain = chart_lines(free, unicode=False)
    assert all(line.isascii() for line in plain)
    shown = "".join(plain[1:-2])
    assert 1 <= shown.count("o") + shown.count("#") <= len(free.front)
    svg = picture(plan_of(deadline=1e6))
    assert svg.startswith("<svg")
    assert "the deadline of" in svg
    assert all(short(one) in svg for one in free.front)


def test_a_study_multiplies_the_samples_of_its_pairs(tmp_path):
    study = three_seeds(study_of("all-reduce", "local-sgd:period=8", "async"))
    folder = StudyFolder(tmp_path / "study")
    folder.open(study)
    for seed in study.seeds:
        folder.keep(study, cell_result("all-reduce", seed, 0.5, 0.9, 0.9))
        folder.keep(study, cell_result("local-sgd:period=8", seed, 0.5, 0.6, 0.9))
        folder.keep(study, cell_result("async", seed, 0.5, 0.6, 0.6))
    factors = SampleFactors.read(folder.path, target=0.85)
    assert factors.factor(Pair("all-reduce")) == 1
    assert factors.factor(Pair("local-sgd:period=9")) == 1, "another setting, which was not measured"
    assert factors.factor(Pair("local-sgd:period=8")) == 1.5
    assert factors.factor(Pair("local-sgd:period=8", "int8")) == 1.5, "what is known of it"
    asked = {"workers": (4,), "batch_sizes": (32,)}
    before = plan_of(CHEAP, **asked)
    after = plan_of(CHEAP, factors=factors, strategies=study.strategies, **asked)
    assert "did not reach the target" in " ".join(one.reason for one in after.left_out)

    def local(plan):
        pairs = (one for one in plan.candidates if one.strategy.startswith("local"))
        return next(one for one in pairs if one.codec == "identity")

    assert local(after).time == pytest.approx(1.5 * local(before).time)
    assert local(after).cost == pytest.approx(1.5 * local(before).cost)
    assert (local(before).unknowns, local(after).unknowns) == (("strategy",), ())
    text = "\n".join(text_lines(after))
    assert "x 1.5" in text
    assert "Unknowns beyond the study: more samples may be needed" in text
    assert "same number of samples" not in text, "the study says how many more some need"
    with pytest.raises(UsageError, match="never reached 99 %"):
        SampleFactors.read(folder.path, target=0.99)


def test_a_measured_machine_beside_one_of_the_catalogue(tmp_path):
    """Of one trace: if the second were priced by the first one's device or profile, both would take as long."""
    here = Profile(
        name="here",
        made="2026-11-18T11:00:00Z",
        versions={"torch": str(torch.__version__)},
        machine={"threads": 1, "usable_cores": 2, "memory_bytes": 8_000_000_000},
        device=plain_device().to_json(),
        links=(LinkFit(name="memory", bandwidth=4e9, latency=2e-5, spread=0.1, points=9),),
        contention=(1.0, 1.2),
    )
    path = tmp_path / "here.json"
    write_profile(here, path)
    asked = {"strategies": ("ps", "all-reduce"), "codecs": ("identity",), "batch_sizes": (32,)}
    machine = f"{path}:price=0.1,most=4"
    alone, both = plan_of(machine, **asked), plan_of("v100:price=1,most=1", machine, **asked)
    mine = [one for one in both.candidates if one.hardware == "here"]
    assert [(one.workers, one.time) for one in mine] == [(one.workers, one.time) for one in alone.candidates]
    assert {one.hosts for one in mine} == {1}
    assert max(one.workers for one in mine) == 2, "the machine has two cores"
    assert {label: basis.level for label, basis in both.bases.items()} == {
        "v100": "catalogue",
        "here": "calibrated",
    }


def test_offers_are_read_from_a_file_with_the_line_of_a_mistake(tmp_path):
    path = tmp_path / "offers.toml"
    path.write_text(
        "[[hardware]]\ndevice = 'a100'\nprice = 2.5\nper-host = 8\nmost = 32\nnetwork = '25gbit'\n"
    )
    (offer,) = read_offers(path)
    assert offer == parse_offer("a100:price=2.5,per_host=8,most=32,network=25gbit")
    assert offer.counts == (1, 2, 4, 8, 16, 32)
    assert parse_offer("a100:price=1,per_host=6,most=20").counts == (1, 2, 4, 6, 12, 18)
    path.write_text("[[hardware]]\ndevice = 'a100'\nprise = 2.5\nprice = 1\n")
    with pytest.raises(UsageError, match=r"line 3: unknown key 'hardware\[0\].prise'; did you mean"):
        read_offers(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a100", "hardware 'a100': exactly one of price and host-price of a100 is needed"),
        ("a100:price=1,host_price=2", "exactly one of price and host-price"),
        ("a10000:price=1", "unknown device 'a10000'"),
        ("a100:price=-1", "more than 0"),
        ("a100:price", "is not a setting"),
        ("a100:price=1,network=fast", "unknown network 'fast'"),
        ("a100:price=1,most=0", "whole number, 1 or more"),
        ("a100:price=1,cost=2", "unknown key 'cost'"),
        (":price=1", "names no device"),
    ],
)
def test_a_bad_offer_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_offer(text)
