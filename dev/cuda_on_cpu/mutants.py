#!/usr/bin/env python3
"""Do the tests notice a broken kernel, or broken C? Changes one thing at a time and runs the tests.

    mutants.py [options] --test NAME[,NAME...] file.cu file.cuh...
    mutants.py [options] --test NAME[,NAME...] file.c...     tests are programs, by their sources, or scripts

find_mutants.py says what is changed. All mutants are compiled into the test programs at once, in a copy of the sources at
BUILD/mutants/tree (of C in mutants_c), and chosen at run time. A first run of every test notes which mutants it reaches and what it costs;
then each mutant gets the tests that reach it, those that are cheap and have killed its neighbours first, until one
fails. Time is CPU time: a machine that is busy or stopped changes nothing.

Mutants that survive must be listed in equivalent_mutants.txt with a reason; --table writes all that was found. Results are kept
in BUILD/mutants/results.jsonl, so that an interrupted run continues where it stopped."""
import argparse
import collections
import concurrent.futures
import glob
import hashlib
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from find_mutants import mutants_of, planted

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EQUIVALENT = os.path.join(HERE, 'equivalent_mutants.txt')
WANTED_SHARE = {'kernel': 0.95, 'C': 0.9}
CHEAP = 0.3    # CPU seconds of a test that shares a process with others
CHUNK = 40     # mutants that are judged wholly before the next ones have their turn
PATIENCE = 60  # seconds for a test that sleeps, besides ten times what it takes without a mutant
NUMBERS_PER_FILE = 1000  # so that a file's mutants keep their numbers, and other files their objects, when another changes


