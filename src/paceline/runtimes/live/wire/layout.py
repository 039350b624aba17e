"""The layout of a header: which bytes say what."""

import struct

MAGIC, VERSION = b"pace", 3
HEAD = struct.Struct("<4sBBH")
"""Magic, version, the kind's number, flags; the fields follow in order."""
NUMBERS: dict[type, struct.Struct] = {
    int: struct.Struct("<q"),
    float: struct.Struct("<d"),
    bool: struct.Struct("<B"),
}
LENGTH = struct.Struct("<I")
"""Bytes of the text that follows."""
TENSOR = struct.Struct("<BBqq")
"""A tensor: its type's number, where it is, how many elements, and the offset in shared memory (else 0)."""
IN_BODY, IN_MEMORY = 0, 1

STOP = 1
"""The flag by which a worker says that it was asked to stop, and a server that everybody stops."""
