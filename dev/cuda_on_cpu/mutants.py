#!/usr/bin/env python3
"""Do the tests notice a broken kernel? Changes one thing at a time in device code and runs the tests.

    mutants.py [options] --test NAME[,NAME...] file.cu file.cuh...

Changes: a barrier or fence removed; a condition made always true, or one of its comparisons moved by one (< to <=); an
index moved by one. The changed file, or for a header the files that include it, are compiled and linked with the
unchanged objects of the others, which `make test-mutants` builds before. Mutants that survive must stand in the list of equivalent ones with a reason.

Results are kept in BUILD/mutants/results.jsonl, so that an interrupted run goes on where it stopped."""
import argparse
import concurrent.futures
import functools
import glob
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EQUIVALENT = os.path.join(HERE, 'equivalent_mutants.txt')
WANTED_SHARE = 0.95


class Mutant:
    """A file with the text between `start` and `end` replaced."""

    def __init__(self, path, source, start, end, replacement, kind):
        self.path, self.kind, self.replacement = path, kind, replacement
        self.line = source.count('\n', 0, start) + 1
        self.text = source[:start] + replacement + source[end:]
        self.original = ' '.join(source[start:end].split())
        first = source.rfind('\n', 0, start) + 1
        last = source.find('\n', start)
        self.line_text = ' '.join(source[first:last].split())

    def __str__(self):
        return f'{self.path}:{self.line}: {self.kind}: {self.original} -> {self.replacement.strip() or "nothing"}'

    def identity(self):
        """What names the mutant when lines move."""
        return ' | '.join([self.path, self.kind, self.line_text, self.original])


# ---- reading sources

def blanked(source):
    """The source with comments, strings and preprocessor lines as spaces, so that offsets stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
    return pattern.sub(lambda match: re.sub(r'[^\n]', ' ', match.group(0)), source)


def after_bracket(text, start):
    pairs = {'(': ')', '[': ']', '{': '}'}
    opening, closing, depth = text[start], pairs[text[start]], 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i + 1
    return len(text)


def device_bodies(text):
    """(start, end) of the bodies of __global__ and __device__ functions."""
    position = 0
    while True:
        match = re.compile(r'\b__(?:global|device)__\b').search(text, position)
        if not match:
            return
        stop = re.compile(r'[;{=]').search(text, match.end())
        if not stop:
            return
        if stop.group(0) != '{':
            position = stop.end()
            continue
        end = after_bracket(text, stop.start())
        yield stop.start(), end
        position = end


@functools.lru_cache(maxsize=None)
def included_files(path):
    """The file itself and all it includes by a quoted name, as paths from the root."""
    with open(path) as file:
        names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M)
    found = {path}
    for name in names:
        included = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(included):
            found |= included_files(included)
    return found


# ---- what to change

BARRIER = re.compile(r'\b(?:__syncthreads|__syncwarp|__threadfence|__threadfence_block)\s*\([^;()]*\)|\b\w+\.sync\(\)')
COMPARISON = re.compile(r'(?<![<>=\-!])(<=|>=|<|>)(?![<>=])')
MOVED = {'<': '<=', '<=': '<', '>': '>=', '>=': '>'}
SUBSCRIPT = re.compile(r'(?<=[\w\])])\[')
DECLARATION = re.compile(r'^\s*(?:__shared__|extern|const|static|float|double|int|unsigned|size_t|floatX|__nv_bfloat16|__half|uint32_t|uint64_t)\b[^=;()]*$')


def conditions(text, start, end):
    """(start, end) of what stands between the brackets of if and while, and in the middle of for."""
    for match in re.compile(r'\b(if|while|for)\s*\(').finditer(text, start, end):
        first, last = match.end(), after_bracket(text, match.end() - 1) - 1
        if match.group(1) == 'for':
            parts = text[first:last].split(';')
            if len(parts) != 3:
                continue
            first += len(parts[0]) + 1
            last = first + len(parts[1])
        yield match.group(1), first, last
    for match in re.compile(r'\?').finditer(text, start, end):
        yield 'choice', start_of_choice(text, match.start()), match.start()


def start_of_choice(text, question):
    """Where the condition before a `?` begins: after an assignment, an open bracket, a comma or a statement's end."""
    depth, i = 0, question - 1
    while True:
        c = text[i]
        depth += (c in ')]') - (c in '([')
        is_assignment = c == '=' and text[i - 1] not in '<>=!' and text[i + 1] != '='
        if depth < 0 or c in ';{}' or (depth == 0 and (c in ',?:' or is_assignment)):
            return i + 1
        i -= 1


def is_template_bracket(text, offset):
    """`<` or `>` of template arguments rather than a comparison: no space around it, as the house formats both."""
    return not (text[offset - 1].isspace() and text[offset + 1:offset + 3].strip() != text[offset + 1:offset + 3])