def read_lines(path):
    """The entries that add_line has written to a file, if there is one."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return list(map(json.loads, file))


def add_line(path, entry):
    with open(path, 'a') as file:
        file.write(json.dumps(entry) + '\n')


def find_mutants(paths):
    found = []
    for i, path in enumerate(paths):
        with open(path) as file:
            mutants = mutants_of(path, file.read(), NUMBERS_PER_FILE * (i + 1))
        if len(mutants) > NUMBERS_PER_FILE:
            sys.exit(f'mutants: {path}: more than {NUMBERS_PER_FILE} mutants; raise NUMBERS_PER_FILE')
        found += mutants
    return found


# ---- the programs

def write_if_changed(path, text):
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.exists(path):
        with open(path) as file:
            if file.read() == text:
                return
    with open(path, 'w') as file:
        file.write(text)


def link_to(target, path):
    if os.path.lexists(path):
        if os.path.islink(path) and os.readlink(path) == os.path.abspath(target):
            return
        os.unlink(path)
    os.symlink(os.path.abspath(target), path)


def plant_tree(tree, mutants, build):
    """A copy of the project for make: links to everything except the sources that have mutants in them."""
    by_path = collections.defaultdict(list)
    for mutant in mutants:
        by_path[mutant.path].append(mutant)
    for folder in ['.', 'attention', 'build', 'dataloader', 'dataloader/stories'] + glob.glob('core/*'):
        os.makedirs(os.path.join(tree, folder), exist_ok=True)
    for folder in ['dev', 'scripts', 'docs']:
        link_to(folder, os.path.join(tree, folder))
    is_c = any(path.endswith('.c') for path in by_path)
    for name in ['config.mk'] if is_c else ['config.mk', 'cuda_headers', 'float', 'libslay.a']:
        if os.path.exists(os.path.join(build, name)):
            link_to(os.path.join(build, name), os.path.join(tree, 'build', name))
    if is_c:
        link_to('dev/cuda_on_cpu/runtime/mutants_c.c', os.path.join(tree, 'core/base/mutants_c.c'))  # a part of the library
    patterns = ('Makefile', '*.[ch]', '*.cu', 'core/*/*.*', 'attention/*.*', 'dataloader/*.*', 'dataloader/stories/*.*')
    for path in [name for pattern in patterns for name in glob.glob(pattern)]:
        if path in by_path:
            with open(path) as file:
                write_if_changed(os.path.join(tree, path), planted(file.read(), by_path[path]))
        else:
            link_to(path, os.path.join(tree, path))


def target_of(build, test):
    """What make has to build for a test, and what runs it, in the tree."""
    if build != 'c':
        path = os.path.join('build', 'cuda_on_cpu', build, test)
        return path, path
    return ('all fuzz-programs', test) if test.endswith('.sh') else (os.path.join('build', test),) * 2


def make_programs(tree, programs, jobs, sanitizers=''):
    targets = [target_of(*program) for program in programs]
    header = os.path.join(HERE, 'include', 'mutants_c.h')
    command = ['make', '--no-print-directory', '-s', '-k', f'-j{jobs}', 'BUILD=build', 'EXTRA_CUDA_FLAGS=-w -DCUDA_ON_CPU_MUTANTS',
               *([f'EXTRA_CFLAGS=-w -include {header} {sanitizers}', 'OPT=-O1 -march=native -fno-math-errno'] if programs[0][0] == 'c' else [])]
    command += sorted({name for target, _ in targets for name in target.split()})
    environment = {name: value for name, value in os.environ.items() if name not in ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS')}
    if subprocess.run(command, cwd=tree, env=environment).returncode:
        sys.exit('mutants: the programs do not compile with their mutants; see above')
    return {program: os.path.join(tree, path) for program, (_, path) in zip(programs, targets)}


def hash_of_file(path, *more):
    """Of a program; of a script and the programs that it may call."""
    digest = hashlib.sha256()
    for one in (path,) + more:
        with open(one, 'rb') as file:
            digest.update(file.read())
    return digest.hexdigest()


def called_by(program, path):
    if not program.endswith('.sh'):
        return ()
    tree = path[:-len(program)]
    names = ('train_gpt2', 'sample_gpt2', 'evaluate', 'tokenize', 'inspect', 'export_gguf', 'export_llmc')
    return tuple(os.path.join(tree, name) for name in names) + tuple(sorted(glob.glob(os.path.join(tree, 'build/dev/fuzz/fuzz_*'))))


def tests_in(program_name, build):
    """The names of the tests of a program, in the order in which it runs them. test_gpt2 is a program of C, and another of CUDA."""
    if program_name.endswith('.sh'):
        return [os.path.basename(program_name)[:-3]]
    name = program_name.replace('test_gpt2_gradient', 'test_gpt2')
    path = [path for folder in ('', 'dev/cuda_on_cpu/') for suffix in (('c',) if build == 'c' else ('cu', 'c')) for path in glob.glob(f'{folder}{name}.{suffix}')][0]
    with open(path) as file:
        return re.findall(r'^\s*RUN\((\w+)\);', file.read(), re.M)


# ---- running one test

Outcome = collections.namedtuple('Outcome', 'status seconds output')
Run = collections.namedtuple('Run', 'build program test')  # one test of one program


def wait_for(process, patience):
    """Its status and resources. What sleeps past the patience, in seconds, is stopped with all that it has started."""
    end = time.monotonic() + patience
    for last, number in ((end, signal.SIGTERM), (end + 10, signal.SIGKILL), (end + 1e9, None)):
        while time.monotonic() < last:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG if number else 0)
            if pid:
                return status, usage
            time.sleep(0.01)
        os.killpg(process.pid, number)


def run_test(path, test, environment, cpu_seconds, patience):
    """Exit status, CPU seconds and output."""
    settings = dict(os.environ, OMP_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1', ASAN_OPTIONS='detect_leaks=0', TEST_STOP='1',
                    TEST_ONLY=test, **environment)
    tree = re.match(r'(.*/tree)/(.*\.sh)$', path)  # a script finds programs and fixtures from where it is started
    place, path = tree.groups() if tree else (None, path)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(['sh', '-c', 'ulimit -c 0; ulimit -t "$1"; shift; exec "$@"', 'sh', str(int(cpu_seconds) + 1), path],
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=settings, cwd=place,
                                   start_new_session=True)
        status, usage = wait_for(process, patience)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors='replace')
    return Outcome(process.returncode, usage.ru_utime + usage.ru_stime, text)


def has_run_out_of_time(outcome):
    return outcome.status in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)


def reason_of(outcome):
    if has_run_out_of_time(outcome):
        return 'does not end'
    report = re.search(r'cuda_on_cpu: ([^:]+):', outcome.output)
    sanitizer = re.search(r'AddressSanitizer: ([\w-]+)|runtime error: ([\w ]+)', outcome.output)
    if report:
        return report.group(1)
    if sanitizer:
        return sanitizer.group(1) or sanitizer.group(2).strip()
    return f'signal {-outcome.status}' if outcome.status < 0 else 'wrong result'


# ---- what every test costs and reaches

class Survey:
    """Every test of every program without a mutant: it takes `seconds` of CPU time and reaches the mutants in `reached`.
    Tests that take longer than a mutant may get, or fail, are left out; the latter are told. Kept from run to run by the programs' hashes."""

    def __init__(self, work, programs, options):
        self.path, self.longest, self.lock = os.path.join(work, 'survey.jsonl'), options.seconds, threading.Lock()
        self.hashes = {program: hash_of_file(path, *called_by(program[1], path)) for program, path in programs.items()}
        self.known = {entry['key']: entry for entry in read_lines(self.path)}
        wanted = [Run(*program, test) for program in programs for test in tests_in(program[1], program[0])]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            entries = list(pool.map(lambda run: self.known_entry(run) or self.look(run, programs[run.build, run.program]), wanted))
        self.seconds, self.passed, self.reached, self.floats = {}, {}, {}, set()
        for run, entry in zip(wanted, entries):
            self.floats.update(entry['floats'])
            if entry['ended'] and entry['seconds'] <= self.longest:
                self.seconds[run], self.passed[run] = entry['seconds'], entry.get('passed', entry['seconds'])
                self.reached[run] = set(entry['reached'])

    def key(self, run):
        return f'{self.hashes[run.build, run.program]} {run.test}'

    def known_entry(self, run):
        entry = self.known.get(self.key(run))
        return entry if entry and (entry['ended'] or entry.get('fails') or entry['seconds'] >= self.longest) else None

    def look(self, run, path):
        with tempfile.NamedTemporaryFile('r') as noted:
            start = time.monotonic()
            outcome = run_test(path, run.test, {'CUDA_ON_CPU_MUTANTS_REACHED': noted.name}, self.longest + 1, PATIENCE + 10 * self.longest)
            passed = time.monotonic() - start
            is_missing = 'TEST_ONLY: there is no test' in outcome.output  # a test of the other precision
            fails = outcome.status != 0 and not is_missing and not has_run_out_of_time(outcome)
            why = f', fails without a mutant and judges none: {outcome.output[-300:].strip()}' if fails else ''
            print(f'{run.build} {run.program} {run.test}: {outcome.seconds:.1f} s{why}', flush=True)
            lines = [tuple(map(int, line.split())) for line in noted if re.fullmatch(r'\d+ \d\n', line)]  # the others were cut
        entry = {'key': self.key(run), 'seconds': outcome.seconds, 'passed': passed, 'fails': fails, 'ended': is_missing or outcome.status == 0,
                 'reached': [number for number, how in lines if how == 1], 'floats': [number for number, how in lines if how == 2]}
        with self.lock:
            add_line(self.path, entry)
        return entry


