"""One look at a run that goes on, as text: a page for a terminal, a line for a file."""

from collections.abc import Sequence

from paceline.records.events import MetricsRow
from paceline.records.spans import StepBreakdown
from paceline.reports.progress import header
from paceline.reports.summary import MOST_WORKERS, PARTS, summary_text
from paceline.reports.text import aligned, counted, figure, ms_digits, percent, time_left
from paceline.studies.watch import RankState, RunState, ServerState
from paceline.units import show_bytes, show_seconds

SHOWN_ROWS = 3


def watch_text(state: RunState, folder: str, blocks: bool = True) -> str:
    """All that is known at one look; of a run that has ended its summary. Without a last line break."""
    if state.summary:
        return f"{folder} has ended\n{summary_text(state.summary, folder, blocks=blocks)}"
    lines = [f"{folder}: {status_words(state)}"]
    if state.started:
        lines.append(header(state.started)[0])
    lines.append(progress_words(state))
    if state.last_steps.total:
        lines.append(step_words(state.last_steps))
    lines += waiting_words(state)
    if state.ranks:
        lines += ["", *_rank_table(state)]
    lines += [_server_words(server) for server in state.servers]
    if state.host:
        lines.append(f"the host's CPU: {state.host.cpu_percent:.0f} % of all cores")
    if state.rows:
        lines += ["", *_metrics_table(state.rows[-SHOWN_ROWS:])]
    if state.damaged:
        lines.append(f"{counted(state.damaged, 'line')} of the record could not be read")
    return "\n".join(lines)


def watch_line(state: RunState) -> str:
    """What matters, in one line."""
    words = [progress_words(state)]
    if state.last_steps.total:
        words.append(f"{show_seconds(state.last_steps.total)} a step")
    words += waiting_words(state)
    if state.rows:
        words.append(", ".join(f"{name} {value}" for name, value in _scores(state.rows[-1]).items()))
    return "; ".join([*([] if state.status == "running" else [status_words(state)]), *words])


def status_words(state: RunState) -> str:
    if state.status == "failed":
        return f"failed after {show_seconds(state.seconds)}; see {', '.join(state.failures)}"
    if state.abandoned:
        silence = time_left(state.silence or 0.0)
        return f"silent for {silence}, and no process of this host, which recorded it, uses it: it was killed"
    holder = {
        True: "its processes live",
        False: "no process of this host uses it: it was killed, or runs on another host",
        None: "whether its processes live cannot be told from here",
    }[state.locked]
    if state.silence is None:
        return f"starting; {holder}"
    if state.status == "silent":
        return f"silent for {time_left(state.silence)}; {holder}"
    return f"running, {show_seconds(state.seconds)} so far"


def progress_words(state: RunState) -> str:
    step = round(state.step)
    if state.last_step:
        reached = f"step {step:,} of {state.last_step:,} ({100 * state.step / state.last_step:.0f} %)"
    else:
        budget = f" of {counted(state.epochs, 'epoch')}" if state.epochs else ""
        reached = f"step {step:,}{budget}"
    words = [reached, f"{state.samples_per_second:,.0f} samples/s"]
    if state.seconds_left:
        words.append(f"about {time_left(state.seconds_left)} left")
    return ", ".join(words)


def step_words(step: StepBreakdown) -> str:
    parts = [
        f"{name} {100 * share:.0f} %"
        for kind, name in PARTS.items()
        if (share := getattr(step, kind) / step.total) >= 0.005
    ]
    hidden = f"; {show_seconds(step.hidden)} of communication hidden" if step.hidden else ""
    return f"the last steps took {show_seconds(step.total)}: {', '.join(parts)}{hidden}"


def waiting_words(state: RunState) -> list[str]:
    if not (found := state.waited_for):
        return []
    own, others = (percent(round(share, 2)) for share in (found.waiting, found.others))
    who = "the other rank" if len(state.ranks) == 2 else "the others"
    return [f"rank {found.rank} is waited for: it waits {own} of its time, {who} {others}"]


def shown_ranks(state: RunState) -> tuple[dict[int, str], int]:
    """The ranks that are shown with a remark on each, and how many are left out."""
    ranks = state.ranks
    if len(ranks) <= MOST_WORKERS:
        return {one.rank: "" for one in ranks}, 0
    working = [one for one in ranks if one.steps_per_second] or ranks
    remarks = {
        min(working, key=lambda one: one.last_steps.compute).rank: "fastest",
        max(working, key=lambda one: one.last_steps.compute).rank: "slowest",
    }
    if state.waited_for:
        rank = state.waited_for.rank
        remarks[rank] = f"{remarks[rank]}, waited for" if rank in remarks else "waited for"
    for one in sorted(ranks, key=lambda one: -one.waiting):
        if len(remarks) < MOST_WORKERS:
            remarks.setdefault(one.rank, "")
    return dict(sorted(remarks.items())), len(ranks) - len(remarks)


def _rank_table(state: RunState) -> list[str]:
    remarks, left_out = shown_ranks(state)
    digits = ms_digits(state.last_steps.total)
    titles = ("rank", "step", "samples/s", "step ms", "compute ms", "waits", "CPU of a core", "memory", "")
    rows = [_rank_cells(one, remarks[one.rank], digits) for one in state.ranks if one.rank in remarks]
    lines = aligned(titles, rows, left=("",))
    if left_out:
        lines.append(f"{left_out:,} more that wait less {'is' if left_out == 1 else 'are'} left out")
    return lines


def _rank_cells(one: RankState, remark: str, digits: int) -> tuple[str, ...]:
    cpu = f"{one.usage.cpu_percent:.0f} %" if one.usage else "-"
    return (
        str(one.rank),
        f"{one.step:,}",
        f"{one.samples_per_second:,.0f}",
        f"{1e3 * one.last_steps.total:.{digits}f}",
        f"{1e3 * one.last_steps.compute:.{digits}f}",
        f"{100 * one.waiting:.0f} %",
        cpu,
        show_bytes(one.usage.memory_bytes) if one.usage else "-",
        remark,
    )


def _server_words(server: ServerState) -> str:
    return (
        f"server {server.server}: version {server.version:,}, {server.updates_per_second:,.0f} updates/s, "
        f"a gradient missed {counted(float(f'{server.staleness:.3g}'), 'update')} on average, queue {server.depth}"
    )


def _scores(row: MetricsRow) -> dict[str, str]:
    losses = {"train loss": row.train_loss} | ({} if row.test_loss is None else {"test loss": row.test_loss})
    return {name: figure(value) for name, value in {**losses, **row.metrics}.items()}


def _metrics_table(rows: Sequence[MetricsRow]) -> list[str]:
    titles = ["step", "epoch", *_scores(rows[-1]), "at"]
    cells = [_scores(row) for row in rows]
    return aligned(
        titles,
        [
            [
                f"{row.step:,}",
                f"{row.epoch:.2f}",
                *(one.get(name, "") for name in titles[2:-1]),
                show_seconds(row.seconds),
            ]
            for row, one in zip(rows, cells, strict=True)
        ],
    )
