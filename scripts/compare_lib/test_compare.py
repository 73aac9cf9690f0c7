"""Tests of statistics, settings, runs and the report; scripts/test_compare.sh runs them."""
import io
import json
import math
import os
import random
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from compare_lib import (kept, live, made_up_runs, measure, page, paper, results, runs, settings, speed, state,  # noqa: E402
                         statistics, sweep, training)

# From scipy.stats.ttest_ind(a, b, equal_var=False): statistic, degrees of freedom, p.
WELCH = [
    ([1.0, 2.0, 3.0], [2.0, 4.0, 9.0, 7.5], -2.1321224040720423, 3.737789463039742, 0.104795423528222),
    ([0.611, 0.623], [0.702, 0.699], -13.501149793689176, 1.1245136186770428, 0.03502472875184511),
    ([5.0, 5.001, 4.999, 5.002], [5.003, 5.004], -3.6742346141755147, 3.692307692309017, 0.024495455963828478),
    ([1, 2], [1.5, 1.6, 1.4], 0.0, 1.026753177495334, 1.0),
    ([10.1, 9.7, 10.3, 9.9, 10.0], [12.2, 18.0, 3.1], -0.25360616688269916, 2.0021275649290153, 0.8234667396265609),
]
# From scipy.special.betainc.
BETA = [(0.5, 0.5, 0.3, 0.36901011956554536), (2, 3, 0.4, 0.5248), (50, 0.5, 0.99, 0.3173043978741973),
        (0.5, 50, 0.001, 0.24763098003462314), (1000.0, 1000.0, 0.5, 0.5), (1.5, 0.5, 1e-09, 1.3421123231889542e-14)]


class Statistics(unittest.TestCase):
    def test_welch_against_scipy(self):
        for a, b, t, degrees, p in WELCH:
            found = statistics.welch(a, b)
            for name, expected in (("t", t), ("degrees", degrees), ("p", p)):
                self.assertTrue(math.isclose(found[name], expected, rel_tol=1e-9, abs_tol=1e-12), (name, found, expected))

    def test_paired(self):
        """Of three differences d the probability is 1 - t / sqrt(t^2 + 2), which can be written down."""
        a, b = [1.0, 2.0, 4.0], [0.5, 1.8, 3.1]
        found, t = statistics.paired(a, b), (1.6 / 3) / math.sqrt((0.25 + 0.04 + 0.81 - 1.6 ** 2 / 3) / 2 / 3)
        self.assertTrue(math.isclose(found["t"], t, rel_tol=1e-9) and found["degrees"] == 2, (found, t))
        self.assertTrue(math.isclose(found["p"], 1 - t / math.sqrt(t * t + 2), rel_tol=1e-9), found)
        self.assertEqual(statistics.paired([1.0, 2.0], [0.5, 1.5])["p"], 0.0)
        self.assertIsNone(statistics.paired([1.0], [2.0]))

    def test_the_paired_test_decides_over_shared_seeds(self):
        """Seeds that move both samples alike hide a difference from Welch's test, not from the pairs."""
        first, second = {"1": 1.0, "2": 2.0, "3": 3.0, "9": 50.0}, {"3": 3.1, "1": 1.1, "2": 2.11}
        found = statistics.compare(first, second)
        self.assertEqual(found["test"], "paired")
        self.assertAlmostEqual(found["difference"], -0.31 / 3)
        self.assertTrue(found["p"] == found["paired_p"] < 0.01 < 0.3 < found["welch_p"], found)
        apart = statistics.compare({"1": 1.0, "2": 1.1}, {"3": 2.0, "4": 2.1})
        self.assertEqual((apart["test"], apart["paired_p"], apart["p"]), ("Welch", None, apart["welch_p"]))
        single = statistics.compare({"1": 1.0}, {"1": 2.0})
        self.assertEqual((single["test"], single["p"], single["difference"]), (None, None, -1.0))

    def test_incomplete_beta_against_scipy(self):
        for a, b, x, expected in BETA:
            self.assertTrue(math.isclose(statistics.incomplete_beta(a, b, x), expected, rel_tol=1e-10))
        self.assertEqual((statistics.incomplete_beta(2, 3, 0), statistics.incomplete_beta(2, 3, 1)), (0.0, 1.0))

    def test_one_value_has_no_error_and_no_test(self):
        self.assertIsNone(statistics.standard_error([1.0]))
        self.assertIsNone(statistics.welch([1.0], [1.0, 2.0]))

    def test_no_spread(self):
        self.assertEqual(statistics.welch([1.0, 1.0], [2.0, 2.0])["p"], 0.0)
        self.assertEqual(statistics.welch([1.0, 1.0], [1.0, 1.0])["p"], 1.0)

    def test_holm(self):
        found = statistics.holm([0.01, None, 0.04, 0.03])
        self.assertIsNone(found[1])
        for value, expected in zip([found[0], found[2], found[3]], [0.03, 0.06, 0.06]):
            self.assertAlmostEqual(value, expected)

    def test_median_and_error(self):
        self.assertEqual(statistics.median([3, 1, 2, 10]), 2.5)
        self.assertAlmostEqual(statistics.standard_error([1.0, 2.0, 3.0]), 1 / math.sqrt(3))


