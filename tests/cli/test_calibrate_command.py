"""``paceline calibrate``: what it writes, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command import run_json, run_paceline, run_python
from paceline.cli.main import main
from paceline.clusters.profile import DISTURBED, LinkFit, Profile, made_before, read_profile, write_profile
from paceline.costs.fitted import read_fitted
from paceline.errors import UsageError
from paceline.records.load import HostLoad, LoadMeter, disturbance
from paceline.studies.calibrate import links
from paceline.studies.calibrate.link_fit import ContentionFit, add_contention
from paceline.studies.calibrate.record import plain_device

PROFILE = Profile(
    name="here",
    made="2026-11-16T03:40:00Z",
    versions={"paceline": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    machine={"threads": 1},
    device={"spread": 0.1},
    links=(LinkFit(name="memory", bandwidth=4e9, latency=2e-5, spread=0.1, points=9),),
    contention=(1.0, 1.2),
)


def refused(capsys, *arguments):
    assert main(["calibrate", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def test_a_short_calibration_gives_a_profile_that_can_be_used(tmp_path, monkeypatch, capsys):
    """A few seconds find a poor device, but a whole one; beside another program it says so."""
    load = HostLoad(host="here", cores=2, wanted=1, others=0.9)
    monkeypatch.setattr(LoadMeter, "load", lambda _: load)
    path = tmp_path / "here.json"
    threads = torch.get_num_threads()
    assert main(["calibrate", "device", "--seconds", "2", "--out", str(path), "--json", "--busy"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert "fitting the times" in err, "it would stand still for seconds without a word"
    assert told["profile"] == str(path)
    assert told["replaced"] is None
    assert told["device"]["networks"] >= 8
    profile = read_profile(path, torch.__version__)
    assert profile.machine["threads"] == 1
    assert profile.machine[DISTURBED] == told["device"]["disturbed"] == disturbance([load], "the measurement")
    device = read_fitted(profile.device, str(path))
    assert device.peak == told["device"]["flops"] > 1e8
    assert "convolution" in device.curves
    assert path.stat().st_size < 800_000
    assert torch.get_num_threads() == threads
    assert made_before(path) == f"a profile of {profile.made}"
    check_unmeasured_is_told(path, capsys)


def check_unmeasured_is_told(path, capsys):
    """A profile that does not know an operator says so where a model spends its time in it, and is less sure."""
    asked = ["predict", "mlp:hidden=600", "--input", "1x28x28", "--classes", "10", "--profile", str(path)]
    document = json.loads(path.read_text())
    document["device"]["curves"] = {
        name: curve for name, curve in document["device"]["curves"].items() if name not in ("mm", "addmm")
    }
    older = path.with_name("older.json")
    older.write_text(json.dumps(document))
    found = {}
    for profile in (path, older):
        assert main([*asked[:-1], str(profile), "--workers", "1", "--json"]) == 0
        found[profile] = json.loads(capsys.readouterr().out)
    known, unknown = found.values()
    assert not {"mm", "addmm"} & known["unmeasured"].keys()
    share = unknown["unmeasured"]["mm"] + unknown["unmeasured"]["addmm"]
    assert 0.2 < share < 1
    rows = [one["series"][0]["rows"][0] for one in (known, unknown)]
    assert rows[0]["high"] / rows[0]["step"] < rows[1]["high"] / rows[1]["step"]
    assert main([*asked[:-1], str(older), "--workers", "1"]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("Never measured: "))
    assert "addmm" in line
    assert "mm " in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("device --seconds 0.1", "0.1 seconds are out of range"),
        ("device --seconds nan", "out of range"),
        ("device --threads 0", "threads=0 does not fit this machine"),
        ("device --out nowhere/here.json", "is a folder, or lies in none"),
        (
            "machine --out /proc/x.json",
            "/proc/x.json cannot be written (No such file or directory): name another",
        ),
        ("record runs/none", "runs/none"),
        ("record runs/none --profile none.json", "none.json"),
        ("links --workers 1", "paceline-profile.json"),
        ("links --workers 2 --profile none.json", "none.json"),
        ("links --profile nowhere/none.json", "cannot read the profile 'nowhere/none.json'"),
        ("table none.toml", "none.toml"),
    ],
)
def test_bad_words_are_refused_at_once(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *arguments.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "tasks"),
    [
        ("", "machine|device|links|record|table"),
        ("--colour red", "machine|device|links|record|table"),
        ("--seconds 60", "machine|device"),
        ("-n 2 -nr 0 -a host", "links"),
        ("--record runs/some", "record"),
        ("--table=t.toml", "table"),
        ("--threads 1", "machine|device|record"),
    ],
)
def test_without_a_task_the_sentence_says_which_there_are_and_which_is_meant(capsys, arguments, tasks):
    told = refused(capsys, *arguments.split())
    assert told.startswith(f"paceline: say what to calibrate, by 'paceline calibrate {tasks}'")
    assert all(f"'{task}'" in told for task in ("machine", "device", "links", "record", "table"))


def test_a_task_that_is_misspelt_is_told_in_the_right_spelling(capsys):
    assert "unknown task 'devise'; did you mean 'device'?" in refused(capsys, "devise", "--seconds", "60")
    assert "unknown task 'x'; choose one of: device, links, machine, record, table" in refused(capsys, "x")


@pytest.mark.parametrize(
    "arguments",
    [
        "device --workers 2",
        "device --profile p.json",
        "device --from 4x128",
        "links --seconds 9",
        "links --threads 1",
        "links --name x",
        "record run --workers 2",
        "record run --busy",
        "record run --seconds 5",
        "table t.toml --out x.json",
        "table t.toml --profile p.json",
        "table t.toml --threads 1",
    ],
)
def test_a_task_has_only_its_own_options(capsys, arguments):
    option = arguments.split()[-2] if arguments[-4:] != "busy" else "--busy"
    assert f"unknown option '{option}'" in refused(capsys, *arguments.split())


@pytest.mark.parametrize("arguments", ["device --seconds 9", "record run", "table file.toml"])
def test_under_a_launcher_only_links_are_measured(monkeypatch, capsys, arguments):
    """If this failed, every process of a launcher would measure the machine that the others load."""
    monkeypatch.setenv("RANK", "0")
    assert "under a launcher (RANK is set)" in refused(capsys, *arguments.split())


def test_links_are_added_only_where_they_can_be_written_and_to_one_thread(tmp_path, monkeypatch, capsys):
    """Nobody waits for minutes to hear it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.cli.calibrate.run_workers", lambda *_: pytest.fail("it was measured"))
    write_profile(PROFILE, tmp_path / "one.json")
    write_profile(replace(PROFILE, machine={"threads": 2}), tmp_path / "two.json")
    add = ("links", "--workers", "2", "--profile")
    assert "nowhere/x is a folder, or lies in none" in refused(capsys, *add, "one.json", "--out", "nowhere/x")
    assert "two.json is of workers with 2 threads" in refused(capsys, *add, "two.json")


