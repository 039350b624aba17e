"""Which files a job by import path is read from: found without running any of them."""

import hashlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from paceline.errors import UsageError


def source_files(path: str) -> list[Path]:
    """The files that importing "module:function" or "file.py:function" would run first, in order.

    A module's packages come before it. Empty where there is no such module, or where it is not read from a file.
    """
    source = path.rpartition(":")[0]
    if source.endswith(".py"):
        return [Path(source).absolute()] if Path(source).is_file() else []
    files: list[Path] = []
    search: list[str] | None = [str(Path.cwd()), *sys.path]
    parts = source.split(".")
    for length in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:length]), search)
        if spec is None:
            return []
        if spec.has_location and spec.origin:
            files.append(Path(spec.origin).absolute())
        search = list(spec.submodule_search_locations or [])
    return files if spec is not None and spec.has_location else []


def _find(name: str, search: list[str] | None) -> ModuleSpec | None:
    """As an import finds a module, but its packages are not imported for it."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, search) if find_spec else None
        if spec is not None:
            return spec
    return None


def fingerprints(path: str) -> dict[str, str]:
    """The files behind an import path, each with its SHA-256."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in source_files(path)}


def check_trusted(
    path: str,
    known: dict[str, str],
    folder: Path,
    option: str,
    fix: str = "add --trust to run it all the same",
) -> None:
    """Refuse to import code that lies in a run folder, or that is not what the run last ran with; nothing is run.

    ``known`` is what ``fingerprints`` gave when the run began; ``option`` names the folder for the user, and ``fix``
    says what else can be done.
    """
    found = fingerprints(path)
    source, _, function = path.rpartition(":")
    if not found:
        raise UsageError(
            f"{option} would call {function}() of {source!r}, which is not found in {Path.cwd()} or among the "
            f"installed modules; run from the folder that holds it, or {fix}"
        )
    for file, digest in found.items():
        would = f"{option} would run {file} and call {function}()"
        if Path(file).resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{would}, and that file lies in the run folder itself; read it, then {fix}")
        if Path(file).stat().st_uid not in (0, os.geteuid()):  # a folder from its owner could vouch for it
            raise UsageError(f"{would}, and that file belongs to another user; read it, then {fix}")
        if digest not in known.values():
            raise UsageError(
                f"{would}, and that file is not what the run last ran with (SHA-256 {digest[:12]}, not "
                f"{' or '.join(one[:12] for one in known.values()) or 'known'}); "
                f"put it back, or {fix}"
            )
