"""The page of one run, and of several that are compared."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline import specs
from paceline.errors import UsageError
from paceline.records.files import to_document
from paceline.records.folder import name_of_run
from paceline.records.spans import sent_a_step
from paceline.reports.compare import answers, warnings
from paceline.reports.findings import finding_text
from paceline.reports.page.document import (
    CommandLine,
    FigureGrid,
    PageSection,
    PageTable,
    Paragraph,
    ReportPage,
)
from paceline.reports.page.run_figures import (
    STEP_PARTS,
    breakdown_figure,
    learning_tabs,
    mean_step,
    predicted,
    runs_breakdown_figure,
    staleness_figure,
    trained,
    waited_words,
)
from paceline.reports.page.time_figures import pace_figure, system_figures, timeline_figure
from paceline.reports.summary import after_warm_up, run_answer
from paceline.reports.text import counted, ms_digits
from paceline.runtimes.config import Config
from paceline.runtimes.settings import Cadence, Settings
from paceline.strategies import RECORDED
from paceline.studies.compare import RunComparison, compared_run
from paceline.studies.findings import find
from paceline.studies.findings.observed import ObservedSteps
from paceline.studies.recorded import RecordedRun
from paceline.units import show_bytes, show_seconds

PARTS_OF_A_JOB = ("data", "data_dir", "model", "optimizer", "schedule", "label_smoothing")

Repeat = Callable[[Config], str]
"""The command that repeats a run; empty where no line can say it."""


def run_page(run: RecordedRun, repeat: Repeat) -> ReportPage:
    summary, settings = run.summary, run.config.settings
    simulated = run.config.runtime == "virtual"
    return ReportPage(
        kind="paceline report, simulated run" if simulated else "paceline report",
        title=name_of_run(run.name),
        about=f"{_job(settings.job)}, {counted(summary.parameters, 'parameter')}, "
        f"{counted(summary.workers, 'worker')}, {specs.shorten(settings.strategy, RECORDED)}; {run.name}",
        answer=answer(run),
        numbers=tuple(key_numbers(run).items()),
        findings=found_sentences(run),
        notes=tuple(summary.notes),
        sections=tuple(section for section in _sections(run, repeat) if section.blocks),
    )


def _job(job: Any) -> str:
    return str(job.path or f"{job.data}, {job.model.partition(':')[0]}")


def answer(run: RecordedRun) -> str:
    ranks = {rank: one for rank, one in enumerate(run.summary.totals) if one.steps}
    said = run_answer(run.summary, ranks)
    step = mean_step(run)
    told = f"{said[0].upper()}{said[1:]}."
    if not step.total:
        return told
    share, part = max(
        (getattr(step, field) / step.total, part) for part, field in STEP_PARTS.items() if part != "hidden"
    )
    phrase = _PHRASES.get(part, part)
    if said.endswith("typically"):
        return f"{told} {100 * share:.0f} % of a typical step is {phrase}."
    return f"{told} A typical step takes {show_seconds(step.total)}, {100 * share:.0f} % of it {phrase}."


_PHRASES = {"wait": "waiting for others", "communicate": "communication", "rest": "other work"}


def found_sentences(run: RecordedRun) -> tuple[str, ...]:
    """What kept the run from being faster; what its notes say already is left out."""
    return tuple(finding_text(one) for one in find(run) if one.sentence not in run.summary.notes)


def samples_per_second(run: RecordedRun) -> float:
    """In typical steps, as comparisons have it; of a run too short to have one, the mean after the warm-up."""
    seen = ObservedSteps.of(run)
    return seen.rate if seen else sum(after_warm_up(one)[1] for one in run.summary.totals if one.steps)


def key_numbers(run: RecordedRun) -> dict[str, str]:
    summary, step, expected = run.summary, mean_step(run), predicted(run)
    numbers = {}
    if "accuracy" in summary.final:
        numbers["accuracy"] = f"{100 * summary.final['accuracy']:.2f} %"
    if summary.target is not None:
        after = "not reached" if summary.target_seconds is None else show_seconds(summary.target_seconds)
        numbers[f"to {100 * summary.target:.4g} %"] = after
    numbers["time"] = show_seconds(summary.seconds)
    numbers["steps a worker"] = f"{summary.steps:,}"
    if step.total:
        numbers["typical step"] = show_seconds(step.total)
        numbers["samples/s in typical steps"] = f"{samples_per_second(run):,.0f}"
    if expected is not None and step.total:
        numbers["predicted step"] = (
            f"{show_seconds(expected.step)} ({100 * (expected.step / step.total - 1):+.0f}\u00a0%)"
        )
    if sent := sent_a_step(summary.totals):
        numbers["sent a step and worker"] = show_bytes(sent)
    if summary.cpu_percent is not None and summary.memory_bytes is not None:
        numbers["CPU of a worker"] = f"{summary.cpu_percent:.0f} %"
        numbers["memory of a worker"] = show_bytes(summary.memory_bytes)
    return numbers


def _sections(run: RecordedRun, repeat: Repeat) -> list[PageSection]:
    learning, breakdown = learning_tabs([run], [run.name]), breakdown_figure(run)
    timeline, pace, stale = timeline_figure(run), pace_figure(run), staleness_figure(run)
    machine = system_figures(run)
    waited = waited_words(run) if run.summary.servers else ""
    return [
        PageSection(title="Loss and accuracy", blocks=(learning,) if learning else ()),
        PageSection(
            title="Where a step went",
            blocks=tuple(one for one in (breakdown, predicted_table(run), pace) if one),
        ),
        PageSection(title="Timeline", blocks=(timeline,) if timeline else ()),
        PageSection(
            title="Servers",
            blocks=(*((stale,) if stale else ()), *((Paragraph(waited),) if stale and waited else ())),
        ),
        PageSection(title="Machine", blocks=(FigureGrid(members=machine),) if machine else ()),
        PageSection(title="How to repeat it", blocks=repeat_blocks(run, repeat)),
    ]


def predicted_table(run: RecordedRun) -> PageTable | None:
    """Predicted against measured, part by part; None where nothing was predicted."""
    expected, measured = predicted(run), mean_step(run)
    if expected is None or not measured.total:
        return None
    digits = ms_digits(measured.total)
    rows = [
        _against(part, getattr(expected.breakdown, field), getattr(measured, field), digits)
        for part, field in STEP_PARTS.items()
        if getattr(expected.breakdown, field) or getattr(measured, field)
    ]
    rows.append(_against("step", expected.step, measured.total, digits))
    bounds = f"{show_seconds(expected.low)} to {show_seconds(expected.high)}"
    return PageTable(
        caption=f"Predicted before the first step against measured, the mean over ranks; 80 % interval: {bounds}",
        titles=("part", "predicted ms", "measured ms", "predicted - measured"),
        rows=tuple(rows),
    )


def _against(part: str, expected: float, measured: float, digits: int) -> tuple[str, ...]:
    apart = f"{100 * (expected / measured - 1):+.0f} %" if measured else "-"
    return part, f"{1e3 * expected:.{digits}f}", f"{1e3 * measured:.{digits}f}", apart


def repeat_blocks(run: RecordedRun, repeat: Repeat) -> tuple[Any, ...]:
    command = repeat(run.config)
    job = run.config.settings.job
    unsaid = "No single line says all that this run was given; its config.json does."
    if job.is_script:
        unsaid = f"Start {job.path} again as it was started: what it was given, only its author knows."
    return (
        CommandLine(command) if command else Paragraph(unsaid),
        settings_table([run], [run.name]),
        machine_table(run),
    )


def settings_table(
    runs: Sequence[RecordedRun], names: Sequence[str], *, differing: bool = False
) -> PageTable:
    flat = [_flat(used_settings(run.config.settings)) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    shown = [key for key in keys if not differing or len({one.get(key, "-") for one in flat}) > 1]
    return PageTable(
        caption="Settings that differ" if differing else "Settings, with every default written out",
        titles=("setting", *(("value",) if len(runs) == 1 else names)),
        rows=tuple((key, *(one.get(key, "-") for one in flat)) for key in shown),
        texts=1 + len(runs),
    )


def used_settings(settings: Settings) -> dict[str, Any]:
    """Without the parts of a job that a job of the user's own does not use."""
    document: dict[str, Any] = to_document(settings)
    if settings.job.path is not None:
        document["job"] = {
            name: value for name, value in document["job"].items() if name not in PARTS_OF_A_JOB
        }
    return document


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    """Settings by name, those that are not set left out."""
    found: dict[str, str] = {}
    for key, value in document.items():
        if isinstance(value, Mapping) and set(value) == {"count", "unit"}:
            found[key] = str(Cadence(**value))
        elif isinstance(value, Mapping):
            group = "slow rank" if key == "slow" else key
            found |= {f"{group} {name}": text for name, text in _flat(value).items()}
        elif isinstance(value, list | tuple):
            equal = len({*value}) == 1 and len(value) > 1
            found[key.replace("_", " ")] = f"{value[0]} each" if equal else ", ".join(map(str, value))
        elif value is not None:
            found[key.replace("_", " ")] = str(value)
    return found