# ---- judging mutants

class Judge:
    """Finds out what becomes of each mutant, and remembers it."""

    def __init__(self, work, programs, survey, options, sanitized=None):
        self.programs, self.survey, self.options = programs, survey, options
        self.sanitized = sanitized or {}  # the same programs with sanitizers, for what survives the others
        self.path = os.path.join(work, 'results.jsonl')
        self.lock = threading.Lock()
        self.explained = set(read_equivalents())
        self.kills = collections.Counter()  # by (path of a mutant, run)
        self.known, self.last = {}, {}      # results by key; the newest entry for an identity
        for entry in read_lines(self.path):
            self.known[entry['key']] = self.last[entry['mutant']] = entry

    def key(self, mutant):
        """Of everything that the result depends on: the programs that reach the mutant."""
        reaching = sorted({self.survey.hashes[run.build, run.program] for run, reached in self.survey.reached.items() if mutant.number in reached})
        return hashlib.sha256(' '.join([mutant.identity(), str(self.options.seconds)] + reaching).encode()).hexdigest()

    def knows(self, mutant, whole=True):
        entry = self.known.get(self.key(mutant))
        return entry is not None and (not whole or (entry.get('is_whole', True) and entry.get('is_sanitized', True) >= bool(self.sanitized)))

    def remembered(self, mutant):
        """What is known without running anything, or None; before a change of the tests, where that is trusted."""
        before = self.last.get(mutant.identity()) if self.options.trust else None
        return before or self.known.get(self.key(mutant))

    def cost(self, mutant, run):
        """What a test costs, less where it has killed the mutant's neighbours, or stands in the same room."""
        likely = 1 + self.kills[mutant.path, run] + 3 * (os.path.dirname(run.program) == os.path.dirname(mutant.path))
        return (0.02 + self.survey.seconds[run]) / likely

    def runs_for(self, mutant, whole=True):
        """The tests to try: what killed it before, then cheap ones that kill its neighbours; of each build not more than
        the seconds allowed, but one at least. The others follow, if asked for, where nothing explains why the mutant should
        survive."""
        runs = [run for run, reached in self.survey.reached.items() if mutant.number in reached]
        before = self.last.get(mutant.identity(), {}).get('run')
        runs.sort(key=lambda run: (list(run) != before, self.cost(mutant, run)))
        spent, chosen, most = collections.Counter(), [], self.options.seconds if whole else self.options.first
        for run in runs:
            if not spent[run.build] or spent[run.build] + self.survey.seconds[run] <= most:
                spent[run.build] += self.survey.seconds[run] + 1e-3
                chosen.append(run)
        if mutant.identity() in self.explained or not whole:
            return chosen
        total = list(itertools.accumulate((self.survey.seconds[run] for run in runs)))
        return chosen + [run for run, sum_to_here in zip(runs, total) if run not in chosen and sum_to_here <= self.options.most]

    def batches_for(self, mutant, tried, whole=True):
        """The same without those that were tried, as lists: the cheap tests of a program go into one process."""
        batches = collections.defaultdict(list)
        for run in self.runs_for(mutant, whole):
            if self.survey.key(run) not in tried:
                is_cheap = self.survey.seconds[run] <= CHEAP and not run.program.endswith('.sh')
                batches[(run.build, run.program) if is_cheap else run].append(run)
        return list(batches.values())

    def run_batch(self, mutant, batch, programs):
        """The outcome, and which of the tests has failed: the first that has not said that it is well."""
        batch = [run for run in self.survey.seconds if run in batch]  # as the program runs them
        seconds, passed = (sum(of[run] for run in batch) for of in (self.survey.seconds, self.survey.passed))
        outcome = run_test(programs[batch[0][:2]], ','.join(run.test for run in batch), {'CUDA_ON_CPU_MUTANT': str(mutant.number)},
                           1 + (5 if programs is self.programs else 20) * seconds, PATIENCE + 10 * passed)
        well = set(re.findall(r'^ok +(\w+)$', outcome.output, re.M))
        return outcome, next((run for run in batch if run.test not in well), batch[-1])

    def judge(self, mutant, whole=True):
        """'killed', 'survived' or 'not reached', with the run and the reason. A survivor's entry says which tests were tried:
        they are not tried again, and the others follow when it is asked for as a whole."""
        key, before = self.key(mutant), self.last.get(mutant.identity())
        if self.options.trust and before and before['result'] == 'killed':
            return before
        if self.knows(mutant, whole):
            return self.known[key]
        entry = {'key': key, 'mutant': mutant.identity(), 'result': 'not reached', 'run': None, 'reason': '', 'seconds': 0}
        tried = set((before or {}).get('tried', []))
        batches = [(self.programs, batch) for batch in self.batches_for(mutant, tried, whole)]
        batches += [(self.sanitized, batch) for batch in self.batches_for(mutant, set(), False)] if whole and self.sanitized else []
        for programs, batch in batches:
            outcome, run = self.run_batch(mutant, batch, programs)
            entry['seconds'] += outcome.seconds
            tried.update(map(self.survey.key, batch))
            if outcome.status:
                entry.update(result='killed', run=list(run), reason=reason_of(outcome))
                break
        if entry['run'] is None and tried:
            entry['result'] = 'survived'
        if entry['result'] == 'survived':
            entry.update(tried=sorted(tried), is_sanitized=bool(self.sanitized), is_whole=whole or all(self.survey.key(run) in tried for run in self.runs_for(mutant)))
        with self.lock:
            if entry['run']:
                self.kills[mutant.path, Run(*entry['run'])] += 1
            self.known[key] = entry
            add_line(self.path, entry)
        return entry