def test_links_are_measured_between_real_workers_and_a_server(tmp_path, monkeypatch):
    """If this failed, no profile would know what an exchange takes; short turns measure badly, but all of it."""
    for name, short in {"TURN": 0.01, "LEAST": 2}.items():
        monkeypatch.setattr(links, name, short)
    monkeypatch.setitem(links.calibrate_links.__kwdefaults__, "rounds", 3)
    forks = SimpleNamespace(
        run=lambda command, **_: run_python(*command[1:])
    )  # new interpreters import torch
    monkeypatch.setattr("paceline.cli.calibrate.subprocess", forks)
    monkeypatch.setattr(links, "JOBS", tuple(job | {"iterations": "60"} for job in links.JOBS))
    write_profile(replace(PROFILE, links=()), tmp_path / "one.json")
    add = ("calibrate", "links", "--workers", "2", "--profile", "one.json", "--busy")
    run_paceline(*add, cwd=tmp_path, check=0)
    found = read_profile(tmp_path / "one.json")
    assert {link.name for link in found.links} == {"memory", "loopback", "messages"}
    assert all(link.bandwidth > 1e6 for link in found.links)
    assert len(found.contention) == 2


def test_a_damaged_record_is_refused_in_one_sentence(tmp_path, capsys):
    words = ("--iterations", "5", "--evaluate-every", "never", "--no-gradients", "--runs", str(tmp_path))
    alone = "hosts=1,data=0.1 ms,forward=1 ms,backward=2 ms,apply=0.2 ms"
    run = run_json("simulate", *words, "--cluster", alone, cwd=tmp_path)["run"]["folder"]
    events = Path(run) / "events" / "rank-0.jsonl"
    lines = events.read_text().splitlines()
    events.write_text("\n".join([*lines[:2], "torn", *lines[3:]]) + "\n")
    told = refused(capsys, "record", run, "--threads", "1", "--out", str(tmp_path / "out.json"))
    assert "rank-0.jsonl is damaged: line 3" in told
    assert "use a record that is whole" in told


def test_a_profile_without_links_is_read_as_one_that_has_none(tmp_path):
    path = tmp_path / "one.json"
    write_profile(replace(PROFILE, links=()), path)
    document = json.loads(path.read_text())
    document.pop("links", None)
    path.write_text(json.dumps(document))
    assert read_profile(path).links == ()


