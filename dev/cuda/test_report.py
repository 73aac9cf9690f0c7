#!/usr/bin/env python3
"""Tests of report.py and its parts: what they read from ptxas, machine code and counts, and that what they forbid is noticed."""

import unittest

import compiled
import counts
import hardware
import report
import sass
import step_model

PTXAS = """ptxas info    : Compiling entry function '_Z3addPf' for 'sm_80'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 400 bytes cmem[0]
"""

# As nvdisasm -c -gi writes it: a loop over tiles with a loop of 4 passes in it, a branch that is rarely taken, a long jump.
SASS = """//--------------------- .text._Z6attendv --------------------------
	.section	.text._Z6attendv,"ax",@progbits
.text._Z6attendv:
	//## File "/src/attention/quadratic.cuh", line 10
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
.L_x_1:
	//## File "/src/core/gpu/tile_gpu.h", line 40 inlined at "/src/attention/quadratic.cuh", line 20
	//## File "/src/attention/quadratic.cuh", line 20
        /*0020*/                   LDSM.16.M88.4 R8, [R12] ;
	//## File "/src/attention/quadratic.cuh", line 21
        /*0030*/                   HMMA.16816.F32.BF16 R16, R4, R8, R16 ;
        /*0040*/                   HMMA.16816.F32.BF16 R20, R4, R10, R20 ;
        /*0050*/               @P2 BRA `(.L_x_3) ;
	//## File "/src/attention/quadratic.cuh", line 30
        /*0060*/                   LDS.128 R24, [R13] ;
        /*0068*/              @!PT LDS RZ, [RZ] ;
        /*0070*/                   FFMA R24, R24, R24, R24 ;
.L_x_3:
        /*0080*/                   MOV R30, RZ ;
.L_x_2:
	//## File "/src/attention/quadratic.cuh", line 40
        /*0090*/                   MUFU.EX2 R16, R16 ;
        /*00a0*/                   IADD3 R30, R30, 0x1, RZ ;
        /*00b0*/                   ISETP.NE.AND P0, PT, R30, 0x4, PT ;
        /*00c0*/               @P0 BRA `(.L_x_2) ;
        /*00d0*/                   ISETP.GE.AND P1, PT, R0, R1, PT ;
        /*00e0*/               @P1 CALL.REL.NOINC `(.L_x_4) ;
        /*00f0*/                   BRA `(.L_x_1) ;
.L_x_4:
	//## File "/src/attention/quadratic.cuh", line 50
        /*0100*/                   STG.E [R2.64], R16 ;
        /*0110*/                   EXIT ;
.L_x_5:
        /*0120*/                   BRA `(.L_x_5);
"""
FILE = "quadratic.cuh"
COUNTED = {((FILE, 10),): 8 * 512, ((FILE, 20),): 8 * 6 * 512, ((FILE, 50),): 8 * 128}


def code(text=SASS):
    return sass.functions(text)["_Z6attendv"]


