"""``paceline predict``, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command import run_paceline
from paceline.cli.main import main
from paceline.records.files import from_document
from paceline.studies.predict.prediction import Prediction
from refusals import check_refused

MLP = ["predict", "mlp:hidden=2000", "--input", "1x28x28", "--classes", "10", "--device", "v100"]


def test_help_does_not_import_torch(tmp_path):
    code = (
        "import sys; from paceline.cli.main import main; main(['predict', '--help']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "--cluster" in done.stdout


def test_two_workers_on_one_gigabit_swap_all_their_gradients(tmp_path, capsys):
    """Two hosts swap S bytes in S/B + latency; a bucket goes while backward goes on, so not all of it shows."""
    out = tmp_path / "kept.json"
    command = [*MLP, "--network", "1gbit", "--workers", "1-2", "--out", str(out), "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document == json.loads(out.read_text())
    kept = from_document(document, Prediction)
    one, two = kept.series[0].rows
    size = 4 * kept.parameters
    assert one.breakdown.communicate == 0
    assert two.sent == pytest.approx(size, rel=1e-4)  # and the weight of each mean
    assert two.breakdown.communicate + two.breakdown.hidden == pytest.approx(size / 125e6, rel=0.02)
    assert two.step == pytest.approx(one.step + two.breakdown.communicate, rel=1e-6)
    assert document["schema"] == 4
    assert document["settings"]["network"] == "1gbit"
    assert document["versions"]["torch"]


def test_strategies_are_compared_in_one_table(tmp_path, capsys):
    more = [
        "--strategy",
        "all-reduce",
        "--strategy",
        "local-sgd:period=8",
        "--workers",
        "2,4",
        "--chart",
        "--layers",
    ]
    assert main([*MLP, "--network", "1gbit", *more]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Fastest in samples a second: local-sgd:period=8 with 2 to 4 workers.")
    assert (
        "Level: catalogue. Compute: NVIDIA Tesla V100" in text
        or "Level: catalogue. Compute: NVIDIA V100" in text
    )
    assert "speed-up" in text
    assert "module" in text


def test_an_epoch_has_whole_steps(capsys):
    """1,437 digits in batches of 512 are three steps; nobody asks for more workers than there is data for."""
    command = [
        "predict",
        "--data",
        "digits",
        "--model",
        "cnn",
        "--device",
        "a100",
        "-b",
        "64",
        "--epochs",
        "10",
        "--json",
    ]
    assert main(command) == 0
    rows = {row["workers"]: row for row in json.loads(capsys.readouterr().out)["series"][0]["rows"]}
    assert rows[8]["finish"] == pytest.approx(10 * 3 * rows[8]["step"])
    assert max(rows) == 1437 // 64


def test_a_codec_by_a_schedule_is_answered(capsys):
    command = [*MLP, "--workers", "1,4", "--codec", "half", "--collective"]
    times = {}
    for collective in ("native", "ring"):
        assert main([*command, collective, "--json"]) == 0
        times[collective] = json.loads(capsys.readouterr().out)["series"][0]["rows"][1]["step"]
    assert times["ring"] == pytest.approx(times["native"], rel=0.05), (
        "by themselves four hosts use a ring as well"
    )


def test_codecs_are_compared_where_the_option_is_repeated(capsys):
    command = [
        *MLP,
        "--workers",
        "1,4",
        "--network",
        "1gbit",
        "--codec",
        "int8",
        "--codec",
        "top-k:ratio=0.01",
    ]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (compared,) = document["codecs"]
    assert [step["codec"] for step in compared["steps"]] == ["identity", "int8", "top-k:ratio=0.01"]
    assert document["settings"]["codecs"] == ["int8", "top-k:ratio=0.01"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "\nCodecs: " in text.partition("\n\n")[0]
    assert "codec int8\n" in text
    assert "\nCodecs, 4 workers, at 1 Gbit/s:\n" in text


def test_paleo_prints_its_own_table(capsys):
    assert main([*MLP, "--cost-model", "paleo", "--network", "ethernet", "--workers", "1,4", "--layers"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Paleo's model:")
    assert "butterfly" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "which model?"),
        ("resnet50", "how fast does a worker compute?"),
        ("resnet51 --device a100", "did you mean 'resnet50'?"),
        ("resnet50 --device a1000", "unknown device 'a1000'; did you mean 'a100'?"),
        ("resnet50 --device a100 --network 25gbt", "25gbt"),
        ("resnet50 --device a100 --network='-1 Gbit/s'", "-1 Gbit/s"),
        ("mlp --device a100 --strategy spp", "did you mean 'ssp'?"),
        ("mlp --device a100 --collective rong", "did you mean 'ring'?"),
        ("mlp --device a100 --batch-size 0", "batch size 0 is out of range"),
        ("mlp --device a100 --workers 0", "workers 0 is out of range"),
        ("mlp --device a100 --workers two", "'two' is no count"),
        ("mlp --device a100 --workers 2000000", "1 to 1,000,000"),
        ("mlp --device a100 --price -1", "price -1 is out of range"),
        ("mlp --device a100 --price 1 --host-price 2", "leave one of them out"),
        ("mlp --device a100 --epochs 3", "give samples"),
        ("--device a100 --times there", "both say how fast a worker computes"),
        ("mlp --times there", "times there and model mlp both say what is trained"),
        ("--times there --optimizer adam", "times there and optimizer adam both say what is trained"),
        ("--times there --input 3x64x64", "times there and shape (3, 64, 64) both say what is trained"),
        ("--times there --classes 5", "times there and classes 5 both say what is trained"),
        (
            "mlp --device a100 --inside nvlink3",
            "inside nvlink3 needs per host",
        ),
        (
            "mlp --device a100 --cluster hosts=4 --network 1gbit",
            "both say how workers are connected",
        ),
        ("mlp --device a100 --cluster hosts=4 --workers 8", "do not fit the cluster, which has 4"),
        ("mlp --device a100 --cluster 'hosts=4,forward=1 ms,backward=1 ms'", "states how long a step takes"),
        ("mlp --device a100 --cluster 'hosts=4,bandwidth=-1 Gbit/s'", "bandwidth"),
        ("mlp --device a100 --input 3x0x2", "is not a shape"),
        ("mlp --device a100 --input 3x1234567890", "at most 9 digits"),
        ("mlp --device a100 --jitter 9", "jitter"),
        ("mlp --device a100 --servers 0 --strategy ps", "servers 0"),
        (
            "mlp --device a100 --servers 0 --strategy ssp -np 32",
            "servers 0 is out of range: it must be 1 to 64",
        ),
        ("mlp --device a100 --servers 1000000000 --strategy ssp -np 32", "it must be 1 to 64"),
        ("mlp --device a100 --per-host 0", "per host 0 is out of range"),
        ("mlp --profile nowhere.json --network measured --per-host 0", "per host 0 is out of range"),
        ("mlp --device a100 --strategy ps:backup=8 -np 2,16", "needs at least 9 workers"),
        (
            "mlp --device a100 --cluster hosts=2 --strategy ps:backup=2",
            "needs at least 3 workers",
        ),
        ("mlp --device a100 --servers 4", "4 servers do not go with strategy all-reduce"),
        ("mlp --device a100 --strategy ps --collective ring", "collective ring does not go with strategy ps"),
        ("mlp --device a100 --network 25gb", "write '25 Gbit/s' or '25 GB/s'"),
        ("mlp --device a100 --network -1Gbit/s", "more than zero"),
        ("mlp --device a100 --threads 4", "it is no CPU"),
        ("mlp --device a100 --backend gloo", "backend gloo is for a measured machine"),
        ("mlp --device a100 --samples 60000", "samples 60000 needs epochs"),
        ("--times nowhere", "nowhere"),
        ("--times latest", "runs holds no run of"),
        ("mlp --profile nowhere.json", "nowhere.json"),
        ("mlp --device a100 --job there:build", "both say what is trained"),
        ("mlp --device a100 --scaling strong --batch-size 4 --workers 8", "without a sample"),
        ("mlp --device a100 --svg chart.png", "ends in .svg"),
        (
            "--data digits --model cnn --device a100 -b 64 -np 64 --epochs 10",
            "a batch of 4,096 samples over all workers is larger than the training data (1,437 samples)",
        ),
        ("--data digits --model cnn --device a100 -b 1438", "larger than the training data"),
        ("mlp --device a100 --precision fp8", "fp8"),
        ("mlp --device a100 --ppp-comp 0.6", "choose cost model paleo"),
        ("mlp --device a100 --cost-model paleo --ppp-comp 2", "ppp-comp 2"),
        ("mlp --device a100 --cost-model paleo --chart", "--chart does not go with"),
        (
            "mlp --device a100 --cost-model paleo --servers 4",
            "servers 4: Paleo's model does not have it",
        ),
        (
            "mlp --device a100 --cost-model paleo --samples 9",
            "samples 9",
        ),
        ("mlp --device a100 --cost-model paleo --scaling strong -b 8 -np 64", "without a sample"),
        ("mlp --device a100 --cost-model paleo -b 99999999", "batch size 99999999 is out of range"),
    ],
)
def test_bad_words_are_refused_in_a_sentence(words, says, tmp_path, monkeypatch, capsys):
    check_refused(f"predict {words}", says, tmp_path, monkeypatch, capsys)


def test_a_cluster_file_gives_its_first_workers(tmp_path: Path, capsys):
    (tmp_path / "uneven.toml").write_text(
        '[[hosts]]\nname = "quick"\ncount = 2\n[[hosts]]\nname = "slow"\nspeed = 0.5\n'
    )
    assert main([*MLP, "--cluster", str(tmp_path / "uneven.toml"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["series"][0]["rows"]
    assert [row["workers"] for row in rows] == [1, 2, 3]
    assert rows[2]["step"] > rows[1]["step"]


@pytest.mark.parametrize("word", ["steps = 5", "dies = '3 s'", "start = '1 s'"])
def test_workers_that_come_and_go_are_refused(word, tmp_path: Path, capsys):
    """There is no pace in the long run of who leaves; it would be looked for up to a million steps."""
    (tmp_path / "going.toml").write_text(f'[[hosts]]\nname = "b"\ncount = 2\n[[hosts]]\nname = "a"\n{word}\n')
    assert main([*MLP, "--cluster", str(tmp_path / "going.toml")]) == 2
    assert f"workers of host 'a' join or leave ({word.split()[0]})" in capsys.readouterr().err


def test_a_run_of_several_workers_is_no_times(tmp_path: Path, capsys):
    """Its steps are longer by the company that its workers were to each other, and would be counted as one's own."""
    (tmp_path / "events").mkdir()
    for rank in range(3):
        (tmp_path / "events" / f"rank-{rank}.jsonl").touch()
    assert main(["predict", "--times", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "is a run of 3 workers" in printed
    assert "of one worker" in printed


def test_paleo_counts_the_samples_that_there_are(capsys):
    """100 samples on 3 workers are shares of up to 34, and still 100."""
    command = [*MLP, "--cost-model", "paleo", "--scaling", "strong", "-b", "100", "-np", "3"]
    assert main([*command, "--json"]) == 0
    rows = [series["rows"][0] for series in json.loads(capsys.readouterr().out)["series"]]
    assert {(row["batch"], row["samples"]) for row in rows} == {(34, 100)}
    assert main(command) == 0
    fastest = 100 / min(row["step"] for row in rows)
    assert f" {fastest:,.0f} samples/s" in capsys.readouterr().out


def test_a_cluster_with_one_place_for_a_server_is_predicted(tmp_path: Path, capsys):
    """Two servers would help and have no room: that is no reason to refuse the question."""
    (tmp_path / "served.toml").write_text(
        '[[hosts]]\nname = "worker"\ncount = 8\n[[hosts]]\nname = "server"\nworkers = 0\nservers = 1\n'
    )
    assert main([*MLP, "--cluster", str(tmp_path / "served.toml"), "--strategy", "ps"]) == 0
    assert "2 servers" not in capsys.readouterr().out


def test_the_front_door_knows_it(tmp_path):
    done = run_paceline(*MLP, "--workers", "1", cwd=tmp_path)
    assert done.stdout.startswith("One worker takes")
    assert done.stderr == ""


def test_importing_torch_leaves_the_collector_as_it_was():
    """Frozen once, where torch comes in; not in a process that has it already, whose garbage would stay."""
    code = (
        "import gc\nfrom paceline.cli.importing import gc_paused\n"
        "with gc_paused():\n    import torch\n    assert not gc.isenabled()\n"
        "assert gc.isenabled()\nfrozen = gc.get_freeze_count()\nassert frozen > 10_000\n"
        "with gc_paused():\n    assert gc.isenabled()\nassert gc.get_freeze_count() == frozen\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
