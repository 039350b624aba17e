"""Where the time of a step goes, module by module."""

from collections.abc import Callable, Iterable

from paceline.costs.trace.operator import Operator
from paceline.costs.trace.trace import Trace
from paceline.studies.predict.prediction import Layer


def layer_table(
    trace: Trace, seconds: Callable[[Operator], float], mini_batches: int = 1
) -> tuple[Layer, ...]:
    """The modules in the order in which forward enters them; the optimizer belongs to none of them."""
    modules: dict[str, list[Operator]] = {}
    for operator in (*trace.forward, *trace.backward):
        modules.setdefault(operator.module, []).append(operator)
    times = {module: _phases(operators, seconds) for module, operators in modules.items()}
    whole = sum(map(sum, times.values())) or 1.0
    return tuple(
        Layer(
            module=module or "(model)",
            kinds=", ".join(dict.fromkeys(operator.kind for operator in operators)),
            flops=mini_batches * sum(operator.flops for operator in operators),
            bytes=float(mini_batches * sum(operator.read + operator.written for operator in operators)),
            forward=mini_batches * times[module][0],
            backward=mini_batches * times[module][1],
            share=sum(times[module]) / whole,
        )
        for module, operators in modules.items()
    )


def _phases(operators: Iterable[Operator], seconds: Callable[[Operator], float]) -> tuple[float, float]:
    spent = {"forward": 0.0, "backward": 0.0}
    for operator in operators:
        spent[operator.phase] += seconds(operator)
    return spent["forward"], spent["backward"]