class Settings(unittest.TestCase):
    def test_attentions(self):
        found = settings.split_attentions(["softmax,slay:poly=exact,R=2", "slay:M=8", "elu"])
        self.assertEqual(found, ["softmax", "slay:poly=exact,R=2", "slay:M=8", "elu"])
        self.assertEqual(settings.parse_attention(found[1]), ("slay", {"poly": "exact", "R": "2"}))
        self.assertEqual(settings.run_name(found[1], 3), "slay_poly-exact_R-2_seed3")

    def test_refused(self):
        for function, bad in ((settings.split_attentions, ["softmax", "softmax"]), (settings.split_attentions, ["slay:R"]),
                              (settings.split_attentions, ["../x"]), (settings.split_attentions, ["slay:R=2,R=3"]),
                              (settings.split_attentions, ["slay:eps=$(x)"]), (settings.split_attentions, [""]),
                              (settings.parse_budget, "600"), (settings.parse_budget, "0steps"), (settings.parse_budget, "-3s"),
                              (settings.parse_budget, "nantokens"), (settings.parse_seeds, "0"), (settings.parse_seeds, "1,1"),
                              (settings.parse_seeds, "x"), (settings.parse_seeds, "5000"), (settings.parse_model, "huge"),
                              (settings.parse_model, "layers=x"), (settings.parse_model, "tiny,batch=3"),
                              (settings.check_own_options, ["--seed", "3"]), (settings.check_own_options, ["--steps=3"]),
                              (settings.check_own_options, ["-x", "3"]), (settings.parse_jobs, "0")):
            with self.assertRaises(settings.BadInput, msg=str(bad)):
                function(bad)

    def test_budgets(self):
        for text, expected in (("600steps", ("steps", 600)), ("2Mtokens", ("tokens", 2e6)), ("1.5ktokens", ("tokens", 1500)),
                               ("90s", ("seconds", 90)), ("5min", ("seconds", 300)), ("2h", ("seconds", 7200)),
                               ("120seconds", ("seconds", 120)), ("1step", ("steps", 1))):
            self.assertEqual(settings.parse_budget(text), expected)

    def test_seeds(self):
        self.assertEqual(settings.parse_seeds("3"), [1, 2, 3])
        self.assertEqual(settings.parse_seeds("7,9"), [7, 9])
        self.assertEqual(settings.parse_seeds("7,"), [7])

    def test_steps_of_a_token_budget(self):
        plan = {**settings.DEFAULTS, "budget": "1Mtokens"}
        self.assertEqual(settings.planned_steps(plan), math.ceil(1e6 / (8 * 256)))
        self.assertEqual(settings.planned_steps({**plan, "options": ["--batch", "16"]}), math.ceil(1e6 / (16 * 256)))
        self.assertEqual(settings.planned_steps({**plan, "model": "gpt2"}), math.ceil(1e6 / (8 * 1024)))
        self.assertIsNone(settings.planned_steps({**plan, "budget": "60s"}))

    def test_runs_differ_in_attention_and_seed_alone(self):
        commands = [settings.train_command(settings.DEFAULTS, ["--train", "x"], entry, 1, "OUT", 1, 75)
                    for entry in ("softmax", "slay")]
        different = [pair for pair in zip(*commands) if pair[0] != pair[1]]
        self.assertEqual((len(commands[0]), different), (len(commands[1]), [("softmax", "slay")]))

    def test_the_recipe_is_the_quick_starts(self):
        with open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "recipe.txt"), encoding="utf-8") as file:
            words = [word for line in file if not line.startswith("#") for word in line.split()]
        plan = {**settings.DEFAULTS, "budget": "200s"}
        command = settings.train_command(plan, ["--train", "x"], "softmax", 1, "OUT", 1, 75)
        for pair in zip(words[::2], words[1::2]):
            self.assertIn(pair, list(zip(command, command[1:])))

    def test_other_settings_are_refused(self):
        stored = {**settings.DEFAULTS, "attentions": ["softmax", "elu"]}
        for asked in ({"budget": "601steps"}, {"attentions": ["softmax"]}, {"model": "tiny"}, {"options": ["--lr", "1"]}):
            with self.assertRaises(settings.BadInput):
                settings.merge_settings(asked, stored)
        more = settings.merge_settings({"attentions": ["slay", "elu", "softmax"], "seeds": [1, 2, 3]}, stored)
        self.assertEqual((more["attentions"], more["seeds"]), (["softmax", "elu", "slay"], [1, 2, 3]))

    def test_rounds_of_a_time_budget_are_full(self):
        self.assertEqual([training.equal_rounds(2, 16), training.equal_rounds(2, 21), training.equal_rounds(4, 6)], [2, 1, 3])