def machine_table(run: RecordedRun) -> PageTable:
    known = {key: value for key, value in run.environment.items() if key != "workers" and value is not None}
    hosts = dict.fromkeys(str(worker.get("host", "")) for worker in run.environment.get("workers", ()))
    shown = {key.replace("_", " "): str(value) for key, value in known.items() if key != "memory_bytes"}
    if isinstance(memory := known.get("memory_bytes"), int):
        shown["memory"] = show_bytes(memory)
    if len(hosts) > 1:
        shown["hosts of the workers"] = ", ".join(hosts)
    return PageTable(
        caption="Versions and the machine", titles=("what", "value"), rows=tuple(shown.items()), texts=2
    )


def compared_page(runs: Sequence[RecordedRun], repeat: Repeat) -> ReportPage:
    names = run_names(runs)
    said, doubtful = compared_answer(runs, names)
    notes = [f"{name}: {note}" for run, name in zip(runs, names, strict=True) for note in run.summary.notes]
    learning, breakdown = learning_tabs(runs, names), runs_breakdown_figure(runs, names)
    table = differences_table(runs, names)
    settings = settings_table(runs, names, differing=True)
    found = [
        (name, sentence) for run, name in zip(runs, names, strict=True) for sentence in found_sentences(run)
    ]
    commands = [
        block
        for run, name in zip(runs, names, strict=True)
        for block in (Paragraph(f"{name} ({run.name}):"), repeat_blocks(run, repeat)[0])
    ]
    return ReportPage(
        kind="paceline report, comparison",
        title=f"{counted(len(runs), 'run')} compared",
        about=", ".join(run.name for run in runs),
        answer=said,
        findings=tuple(f"{name}: {sentence}" for name, sentence in found),
        notes=tuple(dict.fromkeys([*doubtful, *notes])),
        sections=(
            PageSection(title="Differences", blocks=(table, *((settings,) if settings.rows else ()))),
            *([PageSection(title="Loss and accuracy", blocks=(learning,))] if learning else []),
            *([PageSection(title="Where a step went", blocks=(breakdown,))] if breakdown else []),
            PageSection(title="How to repeat them", blocks=tuple(commands)),
        ),
    )


