"""Checkpoints of every attention against the real `transformers`: opened there with the modeling_slay.py they carry.

Run from the project's root by scripts/test_interop.sh. Last line: `N passed, N failed`. With --errors it prints how far
either side's float32 is from float64 instead.
"""
import contextlib
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, logging, pipeline

sys.path.insert(0, "scripts")
import slay_attention
from checks import check, summary
from programs import QUICK, greedy_text, logits_here, make_stories, metrics, run, run_tests, train, write_shard

V, CONTEXT, STEPS, PROMPT = 400, 96, 40, "The old lantern was"
# Signed scores: a row's sum may be near zero, which makes much of any rounding.
SIGNED = {"rff", "slay --preset recall", *("slay --poly " + poly for poly in (
    "nystrom", "maclaurin", "rademacher", "tensorsketch --P 24"))}
VARIANTS = """
softmax --decay fixed
softmax --window 9
softmax --decay learned --window 20 --positions none
yat
yat --normalizer softmax --decay learned
yat --window 9 --decay fixed --eps 0.1 --delta 0.01
yat-spherical
yat-spherical --decay learned --window 30
uniform
uniform --decay learned --positions none
elu
elu --denominator clamp --delta 0.5
elu --decay learned --positions none
cosformer
cosformer --decay fixed
favor
favor --omega orthogonal --decay learned
favor --features exp
favor --features exp --decay learned --delta 0.01
favor --features exp --omega gaussian --decay fixed --denominator clamp
rff
slay
slay --R 2 --M 5 --P 3 --eps 0.01 --scale-features 0 --delta 0.001
slay --learn both --decay learned --positions none
slay --learn omega --omega orthogonal
slay --poly exact
slay --poly exact --decay learned
slay --poly none
slay --poly nystrom
slay --poly maclaurin
slay --poly rademacher
slay --poly tensorsketch --P 24
slay --preset recall
slay --fusion hadamard
slay --fusion flat
slay --fusion flat --learn anchors --decay fixed
slay,softmax:window=8
slay*2:decay=learned:P=4,softmax:window=64,elu --positions none
""".strip().splitlines()
if QUICK:
    VARIANTS = [variant for variant in VARIANTS if variant in ("yat", "cosformer", "favor --features exp", "rff", "slay", "slay "
                "--poly tensorsketch --P 24") or "*" in variant]


def train_on_stories(directory, name, *options):
    """The directory of a checkpoint."""
    return train(os.path.join(directory, name), *make_stories(directory, V), "--batch", "4", "--warmup", "2", *options)


def train_variant(directory, variant):
    words = variant.split()
    layers = "4" if "," in variant else "2"
    shutil.rmtree(os.path.join(directory, "run"), ignore_errors=True)
    return train_on_stories(directory, "run", "--attention", words[0], *words[1:], "--layers", layers, "--heads", "2", "--width",
                            "32", "--context", str(CONTEXT), "--tokenizer", os.path.join(directory, "vocab"), "--steps",
                            str(STEPS), "--lr", "0.01")


def open_there(checkpoint, **options):
    return AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=True, **options).eval()


def greedy_there(model, checkpoint, tokens):
    """The text, and the numbers in the cache after the prompt and at the end."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    with torch.no_grad():
        begun = model(**inputs, use_cache=True).past_key_values.numbers()
        answer = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True,
                                eos_token_id=None, pad_token_id=0)
    return tokenizer.decode(answer.sequences[0, 1:]), begun, answer.past_key_values.numbers()


def tokens_of(rows):
    return np.random.default_rng(5).integers(0, V, (rows, CONTEXT))


def compare_logits(name, model, checkpoint, directory):
    tokens = tokens_of(3)
    with torch.no_grad():
        there = model(torch.tensor(tokens)).logits.float().numpy()
    worst = np.abs(logits_here(checkpoint, tokens, directory) - there).max()
    check(f"{name}: logits within 1e-4", worst < 1e-4, worst)


@contextlib.contextmanager
def float64_inside():
    """What slay_attention.py computes in float32 is computed in float64."""
    float32, default = torch.Tensor.float, torch.get_default_dtype()
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.float = float32
        torch.set_default_dtype(default)


def shaken(model, tokens, seed):
    """The logits when queries, keys and values are off by at most half a last place of float32, at random."""
    generator = torch.Generator().manual_seed(seed)
    shake = lambda x: x * (1 + 2**-24 * (2 * torch.rand(x.shape, generator=generator) - 1))
    hooks = [block.attn.register_forward_pre_hook(lambda _, inputs: (*map(shake, inputs[:3]), *inputs[3:]))
             for block in model.transformer.h]
    logits = model(tokens).logits.numpy()
    for hook in hooks:
        hook.remove()
    return logits


def errors_of(model, checkpoint, directory, sequences):
    """How far float32 here, float32 there, float64 here and float64 there with shaken inputs are from float64 there: the
    largest of each row's logits. In float64 both are the same function."""
    tokens = tokens_of(sequences)
    distance = lambda logits: np.abs(logits - exact).max(-1)
    with torch.no_grad():
        there = model(torch.tensor(tokens)).logits.numpy()
        with float64_inside():
            model = open_there(checkpoint).double()
            exact = model(torch.tensor(tokens)).logits.numpy()
            noise = np.max([distance(shaken(model, torch.tensor(tokens), seed)) for seed in range(8)], 0)
    here, double = (logits_here(checkpoint, tokens, directory, precision) for precision in ("", "_double"))
    return distance(here), distance(there), distance(double), noise