def test_a_corrected_profile_keeps_all_but_its_device(tmp_path, capsys):
    """Links and contention took minutes to measure, maybe on a machine with more cores than this one."""
    times = "data=0.1 ms,forward=1 ms,backward=2 ms,apply=0.2 ms"
    words = ("--iterations", "20", "--evaluate-every", "never", "--cluster", f"hosts=1,{times}")
    run = run_json("simulate", *words, "--no-gradients", "--runs", str(tmp_path), cwd=tmp_path)["run"][
        "folder"
    ]
    base, out = tmp_path / "base.json", tmp_path / "out.json"
    given = replace(
        PROFILE, machine={"threads": 4096}, device=plain_device().to_json(), contention_short=(1.0, 1.3)
    )
    write_profile(given, base)
    told = ("record", run, "--profile", str(base), "--out", str(out))
    assert main(["calibrate", *told]) == 0
    found = read_profile(out)
    assert found.device != given.device
    assert found.made != given.made
    assert replace(found, device=given.device, made=given.made) == given
    assert main(["calibrate", *told, "--name", "other"]) == 0
    assert read_profile(out).name == "other"
    assert main(["calibrate", "record", run, "--threads", "1", "--out", str(out)]) == 0
    assert read_profile(out).links == ()
    capsys.readouterr()


def test_a_run_of_several_workers_corrects_nothing(tmp_path, capsys):
    words = (
        "--iterations",
        "4",
        "--evaluate-every",
        "never",
        "--cluster",
        "hosts=2,forward=1 ms,backward=2 ms",
    )
    run = run_json("simulate", *words, "--no-gradients", "--runs", str(tmp_path), cwd=tmp_path)
    assert "is a run of 2 workers" in refused(capsys, "record", run["run"]["folder"])


def test_a_profile_is_the_same_after_a_file(tmp_path):
    write_profile(PROFILE, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json", "2.13.1+cpu") == PROFILE


def test_a_profile_of_another_torch_is_refused(tmp_path):
    write_profile(PROFILE, tmp_path / "p.json")
    with pytest.raises(UsageError, match=r"torch 2\.13\.0 and this is torch 2\.14\.0"):
        read_profile(tmp_path / "p.json", "2.14.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a JSON document"),
        ('{"schema": 4, "name": "he', "not a JSON document"),
        ("[1, 2]", "no profile"),
        ('{"schema": 4}', "missing required field"),
        ('{"schema": 7}', "schema 7"),
        ('{"schema": 1}', "schema 1, made by another version of paceline; this one reads schema 4"),
        ('{"schema": ' + "1" * 5000 + "}", "not a JSON document"),
        ("\x00\xff", "not a JSON document"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, words):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=words) as error:
        read_profile(path)
    assert str(path) in str(error.value)
    assert made_before(path) == "a file that is not a profile"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["links"][0].update(bandwidth=-1.0),
        lambda d: d["links"][0].update(latency="fast"),
        lambda d: d["links"][0].update(latency=10**400),
        lambda d: d["links"][0].update(name=7),
        lambda d: d["links"][0].update(workers="2"),
        lambda d: d["links"][0].update(workers=2.5),
        lambda d: d["links"][0].update(workers=0),
        lambda d: d["links"][0].update(points=True),
        lambda d: d.update(contention=["1.0", "1.2"]),
        lambda d: d.update(contention="12"),
        lambda d: d.update(contention=[1, 10**400]),
        lambda d: d.update(versions={"torch": 2}),
        lambda d: d.update(turns=[1.0]),
        lambda d: d["links"][0].update(colour="red"),
        lambda d: d.update(contention=[1.0, -2.0]),
        lambda d: d.update(device=[1]),
        lambda d: d.update(surprise=1),
        lambda d: d.update(name=3),
        lambda d: d["machine"].update(threads="two"),
        lambda d: d["machine"].update(memory_bytes=[1]),
        lambda d: d["machine"].update(disturbed=1),
    ],
)
def test_nonsense_in_a_profile_is_refused(tmp_path, change):
    path = tmp_path / "p.json"
    write_profile(PROFILE, path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="not a profile that can be used"):
        read_profile(path)


def test_what_several_workers_found_takes_the_place_of_what_as_many_found_before():
    link = LinkFit(name="memory", bandwidth=5e9, latency=1e-5, spread=0.1, points=9, workers=4)
    found = ContentionFit(workers=4, short=2.6, long=2.2, links=(link,))
    profile = add_contention(PROFILE, found)
    assert profile.links == (*PROFILE.links, link)
    assert profile.contention == pytest.approx((1.0, 1.2, 1.7, 2.2)), "three workers lie between two and four"
    assert profile.contention_short[0] == 1.0
    assert profile.contention_short[3] == 2.6
    again = add_contention(profile, replace(found, long=2.4))
    assert again.links == profile.links
    assert again.contention[3] == 2.4
    network = replace(found, links=(replace(link, name="network"),), long=9.9)
    assert add_contention(PROFILE, network).contention == PROFILE.contention, (
        "across hosts nobody shares cores"
    )
