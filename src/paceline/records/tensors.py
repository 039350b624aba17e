"""Trees of tensors as safetensors files, which other tools read too: checked to the last byte, no pickle.

The header's metadata holds the tree (where each tensor belongs, and all numbers and texts beside them), whose file it
is, and the SHA-256 of the whole file with that digest written as zeros. safetensors' own writer replaces the file
without syncing it and hides the number of an error, so files are written here; it reads them.
"""

import hashlib
import json
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.records.files import DamagedFile, from_document, replacing, to_document

Tree = Any
"""Dicts and lists of tensors, int, float, bool, str and None, in each other to any depth."""

_VERSION = "3"
_LENGTH = struct.Struct("<Q")
_NO_DIGEST = b"0" * 64
_KINDS = {"U": ("uint", 8, 16, 32, 64), "I": ("int", 8, 16, 32, 64), "F": ("float", 16, 32, 64)}
_TYPES = {torch.bool: "BOOL", torch.bfloat16: "BF16", torch.complex64: "C64"} | {
    getattr(torch, f"{kind}{bits}"): f"{name}{bits}"
    for name, (kind, *sizes) in _KINDS.items()
    for bits in sizes
}

FileRole = Literal["rank", "server"]


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What all files of a run share."""

    run: str
    settings: str
    """SHA-256 of the settings that may not change when the run resumes."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{16} [0-9a-f]{64}", f"{self.run} {self.settings}"):
            raise ValueError(f"{self.run!r} is not the id of a run, or {self.settings!r} not a digest")


@dataclass(frozen=True, kw_only=True)
class FileIdentity(RunIdentity):
    """Whose state of which step a checkpoint file holds."""

    role: FileRole
    rank: int
    step: int

    def __str__(self) -> str:
        return f"run {self.run}, {self.role} {self.rank}, step {self.step}"


def write_tensors(path: Path, tree: Tree, identity: FileIdentity | None = None) -> None:
    """Write a tree, and whose it is; ``path`` then holds all of it or, after any error, what it held before.

    Keys are read back as strings, tuples as lists, and tensors on the CPU, each in its own memory.
    """
    assert sys.byteorder == "little"
    tensors: dict[str, Tensor] = {}
    metadata = {
        "format": "pt",
        "paceline": _VERSION,
        "sha256": _NO_DIGEST.decode(),
        "identity": json.dumps(to_document(identity)),
        "tree": json.dumps(_encode(tree, "", tensors)),
    }
    header = _header(metadata, tensors)
    digest = hashlib.sha256(header)
    with replacing(path) as file:
        file.write(header)
        for tensor in tensors.values():
            data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
            digest.update(data)
            file.write(data)
        file.seek(header.index(_NO_DIGEST))
        file.write(digest.hexdigest().encode())


def _header(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> bytes:
    described: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        kind, shape = _TYPES[tensor.dtype], list(tensor.shape)
        described[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that tensors begin at a multiple of their width
    return _LENGTH.pack(len(text)) + text


def read_tensors(path: Path, identity: FileIdentity | None = None) -> Tree:
    """Read a tree back, bit for bit, or raise DamagedFile; where an ``identity`` is given, the file must have it."""
    check_tensors(path, identity)
    with _refusing_nonsense(path), safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return _decode(json.loads(file.metadata()["tree"]), tensors)


def check_tensors(path: Path, identity: FileIdentity | None = None) -> None:
    """Raise DamagedFile unless every byte is as this ``identity`` wrote it; nothing is kept in memory."""
    with _refusing_nonsense(path):
        metadata = _check_bytes(path)
        found = from_document(json.loads(metadata["identity"]), FileIdentity | None)  # type: ignore[arg-type]
    if identity is not None and found != identity:
        other = "other settings" if str(found) == str(identity) else str(found or "no run")
        raise DamagedFile(path, f"belongs to {other}, not to {identity}")


@contextmanager
def _refusing_nonsense(path: Path) -> Iterator[None]:
    wrong = ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error, SafetensorError
    try:
        yield
    except wrong as error:
        text = f"is cut short or was altered: its header makes no sense ({error})"
        raise DamagedFile(path, text) from error


def _check_bytes(path: Path) -> dict[str, str]:
    """The metadata of a file whose bytes are as they were written."""
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if start == b"PACELINE":
            raise DamagedFile(
                path, "is a tensor file of an older paceline (up to 0.1), which this one does not read"
            )
        text = file.read(min(_LENGTH.unpack(start)[0], path.stat().st_size))
        metadata: dict[str, str] = json.loads(text)["__metadata__"]
        if metadata["paceline"] != _VERSION:
            raise DamagedFile(
                path,
                f"is a tensor file of version {metadata['paceline']}, which another paceline wrote; "
                f"this one reads version {_VERSION}",
            )
        written = metadata["sha256"].encode()
        digest = hashlib.sha256(start + text.replace(written, _NO_DIGEST, 1))
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest().encode() != written:
        raise DamagedFile(path, "is cut short or was altered: its checksum does not match")
    return metadata


def _encode(tree: Tree, name: str, tensors: dict[str, Tensor]) -> Any:
    match tree:
        case Tensor():
            return _add(tree, name or "tensor", tensors)
        case bool() | int() | str() | None:
            return tree
        case float():
            return {"float": struct.pack("<d", tree).hex()}
        case list() | tuple():
            return [_encode(item, _below(name, str(place)), tensors) for place, item in enumerate(tree)]
        case dict():
            items = {_key(key, tree): item for key, item in tree.items()}
            return {"dict": {key: _encode(item, _below(name, key), tensors) for key, item in items.items()}}
    raise TypeError(f"a file of tensors cannot hold {tree!r}")


def _add(tensor: Tensor, name: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    dense = tensor.layout == torch.strided and not tensor.is_meta
    kind = "tensor"
    if dense and tensor.dtype == torch.complex128:  # which the format does not know
        kind, tensor = "complex", torch.view_as_real(tensor.resolve_conj())
    if not dense or tensor.dtype not in _TYPES or name == "__metadata__":
        raise TypeError(
            f"a file of tensors cannot hold {name!r}, a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}"
        )
    tensors[name] = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return {kind: name}


def _below(name: str, key: str) -> str:
    key = key.replace("~", "~0").replace("/", "~1") or "~2"
    return f"{name}/{key}" if name else key


def _key(key: object, tree: Mapping[Any, Any]) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int) or (isinstance(key, int) and str(key) in tree):
        raise TypeError(
            f"a file of tensors cannot hold the key {key!r}: keys are strings or whole numbers, each once"
        )
    return str(key)


def _decode(shape: Any, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(shape, list):
        return [_decode(item, tensors) for item in shape]
    if not isinstance(shape, dict):
        return shape
    ((kind, value),) = shape.items()
    match kind:
        case "float":
            return struct.unpack("<d", bytes.fromhex(value))[0]
        case "tensor":
            return tensors[value]
        case "complex":
            return torch.view_as_complex(tensors[value])
        case "dict":
            return {key: _decode(item, tensors) for key, item in value.items()}
    raise ValueError(f"there is no kind {kind!r}")
