"""The command with a schedule that forgets an element: a worker of ``test_bench_command``, or its launcher."""

import sys

from paceline.cli.main import main
from paceline.studies.collectives import group


def broken(name: str, *arguments):
    right = real(name, *arguments)
    if name != "tree":
        return right

    def reduce(tensor):
        right(tensor)
        tensor[-1] = 0

    return reduce


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        from paceline.runtimes.live.launcher.launch import launch
        from paceline.runtimes.live.launcher.processes import LaunchPlan

        sys.exit(launch([sys.executable, __file__, *sys.argv[2:]], LaunchPlan(workers=2)))
    real, group.reducer = group.reducer, broken
    sys.exit(main(sys.argv[1:]))