class Directory(unittest.TestCase):
    """Tests that write runs into a directory of their own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def make(self, name, attention="softmax", seed=1, level=0.6, **more):
        return made_up_runs.write_run(self.path(name), attention, seed, level, **more)

    def spoil(self, name, change):
        """Changes the text of a good run's metrics."""
        metrics = os.path.join(self.make(name), "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            text = file.read()
        with open(metrics, "wb") as file:
            changed = change(text)
            file.write(changed if isinstance(changed, bytes) else changed.encode())
        return self.path(name)


class Kept(Directory):
    """The small file of a run."""

    def test_it_shows_what_the_run_showed(self):
        run = runs.load_run(self.make("run", "slay", 3, 0.7))
        kept.write_run(self.path("kept.jsonl"), self.path("run"), made_up_runs.measures(0.7))
        small = kept.load(self.path("kept.jsonl"))
        self.assertTrue(small.finished)
        self.assertEqual((small.final, small.seed, small.attention), (run.final, 3, {"name": "slay"}))
        self.assertEqual(small.measures["hits"], 0.7 - 0.3)
        self.assertEqual((small.last_step, len(small.steps)), (400, kept.PARTS))
        self.assertAlmostEqual(statistics.mean([step["loss"] for step in small.steps]),
                               statistics.mean([step["loss"] for step in run.steps]), places=5)
        self.assertLess(os.path.getsize(self.path("kept.jsonl")), os.path.getsize(self.path("run/metrics.jsonl")) / 4)

    def test_one_that_lost_its_last_line(self):
        self.make("run", lines=made_up_runs.step_lines(400, 0.7, random.Random(1), 100.0))
        os.mkdir(self.path("run/step_00000400"))
        with open(self.path("run/step_00000400/state.json"), "w", encoding="utf-8") as file:
            json.dump({"options": {"steps": 400}}, file)
        kept.write_run(self.path("kept.jsonl"), self.path("run"), {})
        self.assertTrue(kept.load(self.path("kept.jsonl")).finished)

    def test_one_that_diverged(self):
        self.make("run", lines=[])
        kept.write_failed(self.path("kept.jsonl"), self.path("run"), "the loss is not finite")
        self.assertEqual(kept.load(self.path("kept.jsonl")).failed, "the loss is not finite")

    def test_nothing_and_damage(self):
        self.assertIsNone(kept.load(self.path("none.jsonl")))
        with open(self.path("bad.jsonl"), "w", encoding="utf-8") as file:
            file.write("{")
        self.assertIsNone(kept.load(self.path("bad.jsonl")))


class Sweep(unittest.TestCase):
    """Which rate is next, and which is taken."""

    @staticmethod
    def choice(known):
        return sweep.Choice(["1e-3", "3e-3", "1e-2"], lambda rate: (rate in known, known.get(rate)))

    def test_all_first(self):
        self.assertEqual((self.choice({"3e-3": 1.0}).missing, self.choice({"3e-3": 1.0}).best), (["1e-3", "1e-2"], None))

    def test_the_middle_is_taken(self):
        found = self.choice({"1e-3": 2.0, "3e-3": 1.0, "1e-2": 1.5})
        self.assertEqual((found.missing, found.best, found.at_the_end), ([], "3e-3", False))

    def test_at_an_end_it_goes_on_twice(self):
        found = {"1e-3": 1.0, "3e-3": 1.1, "1e-2": None}
        self.assertEqual(self.choice(found).missing, ["3e-4"])
        found["3e-4"] = 0.9
        self.assertEqual(self.choice(found).missing, ["1e-4"])
        found["1e-4"] = 0.8
        self.assertEqual((self.choice(found).best, self.choice(found).at_the_end), ("1e-4", True))

    def test_settings(self):
        asked = {**settings.DEFAULTS, "rates": ["1e-3", "3e-3", "1e-2"], "seeds": [1, 2]}
        self.assertEqual({key: settings.settle_sweep(asked)[key] for key in ("sweep_budget", "sweep_seed")},
                         {"sweep_budget": "500steps", "sweep_seed": 3})
        for bad in ({"rates": []}, {"sweep_seed": 2}, {"options": ["--lr", "1e-3"]}, {"budget": "60s", "sweep_budget": None}):
            with self.assertRaises(settings.BadInput, msg=str(bad)):
                settings.settle_sweep({**asked, "sweep_budget": "9steps", **bad})
        for bad in ("1e-3", "1e-3,3e-3", "1e-3,1e-2,3e-2", "a,b,c", "1e-2,3e-3,1e-3"):
            with self.assertRaises(settings.BadInput, msg=bad):
                settings.parse_rates(bad)

    def test_a_rate_of_its_own_comes_last(self):
        command = settings.train_command(settings.DEFAULTS, ["--train", "x"], "elu", 1, "OUT", 1, 75, "1e-2")
        rates = [value for name, value in zip(command, command[1:]) if name == "--lr"]
        self.assertEqual(rates[-1], "1e-2")
        self.assertEqual(settings.run_name("elu", 1, "1e-2"), "elu_lr-1e-2_seed1")


class State(Directory):
    """What decoding keeps, by the configuration that the trainer wrote."""

    def of(self, attention):
        return state.of_run(runs.load_run(self.make("run", attention)))  # 2 heads of 64, context 256

    def test_widths(self):
        slay = {"name": "slay", "poly": "anchor", "fusion": "tensor", "R": 3, "M": 16, "P": 8}
        for attention, expected in (({"name": "softmax"}, (None, 2 * 64 * 256)), ({"name": "softmax", "window": 32}, (None, 2 * 64 * 32)),
                                    (slay, (384, 384 * 65)), ({**slay, "poly": "none"}, (48, 48 * 65)),
                                    ({**slay, "poly": "exact"}, (None, 2 * 64 * 256)), ({"name": "elu"}, (64, 64 * 65)),
                                    ({"name": "favor", "M": 64}, (64, 64 * 65)), ({"name": "uniform"}, (1, 65)),
                                    ({"name": "slay"}, (None, None))):
            self.assertEqual(self.of(attention), expected, attention)
        hybrid = [{**slay, "layers": 3}, {"name": "softmax", "window": 64, "layers": 1}]
        self.assertEqual(self.of_list(hybrid), (None, round((3 * 384 * 65 + 2 * 64 * 64) / 4)))

    def of_list(self, attention):
        path = self.make("list")
        metrics = os.path.join(path, "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            first, rest = file.read().split("\n", 1)
        with open(metrics, "w", encoding="utf-8") as file:
            file.write(json.dumps({**json.loads(first), "attention": attention}) + "\n" + rest)
        return state.of_run(runs.load_run(path))


class BadRuns(Directory):
    def reason(self, path):
        good = self.make("good")
        selection = runs.select([good, path])
        self.assertEqual([run.path for run in selection.runs], [good])
        return dict(selection.left_out)[path]

    def check(self, name, change, expected):
        self.assertIn(expected, self.reason(self.spoil(name, change)))

    def test_truncated_last_line(self):
        self.check("cut", lambda text: text[:-30], "unfinished: it ends at step 400")

    def test_garbage_line(self):
        self.check("garbage", lambda text: text.replace('{"type": "step", "step": 7,', "\x00\x01garbage", 1), "line 8: expected a JSON")

    def test_binary(self):
        self.check("binary", lambda text: os.urandom(4096), "damaged")

    def test_empty(self):
        self.check("empty", lambda text: "", "empty")

    def test_no_configuration(self):
        self.check("headless", lambda text: text.split("\n", 1)[1], "not the configuration")

    def test_configuration_without_attention(self):
        self.check("nameless", lambda text: text.replace('"attention": {"name": "softmax"}', '"attention": 3', 1), '"attention"')

    def test_nan_and_infinity(self):
        for number, value in enumerate(("NaN", "Infinity", "1e999", '"text"', "true", "null", "-1", "[]")):
            change = lambda text: re.sub(r'("step": 9, "tokens": \d+, "loss": )[0-9.]+', r"\g<1>" + value, text, count=1)  # noqa: E731
            self.check(f"number{number}", change, 'expected a finite number "loss"')

    def test_steps_backwards(self):
        self.check("back", lambda text: text.replace('"step": 9,', '"step": 3,', 1), "backwards")

    def test_deep_nesting(self):
        self.check("deep", lambda text: text + "[" * 100000 + "\n", "expected a JSON object")

    def test_missing(self):
        self.assertIn("no such directory", self.reason(self.path("nothing")))
        os.mkdir(self.path("bare"))
        self.assertIn("metrics.jsonl is missing", self.reason(self.path("bare")))

    def test_metrics_is_a_directory(self):
        os.makedirs(self.path("folder/metrics.jsonl"))
        self.assertIn("missing", self.reason(self.path("folder")))

    def test_unfinished(self):
        self.check("half", lambda text: "\n".join(text.split("\n")[:101]) + "\n", "unfinished: it ends at step")

    def test_other_corpus(self):
        self.make("first", seed=2)
        other = self.make("other", seed=3, train="data/other/b_train.bin")
        selection = runs.select([self.path("first"), self.make("good"), other])
        self.assertIn("another corpus", dict(selection.left_out)[other])

    def test_same_run_twice(self):
        self.assertIn("the same attention, seed and options", self.reason(self.make("again")))


class Comparisons(Directory):
    def build(self, paths, **more):
        source = page.Source()
        for path in paths:
            page.add_path(source, path)
        return page.build(source, **more)

    def test_groups_are_seeds(self):
        paths = [self.make(f"{name}{seed}", name, seed, level) for name, level in (("softmax", 0.6), ("elu", 0.8)) for seed in (1, 2)]
        rows = {row["label"]: row for row in self.build(paths).summary["rows"]}
        self.assertEqual({label: row["loss"]["n"] for label, row in rows.items()}, {"softmax": 2, "elu": 2})
        self.assertEqual(rows["softmax"]["verdict"], "reference")
        self.assertEqual(rows["elu"]["verdict"], "worse")
        self.assertEqual(rows["elu"]["peak_memory_mb"], 72.5)

    def test_seeds_are_paired(self):
        """Three seeds that differ by more than the attentions do."""
        levels = {("softmax", 1): 0.5, ("softmax", 2): 0.9, ("softmax", 3): 1.4, ("elu", 1): 0.6, ("elu", 2): 1.0, ("elu", 3): 1.5}
        paths = [self.make(f"{name}{seed}", name, seed, level) for (name, seed), level in levels.items()]
        report = self.build(paths)
        found = next(row for row in report.summary["rows"] if row["label"] == "elu")
        self.assertTrue(found["against_softmax"]["paired_p"] < 0.05 < found["against_softmax"]["welch_p"], found["against_softmax"])
        self.assertEqual(found["verdict"], "worse")
        self.assertTrue(report.summary["findings"][0].startswith("Best: softmax"), report.summary["findings"][0])

    def test_the_headline_calls_no_winner_without_the_test(self):
        cases = {"n = 1": [("softmax", 1, 0.5), ("elu", 1, 0.9)],
                 "noise": [("softmax", 1, 0.5), ("softmax", 2, 0.9), ("softmax", 3, 0.6), ("elu", 1, 0.9), ("elu", 2, 0.55), ("elu", 3, 0.7)],
                 "two alike": [(name, seed, level + 0.1 * seed + 0.002 * (name == "elu") * (seed - 2)) for name, level in
                               (("softmax", 0.5), ("elu", 0.5), ("uniform", 2.0)) for seed in (1, 2, 3)]}
        for case, made in cases.items():
            words = self.build([self.make(f"{case}{name}{seed}", name, seed, level) for name, seed, level in made]).summary["findings"][0]
            self.assertTrue(words.startswith("Lowest mean loss, but no winner: ") and "Best" not in words, (case, words))
        self.assertNotIn("uniform", words)

    def test_no_empty_columns(self):
        plain = results.markdown(self.build([self.make("a"), self.make("b", "elu", 1, 0.8)]).summary)
        for name in ("recall hits", "the rest", "rate", "decode 1K", "paired p", "Welch p"):
            self.assertNotIn(f"| {name} |", plain)
        for text in ("Recall hits", "Decode:", "Rate:"):
            self.assertNotIn(text, plain)
        made_up_runs.write_comparison(self.path("cmp"))
        report = page.load_comparison(self.path("cmp"))
        full = results.markdown(report.summary)
        for name in ("recall hits", "the rest", "rate", "decode 1K", "paired p", "Welch p"):
            self.assertIn(f"| {name} |", full)
        for column in results.columns_of(report.summary["rows"]):
            self.assertTrue(any(column.cell(row) != "–" for row in report.summary["rows"]), column.name)

    def test_hits_positions_and_rates(self):
        made_up_runs.write_comparison(self.path("cmp"))
        report = page.load_comparison(self.path("cmp"))
        row = next(row for row in report.summary["rows"] if row["label"] == "elu")
        self.assertAlmostEqual(row["hits"]["mean"], 0.8 + 0.002 - 0.3)
        self.assertAlmostEqual(row["rest"]["mean"], 0.8 + 0.002 + 0.1)
        series = next(each for each in report.data["series"] if each["label"] == "elu")
        self.assertEqual([bucket[:2] for bucket in series["longer"]], [[0, 15], [16, 31], [32, 63], [64, 127]])
        for found, expected in zip(series["positions"][2][2:], (0.802, 0.801, 0.803)):
            self.assertAlmostEqual(found, expected)
        self.assertEqual(results.rate_table([row]), (["attention", "1e-3", "3e-3", "1e-2"], [["elu", "1.0000", "0.8000 ←", "diverged"]]))
        self.assertTrue(any("25 % of the validation targets" in note for note in report.summary["notes"]))

    def test_rates_that_were_chosen_are_not_unequal_options(self):
        for path, rates in (("swept", ["1e-3"]), ("one", [])):
            plan = {"jobs": 1, "threads": 1, "rates": rates, "runs": {}}
            for name, rate in (("softmax", 1e-3), ("elu", 1e-2)):
                self.make(f"{path}/{name}", name, lr=rate)
                plan["runs"][name] = {"attention": name}
            with open(self.path(f"{path}/compare.json"), "w", encoding="utf-8") as file:
                json.dump(plan, file)
        notes = [page.load_comparison(self.path(path)).summary["notes"] for path in ("swept", "one")]
        self.assertEqual([any("lr is" in note for note in each) for each in notes], [False, True])

    def test_one_seed_is_said(self):
        report = self.build([self.make("a"), self.make("b", "elu", 1, 0.8)])
        self.assertEqual(report.summary["rows"][1]["verdict"], "n < 2")
        self.assertTrue(any(note.startswith("n = 1") for note in report.summary["notes"]))

    def test_different_options_are_not_seeds(self):
        report = self.build([self.make("a"), self.make("b", seed=2, lr=0.1)])
        self.assertEqual(sorted(row["label"] for row in report.summary["rows"]), ["softmax:lr=0.003", "softmax:lr=0.1"])
        self.assertTrue(any("Not all else is equal: lr" in note for note in report.summary["notes"]))

    def test_different_vocabularies_in_bits_per_byte_only(self):
        report = self.build([self.make("a"), made_up_runs.write_other_vocabulary(self.path("b"), "elu", 1, 0.8)])
        self.assertEqual(report.summary["metric"], "bits_per_byte")
        self.assertTrue(any("different vocabularies" in note for note in report.summary["notes"]))
        for row in report.summary["rows"]:
            self.assertIsNone(row["perplexity"])
            self.assertIsNone(row["loss"]["mean"])
        self.assertEqual(report.data["series"][0]["training"], [])

    def test_another_text_under_another_vocabulary(self):
        selection = runs.select([self.make("a"), self.make("b", seed=2),
                                 self.make("c", "elu", 1, vocab=4096, lines=self.shorter_text())])
        self.assertIn("another corpus", dict(selection.left_out)[self.path("c")])

    @staticmethod
    def shorter_text():
        return [{"type": "step", "step": 1, "tokens": 9, "loss": 1.0, "tokens_per_second": 1.0, "seconds": 1.0},
                {"type": "validation", "step": 1, "loss": 1.0, "bits_per_byte": 0.4, "tokens": 1000},
                {"type": "done", "step": 1, "seconds": 1.0, "peak_memory_mb": 1.0}]

    def test_gap_closed(self):
        paths = [self.make(name, name, 1, level) for name, level in (("softmax", 0.5), ("elu", 0.75), ("uniform", 1.0))]
        rows = {row["label"]: row["gap_closed"] for row in self.build(paths).summary["rows"]}
        self.assertEqual((rows["softmax"], rows["uniform"]), (1.0, 0.0))
        self.assertAlmostEqual(rows["elu"], 0.5, delta=0.05)

    def test_the_difference_to_softmax_is_of_the_same_seed(self):
        paths = [self.make(f"{name}{seed}", name, seed, level) for name, seed, level in
                 (("softmax", 1, 0.5), ("softmax", 2, 0.7), ("elu", 1, 0.8), ("elu", 2, 1.0), ("elu", 3, 9.0))]
        series = {each["label"]: each["difference"] for each in self.build(paths).data["series"]}
        self.assertEqual([point[2:] for point in series["softmax"]], [[0, 0, 0]] * 8)
        for point in series["elu"]:
            self.assertTrue(0.27 < point[3] <= point[2] <= point[4] < 0.33, point)
        self.assertEqual(self.build(paths[3:]).data["series"][0]["difference"], [])

    def test_under_a_time_budget_steps_are_not_compared(self):
        paths = [self.make(name, name, seconds=60.0) for name in ("softmax", "elu")]
        self.assertEqual([each["difference"] for each in self.build(paths).data["series"]], [[], []])

    def test_runs_that_did_not_begin_are_one_line(self):
        made_up_runs.write_comparison(self.path("cmp"), seeds=(1,))
        for name in ("elu_seed1", "yat_seed1"):
            os.rename(os.path.join(self.path("cmp"), name), self.path(name))
        left_out = page.load_comparison(self.path("cmp")).summary["left_out"]
        self.assertEqual(left_out, [(self.path("cmp"), "not begun yet: yat_seed1, elu_seed1")])

    def test_unfinished_runs_only_when_watched(self):
        path = self.spoil("live", lambda text: "\n".join(text.split("\n")[:201]) + "\n")
        self.assertEqual(self.build([path]).summary["rows"], [])
        watched = self.build([path], with_unfinished=True)
        self.assertEqual(len(watched.summary["rows"]), 1)
        self.assertTrue(any("Still training" in note for note in watched.summary["notes"]))

    def test_results_are_json_and_markdown(self):
        made_up_runs.write_comparison(self.path("cmp"), seeds=(1, 2))
        report = page.load_comparison(self.path("cmp"))
        self.assertEqual(len(json.loads(results.dump(report.summary))["rows"]), 10)
        self.assertEqual(results.markdown(report.summary).count("\n| "), 11 + 11 + 8)  # results, rates, beside the paper

    def test_crossover(self):
        rows = made_up_runs.scaling_rows()
        self.assertTrue(500 < measure.crossover(rows, "slay") < 1000)
        self.assertIsNone(measure.crossover(rows, "yat"))

    def test_scaling_files(self):
        rows = made_up_runs.scaling_rows()
        names = ["attention", "T", "forward_ms", "backward_ms", "peak_mb"]
        forms = {"list": json.dumps(rows), "object": json.dumps({"rows": rows}), "lines": "\n".join(map(json.dumps, rows)),
                 "tsv": "\n".join(["\t".join(names)] + ["\t".join(str(row[name]) for name in names) for row in rows])}
        for name, text in forms.items():
            with open(self.path(name), "w", encoding="utf-8") as file:
                file.write(text)
            self.assertEqual(measure.read_scaling(self.path(name)), rows, name)
        with open(self.path("bench"), "w", encoding="utf-8") as file:
            file.write("softmax\t128\t1.0\t3.0\t10.0\t20.0\nsoftmax\t256\t4.0\t-\t11.0\t-\n")
        self.assertEqual([(row["backward_ms"], row["peak_mb"]) for row in measure.read_scaling(self.path("bench"))],
                         [(None, 10.0), (None, 11.0)])
        with open(self.path("bad"), "w", encoding="utf-8") as file:
            file.write('[{"attention": "x", "T": NaN, "forward_ms": 1}]')
        self.assertRaises(ValueError, measure.read_scaling, self.path("bad"))


class Paper(unittest.TestCase):
    """The paper's order beside the one found."""

    @staticmethod
    def rows(levels, spread=0.001):
        """Seeds that do not go up and down together: pairs show no more than the means do."""
        noise = {label: random.Random(label) for label in levels}
        return [{"label": label, "loss": {"seeds": ["1", "2", "3"], "values": [level + noise[label].gauss(0, spread) for _ in range(3)]}}
                for label, level in levels.items()]

    def test_the_same_order_and_the_opposite(self):
        found = paper.compare(self.rows(paper.LOSSES), "loss")
        self.assertEqual((found["rank_correlation"], found["pairs"]), (1.0, {"same": 21, "opposite": 0, "undecided": 0}))
        found = paper.compare(self.rows({label: -loss for label, loss in paper.LOSSES.items()}), "loss")
        self.assertEqual((found["rank_correlation"], found["pairs"]), (-1.0, {"same": 0, "opposite": 21, "undecided": 0}))

    def test_an_exchange_and_noise(self):
        found = paper.compare(self.rows({"softmax": 1.0, "yat": 2.0, "slay": 3.0, "slay:R=2": 0.0, "uniform": 9.0}), "loss")
        self.assertAlmostEqual(found["rank_correlation"], 0.5)  # scipy.stats.spearmanr([1, 2, 3], [2, 1, 3])
        self.assertEqual(found["pairs"], {"same": 2, "opposite": 1, "undecided": 0})
        self.assertEqual([each["label"] for each in found["attentions"]], ["yat", "softmax", "slay"])
        self.assertEqual(paper.compare(self.rows(paper.LOSSES, 50.0), "loss")["pairs"]["undecided"], 21)

    def test_too_few_or_one_seed(self):
        self.assertIsNone(paper.compare(self.rows({"softmax": 1.0, "yat": 2.0}), "loss"))
        single = [{"label": label, "loss": {"seeds": ["1"], "values": [loss]}} for label, loss in paper.LOSSES.items()]
        self.assertEqual(paper.compare(single, "loss")["pairs"], {"same": 0, "opposite": 0, "undecided": 21})


class Terminal(io.StringIO):
    def isatty(self):
        return True


class LiveTable(Directory):
    """What is seen while runs are trained."""

    def training_of(self, states):
        jobs = []
        for number, (state, steps) in enumerate(states):
            job = training.Job("elu", number + 1, self.path(f"run{number}"), [])
            os.mkdir(job.directory)
            with open(job.metrics.path, "w", encoding="utf-8") as file:
                for step in range(1, steps + 1):
                    file.write(json.dumps({"type": "step", "step": step, "ms": 100.0, "loss": 2.5, "seconds": 0.1 * step}) + "\n")
                file.write(json.dumps({"type": "validation", "step": steps, "loss": 1.25}) + "\n" if state == training.DONE else "{")
            job.state = state
            job.metrics.read()
            jobs.append(job)
        return training.Training(jobs, 2, 1, False, None)

    def test_remaining_time(self):
        found = self.training_of([(training.DONE, 100), (training.RUNNING, 60), (training.WAITING, 0)])
        self.assertAlmostEqual(live.Live(100, None).remaining(found), 1.1 * 0.1 * (40 + 100) / 2)
        self.assertAlmostEqual(live.Live(None, 10.0).remaining(found), (10 - 6 + 10) / 2)
        self.assertIsNone(live.Live(100, None).remaining(training.Training([], 2, 1, False, None)))

    def test_a_table_in_place_on_a_terminal(self):
        found, out = self.training_of([(training.DONE, 100), (training.RUNNING, 60), (training.FAILED, 3)]), Terminal()
        show = live.Live(100, None, out)
        show(found, last=True)
        for part in ("seed 1", "1.2500  done", "60/100  loss 2.500", "failed", "1 of 3 runs done, 1 failed, 1 running", "about 2 s left"):
            self.assertIn(part, out.getvalue())
        show(found, last=True)
        self.assertIn(f"\033[{show.lines}A", out.getvalue())

    def test_lines_elsewhere(self):
        found, out = self.training_of([(training.DONE, 100), (training.RUNNING, 60)]), io.StringIO()
        show = live.Live(100, None, out)
        show(found)
        first = out.getvalue()
        self.assertIn("elu seed 1 done  1.2500\n", first)
        self.assertIn("elu seed 2 began", first)
        show(found)
        self.assertEqual(out.getvalue(), first)


class Speed(Directory):
    """Training speed in rounds, beside the runs themselves."""

    def report(self, **changes):
        made_up_runs.write_comparison(self.path("cmp"), seeds=(1,), **changes)
        return page.load_comparison(self.path("cmp"))

    def change(self, name, function):
        path = os.path.join(self.path("cmp"), name)
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        function(record)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)
        return page.load_comparison(self.path("cmp"))

    def test_the_median_and_the_range_of_the_rounds(self):
        found = speed.summaries({"rounds": [{"elu": 10.0}, {"elu": 30.0}, {"elu": 14.0, "slay": None}, {"elu": -1}, 3]})
        self.assertEqual(found, {"elu": {"median": 14.0, "lowest": 10.0, "highest": 30.0, "rounds": 3}})
        self.assertEqual(results.speed_cell(found["elu"]), "14 ± 71 %")

    def test_the_table_shows_the_rounds_and_says_so(self):
        report = self.report()
        row = next(row for row in report.summary["rows"] if row["label"] == "elu")
        self.assertAlmostEqual(row["training_tokens_per_second"]["median"], 19700 * 1.01)
        self.assertIn("19.9k ± 1 %", [column.cell(row) for column in results.COLUMNS])
        self.assertTrue(any("3 rounds of 12 steps" in note for note in report.summary["notes"]), report.summary["notes"])
        self.assertTrue(any("(slay:poly=exact,R=2) to 1.02 (yat)" in line for line in report.summary["findings"]),
                        report.summary["findings"])

    def test_without_rounds_the_speed_is_the_runs_own(self):
        self.report()
        report = self.change("measurements.json", lambda record: record["speed"]["rounds"].clear())
        row = next(row for row in report.summary["rows"] if row["label"] == "elu")
        self.assertEqual(results.speed_cell(row["training_tokens_per_second"]), "17.8k")
        self.assertTrue(any("2 runs side by side" in note for note in report.summary["notes"]))

    def test_time_is_drawn_at_the_measured_speed(self):
        last = next(s for s in self.report().data["series"] if s["label"] == "elu")["validation"][-1]
        self.assertAlmostEqual(last[1], last[0] / (19700 * 1.01))
        report = self.change("measurements.json", lambda record: record["speed"]["rounds"][0].pop("elu") and record["speed"].pop("rounds"))
        last = next(s for s in report.data["series"] if s["label"] == "elu")["validation"][-1]
        self.assertAlmostEqual(last[1], 400 * 0.115)
        self.assertEqual(report.data["time_is"], "time in training")

    def test_under_a_time_budget_time_is_what_passed(self):
        run = runs.load_run(self.make("timed", seconds=60.0))
        self.assertEqual(page.paces([runs.Group("softmax", [run])], {"softmax": {"median": 5.0}}), {})

    def test_rounds_of_other_attentions_or_threads_are_measured_again(self):
        stored = {"steps": 9, "threads": 1, "rounds": [{"elu": 1.0, "slay": None}]}
        self.assertIs(speed.earlier_rounds(stored, ["slay", "elu"], 5, 1), stored)
        for entries, threads in ((["elu"], 1), (["elu", "slay", "yat"], 1), (["elu", "slay"], 2)):
            self.assertEqual(speed.earlier_rounds(stored, entries, 5, threads), {"steps": 5, "threads": threads, "rounds": []})
        for odd in (None, 3, {"threads": 1, "rounds": 3}, {"threads": 1, "rounds": [3], "steps": 9}):
            self.assertEqual(speed.earlier_rounds(odd, ["elu"], 5, 1)["rounds"], [])

    def test_a_turn_lasts_as_long_as_it_should_on_a_quiet_machine(self):
        def job(times):
            job = training.Job("elu", 1, self.path("run"), [])
            job.metrics.step_milliseconds = times
            return job

        self.assertEqual(speed.steps_of([job([50.0] * 10 + [900.0] * 90), job([])]), 30)
        self.assertEqual((speed.steps_of([job([1.0])]), speed.steps_of([job([9000.0])]), speed.steps_of([])), (100, 3, 3))

    def test_attentions_take_turns(self):
        order, found = [], {"steps": 3, "threads": 1, "rounds": [{"a": 1.0, "b": 1.0}]}
        original, speed.short_run = speed.short_run, lambda command, steps, scratch: (order.append(command) or 2.0, None)
        self.addCleanup(setattr, speed, "short_run", original)
        speed.measure({"a": "A", "b": "B"}, found, measure.Notes(), None, lambda: None, lambda text: None)
        self.assertEqual("".join(order), "BAABBAAB")
        self.assertEqual((len(found["rounds"]), found["rounds"][0]["a"]), (speed.ROUNDS, 1.0))


HOSTILE = "</script><script>document.documentElement.dataset.hacked='yes'</script><img src=x onerror=alert(1)>\"'&"


ODD_VALUES = [None, [], {}, "x", "", -1, 0, 1.5, 1e308, True, [[]], {"a": []}]


class Odd(Directory):
    """Every entry of every file replaced by something odd: a page or a reason, never an exception."""

    def render(self, path):
        source = page.Source()
        page.add_path(source, path)
        return page.render(page.build(source, with_unfinished=True))

    def replace_each(self, file_path, record, path, prefix=()):
        for key in list(record):
            kept = record[key]
            for value in ODD_VALUES:
                record[key] = value
                self.write(file_path)
                self.assertIn("<!doctype html>", self.render(path), (*prefix, key, value))
            record[key] = kept
            if isinstance(kept, dict):
                self.replace_each(file_path, kept, path, (*prefix, key))

    def write(self, file_path):
        with open(file_path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in self.records)

    def test_metrics(self):
        run = self.make("run", {"name": "slay", "R": 3}, steps=8)
        file_path = os.path.join(run, "metrics.jsonl")
        with open(file_path, encoding="utf-8") as file:
            self.records = [json.loads(line) for line in file]
        for record in (self.records[0], self.records[1], self.records[2], self.records[-1]):
            self.replace_each(file_path, record, run)

    def test_files_of_a_comparison(self):
        path = self.path("cmp")
        os.mkdir(path)
        self.make("cmp/a", steps=8)
        plan = {"jobs": 2, "threads": 1, "command": "c", "runs": {"a": {"attention": "softmax", "command": "x"}}}
        found = {"decode": {"softmax": {"1024": 5.0}}, "samples": {"softmax": "text"}, "notes": ["n"], "prompt": "p",
                 "speed": {"steps": 9, "threads": 1, "rounds": [{"softmax": 5.0}, {"softmax": 7.0}]},
                 "scaling": [{"attention": "softmax", "T": 8, "forward_ms": 1, "backward_ms": 1, "peak_mb": 1}]}
        for name, record in (("compare.json", plan), ("measurements.json", found)):
            self.records = [record]
            self.replace_each(os.path.join(path, name), record, path)
            self.write(os.path.join(path, name))


class Pages(Directory):
    def hostile_page(self):
        run = self.make("run", {"name": HOSTILE}, train=HOSTILE)
        bad = self.path("<b>bad" + HOSTILE.replace("/", ""))
        os.mkdir(bad)
        source = page.Source()
        source.paths, source.labels, source.samples = [run, bad], {run: HOSTILE}, {HOSTILE: HOSTILE}
        source.prompt, source.notes, source.plans = "</script>", [HOSTILE], [{"command": HOSTILE, "jobs": 2, "threads": "<b>"}]
        source.scaling = [{"attention": HOSTILE, "T": 1, "forward_ms": 1, "backward_ms": 1, "peak_mb": 1}]
        return page.render(page.build(source, title=HOSTILE))

    def test_hostile_text_stays_text(self):
        text = self.hostile_page()
        self.assertEqual(len(re.findall(r"<script\b", text)), 2)
        self.assertEqual(len(re.findall(r"</script>", text)), 2)
        self.assertNotIn("<img", text)
        self.assertNotIn("<b>bad", text)
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
        self.assertEqual(json.loads(data)["title"], HOSTILE)

    def test_nothing_is_fetched(self):
        made_up_runs.write_comparison(self.path("cmp"))
        text = page.render(page.load_comparison(self.path("cmp")))
        text = text.replace("http://www.w3.org/2000/svg", "")
        self.assertIsNone(re.search(r"https?://|<link|<iframe|@import|url\((?!#)|src=", text))
        self.assertIn("default-src 'none'", text)

    def test_parts_are_there(self):
        made_up_runs.write_comparison(self.path("cmp"))
        text = page.render(page.load_comparison(self.path("cmp")))
        for part in ("answer", "dots", "results", "curves", "curve-tokens", "curve-time", "positions", "longer", "rates",
                     "scaling-time", "scaling-memory", "paper", "samples", "method"):
            self.assertIn(f'id="{part}"', text, part)

    def test_watching_page_refreshes(self):
        made_up_runs.write_comparison(self.path("cmp"))
        report = page.load_comparison(self.path("cmp"))
        self.assertIn('"refresh": 5', page.render(report, 5))
        self.assertIn('"refresh": null', page.render(report))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    result = unittest.main(exit=False, verbosity=1).result
    failed = len({id(test) for test, _ in result.failures + result.errors})
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed{skipped}")
    sys.exit(1 if failed else 0)