def compare_precisely(name, model, checkpoint, directory):
    """In float32 each is within 5e-5 of float64; a few rows of signed scores may be further off, by as much as one rounding
    of queries, keys and values makes of them in float64, 50 times."""
    here, there, double, noise = errors_of(model, checkpoint, directory, 3)
    check(f"{name}: the same function in float64", double.max() < 1e-7, double.max())
    allowed = 2e-5 + 50 * noise if name in SIGNED else 5e-5
    for which, error in ("ours", here), ("theirs", there):
        check(f"{name}: {which} in float32", (error < allowed).all(), (error / allowed).max(), error.max(), noise.max())
        check(f"{name}: {which}, nearly all rows", np.mean(error < 5e-5) > 0.95, np.mean(error < 5e-5))


def print_errors(directory):
    """The table of docs/formats.md."""
    print(f"{'variant':30}" + "".join(f"{which:7}{'median':>8}{'99 %':>8}{'worst':>8}{'> 1e-4':>8}   " for which in ("ours", "theirs")))
    for variant in ["slay", *sorted(SIGNED)]:
        checkpoint = train_variant(directory, variant)
        here, there, _, _ = errors_of(open_there(checkpoint), checkpoint, directory, 40)
        print(f"{variant:30}" + "".join(" " * 7 + "".join(f"{value:8.0e}" for value in np.quantile(error, (0.5, 0.99, 1))) +
                                        f"{(error > 1e-4).sum():8}   " for error in (here, there)), flush=True)


def grows(variant):
    """Whether decoding keeps every key, or a window that the prompt does not fill."""
    is_quadratic = any(word in variant for word in ("softmax", "yat", "exact")) and "window=8" not in variant
    return is_quadratic and "--window 9" not in variant


def every_variant(directory):
    for variant in VARIANTS:
        try:
            checkpoint = train_variant(directory, variant)
            model = open_there(checkpoint)
            compare_precisely(variant, model, checkpoint, directory)
            here, (there, begun, ended) = greedy_text(checkpoint, PROMPT, 60, "--no-stop"), greedy_there(model, checkpoint, 60)
            check(f"{variant}: the same greedy text", here == there, repr(here), repr(there))
            check(f"{variant}: the cache {'grows' if grows(variant) else 'keeps its size'}", (ended > begun) == grows(variant),
                  begun, ended)
        except Exception as error:  # the others still run
            check(variant, False, repr(error))

# ---- back and forth


FINE_TUNED = "slay*1:decay=learned:learn=both,yat,favor:features=exp,softmax:window=16"


def loss_here(checkpoint, directory):
    """On the stories."""
    words = run("./sample_gpt2", checkpoint, "--loss", os.path.join(directory, "shard_train_000000.bin"), "--no-stats").split()
    return float(words[1])


