"""Token shards as dataloader/ reads them: a header of 256 int32, then uint16 tokens; and targets beside them."""
import array
import os
import sys

MAGIC, VERSION, HEADER_WORDS = 20240520, 1, 256
NO_TARGET = 65535


def write(path, numbers):
    """Complete or not at all."""
    header = array.array("I", [MAGIC, VERSION, len(numbers) & 0xffffffff, len(numbers) >> 32] + [0] * (HEADER_WORDS - 4))
    tokens = array.array("H", numbers)
    if sys.byteorder == "big":
        header.byteswap(), tokens.byteswap()
    with open(path + ".new", "wb") as file:
        header.tofile(file)
        tokens.tofile(file)
    os.replace(path + ".new", path)


def write_rows(path, rows):
    """Rows of (tokens, {position: target}), all equally long, as a shard of whole rows with its targets beside it. One token
    more ends the shard, since the loader takes no token without a successor for an input."""
    tokens, targets = array.array("H"), array.array("H")
    for row, wanted in rows:
        tokens.extend(row)
        targets.extend(wanted.get(position, NO_TARGET) for position in range(len(row)))
    write(path.removesuffix(".bin") + ".targets", targets + array.array("H", [NO_TARGET]))
    write(path, tokens + array.array("H", [0]))


def read(path):
    """The numbers of a shard."""
    with open(path, "rb") as file:
        content = file.read()
    header, numbers = array.array("I"), array.array("H")
    header.frombytes(content[:4 * HEADER_WORDS])
    numbers.frombytes(content[4 * HEADER_WORDS:])
    if header[0] != MAGIC or header[2] != len(numbers):
        raise ValueError(f"{path}: expected a token shard, found something else")
    return numbers
