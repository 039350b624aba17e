import hashlib
import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from paceline.records.files import DamagedFile
from paceline.records.tensors import _TYPES, check_tensors, read_tensors, write_tensors

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def same(one, other) -> bool:
    """Equal to the last bit, types included."""
    if isinstance(one, torch.Tensor):
        flat = [t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*flat)
    if isinstance(one, float):
        return type(other) is float and bits(one) == bits(other)
    if isinstance(one, dict):
        return [str(key) for key in one] == list(other) and all(
            same(one[key], other[str(key)]) for key in one
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@st.composite
def tensors(draw) -> torch.Tensor:
    dtype = draw(st.sampled_from([*_TYPES, torch.complex128]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    torch.manual_seed(draw(st.integers(0, 99)))
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape)
    return tensor.transpose(0, -1) if draw(st.booleans()) and shape else tensor


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text()
    | tensors()
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
EXAMPLE = {
    "params": torch.arange(5.0),
    "optimizer": {0: {"momentum_buffer": torch.ones(2, 3, dtype=torch.bfloat16), "step": torch.tensor(3)}},
    "loss": [0.1, 7, True, None, "text"],
    "empty": torch.empty(0, 3),
}


@QUICK
@given(tree=TREES)
def test_every_tree_is_read_back_to_the_last_bit(tree, tmp_path):
    write_tensors(tmp_path / "file", tree)
    assert same(tree, read_tensors(tmp_path / "file"))


def test_nan_keeps_its_payload_and_whole_number_keys_become_text(tmp_path):
    payload = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
    write_tensors(tmp_path / "file", {1: payload, "a": (1, -0.0)})
    tree = read_tensors(tmp_path / "file")
    assert bits(tree["1"]) == bits(payload)
    assert tree["a"][0] == 1
    assert bits(tree["a"][1]) == bits(-0.0)


def test_what_is_read_owns_its_memory(tmp_path):
    write_tensors(tmp_path / "file", [torch.zeros(3), torch.zeros(3)])
    one, other = read_tensors(tmp_path / "file")
    one.fill_(1)
    assert other.sum() == 0


@pytest.mark.parametrize(
    "tree",
    [
        object(),
        {"set": {1}},
        {1.5: 2},
        {True: 1},
        {1: 0, "1": 0},
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_and_the_old_file_stays(tree, tmp_path):
    write_tensors(tmp_path / "file", "old")
    with pytest.raises(TypeError):
        write_tensors(tmp_path / "file", {"good": torch.zeros(2), "bad": tree})
    assert read_tensors(tmp_path / "file") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_tensors(tmp_path / "file", "old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_tensors(tmp_path / "file", "new")
    assert read_tensors(tmp_path / "file") == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_any_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, EXAMPLE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            path.write_bytes(damaged)
            with pytest.raises(DamagedFile, match="file"):
                read_tensors(path)


def test_any_cut_and_any_addition_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_tensors(path, EXAMPLE)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match="cut short"):
            read_tensors(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(DamagedFile, match="altered"):
        check_tensors(path)


@QUICK
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_never_read(data, tmp_path):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(DamagedFile):
        read_tensors(tmp_path / "file")


def forged(header: bytes, data: bytes = b"") -> bytes:
    """A file with a right checksum and whatever header."""
    whole = struct.pack("<Q", len(header)) + header + data
    return whole.replace(b"0" * 64, hashlib.sha256(whole).hexdigest().encode(), 1)


def described(tree: str, tensors: str = "", identity: str = "null") -> bytes:
    metadata = {"paceline": "3", "sha256": "0" * 64, "identity": identity, "tree": tree}
    return f'{{"__metadata__": {json.dumps(metadata)}{tensors}}}'.encode()


BYTES = ', "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}'


def test_the_forger_writes_good_files_too(tmp_path):
    (tmp_path / "file").write_bytes(forged(described('{"tensor": "a"}', BYTES), b"\1\2"))
    assert read_tensors(tmp_path / "file").tolist() == [1, 2]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"__metadata__": {}}',
        described("1", BYTES.replace("[2]", "[1000000000000]")),
        described("1", BYTES.replace("[2]", "[0, 1000000000000000000000000]")),
        described("1", BYTES.replace("[2]", "[-2]")),
        described("1", BYTES.replace("[2]", "[1.5]")),
        described("1", BYTES.replace("U8", "OBJECT")),
        described("1", BYTES.replace("[0, 2]", "[2, 0]")),
        described("1", ', "a": 5'),
        described("1", identity='{"run": "x"}'),
        described('{"tensor": "a"}'),
        described('{"float": "zz"}'),
        described('{"float": "00"}'),
        described('{"dict": 1}'),
        described('{"what": 1}'),
        described("{}"),
        described("{"),
    ],
)
def test_a_header_with_a_right_checksum_is_not_believed_either(header, tmp_path):
    data = b"\1\2" if b'"data_offsets": [0, 2]' in header else b""
    (tmp_path / "file").write_bytes(forged(header, data))
    with pytest.raises(DamagedFile, match="makes no sense"):
        read_tensors(tmp_path / "file")


def test_other_tools_read_the_file(tmp_path):
    write_tensors(tmp_path / "file", {"layer.weight": torch.ones(2, 3), "state": {0: [torch.zeros(1)]}})
    found = load_file(tmp_path / "file")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "layer.weight": (2, 3),
        "state/0/0": (1,),
    }


def test_a_header_longer_than_its_file_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "file").write_bytes(struct.pack("<Q", 2**60))
    with pytest.raises(DamagedFile):
        read_tensors(tmp_path / "file")


def test_another_version_is_named(tmp_path):
    (tmp_path / "file").write_bytes(forged(described("1").replace(b'"3"', b'"4"')))
    with pytest.raises(
        DamagedFile, match="of version 4, which another paceline wrote; this one reads version 3"
    ):
        read_tensors(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"PACELINE" + bytes(100))
    with pytest.raises(DamagedFile, match=r"of an older paceline \(up to 0.1\)"):
        read_tensors(tmp_path / "file")
