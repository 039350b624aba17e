"""One rank that runs several scripts: ``in_turn.py PORTS SCRIPT...``, each with its options, each a run of its own."""

import os
import runpy
import shlex
import sys

from paceline.loop.process import ScriptProcess


def main(ports: str, *scripts: str) -> None:
    for port, script in zip(ports.split(","), scripts, strict=True):
        os.environ["MASTER_PORT"] = port
        sys.argv = shlex.split(script)
        sys.stdout.write(f"~~~ {script}\n")
        runpy.run_path(sys.argv[0], run_name="__main__")
        process, ScriptProcess.current = ScriptProcess.current, None
        if process is not None:
            process.close(failed=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
