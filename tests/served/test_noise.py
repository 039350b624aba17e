"""The handshake against a published vector, and records that only their place in their connection opens."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from paceline.runtimes.live.wire import noise
from paceline.runtimes.live.wire.noise import Cipher, Handshake, NotGenuine

# Noise_NNpsk0_25519_AESGCM_SHA256 of the cacophony vectors: payloads and what they become on the wire.
PROLOGUE, SECRET = b"John Galt", b"This is my Austrian perspective!"
INITIATOR = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"
RESPONDER = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"
FIRST = (
    "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
    "7c37a89fc17813788d30df2d59501d6066f5f8aecc3406bbd9829f2d24a531b1"
)
SECOND = (
    "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
    "2f29d79368ef9de4e1ae7a362fb05bf0ad668e026bf5714554497b3a720461"
)
THIRD = "7c01e898a6201f36aecee532e29cd0b7f8ffa29d3366ad0dce39a6"
FOURTH = "a9ff535aace3db6a1da1a7fb00fe2de2622bb373abad9fb42c00e0"


def side(ephemeral: str) -> Handshake:
    handshake = Handshake(SECRET, PROLOGUE)
    handshake._own = X25519PrivateKey.from_private_bytes(bytes.fromhex(ephemeral))
    return handshake


def test_the_published_vector() -> None:
    """If this failed, the handshake would be one of our own making and not the one that was analysed."""
    initiator, responder = side(INITIATOR), side(RESPONDER)
    first = initiator.write(b"Ludwig von Mises")
    assert first.hex() == FIRST
    responder.read(first)
    second = responder.write(b"Murray Rothbard")
    assert second.hex() == SECOND
    initiator.read(second)
    sending, receiving = initiator.split()
    assert sending.seal(b"F. A. Hayek").hex() == THIRD
    assert receiving.seal(b"Carl Menger").hex() == FOURTH


def connected() -> tuple[Cipher, Cipher]:
    """The two ends of one direction."""
    initiator, responder = (Handshake(bytes(32), b"p") for _ in "12")
    responder.read(initiator.write())
    initiator.read(responder.write())
    return initiator.split()[0], responder.split()[0]


def test_every_connection_has_keys_of_its_own() -> None:
    """If this failed, what one connection has sent could be played to another."""
    (one, _), (_, other) = connected(), connected()
    with pytest.raises(NotGenuine):
        other.open(one.seal(b"gradient"))


@pytest.mark.parametrize(("secret", "prologue"), [(bytes([1] * 32), b"p"), (bytes(32), b"q")])
def test_another_secret_or_protocol_is_refused_at_the_first_message(secret: bytes, prologue: bytes) -> None:
    with pytest.raises(NotGenuine):
        Handshake(bytes(32), b"p").read(Handshake(secret, prologue).write())


def test_a_public_key_of_small_order_is_refused() -> None:
    """If this failed, a member's keys could be forced to a value that others know."""
    initiator, responder = Handshake(bytes(32), b"p"), Handshake(bytes(32), b"p")
    responder.read(initiator.write())
    with pytest.raises(NotGenuine):
        initiator.read(bytes(32) + responder.write()[32:])


def test_a_new_key_is_taken_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a long run would end at its first new key, or go on with one for longer than is safe."""
    monkeypatch.setattr(noise, "REKEY", 3)
    sealing, opening = connected()
    keys = []
    for number in range(8):
        assert opening.open(sealing.seal(b"%d" % number)) == b"%d" % number
        keys.append(id(sealing._aead))
    assert [keys[at] != keys[at - 1] for at in range(1, 8)] == [at % 3 == 0 for at in range(1, 8)]