def is_array_declaration(text, offset):
    line_start = max(text.rfind(c, 0, offset) for c in ';{}')
    return DECLARATION.match(text[line_start + 1:offset]) is not None


def mutants_of_body(path, source, text, start, end):
    for match in BARRIER.finditer(text, start, end):
        yield Mutant(path, source, match.start(), match.end(), '', 'barrier removed')
    for kind, first, last in conditions(text, start, end):
        if kind == 'if':
            yield Mutant(path, source, first, last, 'true', 'condition always true')
        for match in COMPARISON.finditer(text, first, last):
            if not is_template_bracket(text, match.start()):
                yield Mutant(path, source, match.start(), match.end(), MOVED[match.group(1)], 'comparison moved')
    for match in SUBSCRIPT.finditer(text, start, end):
        if not is_array_declaration(text, match.start()):
            closing = after_bracket(text, match.start()) - 1
            inside = source[match.end():closing]
            yield Mutant(path, source, match.end(), closing, f'({inside}) + 1', 'index moved')


def mutants_of(path):
    with open(path) as file:
        source = file.read()
    text = blanked(source)
    found = [mutant for start, end in device_bodies(text) for mutant in mutants_of_body(path, source, text, start, end)]
    unique = {}
    for mutant in found:
        unique.setdefault(mutant.text, mutant)
    return sorted(unique.values(), key=lambda mutant: mutant.line)


# ---- running one

class Runner:
    def __init__(self, options):
        self.options = options
        self.objects = os.path.join(options.build, 'cuda_on_cpu', options.mode + ('-bf16' if options.bf16 else ''))
        self.cudacc = [os.path.join(HERE, 'cudacc'), '--mode=' + options.mode, '-fopenmp']
        self.work = os.path.join(options.build, 'mutants')
        os.makedirs(self.work, exist_ok=True)
        self.results_path = os.path.join(self.work, 'results.jsonl')
        self.fingerprint = self.hash_of_sources()
        self.known = self.read_results()

    @staticmethod
    def hash_of_sources():
        digest = hashlib.sha256()
        for pattern in ['core/*.cu*', 'core/*.[ch]', 'attention/*.cu*', 'attention/*.[ch]', '*.cu', 'dev/cuda_on_cpu/runtime/*', 'dev/cuda_on_cpu/include/*.h']:
            for path in sorted(glob.glob(pattern)):
                with open(path, 'rb') as file:
                    digest.update(path.encode() + file.read())
        return digest.hexdigest()

    def key(self, mutant):
        settings = f'{self.fingerprint} {self.options.mode} {self.options.bf16} {self.options.test}'
        return hashlib.sha256((settings + mutant.path + mutant.text).encode()).hexdigest()

    def read_results(self):
        if not os.path.exists(self.results_path):
            return {}
        with open(self.results_path) as file:
            return {entry['key']: entry['result'] for entry in map(json.loads, file)}

    def remember(self, mutant, result):
        with open(self.results_path, 'a') as file:
            file.write(json.dumps({'key': self.key(mutant), 'mutant': str(mutant), 'result': result}) + '\n')

    def call(self, command, seconds, log):
        environment = dict(os.environ, OMP_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1', BUILD=self.options.build)
        try:
            with open(log, 'w') as output:
                return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, env=environment).returncode
        except subprocess.TimeoutExpired:
            return 'timeout'

    def program_sources(self, test):
        """Sources of the test program and of the library."""
        library = [path for path in glob.glob('core/*.cu') + glob.glob('attention/*.cu') if not os.path.basename(path).startswith('test_')]
        return library + (glob.glob(f'*/{test}.cu') or glob.glob(f'{test}.cu'))

    def plant(self, mutant, tree):
        """Links to every source file, but for the changed one."""
        for folder in ['core', 'attention', 'dataloader', '.']:
            os.makedirs(os.path.join(tree, folder), exist_ok=True)
            for path in glob.glob(os.path.join(folder, '*.*')):
                if os.path.isfile(path) and os.path.relpath(path) != mutant.path:
                    os.symlink(os.path.abspath(path), os.path.join(tree, path))
        with open(os.path.join(tree, mutant.path), 'w') as file:
            file.write(mutant.text)

    def compile(self, mutant, tree, test, log):
        """The test's object and those of the changed sources; None when the change does not compile."""
        flags = ['-w'] + (['-DPRECISION_BF16'] if self.options.bf16 else [])
        objects = []
        for source in self.program_sources(test):
            is_test = os.path.basename(source).startswith('test_')
            if mutant.path in included_files(source):
                changed = os.path.join(tree, source.replace('/', '_') + '.o')
                objects.append(changed)
                compiled_before = os.path.exists(changed)
                if not compiled_before and self.call(self.cudacc + flags + ['-c', os.path.join(tree, source), '-o', changed], 300, log):
                    return None
            elif is_test:
                objects.append(os.path.join(self.objects, os.path.splitext(source)[0] + '.o'))
        return objects

    def result_of(self, mutant):
        """'not compiled', 'killed by TEST (...)' or 'survived'."""
        tree = os.path.join(self.work, self.key(mutant)[:16])
        program, log = os.path.join(tree, 'program'), os.path.join(tree, 'log')
        shutil.rmtree(tree, ignore_errors=True)
        self.plant(mutant, tree)
        try:
            for test in self.options.test.split(','):
                objects = self.compile(mutant, tree, test, log)
                if objects is None:
                    return 'not compiled'
                # what the changed objects define is taken from them, the rest from the library
                inputs = objects + [os.path.join(self.objects, 'libslay_cuda.a'), os.path.join(self.options.build, 'libslay.a')]
                if self.call(self.cudacc + inputs + ['-o', program], 120, log):
                    with open(log) as file:
                        sys.exit(f'mutants: cannot link: {file.read()[-500:]}')
                code = self.call([program], self.options.timeout, log)
                if code:
                    return f'killed by {test} ({code if code == "timeout" else self.reason(log)})'
            return 'survived'
        finally:
            shutil.rmtree(tree, ignore_errors=True)

    @staticmethod
    def reason(log):
        with open(log, errors='replace') as file:
            text = file.read()
        report = re.search(r'cuda_on_cpu: ([^:]+):', text)
        return report.group(1) if report else 'wrong result'


