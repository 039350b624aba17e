"""A user's mistake is told in one sentence that names the value, with exit code 2, and nothing is written."""

import contextlib
import json
import os
import socket
from dataclasses import fields, replace

import pytest

from command import run_json
from paceline.cli.main import main
from paceline.cli.options import RunOptions, given
from paceline.cli.train import WhereOptions
from paceline.errors import UsageError
from paceline.jobs.spec import JobSpec
from paceline.records.folder import RunFolder
from paceline.runtimes.config import write_config
from paceline.runtimes.live.process_info import ProcessInfo
from paceline.runtimes.live.request import resumed_settings
from paceline.runtimes.live.secret import Secret
from paceline.runtimes.live.worker.start import join_address
from paceline.runtimes.settings import Settings
from refusals import check_refused

MISTAKES = {
    "train --strategy spp": "unknown strategy 'spp'",
    "run --wrokers 2 script.py": "unknown option '--wrokers'; did you mean '--workers'?",
    "run --batch-size 32 script.py": "the batch is that of the script's DataLoader",
    "train --strategy local-sdg": "unknown strategy 'local-sdg'; did you mean 'local-sgd'?",
    "train --collective rign": "unknown collective 'rign'; did you mean 'ring'?",
    "train --collective ''": "unknown collective ''; choose one of: ",
    "train --codec int9": "unknown codec 'int9'; did you mean 'int8'?",
    "train --codec low-rank": "unknown codec 'low-rank'; did you mean 'powersgd'?",
    "train --codec ''": "unknown codec ''; choose one of: ",
    "train --codec int8:bit=4": "unknown setting 'bit' of codec 'int8'; did you mean 'bits'?",
    "train --codec int8:bits=9": "codec 'int8:bits=9': bits=9 is out of range",
    "train --codec top-k:ratio=0": "ratio=0 is out of range",
    "train --codec nowhere.py:Mine": "codec nowhere.py:Mine: there is no file",
    "train --codec json:dumps": "codec json:dumps is not a dataclass",
    "train --codec top-k --collective ring": (
        "collective ring cannot be used with codec 'top-k', whose messages are gathered and not summed; leave it out, "
        "or choose half, identity, powersgd or random-k"
    ),
    "train --codec dgc --strategy local-sgd": "or one of the strategies all-reduce, async, ps or ssp",
    "train --codec dgc": "has momentum too; choose an optimizer without, such as sgd:momentum=0",
    "train --codec dgc --optimizer adam": "the Adam of job 'digits-cnn' has momentum too",
    "simulate --codec int8:bits=1": "bits=1 is out of range",
    "train --strategy ''": "unknown strategy ''; choose one of: ",
    "train --batch-size ''": "write a whole number",
    "train --evaluate-every ''": "'' is not a value for --evaluate-every",
    "train --strategy local-sgd:perod=3": "did you mean 'period'?",
    "train --strategy local-sgd:period=0": "at least 1",
    "train --model resnet81": "unknown model 'resnet81'; did you mean 'resnet18'?",
    "train --model cnn:layers=3": "unknown setting 'layers' of model 'cnn'",
    "train --data digit": "unknown data 'digit'; did you mean 'digits'?",
    "train --data mnist --data-dir nowhere": "nowhere",
    "train --data cifar10": "cifar10",
    "train --optimizer sdg": "unknown optimizer 'sdg'; did you mean 'sgd'?",
    "train --optimizer sgd:lr=-1": "-1",
    "train --schedule cosin": "unknown schedule 'cosin'; did you mean 'cosine'?",
    "train --lr 0.1 --optimizer sgd:lr=0.2": "sets lr already",
    "train --workers 0": "0 workers are too few",
    "train --workers -1": "-1 workers are too few",
    "train --nodes 0": "0 nodes are too few",
    "train --nodes 2": "2 nodes needs an address",
    "train --nodes 2 --address 127.0.0.1 --node-rank 2": "node rank 2 lies outside 2 nodes",
    "train --port 99999": "99999 is not a port",
    "train --silence 1": "a silence of 1 s is out of range: it must lie between 2 s",
    "train --silence nan": "a silence of nan s is out of range",
    "train --silence inf": "a silence of inf s is out of range",
    "train --timeout inf": "a timeout of inf s is out of range",
    "train --timeout 1e15": "a timeout of 1e+15 s is out of range",
    "train --timeout nan": "a timeout of nan s is out of range",
    "train --hang-timeout 400": "a hang timeout of 400 s must lie between 0 and the timeout of 300 s",
    "train --hang-timeout 0": "a hang timeout of 0 s must lie between 0",
    "train --timeout 60 --hang-timeout 60": "lower it, or raise the timeout",
    "train --batch-size 0": "batch size of 0 is too small",
    "train --batch-size 2000": "2000",
    "train --batch-size 4,5,6": "3 sizes for 2 workers",
    "train --batch-size many": "--batch-size many",
    "train --slow 2=2.5": "there is no rank 2",
    "train --slow 1=0.5": "at least 1",
    "train --slow one": "RANK=FACTOR",
    "train --slow 1=2 --slow 1=3": "rank 1 twice",
    "train --epochs 3 --iterations 5": "either epochs or iterations",
    "train --epochs 0": "0 epochs are too few",
    "train --epochs three": "three",
    "train --target-accuracy 97": "must lie between 0 and 1, such as 0.97",
    "train --target-accuracy 97%": "'97%' is not an accuracy: it must lie between 0 and 1, such as 0.97",
    "train --target-accuracy 0.9 --evaluate-every never": "contradict each other",
    "train --batch-size=--5": "--batch-size --5",
    "train --resume nowhere --name other": "--name other",
    "train --servers 2": "2 servers cannot be used with strategy 'all-reduce'",
    "train --strategy ps --servers 0": "0 servers are out of range",
    "train --strategy ps --servers 65": "65 servers are out of range: 1 to 64",
    "simulate --servers 2 --strategy local-sgd": "2 servers cannot be used with strategy 'local-sgd'",
    "train --strategy ps --backend gloo": "backend gloo cannot be used with strategy 'ps'",
    "train --strategy ps --secret-file nowhere": "the secret file nowhere cannot be read",
    "train --nodes 2 --address 127.0.0.1": "2 nodes needs a secret file, so that only the run's own",
    "bench collectives --nodes 2 --address 127.0.0.1": "2 nodes needs a secret file",
    "train --secret-file nowhere": "the secret file nowhere cannot be read",
    "train --join nowhere": "nowhere is neither a run's folder on this host nor HOST:PORT",
    "train --join node-a:99999 --secret-file s": "node-a:99999 is neither",
    "train --join node-a:5570": "node-a:5570 can be joined only with a secret file",
    "train --join .": ".: no run with servers is under way there",
    "train --join . --strategy ps": "--strategy cannot be used with --join .",
    "train --join . --workers 2": "--workers cannot be used with --join .",
    "train --join . --json": "--json cannot be used with --join .",
    "train --join . --resume nowhere": "--resume cannot be used with --join .",
    "train --evaluate-every sometimes": "'sometimes'",
    "train --checkpoint-every '5 minutes'": "'5 minutes'",
    "train --keep 0": "0 checkpoints to keep are too few",
    "train --job no_such_module:build": "no_such_module",
    "train --job json": "json",
    "train --job json:no_such": "no_such",
    "train --job json:dumps --model mlp": "--model",
    "train --device cuda": "cuda",
    "train --device tpu": "tpu",
    "train --backend pigeon": "unknown backend 'pigeon'; choose one of: gloo, nccl, shm",
    "train --backend glo": "unknown backend 'glo'; did you mean 'gloo'?",
    "train --backend ''": "unknown backend ''; choose one of: gloo, nccl, shm",
    "train --resume nowhere": "nowhere",
    "train --runs /proc/x": "nothing can be written to /proc/x (No such file or directory); choose another place",
    "train --wrokers 2": "--workers",
    "train --epochs 1.5": "'1.5' is not a whole number",
    "train --epochs": "--epochs needs a value (see 'paceline train --help')",
    "export .": "--to is missing: csv, trace, tensorboard",
    "export --to csv": "the argument RUN is missing",
    "train --seed -1": "seed -1 is out of range",
    "train --seed 99999999999999999999": "out of range",
    "train extra": "'extra' is not expected",
    "train --runs /dev/null/x": "/dev/null is not a folder",
    "simulate --runs /dev/null/x": "/dev/null is not a folder",
    "trian": "unknown command 'trian'; did you mean 'train'?",
    "simulate --workers 0": "--workers 0 is too small",
    "simulate --cluster hosts=0": "hosts",
    "simulate --cluster hosts=2,bandwith=1Gbit/s": "did you mean 'bandwidth'?",
    "simulate --cluster 'hosts=2,bandwidth=-1 Gbit/s'": "-1 Gbit/s",
    "simulate --cluster 'hosts=2,latency=5 parsec'": "5 parsec",
    "simulate --cluster hosts=2": "forward",
    "simulate --cluster nowhere.toml": "nowhere.toml",
    "simulate --cluster hosts=4 --workers 2": "contradict the cluster",
    "simulate --no-gradients --target-accuracy 0.9": "needs gradients",
    "simulate --target-accuracy 0.9 --evaluate-every never": "contradict each other",
    "simulate --slow 5=2": "there is no rank 5",
    "simulate --times nowhere": "nowhere",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_sentence_with_exit_code_2(command, tmp_path, monkeypatch, capsys):
    check_refused(command, MISTAKES[command], tmp_path, monkeypatch, capsys)


UNDER_TORCHRUN = {
    "train --hang-timeout 60": "--hang-timeout 60 has no effect under the launcher that set RANK=0",
    "train --silence 30": "--silence 30 has no effect under the launcher that set RANK=0",
}


@pytest.fixture
def torchrun(monkeypatch):
    """The variables of a process that torchrun has started."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("command", UNDER_TORCHRUN)
def test_what_only_our_launcher_does_is_refused_under_another(command, tmp_path, monkeypatch, capsys):
    """If this failed, the user would rely on a watch that nobody keeps."""
    check_refused(command, UNDER_TORCHRUN[command], tmp_path, monkeypatch, capsys)


def test_under_another_launcher_servers_know_silence_and_one_process_a_host_warns(tmp_path, capsys):
    """If this failed, an option that works would be refused, or a secret that all can read would go unnoticed."""
    secret = tmp_path / "secret"
    Secret.new().write(secret)
    secret.chmod(0o644)
    where = WhereOptions(silence=30.0, secret_file=secret)
    place = ProcessInfo(rank=0, workers=2, local_workers=2, servers=1)
    assert where.under_launcher(place).secret_file == secret
    assert f"other users of this host can read {secret}" in capsys.readouterr().err
    where.under_launcher(replace(place, rank=1, local_rank=1))
    assert capsys.readouterr().err == ""
    secret.write_text("short")
    with pytest.raises(UsageError, match="needs at least 16"):
        where.under_launcher(place)


JOINS = {
    "ipc:///tmp/other": "no run with servers is under way there",
    "tcp://127.0.0.1:99999": "no run with servers is under way there",
    "tcp://127.0.0.1:5570": "belongs to another user; give it as the secret file if you trust it",
}


@pytest.mark.parametrize("endpoint", JOINS)
def test_what_a_folder_says_of_joining_is_checked(endpoint, tmp_path):
    """If this failed, whoever writes a run folder could lead a worker anywhere, with a secret of their own."""
    if os.geteuid() != 0:
        pytest.skip("to give a file away needs root")
    secret, folder = tmp_path / "secret", RunFolder(tmp_path)
    Secret.new().write(secret)
    folder.join.write_text(json.dumps({"endpoint": endpoint, "secret": str(secret)}))
    os.chown(secret, 65534, 65534)
    with pytest.raises(UsageError, match=JOINS[endpoint]):
        join_address(str(tmp_path), None)
    if endpoint.endswith(":5570"):
        assert join_address(str(tmp_path), secret).endpoint == endpoint
        os.chown(secret, 0, 0)
        assert join_address(str(tmp_path), None).secret_file == secret


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["train", "-n", "2", "-np", "1", "-a", "127.0.0.1", "-p", str(port), "-nr", "0"]
        Secret.new().write(tmp_path / "secret")
        assert main([*words, "--secret-file", "secret"]) == 2
    err = capsys.readouterr().err
    assert str(port) in err
    assert "in use" in err
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_run_resumes_as_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = Settings(job=JobSpec(), batch_sizes=(32, 32), epochs=2)
    write_config(RunFolder(tmp_path), settings, "live", {})
    Secret.new().write(tmp_path / "s")
    for words, told in {
        "--seed 3": "the seed cannot change when a run resumes: this run has 1 and you gave 3; leave it out",
        "--strategy local-sgd": "this run has all-reduce and you gave local-sgd; leave it out",
        "--codec int8": "this run has identity and you gave int8; leave it out",
        "--collective ring": "this run has native and you gave ring",
        "--slow 1=2": "this run has none and you gave 1=2",
        "--workers 3": "no checkpoint that is whole for all 2 workers, which another number of workers needs",
        "-n 3 -nr 0 -a 127.0.0.1 -np 1 --secret-file s": "'paceline reshard . --workers 3' makes of it",
    }.items():
        assert main(["train", "--resume", ".", *words.split()]) == 2
        assert told in capsys.readouterr().err


def test_options_that_repeat_what_a_run_was_may_stay_when_it_resumes():
    settings = Settings(job=JobSpec(optimizer="sgd:lr=0.1"), batch_sizes=(8, 8), epochs=2, collective="ring")
    same = RunOptions(
        lr=0.1,
        model="cnn",
        strategy="all-reduce",
        batch_size="8",
        collective="ring",
        seed=1,
        keep=3,
        epochs=4,
    )
    assert resumed_settings(settings, same.settings(2), given(same)) == replace(settings, epochs=4)


# A recipe has become other options by then.
@pytest.mark.parametrize("option", [field.name for field in fields(RunOptions) if field.name != "recipe"])
def test_every_option_is_known_to_a_run_that_resumes(option):
    settings = Settings(job=JobSpec(), epochs=2)
    assert resumed_settings(settings, settings, {option: 1})


def test_a_simulated_run_is_not_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_config(RunFolder(tmp_path), Settings(job=JobSpec(), epochs=2), "virtual", {"gradients": True})
    assert main(["train", "--resume", "."]) == 2
    assert "is a simulated run" in capsys.readouterr().err


def test_times_of_another_job_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recorded = run_json("simulate", "--no-gradients", "--iterations", "3", cwd=tmp_path)["run"]["folder"]
    assert main(["simulate", "--times", recorded, "--model", "mlp"]) == 2
    assert "were recorded with model cnn" in capsys.readouterr().err
