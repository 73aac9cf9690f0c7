#!/usr/bin/env python3
"""Tests of find_mutants.py: which changes it makes to a kernel, which it leaves, and that all of them fit into one text."""
import re
import sys
import unittest

from find_mutants import mutants_of, planted

SOURCE = '''
static int host(int a, int b) { return a < b ? values[a] : 0; } // host code is left alone
template <int N> __global__ void kernel(float *out, const float *in, int n) {
    __shared__ float tile[N];
    constexpr int half = N > 4 ? 2 : 1;
    Floats<4> lanes[N], more[N][2];
    int i = threadIdx.x; // not i < n
    if (i < n) tile[i] = in[i + 1];
    __syncthreads();
    for (int k = 0; k <= n; k++) out[k] = static_cast<float>(tile[0]);
    for_rows([&](float(&row)[2]) { use(row); });
    printf("%d < %d [0]", i, n);
    store(out + i, load<4>(in + 4 * i));
}
__device__ int later(int a);
__device__ static float pick(const float *p, int a) {
    if constexpr (sizeof(float) > 2) a = a < 9 ? a : 9;
    return Score::least >= a ? p[a > 1 && a < 7] : 0;
}
__device__ constexpr int known(int a) { return a < 3; }
'''
MACROS = {r'\(cuda_on_cpu::mutant\(\d+\) \? \(void\)0 : \(void\)(\w+\(\))\)': r'-\1-', r'cuda_on_cpu::mutant\(\d+\) \|\| ': 'true|',
          r'cuda_on_cpu::Moved\{\d+\} [<>]=?': '~', r' \+ cuda_on_cpu::mutant\(\d+\)': '+1'}


class FindMutants(unittest.TestCase):
    def setUp(self):
        self.found = mutants_of('a.cu', SOURCE, 100)

    def changed_lines(self, kind):
        """The lines with one mutant each, its insertion in short form."""
        lines = []
        for mutant in self.found:
            if mutant.kind == kind:
                line = planted(SOURCE, [mutant]).split('\n')[mutant.line - 1].strip()
                for pattern, short in MACROS.items():
                    line = re.sub(pattern, short, line)
                lines.append(line)
        return lines

    def test_barriers(self):
        self.assertEqual(self.changed_lines('barrier removed'), ['-__syncthreads()-;'])

    def test_conditions(self):
        self.assertEqual(self.changed_lines('condition always true'), [
            'if (true|(i < n)) tile[i] = in[i + 1];',
            'if constexpr (sizeof(float) > 2) a = (true|(a < 9)) ? a : 9;',
            'return (true|(Score::least >= a)) ? p[a > 1 && a < 7] : 0;'])

    def test_comparisons(self):
        self.assertEqual(self.changed_lines('comparison moved'), [
            'if (i < ~ n) tile[i] = in[i + 1];',
            'for (int k = 0; k <= ~ n; k++) out[k] = static_cast<float>(tile[0]);',
            'return Score::least >= ~ a ? p[a > 1 && a < 7] : 0;',
            'return Score::least >= a ? p[a > ~ 1 && a < 7] : 0;',
            'return Score::least >= a ? p[a > 1 && a < ~ 7] : 0;'])

    def test_indices(self):
        self.assertEqual(self.changed_lines('index moved'), [
            'if (i < n) tile[(i)+1] = in[i + 1];',
            'if (i < n) tile[i] = in[(i + 1)+1];',
            'for (int k = 0; k <= n; k++) out[(k)+1] = static_cast<float>(tile[0]);',
            'for (int k = 0; k <= n; k++) out[k] = static_cast<float>(tile[(0)+1]);',
            'return Score::least >= a ? p[(a > 1 && a < 7)+1] : 0;'])

    def test_addresses(self):
        self.assertEqual(self.changed_lines('address moved'), [
            'store((out + i)+1, load<4>(in + 4 * i));',
            'store(out + i, load<4>((in + 4 * i)+1));'])

    def test_all_at_once(self):
        text = planted(SOURCE, self.found)
        self.assertEqual(text.count('\n'), SOURCE.count('\n'))
        self.assertEqual(sorted(map(int, re.findall(r'(?:mutant\(|Moved\{)(\d+)', text))), [mutant.number for mutant in self.found])
        self.assertIn('if (cuda_on_cpu::mutant(100) || (i < cuda_on_cpu::Moved{101} < n)) tile[(i) + cuda_on_cpu::mutant(102)]', text)

    def test_names(self):
        names = [mutant.identity() for mutant in self.found]
        self.assertEqual(len(names), len(set(names)))
        self.assertIn('a.cu | kernel | index moved | if (i < n) tile[i] = in[i + 1]; | i + 1', names)
        self.assertIn('a.cu | pick | comparison moved | return Score::least >= a ? p[a > 1 && a < 7] : 0; | a < 7', names)


if __name__ == '__main__':
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