# ---- reporting

def read_equivalents():
    """identity -> reason, from lines `path | kind | line | original | reason`."""
    if not os.path.exists(EQUIVALENT):
        return {}
    with open(EQUIVALENT) as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith('#')]
    return {identity: reason for identity, _, reason in (line.rpartition(' | ') for line in lines)}


def write_table(path, judged):
    with open(path, 'w') as file:
        file.write('| place | change | line | result |\n|---|---|---|---|\n')
        for mutant, result in judged:
            change = f'{mutant.kind}: `{mutant.original}`'.replace('|', '\\|')
            file.write(f'| {mutant.path}:{mutant.line} | {change} | `{mutant.line_text.replace("|", chr(92) + "|")}` | {result} |\n')


def report(judged, build):
    equivalents = read_equivalents()
    counts = {'killed': 0, 'survived': 0, 'not compiled': 0}
    unexplained = []
    for i, (mutant, result) in enumerate(judged):
        counts[result.split(' by ')[0]] += 1
        if result == 'survived':
            reason = equivalents.get(mutant.identity())
            judged[i] = (mutant, f'survived: {reason}' if reason else 'survived')
            if not reason:
                unexplained.append(mutant)
    write_table(os.path.join(build, 'mutants.md'), judged)
    for mutant in unexplained:
        print('survived:', mutant)
        print('    ', mutant.identity())
    run = counts['killed'] + counts['survived']
    share = counts['killed'] / run if run else 1
    print(f'{run} mutants, {counts["killed"]} killed ({100 * share:.1f}%), {counts["survived"] - len(unexplained)} survivors explained, '
          f'{len(unexplained)} not; {counts["not compiled"]} did not compile; table in {build}/mutants.md')
    return share >= WANTED_SHARE and not unexplained


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('files', nargs='+')
    parser.add_argument('--test', required=True, help='names of test programs, separated by commas')
    parser.add_argument('--mode', default='check')
    parser.add_argument('--bf16', action='store_true')
    parser.add_argument('--timeout', type=float, default=300, help='seconds for one test')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--seconds', type=float, default=1e9, help='stop starting new mutants after this long')
    parser.add_argument('--sample', type=int, help='only so many mutants, drawn at random')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--list', action='store_true', help='only list the mutants')
    parser.add_argument('--build', default=os.environ.get('BUILD', 'build'))
    return parser.parse_args()


def main():
    os.chdir(ROOT)
    options = parse_arguments()
    mutants = [mutant for path in options.files for mutant in mutants_of(os.path.relpath(path))]
    if options.sample and options.sample < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.sample)
    if options.list:
        print('\n'.join(map(str, mutants)))
        return 0
    runner = Runner(options)
    end = time.monotonic() + options.seconds

    def judge(mutant):
        result = runner.known.get(runner.key(mutant))
        if result is None and time.monotonic() < end:
            result = runner.result_of(mutant)
            runner.remember(mutant, result)
        return mutant, result

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        judged = list(pool.map(judge, mutants))
    left = sum(result is None for _, result in judged)
    passed = report([pair for pair in judged if pair[1] is not None], options.build)
    if left:
        print(f'{left} mutants were not run for lack of time; run again to go on')
    return 0 if passed and not left else 1


if __name__ == '__main__':
    sys.exit(main())