class SassTest(unittest.TestCase):
    def test_places_are_those_of_kernels(self):
        places = {i.base: i.place for block in sass.blocks_of(code()) for i in block.instructions}
        self.assertEqual((places["LDSM"], places["HMMA"]), (((FILE, 20),), ((FILE, 21),)))

    def test_loops_and_what_they_say_of_their_trips(self):
        function, outer, inner = sass.regions_of(code(), "80")
        self.assertEqual((outer.parent, inner.parent, outer.trips, inner.trips), (function, outer, None, 4))
        self.assertEqual([path.cost.classes["tensor"] for path in outer.paths], [2, 2])
        self.assertEqual([len(region.paths) for region in (function, inner)], [1, 1])
        self.assertEqual((inner.paths[0].cost.classes["special"], function.paths[0].cost.classes["tensor"]), (1, 0))

    def passes(self, counted, mma=8 * 6 * 2 * 2048):
        regions = sass.regions_of(code(), "80")
        found = sass.Passes(regions, 8, counted, mma)
        return found, [found.passes(region) for region in regions]

    def test_passes_follow_from_counted_bytes(self):
        found, passes = self.passes(COUNTED)
        for number, expected in zip(passes, (8, 48, 192)):
            self.assertAlmostEqual(number, expected, places=3)
        self.assertLess(found.misfit, 1e-6)
        cost = found.cost()
        self.assertAlmostEqual(cost.units["tensor"], 48 * 2 * 8, places=2)
        self.assertAlmostEqual(cost.units["special"], 192 * 8, places=2)
        self.assertAlmostEqual(cost.units["issue"], 8 * 4 + 48 * 8 + 192 * 4, places=2)

    def test_a_branch_is_taken_as_often_as_its_loads_were(self):
        self.assertAlmostEqual(self.passes(COUNTED)[0].cost().classes["shared"], 0, places=3)
        some = {**COUNTED, ((FILE, 30),): 12 * 512}
        self.assertAlmostEqual(self.passes(some)[0].cost().classes["shared"], 12, places=1)

    def test_blocks_that_never_ran_are_left_out(self):
        self.assertEqual(len(sass.regions_of(code(), "80", COUNTED)[1].paths), 1)
        self.assertEqual(len(sass.regions_of(code(), "80", {**COUNTED, ((FILE, 30),): 1})[1].paths), 2)

    def test_contradicting_counts_are_a_misfit(self):
        self.assertGreater(self.passes(COUNTED, 3 * 8 * 6 * 2 * 2048)[0].misfit, 0.02)

    def test_a_place_is_found_again_with_fewer_frames_and_calls_a_line_or_two_off(self):
        place = ((FILE, 20), (FILE, 100), ("yat.cu", 7))
        self.assertEqual(sass.match(place, [((FILE, 20),), ((FILE, 20), (FILE, 101)), ((FILE, 20), (FILE, 300))]), ((FILE, 20), (FILE, 101)))
        self.assertIsNone(sass.match(place, [((FILE, 20), (FILE, 300)), ((FILE, 21),)]))

    def test_of_many_ways_each_kind_of_product_keeps_its_ends(self):
        ways = [sass.Way(i, frozenset([i]), mma=i % 3, slots=100 + i) for i in range(200)]
        kept = sass.distinct(ways)
        self.assertEqual(len(kept), sass.MOST_PATHS)
        self.assertTrue({way.slots for way in ways[:3] + ways[-3:]} <= {way.slots for way in kept})
        self.assertTrue(any(130 < way.slots < 270 for way in kept))
        self.assertEqual(len(sass.distinct(ways[:10])), 10)
        self.assertEqual([way.slots for way in sass.distinct([sass.Way(0, frozenset(), 1, 5), sass.Way(1, frozenset(), 1, 9)])], [9])

    def test_shapes_of_products(self):
        self.assertEqual(sass.multiply_adds("HMMA.16816.F32.BF16"), 16 * 8 * 16)
        self.assertEqual(sass.multiply_adds("HMMA.1688.F32.TF32"), 2 * 16 * 8 * 8)
        with self.assertRaisesRegex(ValueError, "HMMA.999"):
            sass.multiply_adds("HMMA.999.F32")

    def test_generic_and_local_accesses_are_seen(self):
        self.assertEqual(sass.forbidden(code()), {"generic": 0, "local": 0})
        bad = SASS.replace("LDSM.16.M88.4 R8, [R12]", "LD.E R8, [R12.64]").replace("LDS.128 R24, [R13]", "LDL.LU R24, [R1]")
        self.assertEqual(sass.forbidden(code(bad)), {"generic": 1, "local": 1})


class CompiledTest(unittest.TestCase):
    def kernel(self, said=(40, 0, 1024), text=SASS):
        kernel = compiled.Kernel("attend", "attention/quadratic.cu")
        kernel.said, kernel.code = {"80": said}, {"80": code(text)}
        return {"attend": kernel}

    def test_ptxas(self):
        self.assertEqual(compiled.parse(PTXAS), {"_Z3addPf": {"80": (40, 12, 1024), "90": (10, 0, 0)}})

    def test_spills_stand_in_bold(self):
        self.assertIn("**spills 12 B**", report.compiled_cell("80", (40, 12, 1024), 256, 0))
        self.assertNotIn("spills", report.compiled_cell("80", (40, 0, 1024), 256, 0))

    def test_a_sound_kernel_has_no_faults(self):
        self.assertEqual(compiled.faults(self.kernel()), [])

    def test_a_spill_is_a_fault(self):
        self.assertEqual(compiled.faults(self.kernel((40, 12, 1024))), ["attend on sm_80 spills 12 bytes of registers"])

    def test_generic_loads_are_a_fault_where_tensor_cores_are_used(self):
        bad = SASS.replace("LDSM.16.M88.4 R8, [R12]", "LD.E R8, [R12.64]")
        self.assertEqual(compiled.faults(self.kernel(text=bad)), ["attend on sm_80 has 1 generic loads and stores"])
        self.assertEqual(compiled.faults(self.kernel(text=bad.replace("HMMA.16816.F32.BF16", "FFMA"))), [])

    def test_a_kernel_that_no_run_launches_is_named(self):
        self.assertEqual(compiled.uncounted(["add<4>", "add<1>", "scale"], {"add<1>", "scale"}), [])
        self.assertEqual(compiled.uncounted(["add<4>", "scale<float>", "scale<int>"], {"add"}), ["scale"])

    def test_a_kernel_that_was_counted_and_not_compiled_is_named(self):
        self.assertEqual(compiled.find_kernel(self.kernel(), "attend<64>").name, "attend")
        with self.assertRaisesRegex(SystemExit, "unheard_of"):
            compiled.find_kernel(self.kernel(), "unheard_of<1>")

    def test_occupancy(self):  # as NVIDIA's calculator has it
        self.assertEqual(hardware.occupancy("80", 32, 0, 256), (8, "registers"))
        self.assertEqual(hardware.occupancy("80", 40, 0, 256), (6, "registers"))
        self.assertEqual(hardware.occupancy("80", 32, 48 << 10, 128), (3, "shared memory"))


