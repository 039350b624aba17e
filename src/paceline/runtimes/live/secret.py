"""The run's secret, and the keys that everybody who has it derives."""

import os
import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Self

from paceline.errors import UsageError

SHORTEST = 16
"""Bytes below which a secret can be guessed."""
_LONGEST = 2**20


@dataclass(frozen=True)
class Secret:
    """What the members of a run share and nobody else has; it never shows in a repr, a log or a command line."""

    text: bytes = field(repr=False)
    """As it stands in a file; anything from 16 bytes on, better random ones."""

    def __post_init__(self) -> None:
        if len(self.text) < SHORTEST:
            raise UsageError(
                f"a secret of {len(self.text)} bytes can be guessed; give at least {SHORTEST}, "
                "for one with 'openssl rand -hex 32'"
            )

    @classmethod
    def new(cls) -> Self:
        """A fresh random secret."""
        return cls(secrets.token_hex(32).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The secret in a file, without the white space around it."""
        try:
            with path.open("rb") as file:
                text = file.read(_LONGEST).strip()
        except OSError as error:
            raise UsageError(
                f"the secret file {path} cannot be read ({error.strerror}); put the same random text of at "
                f"least {SHORTEST} bytes there on every host"
            ) from None
        if len(text) < SHORTEST:
            raise UsageError(
                f"the secret file {path} holds {len(text)} bytes and needs at least {SHORTEST}; "
                f"fill it with 'openssl rand -hex 32 > {path}', the same on every host"
            )
        return cls(text)

    def write(self, path: Path) -> None:
        """Make a file that only this user may read; it must not exist yet."""
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(self.text + b"\n")


def wire_key(secret: Secret) -> bytes:
    """What workers and servers of a run prove to each other that they have."""
    return _hashed(secret, b"paceline wire")


def store_key(secret: Secret) -> bytes:
    """What whoever uses the run's store proves to it."""
    return _hashed(secret, b"paceline store")


def _hashed(secret: Secret, use: bytes) -> bytes:
    return blake2b(secret.text, digest_size=32, person=use).digest()
