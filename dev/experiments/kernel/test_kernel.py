"""Tests of the kernel experiments: each program at a small size beside what must come out, the whole of it with --quick, and
the pages. scripts/test_kernel_experiments.sh runs them."""
import glob
import math
import os
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path[:0] = [ROOT, os.path.join(ROOT, "scripts")]
import checks  # noqa: E402  (after the path is set)
from checks import check  # noqa: E402
from dev.experiments.kernel import measurements, pages, plots  # noqa: E402


def rows_of(name, *words, **options):
    """The rows of a program as dictionaries."""
    head, *rows = measurements.program(name, *words, **options)
    return [dict(zip(head, map(pages.number, row))) for row in rows]


def near(name, found, expected, tolerance):
    check(name, abs(found - expected) <= tolerance * max(1, abs(expected)), found, "is not", expected)


def refused(name, part, *command):
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stderr.strip().splitlines()
    check(name, found.returncode == 1 and len(lines) == 1 and part in lines[0], found.returncode, lines[:3])


def exact(x, eps=1e-3):
    return x * x / (2 + eps - 2 * x)


# ---- the programs


def test_fidelity():
    for data in ("module", "independent", "correlated"):
        found = {row["variant"]: row for row in rows_of("fidelity", data=data, T=32, M=4, P=4, rho=0.9, datasets=2, draws=8)}
        check(f"fidelity, {data}: the exact kernel beside itself", found["yat-spherical"]["rel_l2"] < 1e-12, found["yat-spherical"])
        check(f"fidelity, {data}: averaging has a bias and no spread",
              found["uniform"]["spread"] == 0 and found["uniform"]["bias"] > 0.1, found["uniform"])
        one = found["none"]
        near(f"fidelity, {data}: bias and spread make the error", math.hypot(one["bias"], one["spread"]), one["rel_l2"], 0.1)
        widths = {found[name]["F"] for name in ("anchor", "nystrom", "tensorsketch", "none", "hadamard", "flat", "favor F")}
        check(f"fidelity, {data}: maps of one width", widths == {2 * 4 * 4}, widths)
    few, many = (rows_of("fidelity", data="independent", T=32, M=M, only="none", draws=8)[0] for M in (4, 256))
    check("fidelity: more features, less spread", many["spread"] < few["spread"] / 2, few["spread"], many["spread"])


def test_quadrature():
    nodes = rows_of("quadrature", table="nodes")
    for R in (1, 2, 3, 8):
        near(f"quadrature: weights of R = {R} add up", sum(row["weight"] for row in nodes if row["R"] == R), 1, 1e-8)
    values = rows_of("quadrature", table="values")
    errors = pages.quadrature_errors(values)
    counts = sorted({R for R, _ in errors})
    for cut in (0.7, 0.9, 0.99):
        falling = [errors[R, cut] for R in counts if errors[R, cut] > 1e-9]
        check(f"quadrature: the error up to {cut} falls with R", falling == sorted(falling, reverse=True), falling)
    at_one = {row["R"]: row["kernel"] for row in values if row["x"] == 1}
    near("quadrature: the exact peak", at_one[0], 1000, 1e-6)
    near("quadrature: three nodes at the peak", at_one[3], 4.708, 1e-3)
    for x in (-1.0, 0.5, "mean"):
        near(f"quadrature: shares at {x}", sum(row["share"] for row in rows_of("quadrature", table="shares") if row["x"] == x), 1, 1e-5)
    measured = [row for row in rows_of("quadrature", table="variance", draws=16384) if row["measured"] != "" and row["x"] > -1]
    check("quadrature: variances are measured", len(measured) >= 3, measured)
    for row in measured:
        near(f"quadrature: variance at s = {row['s']:g}, x = {row['x']:g}", row["measured"] / row["closed_form"], 1, 0.2)
    rule = [(row["weight"], row["s"]) for row in nodes if row["R"] == 3]
    best = pages.best_split(rule, 48)
    near("quadrature: the best split has all features", sum(best), 48, 1e-9)
    for give, take in ((0, 1), (1, 2), (2, 0)):
        other = [count + (r == take) - (r == give) for r, count in enumerate(best)]
        check(f"quadrature: a feature of node {give + 1} helps no other", pages.split_noise(rule, other) > pages.split_noise(rule, best), other)