def work(name="attend", **sums):
    """Of a kernel of 128 threads with 8 slots of issue for each tensor cycle, unless told otherwise."""
    count = counts.Count(name)
    count.threads = 128
    for key, value in sums.items():
        setattr(count, key, value)
    kernel = compiled.Kernel(name, "")
    kernel.said = {"80": (32, 0, 0), "90": (32, 0, 0)}
    return step_model.Work(count, kernel, ())


class ModelTest(unittest.TestCase):
    def test_memory_bounds_what_only_streams(self):
        copy = work(moved=2.039e12 * 0.88, launches=1, blocks=10000)
        copy.units = {"80": {"issue": 1.0, "tensor": 0.0}}
        limit, seconds = step_model.lowest_bound(copy, "A100")
        self.assertEqual(limit, "memory")
        self.assertAlmostEqual(seconds, 1 + hardware.LAUNCH_SECONDS)

    def test_the_busiest_unit_bounds_what_computes(self):
        quarters = 4 * 108 * 1.41e9
        busy = work(moved=1e6, launches=1, blocks=108 * 16)
        busy.units = {"80": {"issue": 0.85 * quarters, "tensor": 0.3 * quarters}}
        limit, seconds = step_model.lowest_bound(busy, "A100")
        self.assertEqual(limit, "issue")
        self.assertAlmostEqual(seconds, 1, places=3)
        self.assertAlmostEqual(step_model.tensor_share([busy], "80")[0], 0.3 / 0.85)

    def test_what_tensor_cores_alone_would_take(self):
        one = work(moved=1e3, launches=2, blocks=108 * 16)
        one.units = {"80": {"issue": 9e9, "tensor": 3e9}}
        issue, tensor = step_model.seconds_of([one], "A100"), step_model.tensor_seconds([one], "A100")
        self.assertAlmostEqual((issue - 2 * hardware.LAUNCH_SECONDS) / (tensor - 2 * hardware.LAUNCH_SECONDS), 3)

    def test_few_blocks_leave_multiprocessors_idle(self):
        one = work(launches=1, blocks=54)
        one.units = {"80": {"issue": 1e9}}
        full = work(launches=1, blocks=108)
        full.units = {"80": {"issue": 1e9}}
        self.assertAlmostEqual(step_model.bounds(one, "A100")["issue"], 2 * step_model.bounds(full, "A100")["issue"])

    def test_lengths_are_extrapolated(self):
        short, long = [work(moved=512 + 2 * 512 ** 2)], [work(moved=1024 + 2 * 1024 ** 2)]
        self.assertAlmostEqual(step_model.extrapolate(short, long, (512, 1024), 4096, True)[0].sums["moved"], 4096 + 2 * 4096 ** 2)
        short, long = [work(moved=7 + 3 * 1024)], [work(moved=7 + 3 * 2048)]
        self.assertAlmostEqual(step_model.extrapolate(short, long, (1024, 2048), 4096, False)[0].sums["moved"], 7 + 3 * 4096)

    def test_the_model_is_extrapolated_in_layers_and_tokens(self):
        runs = {(L, T): {"k": work(moved=5 + 2 * L + 3 * T + 7 * L * T, launches=1 + 2 * L)} for L in (1, 2) for T in (256, 512)}
        for found in runs.values():
            found["k"].moved, found["k"].launches, found["k"].bf16 = (found["k"].sums[key] for key in ("moved", "launches", "bf16"))
        launches, moved, _ = step_model.rest_of_step(runs, (256, 512), ())["k"]
        self.assertEqual((launches, moved), (25, 5 + 24 + 3 * 65536 + 7 * 12 * 65536))

    def test_a_broken_budget_is_named(self):
        rows = [("bytes of slay", "at most 1.2 MB", "9.4 MB", False, True), ("speed", "2x", "1x", False, False), ("launches", "12", "3", True, True)]
        self.assertEqual(report.broken(rows), ["bytes of slay: 9.4 MB, allowed at most 1.2 MB"])


class CountsTest(unittest.TestCase):
    def test_a_table_is_read(self):
        program = counts.Program("nothing", ".")
        program.symbols = {64: "attend<64>"}
        program.places = {100: ((FILE, 20),), 101: ((FILE, 20),), 102: ()}
        lines = ["attend<W>\t64\t128\t5120\t2\t6\t10\t20\t30\t40\t50\t60\t4096\t0\t0\n", "\t100\t512\n", "\t101\t512\n", "\t102\t7\n",
                 "cublasLtMatmul\t0\t0\t0\t3\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\n"]
        found = program.read(lines)
        attend = found["attend<64>"]
        self.assertEqual((attend.launches, attend.blocks, attend.warps, attend.dynamic), (2, 6, 24, 5120))
        self.assertEqual((attend.moved, attend.requested, attend.shared, attend.multiply_adds()), (30, 70, 110, 2048))
        self.assertEqual(attend.bytes_at, {((FILE, 20),): 1024})
        self.assertTrue(found["cublasLtMatmul"].is_library())


if __name__ == "__main__":
    unittest.main()
