"""``paceline --install-completion``: let the shell complete commands and options."""

from pathlib import Path
from typing import Literal

from cyclopts.completion.detect import ShellDetectionError, detect_shell

from paceline.errors import UsageError


def install_completion(
    *, shell: Literal["bash", "zsh", "fish"] | None = None, output: Path | None = None
) -> None:
    """Let the shell complete commands and options; bash and zsh also get a line in their start-up file.

    Args:
        shell: Which one (default: the one that this runs in).
        output: Write the script to this file, and change no start-up file.
    """
    from paceline.cli.main import make_app

    try:
        found = shell or detect_shell()
        written = make_app().install_completion(shell=found, output=output, add_to_startup=output is None)
    except ShellDetectionError as error:
        raise UsageError("which shell is this? say it: --shell bash, zsh or fish") from error
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename} ({error.strerror}); name a file with --output"
        ) from error
    if output is not None:
        loaded = "no start-up file was changed"
    elif found == "zsh":  # its compinit looks into the folders that it is told before
        loaded = "it works in the next shell if .zshrc ends with 'autoload -Uz compinit; compinit' (oh-my-zsh has that)"
    else:
        loaded = f"it works in the next shell, or now after 'source {written}'"
    print(f"wrote {written}: {loaded}")  # noqa: T201
