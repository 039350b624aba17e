"""Messages with a server as training meets them: what a synchronous server adds to the steps of small jobs.

A message on idle cores is quick. In a step the server needs a core as well, which the workers hold; so the jobs are
trained for real, alone and with a server, and the difference counts.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.clusters.profile import LinkFit, Profile
from paceline.costs.recorded import typical_step, usual_pace
from paceline.jobs.subjects import subject_of_job
from paceline.records.folder import RunFolder
from paceline.runtimes.config import read_run
from paceline.runtimes.live.wire.channel import RECORD
from paceline.runtimes.live.wire.noise import TAG, Cipher
from paceline.studies.calibrate.link_fit import Point, fit_link

JOBS = (
    "--data synthetic:shape=1x8x8,train=40000 --model mlp:hidden=48 --batch-size 64",
    "--data synthetic:shape=1x8x8,train=40000 --model mlp:hidden=640,layers=2 --batch-size 16",
)
"""One that sends little and one that sends much, as 'paceline train' has them."""
STEPS = 600
AT_ONCE = 8
"""Steps in a row of which the mean counts."""

CIPHER_RECORDS = 256
"""Of 256 KiB: more than a processor's caches hold, as gradients are."""

Train = Callable[[Sequence[str], int], RunFolder]
"""Trains by these words of 'paceline train' with so many workers of one thread each; the folder of that run."""


@dataclass(frozen=True, kw_only=True)
class _Alone:
    """A job on one worker."""

    words: tuple[str, ...]
    gradient: float
    """Seconds of a step without the optimizer's."""
    apply: float
    size: int
    """Bytes of its parameters."""


def calibrate_messages(profile: Profile, counts: Sequence[int], train: Train) -> list[LinkFit]:
    """The link of so many workers with a server on their host, for each of these counts.

    The profile says what contention costs. Trains each job once on one worker and once for each count.
    """
    jobs = [_alone(text, train) for text in JOBS]
    points = ((count, [_point(job, count, profile, train) for job in jobs]) for count in counts)
    return [fit_link("messages", (0,) * count, found) for count, found in points]


def measure_cipher() -> float:
    """Bytes a second that one process seals and sends while another receives and opens them, here as two threads."""
    return max(_cipher_rate() for _ in range(3))


def _cipher_rate() -> float:
    sealing, opening = Cipher(bytes(32)), Cipher(bytes(32))
    source, target = (memoryview(bytearray(CIPHER_RECORDS * RECORD)) for _ in "12")
    sent, got = (memoryview(bytearray(RECORD + TAG)) for _ in "12")
    places = range(0, CIPHER_RECORDS * RECORD, RECORD)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sender,
        listening.accept()[0] as receiver,
    ):

        def send() -> None:
            for at in places:
                sealing.seal_into(sent, source[at : at + RECORD])
                sender.sendall(sent)

        begun = time.perf_counter()
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        for at in places:
            receiver.recv_into(got, RECORD + TAG, socket.MSG_WAITALL)
            opening.open_into(target[at : at + RECORD], got)
        thread.join()
        return CIPHER_RECORDS * RECORD / (time.perf_counter() - begun)


def _words(job: str, strategy: str) -> tuple[str, ...]:
    return (
        *job.split(),
        *("--strategy", strategy, "--iterations", str(STEPS)),
        *("--evaluate-every", "never", "--checkpoint-every", "never"),
    )


def _alone(job: str, train: Train) -> _Alone:
    folder = train(_words(job, "all-reduce"), 1)
    times, _ = typical_step(folder)
    subject = subject_of_job(read_run(folder)[0].job)
    with torch.device("meta"):
        size = sum(one.numel() * one.element_size() for one in subject.model().parameters())
    return _Alone(
        words=_words(job, "ps"),
        gradient=times.data + (times.forward or 0.0) + (times.backward or 0.0),
        apply=times.apply,
        size=size,
    )


def _point(job: _Alone, workers: int, profile: Profile, train: Train) -> Point:
    contention = profile.contention_between(job.gradient)
    beside = job.gradient * contention[min(workers, len(contention)) - 1] + job.apply
    step = usual_pace(train(job.words, workers), AT_ONCE)
    return Point(sizes=(job.size,), added=step - beside, beside=beside)
