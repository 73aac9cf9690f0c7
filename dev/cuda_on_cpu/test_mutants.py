#!/usr/bin/env python3
"""Tests of mutants.py, and of what it needs from the runtime: breaks the kernel in test_mutants.cu in every way it knows, and
looks at which mutants are killed, by what, and which one survives.

    test_mutants.py OBJECT...    objects to link with, in check mode, besides the kernel's"""
import argparse
import os
import subprocess
import sys
import tempfile
import unittest

import mutants

SOURCE = 'dev/cuda_on_cpu/test_mutants.cu'
OPTIONS = argparse.Namespace(seconds=10, first=10, most=100, minutes=0, jobs=2, trust=False, test='test_mutants', builds='check', sample=0, seed=1, language='kernel')
OBJECTS = [os.path.abspath(path) for path in sys.argv[1:]]


def build(directory, found):
    """The program with all mutants in it."""
    cudacc, program = os.path.join(mutants.HERE, 'cudacc'), os.path.join(directory, 'program')
    with open(SOURCE) as file:
        text = mutants.planted(file.read(), found).replace('"../../', f'"{mutants.ROOT}/')
    with open(program + '.cu', 'w') as file:
        file.write(text)
    subprocess.run([cudacc, '--mode=check', '-w', '-DCUDA_ON_CPU_MUTANTS', '-c', program + '.cu', '-o', program + '.o'], check=True)
    subprocess.run([cudacc, '--mode=check', program + '.o'] + OBJECTS + ['-o', program], check=True)
    return program


class Mutants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.found = mutants.find_mutants([SOURCE])
        cls.programs = {('check', 'test_mutants'): build(cls.directory.name, cls.found)}
        cls.survey = mutants.Survey(cls.directory.name, cls.programs, OPTIONS)
        cls.judge = mutants.Judge(cls.directory.name, cls.programs, cls.survey, OPTIONS)
        cls.entries = [(mutant, cls.judge.judge(mutant)) for mutant in cls.found if mutant.number not in cls.survey.floats]

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def reasons(self, kind):
        return {entry['reason'] for mutant, entry in self.entries if mutant.kind == kind}

    def test_survey(self):
        test, other = [mutants.Run('check', 'test_mutants', name) for name in ('sums_are_reversed', 'nothing_is_launched')]
        self.assertEqual(self.survey.reached[test], {mutant.number for mutant, _ in self.entries})
        self.assertEqual(self.survey.reached[other], set())
        floats = [mutant.original for mutant in self.found if mutant.number in self.survey.floats]
        self.assertEqual(floats, ['two.x > 0', 'two.y > 0'])

    def test_survivor(self):
        alive = [str(mutant) for mutant, entry in self.entries if entry['result'] != 'killed']
        with open(SOURCE) as file:
            line = 1 + [number for number, text in enumerate(file) if '// equivalent' in text][0]
        self.assertEqual(alive, [f'{SOURCE}:{line}: reversed_sums: barrier removed: __syncthreads()'])

    def test_every_kind_is_killed(self):
        kinds = {mutant.kind for mutant, entry in self.entries if entry['result'] == 'killed'}
        self.assertEqual(kinds, {'barrier removed', 'condition always true', 'comparison moved', 'index moved', 'address moved'})

    def test_how(self):
        self.assertIn('uninitialised memory', self.reasons('barrier removed'))
        self.assertIn('misaligned access', self.reasons('address moved'))
        self.assertIn('out of bounds', self.reasons('index moved'))
        self.assertIn('wrong result', self.reasons('condition always true'))

    def test_a_survivor_gets_every_test(self):
        alive = [mutant for mutant, entry in self.entries if entry['result'] != 'killed'][0]
        runs = [mutants.Run('check', 'test_mutants', name) for name in ('one', 'another', 'a_third')]
        survey = argparse.Namespace(reached={run: {alive.number} for run in runs}, seconds=dict.fromkeys(runs, 1))
        judge = mutants.Judge(self.directory.name, {}, survey, argparse.Namespace(seconds=2.5, most=100))
        self.assertEqual(judge.runs_for(alive), runs)
        judge.explained = {alive.identity()}
        self.assertEqual(judge.runs_for(alive), runs[:2])

    def test_results_are_kept(self):
        again = mutants.Judge(self.directory.name, {}, self.survey, OPTIONS)
        self.assertEqual([again.judge(mutant) for mutant, _ in self.entries], [entry for _, entry in self.entries])

    def test_samples_depend_on_the_seed_alone(self):
        def drawn(count, seed):
            return mutants.sample_of(self.found, argparse.Namespace(sample=count, seed=seed))
        self.assertEqual(drawn(5, 1), drawn(5, 1))
        self.assertNotEqual(drawn(5, 1), drawn(5, 2))
        self.assertEqual((len(set(drawn(5, 1))), drawn(0, 1), drawn(10 ** 6, 1)), (5, self.found, self.found))

    def test_programs_of_two_languages(self):
        self.assertIn('pytorch_ten_adamw_steps', mutants.tests_in('test_gpt2', 'c'))
        self.assertIn('pytorch_ten_adamw_steps', mutants.tests_in('test_gpt2_gradient', 'c'))
        self.assertIn('decoding_as_a_graph', mutants.tests_in('test_gpt2', 'fast'))

    def test_table(self):
        path = os.path.join(self.directory.name, 'table.md')
        alive = [mutant for mutant, entry in self.entries if entry['result'] != 'killed']
        mutants.write_table(path, self.entries, len(self.entries), {alive[0].identity(): 'nothing follows'}, OPTIONS)
        with open(path) as file:
            text = file.read()
        self.assertIn('| all | ', text)
        self.assertIn('| nothing follows |', text)
        self.assertIn(f'{len(self.entries) - 1} / {len(self.entries)}', text)


if __name__ == '__main__':
    os.chdir(mutants.ROOT)
    sys.exit(not unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful())
