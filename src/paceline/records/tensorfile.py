"""Trees of tensors in one file: checked to the last byte, no pickle.

The layout, all numbers little-endian::

    magic     8 bytes   "PACELINE"
    version   4 bytes
    checksum  32 bytes  SHA-256 of everything below
    size      8 bytes   of the whole file
    header    8 bytes   its length, then so many bytes of JSON: whose it is, the tree, and each tensor's type and shape
    tensors             their bytes in the header's order, nothing in between
"""

import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.records.files import DamagedFile as DamagedFile
from paceline.records.files import replacing
from paceline.records.identity import FileIdentity
from paceline.records.typed import check_type

Tree = Any
"""Dicts and lists of tensors, int, float, bool, str and None, in each other to any depth."""

_MAGIC, _VERSION = b"PACELINE", 2
_START = struct.Struct("<8sI32s")
_SIZES = struct.Struct("<QQ")
_CHUNK = 1 << 20
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error)
"""What a header that was never written by us can lead to."""
_TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}


def write_tensors(path: Path, tree: Tree, identity: FileIdentity | None = None) -> None:
    """Write a tree, and whose it is; ``path`` then holds all of it or, after any error, what it held before.

    Keys are strings or whole numbers, and are read back as strings; tuples are read back as lists. Tensors on
    any device are read back on the CPU, each in its own memory.
    """
    assert sys.byteorder == "little"
    tensors: list[Tensor] = []
    shape = _encode(tree, tensors)
    described = {
        "identity": asdict(identity) if identity else None,
        "tree": shape,
        "tensors": [_describe(tensor) for tensor in tensors],
    }
    header = json.dumps(described).encode()
    size = _START.size + _SIZES.size + len(header) + sum(tensor.nbytes for tensor in tensors)
    with replacing(path) as file:
        digest = hashlib.sha256()
        file.seek(_START.size)
        pieces: Iterable[bytes | memoryview] = chain(
            (_SIZES.pack(size, len(header)), header), map(_bytes, tensors)
        )
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.seek(0)
        file.write(_START.pack(_MAGIC, _VERSION, digest.digest()))


def read_tensors(path: Path, identity: FileIdentity | None = None) -> Tree:
    """Read a tree back, bit for bit, or raise DamagedFile; never takes more memory than the file is large.

    Where an ``identity`` is given, the file must have it.
    """
    assert sys.byteorder == "little"
    check_tensors(path, identity)
    with path.open("rb") as file:
        try:
            header = _read_header(file)
            left = path.stat().st_size - file.tell()
            return _decode(header["tree"], list(_read(file, header["tensors"], left)))
        except _NONSENSE as error:
            raise DamagedFile(path, f"has a header that makes no sense ({error})") from error


def check_tensors(path: Path, identity: FileIdentity | None = None) -> None:
    """Raise DamagedFile unless every byte is as it was written, by the one who has this identity.

    Nothing is kept in memory.
    """
    _check_bytes(path)
    if identity is None:
        return
    try:
        with path.open("rb") as file:
            document = _read_header(file)["identity"]
        if document is None:
            raise DamagedFile(path, f"says not to whom it belongs, and is not of {identity}")
        check_type(document, FileIdentity, "identity")
        found = FileIdentity(**document)
    except _NONSENSE as error:
        raise DamagedFile(path, f"has a header that makes no sense ({error})") from error
    if found != identity:
        other = "other settings" if str(found) == str(identity) else str(found)
        raise DamagedFile(path, f"belongs to {other}, not to {identity}")


def _read_header(file: BufferedReader) -> dict[str, Any]:
    file.seek(_START.size)
    _, length = _SIZES.unpack(file.read(_SIZES.size))
    header: dict[str, Any] = json.loads(file.read(length))
    return header


def _check_bytes(path: Path) -> None:
    actual = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_START.size)
        if len(start) < _START.size:
            raise DamagedFile(path, f"is cut short: it holds {actual} bytes")
        magic, version, checksum = _START.unpack(start)
        if magic != _MAGIC:
            raise DamagedFile(path, "is not a file of tensors, or its first bytes were altered")
        if version != _VERSION:
            made_by = "an older paceline (up to 0.1)" if version == 1 else "another paceline"
            raise DamagedFile(
                path,
                f"is of version {version}, which {made_by} wrote; this paceline reads version {_VERSION}",
            )
        sizes = file.read(_SIZES.size)
        if len(sizes) < _SIZES.size:
            raise DamagedFile(path, f"is cut short: it holds {actual} bytes")
        size, length = _SIZES.unpack(sizes)
        if actual < size:
            raise DamagedFile(path, f"is cut short, or was altered: it holds {actual} of {size} bytes")
        digest = hashlib.sha256(sizes)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.digest() != checksum or actual != size or length > size - _START.size - _SIZES.size:
        raise DamagedFile(path, "was altered: its checksum does not match")


def _encode(tree: Tree, tensors: list[Tensor]) -> Any:
    """The tree as JSON, each tensor as its place in ``tensors``; one-key objects say what a value is."""
    if tree is None or isinstance(tree, bool | str | int):
        return tree
    if isinstance(tree, float):
        return {"float": struct.pack("<d", tree).hex()}
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {"tensor": len(tensors) - 1}
    if isinstance(tree, list | tuple):
        return [_encode(item, tensors) for item in tree]
    if isinstance(tree, Mapping):
        return {"dict": {_key(key, tree): _encode(value, tensors) for key, value in tree.items()}}
    raise TypeError(f"a file of tensors cannot hold a {type(tree).__name__}")


def _key(key: Any, tree: Mapping[Any, Any]) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a file of tensors cannot hold the key {key!r}: keys are strings or whole numbers")
    if isinstance(key, int) and str(key) in tree:
        raise TypeError(f"the keys {key} and '{key}' would become one in a file of tensors")
    return str(key)


def _describe(tensor: Tensor) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TYPES or tensor.layout != torch.strided or tensor.is_meta:
        raise TypeError(
            f"a file of tensors cannot hold a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}"
        )
    return [name, list(tensor.shape)]


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return _view(plain)


def _view(contiguous: Tensor) -> memoryview:
    """The tensor's own memory."""
    return memoryview(contiguous.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _read(file: BufferedReader, descriptions: list[list[Any]], left: int) -> Iterator[Tensor]:
    for name, shape in descriptions:
        dtype = _TYPES[name]
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise ValueError(f"{shape} is not a shape")
        left -= math.prod(shape) * dtype.itemsize
        if left < 0:
            raise ValueError("the tensors are larger than the file")
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.nbytes and file.readinto(_view(tensor)) != tensor.nbytes:
            raise ValueError("the file ended early")
        yield tensor
    if left:
        raise ValueError(f"{left} bytes belong to no tensor")


def _decode(shape: Any, tensors: list[Tensor]) -> Tree:
    if isinstance(shape, list):
        return [_decode(item, tensors) for item in shape]
    if not isinstance(shape, dict):
        return shape
    ((kind, value),) = shape.items()
    if kind == "float":
        return struct.unpack("<d", bytes.fromhex(value))[0]
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in value.items()}
    raise ValueError(f"there is no kind {kind!r}")