def test_response():
    found = {}
    for row in rows_of("response", "--gradients", attentions={"a": "softmax", "b": "yat-spherical", "c": "slay:poly=exact:M=64"},
                       size=16, draws=2, step=30):
        found[row["attention"], row["angle"]] = row
    near("response: softmax of aligned vectors of length 4", found["softmax", 0]["mean"], math.exp(4), 1e-6)
    for angle in (0, 30, 60, 120, 180):
        x, row = math.cos(math.radians(angle)), found["yat-spherical", angle]
        near(f"response: the kernel at {angle}", row["mean"], exact(x), 1e-6)
        slope = math.sqrt(1 - x * x) * abs(2 * x * (2.001 - x)) / (2.001 - 2 * x)**2
        near(f"response: its gradient at {angle}", row["gradient"], slope, 1e-3)
    check("response: exact polynomial features see nothing at 90", found["slay:poly=exact:M=64", 90]["mean"] < 1e-12)
    floors = {}
    few = {name: words for name, words in measurements.FLOORS.items() if "96" not in name}
    for row in rows_of("response", attentions=few, size=64, draws=1000, step=90):
        floors.setdefault(row["attention"], {})[row["angle"]] = row["mean"]
    for name, expected in (("anchor P=8", 0.33), ("nystrom P=8", 0.31), ("nystrom P=32", 0.25)):
        means = floors[few[name]]
        near(f"response: the floor of {name}", means[90] / means[0], expected, 0.03)


def test_reconstruction():
    found = {}
    for row in rows_of("reconstruction", attentions={"a": "yat-spherical", "b": "slay:R=2:M=1", "c": "slay:R=2:M=128"}, draws=32, step=5):
        found.setdefault(row["attention"], []).append(row["median"])
    check("reconstruction: the kernel itself", max(found["yat-spherical"]) < 1e-6, found)
    check("reconstruction: more features, less error", all(a > b for a, b in zip(found["slay:R=2:M=1"], found["slay:R=2:M=128"])), found)


def test_denominators():
    names = {"a": "yat-spherical", "b": "elu", "c": "slay", "d": "slay:poly=tensorsketch"}
    found = {row["attention"]: row for row in rows_of("denominators", attentions=names, T=64, size=16, draws=8)}
    check("denominators: slay's are positive", found["slay"]["not_positive"] == 0 and found["slay"]["least"] > 0, found["slay"])
    check("denominators: sketches have some that are not", found["slay:poly=tensorsketch"]["not_positive"] > 0.05)
    check("denominators: nothing random in elu", found["elu"]["scatter"] < 1e-12 < found["slay"]["scatter"], found)
    shares = {}
    for row in rows_of("denominators", attentions=names, T=64, size=16, draws=8, bins=40):
        shares[row["attention"]] = shares.get(row["attention"], 0) + row["share"]
    for name, share in shares.items():
        near(f"denominators: {name}'s histogram is whole", share, 1, 1e-4)


def test_entropy():
    found = {(row["attention"], row["x"]): row for row in rows_of(
        "entropy", attentions={"a": "uniform", "b": "yat-spherical", "c": "softmax"}, keys=32, draws=4)}
    for x in (-1, 0, 1):
        near(f"entropy: averaging at {x}", found["uniform", x]["entropy"], 1, 1e-9)
        near(f"entropy: its weights at {x}", found["uniform", x]["weight"], 1 / 32, 1e-6)
    check("entropy: the exact kernel finds the query itself", found["yat-spherical", 1]["weight"] > 0.97, found["yat-spherical", 1])
    check("entropy: which lowers it", found["yat-spherical", 1]["entropy"] < 0.2 < found["softmax", 1]["entropy"])
    rows = rows_of("entropy", attentions={"a": "uniform"}, keys=32, draws=2, bins=10)
    check("entropy: all rows of averaging in the last bin", rows[-1]["share"] == 1 and rows[-1]["mean"] > 1 - 1e-9, rows[-1])


def test_plane_and_sphere():
    winner, _, places = pages.winners(Tables(neurons=measurements.program("neurons", attentions={"a": "yat", "b": "cosformer"}, cells=60)))
    for k, (x, y) in enumerate(places):
        row, column = int((3 - y) * 10), int((x + 3) * 10)
        check(f"neurons: yat's winner at neuron {k} is itself", winner["yat"][row][column] == k, winner["yat"][row][column])
    check("neurons: where relu features see nothing none wins", winner["cosformer"][59][0] == -1)
    rows = rows_of("sphere", attentions={"a": "yat-spherical", "b": "slay"}, rows=6, draws=2)
    kernel = [row for row in rows if row["attention"] == "yat-spherical"]
    x = {id(row): math.cos(math.radians(row["latitude"])) * math.cos(math.radians(row["longitude"])) for row in kernel}
    most = max(exact(value) for value in x.values())
    wrong = [row for row in kernel if abs(row["first"] - exact(x[id(row)]) / most) > 1e-3]
    check("sphere: the kernel everywhere", not wrong and len(kernel) == 72, wrong[:1])
    check("sphere: a draw of features is uneven, the kernel is not", pages.unevenness(kernel, "first") < 1e-3 < 0.01 < pages.unevenness(
        [row for row in rows if row["attention"] == "slay"], "first"))