class Progress:
    def __init__(self, total):
        self.total, self.done, self.alive, self.start, self.told = total, 0, 0, time.monotonic(), 0
        self.lock = threading.Lock()

    def count(self, entry):
        with self.lock:
            self.done += 1
            self.alive += entry['result'] != 'killed'
            now = time.monotonic()
            if now - self.told < 20 and self.done < self.total:
                return
            self.told = now
            left = (now - self.start) / self.done * (self.total - self.done) / 60
            print(f'{self.done} of {self.total} mutants, {self.alive} alive, about {left:.0f} min left', flush=True)


# ---- reporting

def read_equivalents():
    """identity -> reason, from lines `path | function | change | line | what was changed | reason`."""
    if not os.path.exists(EQUIVALENT):
        return {}
    with open(EQUIVALENT) as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith('#')]
    return {identity: reason for identity, _, reason in (line.rpartition(' | ') for line in lines)}


def in_table(text):
    return text.replace('|', '\\|')


def write_table(path, judged, all_mutants, equivalents, options):
    """Kills by file and by what noticed them, and the survivors with their reasons."""
    kinds = sorted({mutant.kind for mutant, _ in judged})
    minutes = sum(entry['seconds'] for _, entry in judged) / 60
    with open(path, 'w') as file:
        builds = f' in the builds {", ".join(options.builds.split(","))}' if options.language != 'C' else ''
        file.write(f'# Do the tests notice a broken {"kernel" if builds else "line of C"}?\n\n'
                   f'What `make test-mutants{"" if builds else "-c"}` found ([README.md](README.md) says what it does), with the tests '
                   f'{", ".join(options.test.split(","))}{builds}; {minutes:.0f} minutes of CPU time for the mutants. ' +
                   (f'Of a sample of {options.sample} of {all_mutants} mutants (`--sample {options.sample} --seed {options.seed}`), without those '
                      f'of floats, {len(judged)} were judged{", the first drawn" if len(judged) < options.sample / 2 else ""}. ' if options.sample else '') + 'The cells say how many were killed of how many.\n\n')
        file.write('| file | ' + ' | '.join(kinds) + ' | all | killed |\n|---' + '|---:' * (len(kinds) + 2) + '|\n')
        for name in sorted({mutant.path for mutant, _ in judged}) + ['all']:
            chosen = [(mutant, entry) for mutant, entry in judged if name in ('all', mutant.path)]
            cells = [count_text([pair for pair in chosen if pair[0].kind == kind]) for kind in kinds] + [count_text(chosen)]
            file.write(f'| {name} | ' + ' | '.join(cells) + f' | {100 * share_killed(chosen):.1f}% |\n')
        noticed = collections.Counter(entry['reason'] for _, entry in judged if entry['result'] == 'killed')
        file.write('\nHow they were noticed: ' + ', '.join(f'{reason} {count}' for reason, count in noticed.most_common()) + '.\n')
        file.write('\n| survivor | change | line | why no test can notice it |\n|---|---|---|---|\n')
        for mutant, entry in judged:
            if entry['result'] != 'killed':
                reason = equivalents.get(mutant.identity(), f'**{entry["result"]}**')
                cells = [f'{mutant.path}, {mutant.function}', f'{mutant.kind}: `{in_table(mutant.original)}`', f'`{in_table(mutant.line_text)}`', in_table(reason)]
                file.write('| ' + ' | '.join(cells) + ' |\n')


