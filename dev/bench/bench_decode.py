#!/usr/bin/env python3
"""Decoding and prefill of one sequence here and in llama.cpp, side by side on the same machine and the same model.

    dev/bench/bench_decode.py [--model DIRECTORY] [--threads 2] [--rounds 12] [--most-rounds 60] [--tokens 24]

The model is GPT-2 124M with random weights, or one given; llama.cpp (the `xllamacpp` package) gets it as F32 and as Q8_0
through export_gguf. All are processes that wait for prompts, and take turns, a short text each, so that a machine that is busy for
a while is busy for all; ratios are taken within a round, and rounds go on until the quartiles of each are less than 10 %
apart, or for --most-rounds. The most that decoding can reach follows from the rate of reading memory in the same round.
Decoding is timed from a position of 5 and of 512 on, greedily, with the choice of each token; prefill over 512 tokens.
"""
import argparse
import base64
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from results import add_round_options, machine_now, quartiles, record, rounds_until_settled

CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH = 1024, 50257, 12, 12, 768
SHORT, LONG = 5, 512
PROMPT_TOKEN = " a"  # a token of GPT-2's vocabulary and of the one made here
KINDS = {"fp32": 3.5, "bf16": 1.5, "int8": 1}  # bytes per weight: core/math/packed_rows.h
PAIRS = ([("slay.c fp32", "llama.cpp F32"), ("slay.c int8", "llama.cpp Q8_0")] +
         [(f"slay.c {kind}", "slay.c fp32") for kind in ("bf16", "int8")])