def fine_tune(model, steps=5):
    """A few steps of plain AdamW there; the losses, and the names of what had no gradient."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, without = [], []
    for _ in range(steps):
        tokens = torch.tensor(tokens_of(4))
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
        optimizer.step()
        losses.append(loss.item())
    return losses, without


def fine_tuned_there_continued_here(directory):
    checkpoint = train_variant(directory, FINE_TUNED)
    model = open_there(checkpoint)
    names = {name for name, _ in model.named_parameters()}
    check("what is learned are parameters", {f"transformer.h.0.attn.{name}" for name in ("omega", "anchor_vectors", "decay")} <= names)
    losses, without = fine_tune(model)
    check("every parameter has a gradient", not without, without)
    check("the loss falls there", losses[-1] < losses[0], losses)
    saved = os.path.join(directory, "fine_tuned")
    model.eval().save_pretrained(saved)
    AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True).save_pretrained(saved)
    check("the code goes along", os.path.exists(os.path.join(saved, "modeling_slay.py")))
    compare_logits("fine-tuned there", model, saved, directory)
    shutil.copy(os.path.join(checkpoint, "tokenizer.tiktoken"), saved)  # our trainer's own form of the vocabulary
    onward = train_on_stories(directory, "onward", "--init", saved, "--steps", "1", "--lr", "0", "--weight-decay", "0")
    before, after = (load_file(os.path.join(path, "model.safetensors")) for path in (saved, onward))
    check("continued here: the same tensors, bit for bit", before.keys() == after.keys() and
          all(np.array_equal(before[name], after[name]) for name in before), before.keys() ^ after.keys())
    compare_logits("continued here, opened there again", open_there(onward), onward, directory)
    again = train_on_stories(directory, "trained", "--init", saved, "--steps", "20", "--lr", "0.003")
    check("continued here: the loss falls", loss_here(again, directory) < loss_here(saved, directory))


def gradients_are_ours(directory):
    """One step here: AdamW's first moments are a tenth of the gradients."""
    checkpoint = train_variant(directory, "slay --decay learned --learn both")
    tokens = tokens_of(4)
    shard = os.path.join(directory, "step.bin")
    flat = np.concatenate([tokens.ravel(), [0]])
    write_shard(shard, flat)
    out = os.path.join(directory, "one_step")
    stepped = train(out, "--train", shard, "--init", checkpoint, "--batch", "4", "--sequence", str(CONTEXT), "--steps", "1",
                    "--lr", "1e-3", "--warmup", "0", "--weight-decay", "0", "--no-shuffle", "--clip", "0")
    model = open_there(checkpoint).train()
    rows = torch.tensor(np.stack([flat[i * CONTEXT:(i + 1) * CONTEXT + 1] for i in range(4)]))
    logits = model(rows[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
    norm_there = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters())).item()
    norm_here = metrics(out, "step")[0]["norm"]
    check("the gradient's norm is ours", abs(norm_there / norm_here - 1) < 1e-4, norm_there, norm_here)
    moments = load_file(os.path.join(stepped, "optimizer.safetensors"))
    worst = max(np.abs(moments[f"{name}.m"] / 0.1 - p.grad.numpy()).max() / (p.grad.abs().max().item() + 1e-7)
                for name, p in model.named_parameters())
    check("every gradient is ours within 1e-3 of its largest", worst < 1e-3, worst)


# ---- forms of a directory


def saved_there(name, kind, checkpoint, dtype, target, directory):
    """What save_pretrained writes, in several files, opened by both and trained on here."""
    kind.from_pretrained(checkpoint, trust_remote_code=True, dtype=dtype).save_pretrained(target, max_shard_size="40KB")
    names = set(json.load(open(os.path.join(target, "model.safetensors.index.json")))["weight_map"])
    check(f"{name}: {len(names)} tensors, with a prefix if there is a head",
          any(n.startswith("transformer.") for n in names) == (kind is AutoModelForCausalLM), names)
    check(f"{name}: several files", len([file for file in os.listdir(target) if file.endswith(".safetensors")]) > 2)
    compare_logits(name, open_there(target, dtype=torch.float32), target, directory)
    shutil.copy(os.path.join(checkpoint, "tokenizer.tiktoken"), target)
    train(target + "_on", *make_stories(directory, V), "--batch", "4", "--init", target, "--steps", "1", "--warmup", "0")


def forms_of_a_directory(directory):
    for variant in "slay --decay learned", "softmax":
        checkpoint = train_variant(directory, variant)
        model, path = open_there(checkpoint), lambda name: os.path.join(directory, f"{variant.split()[0]}_{name}")
        for dtype in torch.bfloat16, torch.float16, torch.float32:
            for kind in AutoModelForCausalLM, AutoModel:  # the latter is the body alone, its tensors have no prefix
                name = f"{str(dtype).removeprefix('torch.')}_{kind.__name__}"
                saved_there(f"{variant}, {name}", kind, checkpoint, dtype, path(name), directory)
        half = open_there(path("bfloat16_AutoModelForCausalLM"), dtype=torch.bfloat16)
        with torch.no_grad():
            tokens = torch.tensor(tokens_of(1))
            worst = (half(tokens).logits.float() - model(tokens).logits).abs().max().item()
        check(f"{variant}: computed in bfloat16 it is near", worst < 0.5, worst)
        base = AutoModel.from_pretrained(checkpoint, trust_remote_code=True).eval()
        with torch.no_grad():
            same = torch.equal(base(tokens).last_hidden_state,
                               model.transformer(tokens).last_hidden_state)
        check(f"{variant}: AutoModel is its body", same)
    config = json.load(open(os.path.join(checkpoint, "config.json")))
    check("softmax is a plain GPT-2 without code of ours", config["model_type"] == "gpt2" and "auto_map" not in config and
          not os.path.exists(os.path.join(checkpoint, "modeling_slay.py")))
    AutoModelForCausalLM.from_pretrained(checkpoint)