def share_killed(judged):
    return sum(entry['result'] == 'killed' for _, entry in judged) / len(judged) if judged else 1


def count_text(judged):
    killed = sum(entry['result'] == 'killed' for _, entry in judged)
    return f'{killed} / {len(judged)}' if judged else ''


def report(judged, all_mutants, options):
    equivalents = read_equivalents()
    alive = [(mutant, entry) for mutant, entry in judged if entry['result'] != 'killed']
    unexplained = [(mutant, entry) for mutant, entry in alive if mutant.identity() not in equivalents]
    for mutant, entry in unexplained:
        print(f'{entry["result"]}: {mutant}\n    {mutant.identity()}')
    wrong = set(equivalents) - {mutant.identity() for mutant, _ in alive}
    for identity in sorted(wrong & {mutant.identity() for mutant, _ in judged}):
        print(f'killed, but listed in {os.path.relpath(EQUIVALENT)}: {identity}')
    write_table(options.table or os.path.join(options.build, 'mutants' if options.language == 'kernel' else 'mutants_c', 'table.md'), judged, all_mutants, equivalents, options)
    share = share_killed(judged)
    print(f'{len(judged)} mutants, {len(judged) - len(alive)} killed ({100 * share:.1f}%), {len(alive) - len(unexplained)} survivors explained, {len(unexplained)} not')
    return share >= WANTED_SHARE[options.language] and not unexplained


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('files', nargs='+')
    parser.add_argument('--test', required=True, help='names of test programs, separated by commas')
    parser.add_argument('--builds', default='fast,check,check-bf16,asan,asan-bf16', help='modes, with -bf16 or without')
    parser.add_argument('--seconds', type=float, default=3, help='CPU time of the tests that a mutant gets in each build, and of the longest test')
    parser.add_argument('--first', type=float, default=15, help='as --seconds, before the other mutants have had their turn')
    parser.add_argument('--most', type=float, default=math.inf, help='CPU time of all the tests that a survivor gets')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--only', default='', help='only mutants whose name contains this')
    parser.add_argument('--sample', type=int, default=0, metavar='N', help='only N of them, drawn at random; the same ones for the same sources')
    parser.add_argument('--seed', type=int, default=1, help='of the sample')
    parser.add_argument('--minutes', type=float, default=0, help='begin no mutant after these; the table tells of those judged')
    parser.add_argument('--trust', action='store_true', help='what was killed before a change of the tests stays killed')
    parser.add_argument('--asan', action='store_true', help='C that survives gets the tests of --first with sanitizers too')
    parser.add_argument('--list', action='store_true', help='only list the mutants')
    parser.add_argument('--table', help='where to write the table, BUILD/mutants/table.md')
    parser.add_argument('--build', default=os.environ.get('BUILD', 'build'))
    options = parser.parse_args()
    options.language = 'C' if options.files[0].endswith('.c') else 'kernel'
    if options.language == 'C':
        options.builds = 'c'
    return options


