"""What must hold whatever the faults were: each check returns a sentence for every violation."""

import time
from collections.abc import Collection, Iterable, Sequence

from _fault_hosts import Site
from _fault_inject import Ended
from _fault_records import TRACEBACK, Records, Said
from _fault_scenarios import Fault, Scenario

GRACE, ORPHANED = 5.0, 20.0
"""Seconds from a launcher's end to that of its last process; and from a launcher's death."""


def check_words(ended: Ended, expected: Collection[int | None]) -> list[str]:
    """Bounded, no traceback, and on from where it must."""
    wrong = [f"hang: {ended.hung}"] if ended.hung else []
    if any(TRACEBACK in text for text in ended.texts):
        wrong.append("a traceback is printed")
    step = Said(ended.texts[0]).resumed_at
    # A run that goes on from step 0 has nothing to say of it.
    if (step or 0) not in {one or 0 for one in expected} and (step is not None or ended.codes[0] == 0):
        wrong.append(f"went on from step {step}, not from {' or '.join(map(str, expected))}")
    return wrong


def check_codes(ended: Ended, records: Records, excused: Collection[str], may_refuse: bool) -> list[str]:
    """0 is for a run that is whole, 1 for one that failed, 2 for a refusal, 130 for Ctrl-C; each says why."""
    wrong = []
    kinds = {fault.kind for fault in ended.fired}
    deleted = {fault.target for fault in ended.fired if fault.kind == "delete folder"}
    survivable = all(fault.harmless for fault in ended.fired) and not may_refuse
    for host, (code, text) in enumerate(zip(ended.codes, ended.texts, strict=True)):
        allowed = {0} if survivable else {0, 1}
        allowed -= {0} if f"host-{host}" in deleted else set()
        allowed |= {130} if "interrupt" in kinds else set()
        allowed |= {2} if may_refuse else set()
        allowed |= {-9} if ended.hung or host in killed_launchers(ended.fired) else set()
        if code not in allowed:
            wrong.append(f"exit code {code} on host {host}: {Said(text).last_line}")
        elif code in (1, 2) and not text.strip():
            wrong.append(f"exit code {code} on host {host} without a word")
        if code == 0 and not records.whole(records.scenario.steps, excused, host):
            wrong.append(f"exit code 0 on host {host}, and the last checkpoint is not whole there")
    return wrong


def check_leftovers(site: Site, unswept: Collection[int], slack: float) -> list[str]:
    """No process, no shared memory, no temporary folder, no secret.

    What the killed launcher of an ``unswept`` host has left is removed by the next command there, not before.
    """
    wrong = []
    limit = time.monotonic() + slack * (ORPHANED if unswept else GRACE)
    while (left := site.alive()) and time.monotonic() < limit:
        time.sleep(0.05)
    if left:
        wrong.append(f"processes left: {site.describe()}")
        site.kill_all()
    for host in site.hosts:
        swept = host.number not in unswept
        if names := sorted(path.name for path in host.remains(shm=True, disk=swept)):
            wrong.append(f"left on host {host.number}: {', '.join(names[:3])}")
        host.clean_up(shm=True, disk=swept)  # it is said once
    return wrong


def check_safe(ended: Ended, records: Records, excused: Collection[str]) -> list[str]:
    """What is called safe is whole on every rank and server, and is the newest that is."""
    wrong = []
    said = [Said(text) for text in ended.texts]
    newest, deterministic = records.newest_whole(excused), records.scenario.deterministic
    steps = named_safe(ended)
    for step in steps:
        if not records.whole(step, excused):
            wrong.append(f"false Safe: step {step} is not whole ({newest or 'none'} is)")
        elif deterministic and step != newest:
            wrong.append(f"Safe: step {step}, though step {newest} is whole")
    if len(steps) > 1:
        wrong.append(f"hosts name different steps: {steps}")
    if any(one.nothing_safe for one in said) and newest is not None and deterministic:
        wrong.append(f"says that nothing is safe, though step {newest} is whole")
    if ended.codes[0] == 0 and any(one.resume for one in said[1:]):
        wrong.append("another host is told to resume a run that is complete")
    return wrong


def check_complete(records: Records, damaged: Iterable[str], reference: str | None) -> list[str]:
    """A complete run has everything, once, and where it is deterministic the bits of an undisturbed run."""
    wrong = records.incomplete() or records.doubled(damaged)
    if not wrong and reference is not None and records.model_digest() != reference:
        wrong.append("the model differs from that of an undisturbed run")
    return wrong


def named_safe(ended: Ended) -> list[int]:
    """The steps that launchers called safe."""
    return sorted({step for text in ended.texts if (step := Said(text).safe) is not None})


def killed_launchers(fired: Sequence[Fault]) -> set[int]:
    """The hosts whose launcher was killed."""
    kills = (fault.target.partition("-") for fault in fired if fault.kind == "kill")
    return {int(number) for role, _, number in kills if role == "launcher"}


def lost_workers(fault: Fault, scenario: Scenario) -> set[str]:
    """The workers that a run with servers may go on without after a fault."""
    if not scenario.servers or fault.kind not in ("kill", "stop", "cut link", "full disk"):
        return set()
    if fault.target.startswith("rank"):
        return {fault.target}
    if fault.kind == "cut link":  # either side is cut off from the other
        return {f"rank-{rank}" for rank in range(scenario.hosts * scenario.workers)}
    first = scenario.host_of(fault.target) * scenario.workers
    whole_host = not fault.target.startswith("server")
    return {f"rank-{rank}" for rank in range(first, first + scenario.workers)} if whole_host else set()
