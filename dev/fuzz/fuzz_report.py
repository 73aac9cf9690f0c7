#!/usr/bin/env python3
"""Damaged files through the report page's readers: whatever a run or a comparison holds, a page is drawn without it, or the
file is refused by name.

    fuzz_report.py [--runs N] [--seed N]

A small comparison is written, and one to three changes are made to one of its files: values of the JSON replaced, taken
out or doubled, bytes changed, the file cut or emptied. A failure prints the number that --seed makes it again with."""
import argparse
import copy
import json
import os
import random
import re
import sys
import tempfile
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts'))
from compare_lib import made_up_runs, measure, page

STRANGE = [None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e308, 5e-324, float('nan'), float('inf'), 1 << 31, 1 << 63,
           -(1 << 63), 10 ** 400, '', 'nan', '1', '</script>', '\x00', '\ud800', 'ä' * 3000, '../..', [], [[]], {}, {'': None},
           [1, 'a', None], {'name': 'slay'}, [{'name': 'slay'}, {}]]


def write_original(directory):
    """Two attentions, two seeds, 16 steps; a checkpoint's state beside one of them."""
    plan = {'jobs': 2, 'threads': 1, 'command': 'scripts/compare', 'runs': {}}
    found = {'decode': {}, 'samples': {}, 'scaling': made_up_runs.scaling_rows()[:12], 'notes': ['a note'], 'prompt': 'One',
             'scaling_shape': '2 heads', 'speed': {'steps': 12, 'threads': 1, 'rounds': [{}, {}]}}
    for entry, level in (('softmax', 0.65), ('slay', 0.71)):
        for seed in (1, 2):
            run = f'{entry}_seed{seed}'
            made_up_runs.write_run(os.path.join(directory, run), {'name': entry, 'entry': entry}, seed, level, steps=16)
            plan['runs'][run] = {'attention': entry, 'seed': seed, 'command': './train_gpt2'}
        for each in found['speed']['rounds']:
            each[entry] = 100.0
        found['decode'][entry], found['samples'][entry] = {'1024': 7000.0, '65536': 100.0}, 'One two.'
    state = os.path.join(directory, 'slay_seed1', 'step_00000016')
    os.makedirs(state)
    for path, value in ((directory + '/compare.json', plan), (directory + '/measurements.json', found),
                        (state + '/state.json', {'step': 16, 'settings': {'seed': 1}, 'tokens': 4096})):
        with open(path, 'w') as file:
            json.dump(value, file)


# ---- changes

def places_in(value):
    """(container, key) of everything inside a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places_in(value[key])


def change_value(chance, value):
    holder = [copy.deepcopy(value)]
    container, key = chance.choice(list(places_in(holder)))
    what = chance.randrange(4)
    if what == 0 and container is not holder:
        del container[key]
    elif what == 1 and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif what == 2:
        other, place = chance.choice(list(places_in(holder)))
        container[key] = copy.deepcopy(other[place])
    else:
        container[key] = chance.choice(STRANGE)
    return holder[0]


def change_json(chance, text):
    """One line's value changed."""
    lines = text.split('\n')
    at = chance.choice([i for i, line in enumerate(lines) if line] or [0])
    try:
        lines[at] = json.dumps(change_value(chance, json.loads(lines[at])))
    except (ValueError, RecursionError):
        lines[at] = chance.choice(['{', '[' * 100000, '{"a":' * 5000, 'null', '"', '\x00', '-'])
    return '\n'.join(lines)


def change_bytes(chance, text):
    data = bytearray(text.encode(errors='surrogatepass'))
    at, what = chance.randrange(len(data) + 1), chance.randrange(4)
    if what == 0:
        data[at:] = b''
    elif what == 1:
        data[at:at + chance.randrange(1, 50)] = chance.randbytes(chance.randrange(8))
    elif what == 2:
        data[at:at] = data[chance.randrange(len(data) + 1):][:chance.randrange(1, 400)]
    else:
        data[at:at + 1] = bytes([chance.randrange(256)])
    return data.decode(errors='replace')


def changed(chance, text):
    for _ in range(chance.randrange(1, 4)):
        text = (change_json if chance.random() < 0.8 else change_bytes)(chance, text)
    return text


# ---- what must hold

def read_all(directory):
    """Draws the page as scripts/report does; what it shows is JSON that a browser reads, and no script of the files'."""
    source = page.Source()
    page.add_path(source, directory)
    text = page.render(page.build(source))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    json.loads(data, parse_constant=lambda name: sys.exit(f'the page holds {name}'))
    if len(re.findall(r'<script\b', text)) != 2 or text.count('</script>') != 2:
        sys.exit('the page holds a script of a file')


def read_scaling(path):
    try:
        measure.read_scaling(path)
    except ValueError as error:
        if path not in str(error):
            raise


def try_one(seed, directory, files):
    chance = random.Random(seed)
    path = chance.choice(sorted(files))
    text = changed(chance, files[path])
    with open(path, 'w', encoding='utf-8', errors='surrogatepass') as file:
        file.write(text)
    try:
        read_scaling(path) if path.endswith('scaling.tsv') else read_all(directory)
    except BaseException:
        traceback.print_exc()
        sys.exit(f'fuzz_report: {os.path.relpath(path, directory)} breaks the reader; --seed {seed} --runs 1 makes it again')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(files[path])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--runs', type=int, default=200)
    parser.add_argument('--seed', type=int, default=1, help='of the first run; the next one has the next')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_original(directory)
        with open(os.path.join(directory, 'scaling.tsv'), 'w') as file:
            file.write('softmax\t128\t1.0\t3.0\t10.0\t20.0\nsoftmax\t256\t4.0\t-\t11.0\t-\n')
        files = {}
        for folder, _, names in os.walk(directory):
            for path in (os.path.join(folder, name) for name in names):
                with open(path, encoding='utf-8') as file:
                    files[path] = file.read()
        read_all(directory)
        for seed in range(options.seed, options.seed + options.runs):
            try_one(seed, directory, files)
    print(f'{options.runs} passed, 0 failed')


if __name__ == '__main__':
    main()