TITLES = f"prefill {LONG}", f"decode at {SHORT}", f"decode at {LONG}"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", metavar="DIRECTORY", help="a softmax checkpoint; default: GPT-2 124M, random weights")
    parser.add_argument("--threads", type=int, default=2)
    add_round_options(parser, least=12, most=60)
    parser.add_argument("--tokens", type=int, default=24, help="tokens that each decoding is timed over")
    parser.add_argument("--llama-child", metavar="GGUF", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- llama.cpp, in a process of its own


def llama_child(options):
    """For each line {"prompt": ids, "n": count} prints the timings of llama.cpp's answer."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.llama_child
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, LONG, LONG
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(parameters)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = server.handle_completions({"prompt": request["prompt"], "max_tokens": request["n"], "temperature": 0,
                                            "ignore_eos": True, "cache_prompt": False, "timings_per_token": True})
        print("timings", json.dumps(answer["timings"]), flush=True)


class Llama:
    def __init__(self, options, gguf):
        command = [sys.executable, os.path.abspath(__file__), "--llama-child", gguf, "--threads", str(options.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.read("ready")

    def read(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word) :]
        sys.exit("llama.cpp's process ended early")

    def run(self, position, tokens):
        """(prompt tokens per second, text tokens per second)"""
        prompt = [i % 256 for i in range(position)]  # tokens that every vocabulary has
        print(json.dumps({"prompt": prompt, "n": tokens}), file=self.process.stdin, flush=True)
        timings = json.loads(self.read("timings"))
        time.sleep(0.3)  # its threads stop looking for work
        return timings["prompt_per_second"], timings["predicted_per_second"]

    def close(self):
        self.process.kill()
        self.process.wait()


class Slay:
    def __init__(self, options, model, kind):
        command = ["./sample_gpt2", model, "--weights", kind, "--interactive", "--no-begin", "--no-stop", "--temperature",
                   "0", "--tokens", str(options.tokens), "--threads", str(options.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)

    def read(self, pattern):
        for line in self.process.stderr:
            found = re.search(pattern, line)
            if found:
                return found.groups()
        sys.exit("sample_gpt2 ended early")

    def run(self, position, tokens):
        """As Llama's; its number of tokens was given at the start."""
        print(PROMPT_TOKEN * position, file=self.process.stdin, flush=True)
        count, prompt = self.read(r"prompt: +(\d+) tokens, ([\d.]+) tokens/s")
        if int(count) != position:
            sys.exit(f"expected a vocabulary in which {PROMPT_TOKEN!r} is a token, found {count} for {position} of them")
        return float(prompt), 1e3 / float(self.read(r"text: .* ([\d.]+) ms each")[0])

    def close(self):
        self.process.kill()
        self.process.wait()


# ---- the model


def write_vocabulary(path):
    """Bytes and pairs of bytes: as many tokens as GPT-2 has."""
    tokens = [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(256) for b in range(256)]
    with open(path, "w") as file:
        for rank, token in enumerate(tokens[: VOCABULARY - 1]):
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")


def make_model(directory):
    import numpy
    from safetensors.numpy import save_file

    generator = numpy.random.default_rng(1)
    tensors = {}

    def add(name, *shape):
        values = generator.standard_normal(shape, dtype=numpy.float32) * numpy.float32(0.02)
        tensors["transformer." + name] = values + numpy.float32("ln_" in name and name.endswith("weight"))

    add("wte.weight", VOCABULARY, WIDTH), add("wpe.weight", CONTEXT, WIDTH)
    for name in [f"h.{layer}.{norm}" for layer in range(LAYERS) for norm in ("ln_1", "ln_2")] + ["ln_f"]:
        add(name + ".weight", WIDTH), add(name + ".bias", WIDTH)
    for layer in range(LAYERS):
        for name, rows, columns in ("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1):
            add(f"h.{layer}.{name}.weight", rows * WIDTH, columns * WIDTH)
            add(f"h.{layer}.{name}.bias", columns * WIDTH)
    os.makedirs(directory)
    save_file(tensors, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump({"model_type": "gpt2", "n_positions": CONTEXT, "vocab_size": VOCABULARY, "n_layer": LAYERS,
                   "n_head": HEADS, "n_embd": WIDTH}, file)
    write_vocabulary(os.path.join(directory, "tokenizer.tiktoken"))
    return directory


# ---- the comparison


def export(model, directory, kind):
    path = os.path.join(directory, f"{kind}.gguf")
    subprocess.run(["./export_gguf", model, path, "--type", kind], check=True, stdout=subprocess.DEVNULL)
    return path


def starters(options, model, directory):
    theirs = {f"llama.cpp {kind.upper()}": lambda kind=kind: Llama(options, export(model, directory, kind))
              for kind in ("f32", "q8_0")}
    return {**theirs, **{f"slay.c {kind}": lambda kind=kind: Slay(options, model, kind) for kind in KINDS}}


def run_round(options, contenders):
    """{name: (prefill of LONG, decode from SHORT, decode from LONG)} in tokens per second; "memory": bytes per second"""
    figures = {"memory": 1e9 * machine_now(options.threads)["gigabytes_per_second"]}
    short = {name: contender.run(SHORT, options.tokens)[1] for name, contender in contenders.items()}
    for name, contender in contenders.items():
        prefill, long = contender.run(LONG, options.tokens)
        figures[name] = prefill, short[name], long
    print(f"memory {figures['memory'] / 1e9:.0f} GB/s, " +
          ", ".join(f"{name} {f[0]:.0f} {f[1]:.1f} {f[2]:.1f}" for name, f in figures.items() if name != "memory"), flush=True)
    return figures


def ratios_of(rounds, name, other, i):
    return [r[name][i] / r[other][i] for r in rounds]


def decoding_ratios(rounds):
    return [ratios_of(rounds, name, other, i) for name, other in PAIRS for i in (1, 2)]


def memory_share(options, rounds, kind, position):
    """Of the memory's own rate: the weights, and the keys and values so far, are read once for a token."""
    weights = KINDS[kind] * WIDTH * (12 * WIDTH * LAYERS + VOCABULARY)
    cache = 4 * 2 * WIDTH * LAYERS * (position + options.tokens / 2)
    i = 1 if position == SHORT else 2
    return statistics.median((weights + cache) * r[f"slay.c {kind}"][i] / r["memory"] for r in rounds)


def spread(values):
    low, high = quartiles(values)
    return f"{statistics.median(values):8.2f} ({low:.2f} .. {high:.2f})"


def print_table(options, rounds):
    print(f"\n{options.threads} threads, {len(rounds)} rounds, tokens/s: median (quartiles)")
    print(f"{'':16}" + "".join(f"{title:>28}" for title in TITLES))
    for name in rounds[0]:
        if name != "memory":
            print(f"{name:16}" + "".join(f"{spread([r[name][i] for r in rounds]):>28}" for i in range(3)))
    print("ratios within a round")
    for name, other in PAIRS:
        print(f"{name} / {other:13}" + "".join(f"{spread(ratios_of(rounds, name, other, i)):>28}" for i in range(3)))


def record_results(options, rounds):
    wanted = {"fp32": (2, 1.5, 1.5), "bf16": (None, 1.6, 1.6), "int8": (None, 2.8, 2.8), "Q8_0": (None, 1, 1)}
    for name, other in PAIRS:
        kind = name.split()[-1]
        for i, position in enumerate((None, SHORT, LONG)):
            ours, theirs = (statistics.median(r[which][i] for r in rounds) for which in (name, other))
            share = memory_share(options, rounds, kind, position) if position and not options.model else None
            beside = other.split()[-1] if kind == "int8" and other != "slay.c fp32" else ""
            record(f"{TITLES[i]}, {kind}" + (f" beside {beside}" if beside else ""), "tokens/s", ours, other, theirs,
                   ratios_of(rounds, name, other, i), wanted[beside or kind][i], share)
            if share:
                print(f"{TITLES[i]}, {kind}: {100 * share:.0f}% of the rate at which memory is read")


def main():
    options = parse_options()
    if options.llama_child:
        return llama_child(options)
    if not os.access("./sample_gpt2", os.X_OK) or not os.access("./export_gguf", os.X_OK):
        sys.exit("./sample_gpt2 or ./export_gguf is missing; run make, and this from the project's root")
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or make_model(os.path.join(directory, "model"))
        contenders = {}
        try:
            for name, start in starters(options, model, directory).items():
                contenders[name] = start()
                contenders[name].run(SHORT, options.tokens)  # warms up: each starts on a machine that is quiet again
            rounds = rounds_until_settled(options, lambda: run_round(options, contenders), decoding_ratios)
        finally:
            for contender in contenders.values():
                contender.close()
    print_table(options, rounds)
    record_results(options, rounds)


if __name__ == "__main__":
    main()