def sample_of(mutants, options):
    """The mutants to judge: all, or a sample that depends on the seed and the mutants alone."""
    if not options.sample or options.sample >= len(mutants):
        return mutants
    return random.Random(options.seed).sample(mutants, options.sample)  # in the order drawn: any first part is a sample too


def judge_all(judge, mutants, options):
    """Those that were judged, with their entries. Of a few at a time every mutant first gets the tests that --first allows;
    then those that have survived these get the others, so that what is judged when the clock ends it is a sample."""
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    progress = Progress(len(mutants))

    def judged(mutant, whole):
        if end and time.monotonic() > end and not judge.knows(mutant, whole):
            return mutant, judge.remembered(mutant)
        entry = judge.judge(mutant, whole)
        if whole:
            progress.count(entry)
        return mutant, entry

    pairs = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for i in range(0, len(mutants), CHUNK):
            for whole in (False, True):
                of_chunk = list(pool.map(lambda mutant, whole=whole: judged(mutant, whole), mutants[i:i + CHUNK]))
            pairs += of_chunk
    return [(mutant, entry) for mutant, entry in pairs if entry]


def main():
    os.chdir(ROOT)
    options = parse_arguments()
    mutants = find_mutants(sorted(os.path.relpath(path) for path in options.files))
    named = [mutant for mutant in mutants if options.only in mutant.identity()]
    chosen = sample_of(named, options)
    if options.list:
        print('\n'.join(map(str, chosen)))
        return 0
    work = os.path.join(options.build, 'mutants' if options.language == 'kernel' else 'mutants_c')
    plant_tree(os.path.join(work, 'tree'), mutants, options.build)
    wanted = [(build, test) for build in options.builds.split(',') for test in options.test.split(',')]
    programs, sanitized = make_programs(os.path.join(work, 'tree'), wanted, options.jobs), {}
    if options.asan:
        plant_tree(os.path.join(work, 'asan/tree'), mutants, options.build)
        sanitized = make_programs(os.path.join(work, 'asan/tree'), wanted, options.jobs, '-fsanitize=address,bounds -fno-sanitize-recover=all')
    survey = Survey(work, programs, options)
    chosen = [mutant for mutant in chosen if mutant.number not in survey.floats]
    judge = Judge(work, programs, survey, options, sanitized)
    pairs = judge_all(judge, chosen, options)
    return 0 if report(sorted(pairs, key=lambda pair: pair[0].number), len(named), options) else 1


if __name__ == '__main__':
    sys.exit(main())
