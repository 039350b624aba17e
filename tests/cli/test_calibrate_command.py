"""``paceline calibrate``: what it writes, and what it refuses."""

import json
from dataclasses import replace

import pytest
import torch

from paceline.cli.main import main
from paceline.clusters.profile import LinkFit, Profile
from paceline.clusters.profile_file import made_before, read_profile, write_profile
from paceline.costs.devices.fitted import read_fitted
from paceline.errors import Mistake
from paceline.studies.calibrate.links import Together
from paceline.studies.calibrate.together import add_together

PROFILE = Profile(
    name="here",
    made="2026-11-16T03:40:00Z",
    versions={"paceline": "0.1.0", "torch": "2.13.0", "python": "3.11"},
    machine={"threads": 1},
    device={"spread": 0.1},
    links=(LinkFit(name="memory", bandwidth=4e9, latency=2e-5, reduce_seconds=0.0, spread=0.1, points=9),),
    company=(1.0, 1.2),
)


def refused(capsys, *arguments):
    assert main(["calibrate", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def test_a_short_calibration_gives_a_profile_that_can_be_used(tmp_path, capsys):
    """A few seconds find a poor device, but a whole one; a second time says what it replaces."""
    path = tmp_path / "here.json"
    threads = torch.get_num_threads()
    assert main(["calibrate", "--seconds", "2", "--out", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["profile"] == str(path)
    assert told["replaced"] is None
    assert told["device"]["networks"] >= 8
    profile = read_profile(path, torch.__version__)
    assert profile.machine["threads"] == 1
    device = read_fitted(profile.device, str(path))
    assert device.peak == told["device"]["flops"] > 1e8
    assert "convolution" in device.curves
    assert path.stat().st_size < 400_000
    assert torch.get_num_threads() == threads
    assert made_before(path) == f"a profile of {profile.made}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0.1"], "--seconds 0.1 is out of range"),
        (["--seconds", "nan"], "out of range"),
        (["--threads", "0"], "--threads 0 does not fit"),
        (["--out", "nowhere/here.json"], "no folder"),
        (["--profile", "x.json"], "add --record"),
        (["--record", "runs/none", "--seconds", "5"], "leave --seconds out"),
        (["--record", "runs/none"], "runs/none"),
        (["--workers", "1"], "--workers 1 has no link to measure"),
        (["--workers", "2", "--profile", "none.json"], "none.json"),
        (["--table", "none.toml"], "none.toml"),
        (["--table", "none.toml", "--workers", "2"], "measures nothing"),
        (["--record", "runs/none", "--profile", "none.json"], "none.json"),
    ],
)
def test_bad_words_are_refused_at_once(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(capsys, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_profile_is_the_same_after_a_file(tmp_path):
    write_profile(PROFILE, tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json", "2.13.1+cpu") == PROFILE


def test_a_profile_of_another_torch_is_refused(tmp_path):
    write_profile(PROFILE, tmp_path / "p.json")
    with pytest.raises(Mistake, match=r"torch 2\.13\.0 and this is torch 2\.14\.0"):
        read_profile(tmp_path / "p.json", "2.14.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ('{"schema": 1, "name": "he', "not JSON"),
        ("[1, 2]", "no profile"),
        ('{"schema": 1}', "'links' is missing"),
        ('{"schema": 7}', "schema 7"),
        ("\x00\xff", "not JSON"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, words):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Mistake, match=words) as error:
        read_profile(path)
    assert str(path) in str(error.value)
    assert made_before(path) == "a file that is not a profile"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["links"][0].update(bandwidth=-1.0),
        lambda d: d["links"][0].update(latency="fast"),
        lambda d: d["links"][0].update(colour="red"),
        lambda d: d.update(company=[1.0, -2.0]),
        lambda d: d.update(device=[1]),
        lambda d: d.update(surprise=1),
        lambda d: d.update(name=3),
    ],
)
def test_nonsense_in_a_profile_is_refused(tmp_path, change):
    path = tmp_path / "p.json"
    write_profile(PROFILE, path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(Mistake, match="not a profile that can be used"):
        read_profile(path)


def test_what_several_workers_found_takes_the_place_of_what_as_many_found_before():
    link = LinkFit(
        name="memory", bandwidth=5e9, latency=1e-5, reduce_seconds=0.0, spread=0.1, points=9, workers=4
    )
    found = Together(workers=4, short=2.6, long=2.2, links=(link,))
    profile = add_together(PROFILE, found)
    assert profile.links == (*PROFILE.links, link)
    assert profile.company == pytest.approx((1.0, 1.2, 1.7, 2.2)), "three workers lie between two and four"
    assert profile.company_short[0] == 1.0
    assert profile.company_short[3] == 2.6
    again = add_together(profile, replace(found, long=2.4))
    assert again.links == profile.links
    assert again.company[3] == 2.4
    network = replace(found, links=(replace(link, name="network"),), long=9.9)
    assert add_together(PROFILE, network).company == PROFILE.company, "across hosts nobody shares cores"
