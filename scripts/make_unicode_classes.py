#!/usr/bin/env python3
"""Writes dataloader/unicode_classes.h: which code points are letters, numbers and spaces.

    pip install tiktoken; scripts/make_unicode_classes.py > dataloader/unicode_classes.h

The classes are not taken from a Unicode file but from tiktoken itself, so that they agree with it whatever version of
Unicode it was built with. tiktoken drops text that its pattern does not match; so with the pattern `\\p{L}` and single
bytes as the vocabulary, what comes out of encoding every code point is the letters.
"""
import sys
from importlib.metadata import version

if sys.argv[1:]:
    sys.exit(print(__doc__) if sys.argv[1:] in (["--help"], ["-h"]) else f"make_unicode_classes.py: unknown option {sys.argv[1]}; see --help")

import tiktoken

BLOCK = 128  # code points per block; a block is 32 bytes, two bits for each code point
CLASSES = [("letters", r"\p{L}", 1), ("numbers", r"\p{N}", 2), ("spaces", r"\s", 3)]


def matching(pattern, code_points):
    single_bytes = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("classes", pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
    text = "".join(map(chr, code_points))
    return [ord(c) for c in bytes(encoding.encode_ordinary(text)).decode("utf-8")]


def rows(values, per_row):
    for start in range(0, len(values), per_row):
        yield "    " + " ".join(f"{value}," for value in values[start : start + per_row])


def main():
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]  # surrogates are not characters
    class_of = bytearray(0x110000)
    counts = []
    for name, pattern, number in CLASSES:
        members = matching(pattern, every)
        counts.append(f"{len(members)} {name}")
        for code_point in members:
            if class_of[code_point]:
                sys.exit(f"make_unicode_classes: U+{code_point:04X} is in two classes")
            class_of[code_point] = number
    limit = max(c for c in range(0x110000) if class_of[c]) // BLOCK * BLOCK + BLOCK
    blocks, index = {}, []
    for start in range(0, limit, BLOCK):
        packed = bytes(sum(class_of[c + k] << 2 * k for k in range(4)) for c in range(start, start + BLOCK, 4))
        index.append(blocks.setdefault(packed, len(blocks)))
    if len(blocks) > 256:
        sys.exit("make_unicode_classes: more than 256 different blocks; make BLOCK larger")
    print(f"// Written by scripts/make_unicode_classes.py from tiktoken {version('tiktoken')}: {', '.join(counts)}.")
    print("// Two bits for each code point (0 other, 1 letter, 2 number, 3 space), in blocks; equal blocks are stored once.")
    print("// clang-format off")
    print("#ifndef DATALOADER_UNICODE_CLASSES_H\n#define DATALOADER_UNICODE_CLASSES_H\n")
    print("#include <stdint.h>\n")
    print(f"enum {{ UNICODE_CLASSES_LIMIT = 0x{limit:X}, UNICODE_BLOCK = {BLOCK} }}; // all are 0 from the limit on\n")
    print(f"static const uint8_t unicode_block_of[{len(index)}] = {{ // by code point / UNICODE_BLOCK")
    print("\n".join(rows(index, 28)))
    print(f"}};\n\nstatic const uint8_t unicode_blocks[{len(blocks)}][UNICODE_BLOCK / 4] = {{")
    for packed in blocks:
        print("    {" + ",".join(str(byte) for byte in packed) + "},")
    print("};\n\n#endif")


main()
