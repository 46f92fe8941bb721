"""The instructions in a cubin, without its names, tables and notes."""

from __future__ import annotations

import struct

#: What a kernel executes, and the constants that its instructions read.
_SECTIONS = (".text.", ".nv.constant0.", ".nv.constant2.", ".nv.constant3")


def machine_code(cubin: bytes) -> dict[str, bytes]:
    """The bytes of those sections of a cubin, by name: of an ELF file of 64 bits."""
    (headers_at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_number = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, headers_at + number * size) for number in range(count)]
    names_at = headers[names_number][4]
    found = {}
    for name_at, _, _, _, start, length in headers:
        name = cubin[names_at + name_at : cubin.index(b"\0", names_at + name_at)].decode()
        if name.startswith(_SECTIONS):
            found[name] = cubin[start : start + length]
    return found
