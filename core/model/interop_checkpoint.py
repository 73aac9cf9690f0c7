"""Checkpoints against the real `transformers`: ours opened there, theirs opened here.

Run from the project's root by scripts/test_interop.sh. Last line: `N passed, N failed`.
"""
import os
import sys

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, pipeline

sys.path.insert(0, "scripts")
from checks import check, summary
from programs import greedy_text, logits_here, make_stories, metrics, run, run_tests, train, write_shard

V, T, CONTEXT = 61, 24, 32
SIZES = ["--layers", "2", "--heads", "2", "--width", "32", "--context", str(CONTEXT), "--vocab", str(V)]


def random_tokens(count, seed):
    return np.random.default_rng(seed).integers(0, V, count)


def loss_there(model, rows):
    """The mean loss of rows (B,T+1) with transformers' own loss."""
    tokens = torch.tensor(rows)
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def compare_models(name, model, checkpoint, directory):
    """Logits on random rows: ours are in float32, so are theirs."""
    tokens = random_tokens(3 * CONTEXT, 5).reshape(3, CONTEXT)
    with torch.no_grad():
        there = model(torch.tensor(tokens)).logits.numpy()
    here = logits_here(checkpoint, tokens, directory)
    worst = np.abs(here - there).max() / np.abs(there).max()
    check(f"{name}: logits equal within 1e-5 of their largest", worst < 1e-5, f"worst difference {worst:.2e}")


def write_data(directory):
    """Training data, and validation data that is whole rows, in their order."""
    train_path, val_path = os.path.join(directory, "train.bin"), os.path.join(directory, "val.bin")
    write_shard(train_path, random_tokens(4000, 1))
    validation = random_tokens(8 * T + 1, 2)
    write_shard(val_path, validation)
    rows = np.stack([validation[i * T : i * T + T + 1] for i in range(8)])
    return ["--train", train_path, "--sequence", str(T), "--batch", "4", "--warmup", "2"], ["--val", val_path], rows


def ours_opened_there(directory):
    options, validation, rows = write_data(directory)
    out = os.path.join(directory, "ours")
    checkpoint = train(out, *options, *validation, *SIZES, "--steps", "30", "--lr", "0.01")
    model, notes = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    model.eval()
    check("ours there: it is a GPT-2", isinstance(model, GPT2LMHeadModel), type(model))
    unexplained = {key: value for key, value in notes.items() if value}
    check("ours there: no tensor missing, none unexpected", not unexplained, unexplained)
    compare_models("ours there", model, checkpoint, directory)
    with torch.no_grad():
        there = loss_there(model, rows)
    here = metrics(out, "validation")[-1]["loss"]
    check("ours there: validation loss equal within 1e-5", abs(here - there) < 1e-5, f"here {here}, there {there:.6f}")
    stored = load_file(os.path.join(checkpoint, "model.safetensors"))
    same = all(np.array_equal(stored[name], weight.numpy()) for name, weight in model.state_dict().items() if name in stored)
    check("ours there: the same weights, bit for bit", same and len(stored) > 20, f"{len(stored)} tensors")


def make_theirs(path):
    torch.manual_seed(3)
    config = GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=V, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0,
                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)  # biases and LayerNorms that are not their defaults
    model.save_pretrained(path)
    return model


def theirs_opened_here(directory):
    options, validation, rows = write_data(directory)
    theirs, out = os.path.join(directory, "theirs"), os.path.join(directory, "from_theirs")
    model = make_theirs(theirs)
    compare_models("theirs here", model, theirs, directory)
    train(os.path.join(directory, "looked"), *options, *validation, "--init", theirs, "--steps", "0")
    here = metrics(os.path.join(directory, "looked"), "validation")[0]["loss"]
    with torch.no_grad():
        there = loss_there(model, rows)
    check("theirs here: validation loss equal within 1e-5", abs(here - there) < 1e-5, f"here {here}, there {there:.6f}")
    # The first step's loss, on rows in file order, is that of the model as it came; then it is trained.
    checkpoint = train(out, *options, "--init", theirs, "--no-shuffle", "--steps", "40", "--lr", "0.01")
    steps = metrics(out, "step")
    tokens = random_tokens(4000, 1)
    with torch.no_grad():
        there = loss_there(model, np.stack([tokens[i * T : i * T + T + 1] for i in range(4)]))
    here = steps[0]["loss"]
    check("theirs here: first step's loss equal within 1e-5", abs(here - there) < 1e-5, f"here {here}, there {there:.6f}")
    check("theirs here: the loss falls", steps[-1]["loss"] < steps[0]["loss"], steps[0]["loss"], steps[-1]["loss"])
    trained = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    compare_models("theirs, trained here, there again", trained, checkpoint, directory)