def test_mechanisms():
    found = {row["attention"]: row for row in rows_of("mechanisms", size=64, T=1024)}
    listed = subprocess.run(["./train_gpt2", "--attention", "list"], capture_output=True, text=True, check=False).stdout
    names = set(re.findall(r"^\s*([a-z][a-z-]*)  ", listed, re.M))
    check("mechanisms: those of the registry", set(found) == {name for name in names if name in found} and len(found) >= 9, names)
    check("mechanisms: width and state of slay", found["slay"]["F"] == 384 and found["slay"]["state"] == 384 * 65, found["slay"])
    check("mechanisms: what a cache keeps", found["softmax"]["state"] == 2 * 64 * 1024, found["softmax"])
    rows = rows_of("latency", attentions={"a": "softmax", "b": "slay"}, T=32, passes=3)
    check("latency: a time and the width beside it", [row["F"] for row in rows] == [0, 384] and all(row["ms"] > 0 for row in rows), rows)


# ---- the classifier


def test_scores(folder):
    """Precision and propensity of lists whose values are known."""
    train, test = os.path.join(folder, "train.txt"), os.path.join(folder, "test.txt")
    with open(train, "w", encoding="utf-8") as file:
        file.write("4 3 6\n0,1 0:1\n0 1:1\n0 2:1.5\n2,3,4,5 0:1\n")
    with open(test, "w", encoding="utf-8") as file:
        file.write("2 3 6\n0,1,2,3,4 0:1 1:2\n 2:1\n")

    def scores(lists):
        path = os.path.join(folder, "predictions.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(lists)
        return {row["k"]: row for row in rows_of("extreme", train=train, test=test, predictions=path)}

    found = scores("1 2 3 4 0\n1 2 3 4 0\n")
    for k in (1, 3, 5):  # one document of two has labels
        near(f"extreme: P@{k} of a perfect list", found[k]["precision"], 0.5, 1e-6)
        near(f"extreme: the protocol's P@{k}", found[k]["precision_protocol"], 1 / 512, 1e-6)
    near("extreme: PSP@5 of a perfect list", found[5]["psp"], 1, 1e-6)
    worth = {count: 1 + (math.log(4) - 1) * 2.5**0.55 * (count + 1.5)**-0.55 for count in (1, 3)}
    found = scores("0 5 5 5 5\n5 5 5 5 5\n")
    near("extreme: PSP@1 of the most frequent label", found[1]["psp"], worth[3] / worth[1], 1e-5)
    near("extreme: the protocol's PSP@1", found[1]["psp_protocol"], worth[3] / 512, 1e-5)
    found = scores("5 5 5 5 5\n5 5 5 5 5\n")
    check("extreme: a wrong list", all(row["precision"] == row["psp"] == 0 for row in found.values()), found)


BAD_FILES = {
    "no header": ("documents\n", ":1: expected `documents features labels`"),
    "too few labels": ("1 3 2\n0 0:1\n", ":1: expected"),
    "a label too many": ("1 3 6\n6 0:1\n", ":2: expected labels below that in line 1"),
    "a feature too many": ("1 3 6\n1 3:1\n", ":2: expected features below the number in line 1"),
    "a value that is none": ("1 3 6\n1 1:x\n", ":2: expected a number behind the colon"),
    "a value glued to the next": ("1 3 6\n1 1:1,2:1\n", ":2: expected a number behind the colon"),
    "words": ("1 3 6\nnews 1:1\n", ":2: expected numbers"),
    "labels behind features": ("1 3 6\n1 1:1 2\n", ":2: expected labels before features"),
    "a document too few": ("2 3 6\n1 1:1\n", "expected 2 documents, found 1"),
    "a document too many": ("1 3 6\n1 1:1\n2 1:1\n", "expected 1 documents, found more"),
    "nothing": ("", ":1: expected"),
}


def test_bad_files(folder):
    program, good, bad = os.path.join(measurements.BUILD, "extreme"), os.path.join(folder, "good.txt"), os.path.join(folder, "bad.txt")
    with open(good, "w", encoding="utf-8") as file:
        file.write("1 3 6\n1 1:1\n")
    for name, (text, part) in BAD_FILES.items():
        with open(bad, "w", encoding="utf-8") as file:
            file.write(text)
        refused(f"extreme: {name}", part, program, "--train", good, "--test", bad)
    with open(bad, "w", encoding="utf-8") as file:
        file.write("1 4 6\n1 1:1\n")
    refused("extreme: other features", "expected 3 features and 6 labels", program, "--train", good, "--test", bad)
    refused("extreme: no file", "none.txt", program, "--train", os.path.join(folder, "none.txt"), "--test", good)
    with open(bad, "w", encoding="utf-8") as file:
        file.write("1 2 3\n")
    refused("extreme: an unfinished list", "expected 5 labels for each", program, "--train", good, "--test", good, "--predictions", bad)


def test_classifier(folder):
    prefix = os.path.join(folder, "set")
    measurements.program("extreme", generate=prefix, documents=1500, words=300, labels=50, **{"test-documents": 200})
    with open(prefix + "_train.txt", encoding="utf-8") as file:
        head = file.readline().split()
        labels = [line.split(" ")[0].split(",") for line in file]
    check("extreme: a generated set's shape", head == ["1500", "300", "50"] and len(labels) == 1500, head)
    check("extreme: labels of a document differ", all(len(set(each)) == len(each) >= 1 for each in labels))
    best = {}
    for name, words in (("popular", "--map popular"), ("slay", "--map slay --slay R=2:M=8:P=8:eps=1e-6"), ("performer", "--map performer")):
        rows = rows_of("extreme", *words.split(), train=prefix + "_train.txt", test=prefix + "_test.txt", epochs=12)
        best[name] = rows[0]["precision"]
    check("extreme: both maps learn", min(best["slay"], best["performer"]) > 1.5 * best["popular"], best)


# ---- everything


class Tables:
    """Tables as pages want them, from programs instead of files."""

    def __init__(self, **tables):
        self.tables = tables

    def read(self, name):
        head, *rows = self.tables[name]
        return [dict(zip(head, map(pages.number, row))) for row in rows]


def test_run(folder):
    out = os.path.join(folder, "pages")
    command = [os.path.join("dev", "experiments", "kernel", "run"), "--out", out]
    found = subprocess.run([*command, "--quick"], capture_output=True, text=True, check=False)
    check("run: all of it, small", found.returncode == 0, found.stderr[-300:])
    with open(os.path.join(out, "README.md"), encoding="utf-8") as file:
        index = file.read()
    for name in measurements.EXPERIMENTS:
        with open(os.path.join(out, name + ".md"), encoding="utf-8") as file:
            text = file.read()
        links = re.findall(r"\]\(([^):#]+)\)", text)
        missing = [link for link in links if not os.path.exists(os.path.join(out, link)) and not link.startswith("..")]
        check(f"run: {name}'s page and its links", f"({name}.md)" in index and not missing, missing)
        check(f"run: {name}'s page has no empty figure", not re.search(r"\bnan\b|\binf\b|None", text), re.findall(r".*\bnan\b.*", text)[:2])
    for path in glob.glob(os.path.join(out, "*.svg")):
        text = open(path, encoding="utf-8").read()
        xml.dom.minidom.parseString(text)
        check(f"run: {os.path.basename(path)} is drawn", "nan" not in text and "inf" not in text and len(text) > 1000)
    before = open(os.path.join(out, "fidelity.md"), encoding="utf-8").read()
    subprocess.run([*command, "--quick", "--latency"], check=True, capture_output=True)
    after = open(os.path.join(out, "fidelity.md"), encoding="utf-8").read()
    check("run: latencies stand beside the width", "| ms," not in before and "ms, S" in after)
    found = subprocess.run([*command, "fidelty"], capture_output=True, text=True, check=False)
    check("run: a wrong name", found.returncode and "found fidelty" in found.stderr, found.stderr)
    refused("run: no programs", "/none/", "env", "BUILD=/none", *command, "mechanisms")


def test_plots():
    series = plots.Series("one", "slay", [(0, 1), (1, 1e-9), (2, 1e-9), (3, 1e-9), (4, 1)])
    check("plots: a curve leaves the picture and comes back", len(plots.pieces(series.points, 1e-3)) == 2)
    check("plots: runs of cells", plots.cells([["#1", "#1", None], [None, "#2", "#2"]]) == {"#1": "M0 0h2v1h-2z", "#2": "M1 1h2v1h-2z"})
    check("plots: words are escaped", "a &lt; b" in plots.lines("a < b", "x", [series]))


def main():
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_fidelity, test_quadrature, test_response, test_reconstruction, test_denominators, test_entropy,
                     test_plane_and_sphere, test_mechanisms, test_plots):
            test()
        for test in (test_scores, test_bad_files, test_classifier, test_run):
            test(folder)
    sys.exit(checks.summary())


if __name__ == "__main__":
    main()