# ---- generate()


def generation(directory):
    checkpoint = train_variant(directory, "slay:decay=learned,elu,favor:features=exp,softmax:window=8 --positions none")
    model = open_there(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    tokens = 300  # more than three contexts: nothing in the model knows of a length
    here, (there, begun, ended) = greedy_text(checkpoint, PROMPT, tokens, "--no-stop"), greedy_there(model, checkpoint, tokens)
    check("a text longer than the context", here == there, repr(here), repr(there))
    check("whose state does not grow but for the window's keys", ended - begun <= 2 * 8 * 32, begun, ended)
    prompts = [PROMPT, "Once there was a girl named", "A"]
    options = dict(max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=tokenizer.eos_token_id)
    with torch.no_grad():
        batch = tokenizer(prompts, return_tensors="pt", padding=True)
        together = model.generate(**batch, **options)[:, -20:]
        alone = [model.generate(**tokenizer(prompt, return_tensors="pt"), **options)[0, -20:] for prompt in prompts]
        check("a padded batch writes what its rows write", all(torch.equal(a, b) for a, b in zip(together, alone)))
        cached, uncached = (model.generate(**batch, **options, num_beams=3, use_cache=flag) for flag in (True, False))
    check("beam search, with the cache and without", torch.equal(cached, uncached))
    check("a pipeline writes it", pipeline("text-generation", model=checkpoint, trust_remote_code=True)(
        PROMPT, max_new_tokens=20, do_sample=False)[0]["generated_text"] == greedy_text(checkpoint, PROMPT, 20))


# ---- the file by itself


def alone(directory):
    """scripts/slay_attention.py is what checkpoints carry, and its modules work without a checkpoint."""
    checkpoint = train_variant(directory, "slay")
    with open("scripts/slay_attention.py") as ours, open(os.path.join(checkpoint, "modeling_slay.py")) as theirs:
        check("the checkpoint carries scripts/slay_attention.py", ours.read() == theirs.read())
    code = ("import sys; sys.modules['transformers'] = None; sys.path.insert(0, 'scripts'); import slay_attention as s, torch\n"
            "x = torch.randn(3, 3, 2, 7, 16); out, state = s.make_attention({'name': 'slay'}, 2, 16, 64)(*x); print(out.shape)")
    shape = run(sys.executable, "-c", code)
    check("the attentions need no transformers", "[3, 2, 7, 16]" in shape, shape)
    torch.manual_seed(1)
    for variant in VARIANTS:
        if "," in variant or "--positions" in variant:
            continue
        words = variant.split()
        options = {"name": words[0]}
        for key, value in zip(words[1::2], words[2::2]):
            number = float(value) if value.replace(".", "").isdigit() else value
            options[key[2:].replace("-", "_")] = int(number) if isinstance(number, float) and number == int(number) else number
        attention = slay_attention.make_attention(options, heads=3, head_size=8, context=200).eval()
        q, k, v = torch.randn(3, 2, 3, 150, 8)
        with torch.no_grad():
            whole, _ = attention(q, k, v)
            parts, state = [], None
            for start, end in (0, 1), (1, 70), (70, 71), (71, 150):
                out, state = attention(q[:, :, start:end], k[:, :, start:end], v[:, :, start:end], state)
                parts.append(out)
        rows = (torch.cat(parts, 2) - whole).abs().amax(-1)
        good = rows.median() < 1e-4 if "rff" in variant or "slay --p" in variant else rows.max() < 1e-4
        check(f"{variant}: in parts as at once, freshly drawn", bool(good) and bool(torch.isfinite(whole).all()), rows.max())


def main():
    logging.disable_progress_bar()
    if sys.argv[1:] == ["--errors"]:
        return run_tests([print_errors])
    run_tests([every_variant, fine_tuned_there_continued_here, generation, alone])
    run_tests([] if QUICK else [gradients_are_ours, forms_of_a_directory])
    return summary()


if __name__ == "__main__":
    raise SystemExit(main())
