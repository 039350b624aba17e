"""Noise_NNpsk0_25519_AESGCM_SHA256: two sides that share a secret agree on keys for one connection.

The handshake is two messages; whatever it refuses raises NotGenuine. See
https://noiseprotocol.org/noise.html (revision 34), whose names the methods have.
"""

import hmac
from hashlib import sha256
from struct import Struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NAME = b"Noise_NNpsk0_25519_AESGCM_SHA256"
TAG = 16
MESSAGE = 32 + TAG
"""Bytes of each of the two messages: an ephemeral public key and the tag of an empty payload."""
REKEY = 2**18
"""Records after which both sides take the next key; of 256 KiB these are 64 GiB, a sixth of what TLS 1.3 allows."""
BytesLike = bytes | bytearray | memoryview
_NONCE = Struct(">IQ")


class NotGenuine(ConnectionError):
    """What arrived was not made with the secret, for this position of this connection."""


class Cipher:
    """Each record of one direction has the next nonce: none can be left out, repeated or moved."""

    def __init__(self, key: bytes) -> None:
        self._aead, self._count = AESGCM(key), 0

    def seal(self, plain: BytesLike, context: bytes = b"") -> bytes:
        return self._aead.encrypt(self._next(), plain, context)

    def seal_into(self, record: memoryview, plain: BytesLike) -> None:
        self._aead.encrypt_into(self._next(), plain, None, record)

    def open(self, record: BytesLike, context: bytes = b"") -> bytes:
        plain = bytearray(len(record) - TAG)
        self.open_into(plain, record, context)
        return bytes(plain)

    def open_into(self, plain: BytesLike, record: BytesLike, context: bytes = b"") -> None:
        """What is in the next record, into memory that is TAG bytes shorter; NotGenuine leaves anything there."""
        try:
            self._aead.decrypt_into(self._next(), record, context, plain)
        except InvalidTag:
            raise NotGenuine("sent a record that was changed, left out or made up") from None

    def _next(self) -> bytes:
        if self._count and self._count % REKEY == 0:
            self._aead = AESGCM(self._aead.encrypt(_NONCE.pack(0, 2**64 - 1), bytes(32), b"")[:32])
        self._count += 1
        return _NONCE.pack(0, self._count - 1)


class Handshake:
    """One side's: the initiator writes and then reads, the responder reads and then writes."""

    def __init__(self, secret: bytes, prologue: bytes) -> None:
        """``secret`` has 32 bytes; a side whose ``prologue`` differs is refused."""
        self._own = X25519PrivateKey.generate()
        self._written = False
        self._their: bytes | None = None
        self._hash = sha256(NAME + prologue).digest()
        self._chain, mixed, key = _derive(NAME, secret, 3)
        self._mix_hash(mixed)
        self._cipher = Cipher(key)

    def write(self, payload: bytes = b"") -> bytes:
        public = self._own.public_key().public_bytes_raw()
        self._written = True
        self._mix_public(public)
        sealed = self._cipher.seal(payload, self._hash)
        self._mix_hash(sealed)
        return public + sealed

    def read(self, message: bytes) -> None:
        self._their = message[:32]
        self._mix_public(self._their)
        self._cipher.open(message[32:], self._hash)
        self._mix_hash(message[32:])

    def split(self) -> tuple[Cipher, Cipher]:
        first, second = _derive(self._chain, b"", 2)
        return Cipher(first), Cipher(second)

    def _mix_public(self, public: bytes) -> None:
        """Mix a side's ephemeral key in; with the second message, what both keys agree on too."""
        self._mix_hash(public)
        self._mix_key(public)
        if self._written and self._their is not None:
            try:
                self._mix_key(self._own.exchange(X25519PublicKey.from_public_bytes(self._their)))
            except ValueError:  # a point of small order
                raise NotGenuine("sent no public key") from None

    def _mix_key(self, material: bytes) -> None:
        self._chain, key = _derive(self._chain, material, 2)
        self._cipher = Cipher(key)

    def _mix_hash(self, data: bytes) -> None:
        self._hash = sha256(self._hash + data).digest()


def _derive(chain: bytes, material: bytes, count: int) -> list[bytes]:
    master, outputs = hmac.digest(chain, material, sha256), [b""]
    for number in range(1, count + 1):
        outputs.append(hmac.digest(master, outputs[-1] + bytes([number]), sha256))
    return outputs[1:]
