#!/usr/bin/env python3
"""Writes the six novels of Debian's package r-cran-janeaustenr as plain text.

    extract_austen.py FOLDER OUT     FOLDER holds the package's Rdata.rdx and Rdata.rdb; writes OUT/emma.txt, ...

R keeps a package's data in two files. Rdata.rdx (gzip) is a list: for each variable the offset and length of its block in
Rdata.rdb. A block is the big-endian length of its contents, then the contents with zlib. Contents and list are in R's
serialisation format ("X": big-endian). This reads the few types that occur: no R is needed.
"""
import os
import re
import struct
import sys
import zlib

NULL, SYMBOL, PAIRLIST, STRING, LOGICAL, INTEGER, REAL, STRINGS, LIST = 0xFE, 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, HAS_ATTRIBUTES, HAS_TAG = 0xFF, 0x200, 0x400


class Reader:
    """R's serialisation, version 2 or 3. Lists with names become dictionaries."""

    def __init__(self, data):
        self.data, self.at, self.symbols = data, 0, []
        if self.take(2) != b"X\n":
            raise ValueError("not R's binary serialisation")
        version, _, _ = self.integers(3)
        if version == 3:  # then the name of the encoding follows
            self.take(self.integers(1)[0])

    def take(self, count):
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def integers(self, count):
        return struct.unpack(f">{count}i", self.take(4 * count))

    def item(self):
        flags = self.integers(1)[0]
        kind = flags & 0xFF
        if kind == NULL:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == PAIRLIST:
            return self.pairs(flags)
        if kind == STRING:
            length = self.integers(1)[0]
            return None if length < 0 else self.take(length).decode("utf-8")
        return self.vector(kind, flags)

    def pairs(self, flags):
        found = {}
        while flags & 0xFF == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & HAS_TAG else None
            found[tag] = self.item()
            flags = self.integers(1)[0]
        return found

    def vector(self, kind, flags):
        length = self.integers(1)[0]
        if kind in (STRINGS, LIST):
            values = [self.item() for _ in range(length)]
        elif kind in (INTEGER, LOGICAL):
            values = list(self.integers(length))
        elif kind == REAL:
            values = list(struct.unpack(f">{length}d", self.take(8 * length)))
        else:
            raise ValueError(f"type {kind} is not read here")
        attributes = self.item() if flags & HAS_ATTRIBUTES else None
        names = (attributes or {}).get("names")
        return dict(zip(names, values)) if names else values


def read_variables(folder):
    with open(os.path.join(folder, "Rdata.rdx"), "rb") as file:
        index = Reader(zlib.decompress(file.read(), 47)).item()["variables"]  # 47: gzip or zlib
    with open(os.path.join(folder, "Rdata.rdb"), "rb") as file:
        blocks = file.read()
    for name, (offset, length) in index.items():
        block = blocks[offset : offset + length]
        contents = zlib.decompress(block[4:])
        if len(contents) != struct.unpack(">I", block[:4])[0]:
            raise ValueError(f"{name}: the length is wrong")
        yield name, Reader(contents).item()


def as_paragraphs(lines):
    """Lines as the book was typed, to one line per paragraph with an empty line between."""
    text = "\n".join(line.strip() for line in lines)
    paragraphs = (re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\n+", text))
    return "\n\n".join(p for p in paragraphs if p) + "\n"


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        sys.exit(print(__doc__))
    if len(sys.argv) != 3:
        sys.exit("usage: extract_austen.py FOLDER OUT")
    folder, out = sys.argv[1:]
    try:
        for name, lines in read_variables(folder):
            with open(os.path.join(out, name + ".txt"), "w", encoding="utf-8", newline="\n") as file:
                file.write(as_paragraphs(lines))
    except (OSError, ValueError, KeyError, TypeError, IndexError, zlib.error) as problem:
        sys.exit(f"extract_austen.py: cannot read the novels in {folder}: {problem}")


if __name__ == "__main__":
    main()
