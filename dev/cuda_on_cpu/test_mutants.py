#!/usr/bin/env python3
"""Tests of mutants.py: which changes it makes to a kernel, and which it leaves."""
import os
import sys
import tempfile
import unittest

import mutants

SOURCE = '''
static int host(int a, int b) { return a < b ? values[a] : 0; } // host code is left alone
template <int N> __global__ void kernel(float *out, const float *in, int n) {
    __shared__ float tile[N];
    int i = threadIdx.x; // not i < n
    if (i < n) tile[i] = in[i + 1];
    __syncthreads();
    for (int k = 0; k <= n; k++) out[k] = static_cast<float>(tile[0]);
    printf("%d < %d [0]", i, n);
}
__device__ int later(int a);
__device__ static float pick(const float *p, int a) { return a >= 3 ? p[a] : 0; }
'''


class Mutants(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'a.cu')
            with open(path, 'w') as file:
                file.write(SOURCE)
            cls.found = mutants.mutants_of(path)

    def changed_lines(self, kind):
        before = SOURCE.split('\n')
        return sorted(mutant.text.split('\n')[mutant.line - 1].strip() for mutant in self.found
                      if mutant.kind == kind and mutant.text.split('\n')[mutant.line - 1] != before[mutant.line - 1])

    def test_barriers(self):
        self.assertEqual(self.changed_lines('barrier removed'), [';'])

    def test_conditions(self):
        self.assertEqual(self.changed_lines('condition always true'), ['if (true) tile[i] = in[i + 1];'])

    def test_comparisons(self):
        self.assertEqual(self.changed_lines('comparison moved'), [
            '__device__ static float pick(const float *p, int a) { return a > 3 ? p[a] : 0; }',
            'for (int k = 0; k < n; k++) out[k] = static_cast<float>(tile[0]);',
            'if (i <= n) tile[i] = in[i + 1];'])

    def test_indices(self):
        self.assertEqual(self.changed_lines('index moved'), [
            '__device__ static float pick(const float *p, int a) { return a >= 3 ? p[(a) + 1] : 0; }',
            'for (int k = 0; k <= n; k++) out[(k) + 1] = static_cast<float>(tile[0]);',
            'for (int k = 0; k <= n; k++) out[k] = static_cast<float>(tile[(0) + 1]);',
            'if (i < n) tile[(i) + 1] = in[i + 1];',
            'if (i < n) tile[i] = in[(i + 1) + 1];'])


if __name__ == '__main__':
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