def run_names(runs: Sequence[RecordedRun]) -> list[str]:
    """As short as tells them apart: what a run was called, its folder, or its whole path."""
    for names in (
        [name_of_run(run.name) for run in runs],
        [run.name for run in runs],
        [str(run.folder.path) for run in runs],
    ):
        if len({*names}) == len(names):
            return names
    return [f"{place}: {name}" for place, name in enumerate(names, start=1)]


def compared_answer(runs: Sequence[RecordedRun], names: Sequence[str]) -> tuple[str, list[str]]:
    """As 'paceline compare' says it, and what makes it doubtful; a run that is too short is named."""
    try:
        sides = tuple(compared_run(name, run) for name, run in zip(names, runs, strict=True))
    except UsageError as error:
        return f"{error}.", []
    comparison = RunComparison(sides=sides)
    return " ".join(answers(comparison)), warnings(comparison)


def differences_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> PageTable:
    """Key figures run by run; beside each number, how it compares with the first run's."""
    measures: Mapping[str, tuple[Callable[[RecordedRun], float | None], Callable[[float], str]]] = {
        "samples/s in typical steps": (samples_per_second, lambda value: f"{value:,.0f}"),
        "typical step": (lambda run: mean_step(run).total, show_seconds),
        **{
            part: (lambda run, field=field: getattr(mean_step(run), field), show_seconds)  # type: ignore[misc]
            for part, field in STEP_PARTS.items()
        },
        "time of the run": (lambda run: run.summary.seconds, show_seconds),
        "accuracy": (lambda run: run.summary.final.get("accuracy"), lambda value: f"{100 * value:.2f} %"),
        "sent a step and worker": (lambda run: sent_a_step(run.summary.totals), show_bytes),
        "workers": (lambda run: float(len(trained(run))), lambda value: f"{value:.0f}"),
    }
    rows = []
    for what, (measure, shown) in measures.items():
        values = [measure(run) for run in runs]
        if any(values):
            rows.append((what, *(_compared(value, values[0], shown) for value in values)))
    return PageTable(
        caption=f"Each run's figures; in brackets as many times as {names[0]}'s",
        titles=("what", *names),
        rows=tuple(rows),
    )


def _compared(value: float | None, first: float | None, shown: Callable[[float], str]) -> str:
    if not value:
        return "-"
    times = f" ({value / first:.3g}x)" if first and value != first else ""
    return f"{shown(value)}{times}"
