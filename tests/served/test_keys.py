"""The run's secret: everybody who has it derives the same keys, and it shows nowhere."""

from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.runtimes.live.secret import Secret


def test_a_secret_survives_its_file_and_gives_the_same_keys(tmp_path: Path) -> None:
    secret = Secret.new()
    secret.write(tmp_path / "secret")
    again = Secret.read(tmp_path / "secret")
    assert again == secret
    assert again.key("store") == secret.key("store")
    assert again.key("wire") == secret.key("wire")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_keys_differ_by_use_and_by_secret() -> None:
    """If this failed, a server could pose as the store, or runs would take each other's workers."""
    one, other = Secret.new(), Secret.new()
    assert len({one.key("store"), one.key("wire"), other.key("store"), other.key("wire")}) == 4


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    """Somebody else's file under that name would stay readable to them."""
    (tmp_path / "secret").touch(mode=0o666)
    with pytest.raises(FileExistsError):
        Secret.new().write(tmp_path / "secret")


def test_a_secret_does_not_show() -> None:
    secret = Secret(b"very secret indeed")
    assert "indeed" not in repr(secret)
    assert "indeed" not in str(secret)


@pytest.mark.parametrize("text", [b"", b"  short  \n", b"fifteen bytes !\n"])
def test_a_short_secret_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text)
    with pytest.raises(
        UsageError, match=r"a secret of \d+ bytes can be guessed: it needs at least 16"
    ) as mistake:
        Secret.read(path)
    assert "\n" not in str(mistake.value)


def test_a_missing_or_unreadable_secret_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        Secret.read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="Is a directory"):
        Secret.read(tmp_path)


def test_any_long_text_will_do(tmp_path: Path) -> None:
    """A pass phrase and a key file of any tool are both fine, with or without a line's end."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"correct horse battery staple\r\n")
    other.write_bytes(b"correct horse battery staple")
    assert Secret.read(one).key("wire") == Secret.read(other).key("wire")
