#!/usr/bin/env python3
"""Tests of report.py's own sums: what it reads from ptxas, occupancy, rooflines, and that no kernel goes unnoticed."""

import unittest

import report

PTXAS = """ptxas info    : Compiling entry function '_Z3addPf' for 'sm_80'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 400 bytes cmem[0]
"""


class ReportTest(unittest.TestCase):
    def test_ptxas(self):
        self.assertEqual(report.parse(PTXAS), {"_Z3addPf": {"80": (40, 12, 1024), "90": (10, 0, 0)}})

    def test_spills_stand_in_bold(self):
        self.assertIn("**spills 12 B**", report.kernel_cell("80", (40, 12, 1024), 256, 0))
        self.assertNotIn("spills", report.kernel_cell("80", (40, 0, 1024), 256, 0))

    def test_spills_are_named(self):
        kernels = {"add": {"90": (10, 0, 0), "80": (40, 12, 1024)}, "scale": {"80": (8, 0, 0)}}
        self.assertEqual(report.spilling(kernels), ["add on sm_80"])

    def test_occupancy(self):  # as NVIDIA's calculator has it
        self.assertEqual(report.occupancy("80", 32, 0, 256), (1, "registers"))
        self.assertEqual(report.occupancy("80", 40, 0, 256), (0.75, "registers"))
        self.assertEqual(report.occupancy("80", 32, 48 << 10, 128), (3 * 128 / 2048, "shared memory"))

    def test_a_kernel_that_no_run_launches_is_named(self):
        self.assertEqual(report.uncounted(["add<4>", "add<1>", "scale"], {"add", "scale"}), [])
        self.assertEqual(report.uncounted(["add<4>", "scale<float>", "scale<int>"], {"add"}), ["scale"])

    def test_a_kernel_without_arithmetic_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "unheard_of"):
            report.work_of("unheard_of", (1, 64, 64, 0), 1)

    def test_products_are_timed_by_their_arithmetic(self):
        work = report.work_of("cublasGemmEx, tf32", (0, 8, 8, 156e12), 1)
        self.assertEqual(work, {"tf32": 156e12})
        self.assertAlmostEqual(report.roofline(8, work)[0], 1)
        self.assertAlmostEqual(report.roofline(2.039e12 * 3, work)[0], 3)


if __name__ == "__main__":
    unittest.main()