def there_and_back(directory):
    """A step at rate 0 changes nothing: theirs -> ours -> theirs, bit for bit; and what they save from it, we open."""
    options, _, _ = write_data(directory)
    theirs, out = os.path.join(directory, "theirs_again"), os.path.join(directory, "unchanged")
    model = make_theirs(theirs)
    back = AutoModelForCausalLM.from_pretrained(
        train(out, *options, "--init", theirs, "--steps", "1", "--lr", "0", "--weight-decay", "0"))
    before, after = model.state_dict(), back.state_dict()
    different = [name for name in before if not torch.equal(before[name], after[name])]
    check("there and back: the same tensors", before.keys() == after.keys(), before.keys() ^ after.keys())
    check("there and back: the same bits", not different, different)
    again = os.path.join(directory, "saved_there_again")
    back.save_pretrained(again)
    compare_models("there and back, saved there again", model, again, directory)
    half = os.path.join(directory, "half")
    model.to(torch.bfloat16).save_pretrained(half)
    compare_models("saved in bfloat16", model.float(), half, directory)


def others_are_not_mistaken(directory):
    """A checkpoint with another attention must not open as a GPT-2 (interop_modeling.py opens it as what it is)."""
    options, _, _ = write_data(directory)
    checkpoint = train(os.path.join(directory, "yat"), *options, *SIZES, "--attention", "yat", "--steps", "1")
    try:
        AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=False)
        check("another attention is refused there", False, "it was opened")
    except ValueError as error:
        check("another attention is refused there", "trust_remote_code=True" in str(error), error)


STRINGS = ["The old lantern was", "", " ", "  two  spaces , don't stop .\n\n\tEnd", "caf\u00e9 \u6f22\u5b57 \U0001f642 1234",
           "'s 'S x'll\u2019ll \u00a0\u3000.", "e\u0301 \u0663\u00bd \x07\x7f"]


def check_tokenizer(name, tokenizer, vocabulary, size):
    """Their ids are ours after one end-of-text, which is not part of the text."""
    here = [[int(i) for i in run("./tokenize", "encode", "--ids", "--vocab-file", vocabulary, path).split()]
            for path in write_strings(os.path.dirname(vocabulary))]
    there = [tokenizer(string)["input_ids"] for string in STRINGS]
    check(f"{name}: the same tokens after end-of-text", there == [[size - 1] + ids for ids in here], there, here)
    check(f"{name}: the same vocabulary size and ends",
          (len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id) == (size, size - 1, size - 1))
    back = [tokenizer.decode(ids, skip_special_tokens=True) for ids in there]
    check(f"{name}: the same text again", back == STRINGS, back)


def write_strings(directory):
    paths = [os.path.join(directory, f"string{i}") for i in range(len(STRINGS))]
    for path, string in zip(paths, STRINGS):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(string)
    return paths


def tokenizer_opened_there(directory):
    """A checkpoint is all that AutoTokenizer and a pipeline need to write what sample_gpt2 writes."""
    path = lambda name: os.path.join(directory, name)
    size, prompt = 600, "The old lantern was"
    options = [*make_stories(directory, size, 200), "--tokenizer", path("vocab"), "--layers", "2", "--heads", "2", "--width",
               "64", "--context", "64", "--batch", "8", "--warmup", "5", "--lr", "0.002"]
    checkpoint = train(path("stories"), *options, "--steps", "300")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    check_tokenizer("tokenizer", tokenizer, path("vocab"), size)
    tokenizer.save_pretrained(path("resaved"))
    check_tokenizer("tokenizer, saved there again", AutoTokenizer.from_pretrained(path("resaved")), path("vocab"), size)
    here = greedy_text(checkpoint, prompt, 24)
    there = pipeline("text-generation", model=checkpoint)(prompt, max_new_tokens=24, do_sample=False)[0]["generated_text"]
    check("pipeline: the same greedy text", here == there, repr(here), repr(there))
    check("pipeline: it begins a document", here != greedy_text(checkpoint, prompt, 24, "--no-begin"), repr(here))
    other = train(path("slay"), *options, "--attention", "slay", "--steps", "1")
    check_tokenizer("tokenizer of another attention", AutoTokenizer.from_pretrained(other), path("vocab"), size)


def main():
    run_tests([ours_opened_there, theirs_opened_here, there_and_back, others_are_not_mistaken, tokenizer_opened_there])
    return summary()


if __name__ == "__main__":
    raise SystemExit(main())
