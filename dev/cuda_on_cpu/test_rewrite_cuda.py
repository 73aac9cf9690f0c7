#!/usr/bin/env python3
"""Tests of rewrite_cuda.py on small pieces of source."""
import sys
import unittest

import rewrite_cuda
from rewrite_cuda import SourceError, rewrite


def squeezed(text):
    return ' '.join(text.split())


class Launches(unittest.TestCase):
    def test_arguments_are_captured_and_literals_kept(self):
        text = rewrite('void f() { kernel<<<grid, 128>>>(out, n + 1, 0.5f, NULL); }')
        self.assertIn('cuda_on_cpu::LaunchShape(grid, 128)', text)
        self.assertIn('[=, argument_0_ = (out), argument_1_ = (n + 1)] { kernel(argument_0_, argument_1_, 0.5f, NULL); }', text)
        self.assertIn('launch("kernel", (const void *)(kernel)', text)

    def test_template_arguments_and_commas(self):
        text = rewrite('template <typename T, int N> __global__ void k(T *p); void f() { k<float, 4><<<dim3(1, 2), 32, 4 * sizeof(float), s>>>(g<int, 3>(a, b), c[i, j], d < e, f > g); }')
        self.assertIn('launch("k<float, 4>", (const void *)(k<float, 4>)', text)
        self.assertIn('LaunchShape(dim3(1, 2), 32, 4 * sizeof(float), s)', text)
        self.assertIn('argument_0_ = (g<int, 3>(a, b)), argument_1_ = (c[i, j]), argument_2_ = (d < e), argument_3_ = (f > g)]', text)

    def test_deduced_templates_have_no_address(self):
        declaration = 'template <int N, typename T> static __global__ void k(T *p); '
        self.assertIn('launch("k<3>", nullptr,', rewrite(declaration + 'void f() { k<3><<<1, 1>>>(p); }'))
        self.assertIn('launch("k<3, float>", (const void *)(k<3, float>),', rewrite(declaration + 'void f() { k<3, float><<<1, 1>>>(p); }'))
        defaulted = 'template <int N, typename T = float> __global__ void k(T *p); '
        self.assertIn('(const void *)(k<3>)', rewrite(defaulted + 'void f() { k<3><<<1, 1>>>(p); }'))

    def test_line_numbers_stay(self):
        source = '# 1 "a.cu"\nvoid f() {\n    k<<<1,\n        2>>>(a,\n             b);\n    here();\n}\n'
        lines = rewrite(source).split('\n')
        self.assertEqual(lines.index('    here();'), source.split('\n').index('    here();'))

    def test_strings_are_left_alone(self):
        text = rewrite('void f() { k<<<1, 2>>>("a)b", \'(\', 1\'000); }')
        self.assertIn('argument_0_ = ("a)b"), argument_1_ = (\'(\'), argument_2_ = (1\'000)', text)

    def test_a_launch_without_arguments_list_is_refused(self):
        with self.assertRaises(SourceError):
            rewrite('void f() { k<<<1, 2>>>; }')


class Shared(unittest.TestCase):
    def test_several_variables(self):
        text = rewrite('void k() { __shared__ float a[4][5], b; }')
        self.assertIn('typedef float shared_type_of_a[4][5];', text)
        self.assertIn('typedef float shared_type_of_b;', text)
        self.assertIn('shared_type_of_a &a =', text)

    def test_dynamic_and_alignment(self):
        text = rewrite('void k() { extern __shared__ __attribute__((aligned(16))) float4 buffer[]; __shared__ alignas(128) float t[N * (M + 1)]; }')
        self.assertIn('float4 *buffer = (float4 *)cuda_on_cpu::dynamic_shared();', text)
        self.assertIn('shared_type_of_t[N * (M + 1)]', text)
        self.assertIn(': 128, "t")', text)

    def test_template_and_struct_types(self):
        text = rewrite('void k() { __shared__ Pair<float, int> p[3]; __shared__ struct { int a; float b; } s; }')
        self.assertIn('typedef Pair<float, int> shared_type_of_p[3];', text)
        self.assertIn('typedef struct { int a; float b; } shared_type_of_s;', text)


class Unchecked(unittest.TestCase):
    def test_statements_are_refused(self):
        for statement in ['cudaFree(p);', 'if (p) cudaFree(p);', 'for (;;) cublasDestroy_v2(h);', 'ncclGroupStart();', 'cudnnCreate(&h);', 'if (a) b(); else cudaFree(p);',
                          'cudaFree(p), q = 0;', 'if (p) cudaFree(p), q = 0;', 'if (p) q = 0, cudaFree(p);',
                          'check(cudaFree(p)), cudaFree(q), r();',
                          'auto g = [&] { q = 0, cudaFree(p); };', 'for (;; cudaFree(p), i++) {}']:
            with self.assertRaises(SourceError, msg=statement):
                rewrite('void f() { ' + statement + ' }')

    def test_uses_are_allowed(self):
        for statement in ['check(cudaFree(p));', '(void)cudaFree(p);', 'cudaError_t e = cudaFree(p);', 'if (cudaFree(p) != cudaSuccess) stop();',
                          'return cudaFree(p);', 'cudaGetLastError();', 'puts(cudaGetErrorString(e));', 'a = b ? cudaFree(p) : cudaFree(q);',
                          'check(a, cudaFree(p)), check(cudaFree(q), b);',
                          'int e[] = {0, cudaFree(p), 1}, d = cudaFree(q);',
                          'Pair pair{a, cudaFree(p)};', 'q = 0, (void)cudaFree(p);', 'g((int)cudaFree(p), 1);']:
            rewrite('int f() { ' + statement + ' }')

    def test_system_headers_may(self):
        rewrite('# 1 "/usr/include/x.h" 1 3\nvoid f() { cudaFree(p); }\n')

    def test_place(self):
        source = '# 7 "dir/a.cu"\nvoid f() {\n    cudaFree(p);\n}\n'
        with self.assertRaises(SourceError) as caught:
            rewrite(source)
        self.assertEqual(rewrite_cuda.place_of(source, caught.exception.offset), 'dir/a.cu:8')


if __name__ == '__main__':
    sys.exit(not unittest.main(exit=False).result.wasSuccessful())
