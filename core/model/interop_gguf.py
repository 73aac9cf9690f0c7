"""GGUF files against the real llama.cpp and the `gguf` package: ours opened there.

Run from the project's root by scripts/test_interop.sh. Last line: `N passed, N failed`.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import gguf
import numpy as np
import torch
import xllamacpp
from safetensors.numpy import load_file, save_file
from transformers import GPT2LMHeadModel, logging

sys.path.insert(0, "scripts")
from checks import check, summary
from programs import QUICK, greedy_text, make_stories, run, train

CONTEXT, TEXT_TOKENS, STEPS, PROMPT = 64, 24, 150, "The old lantern was"
VOCABULARY = 600


def train_on_stories(directory, *options):
    """A small model; the directory of its checkpoint."""
    sizes = ["--layers", "2", "--heads", "2", "--width", "64", "--context", str(CONTEXT), "--batch", "8", "--steps", str(STEPS)]
    return train(os.path.join(directory, "run" + "".join(options).replace("-", "_")), *make_stories(directory, VOCABULARY, 200),
                 "--tokenizer", os.path.join(directory, "vocab"), *sizes, "--warmup", "5", "--lr", "0.005", *options)


def tensors_are_ours(checkpoint, path):
    reader = gguf.GGUFReader(path)
    ours = load_file(os.path.join(checkpoint, "model.safetensors"))
    there = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    check("as many tensors", len(there) == len(ours), len(there), len(ours))
    check("the embedding, bit for bit", np.array_equal(there["token_embd.weight"], ours["transformer.wte.weight"]))
    pairs = ("attn_qkv", "attn.c_attn"), ("attn_output", "attn.c_proj"), ("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")
    same = all(np.array_equal(there[f"blk.1.{a}.weight"], ours[f"transformer.h.1.{b}.weight"].T) for a, b in pairs)
    check("the matrices, bit for bit, as (out,in)", same)


def open_llama(path):
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx, parameters.n_parallel = CONTEXT, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 2
    # As exact as it gets there: its flash attention is off by 3e-4 in a log-probability. What remains is its GELU, a table
    # in half precision (GeluAsThere).
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(parameters)


def logits_here(checkpoint, ids, directory):
    """Of the token after the last."""
    target = os.path.join(directory, "logits.safetensors")
    run("./sample_gpt2", checkpoint, "--prompt-ids", ",".join(map(str, ids)), "--logits", target)
    return load_file(target)["logits"][-1]


STRINGS = [PROMPT, "", " ", "  two  spaces , don't stop .\n\n\tEnd", "caf\u00e9 \u6f22\u5b57 \U0001f642 1234",
           "'s 'S x'll\u2019ll \u00a0\u3000.", "e\u0301 \u0663\u00bd \x07\x7f"]


def tokens_there(server, string):
    """As it cuts a prompt."""
    request = urllib.request.Request(server.listening_address + "/tokenize", headers={"Content-Type": "application/json"},
                                     data=json.dumps({"content": string, "add_special": True}).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)["tokens"]


def tokens_here(string, directory):
    path = os.path.join(directory, "string")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(string)
    return [int(i) for i in run("./tokenize", "encode", "--vocab-file", os.path.join(directory, "vocab"), "--ids", path).split()]


class GeluAsThere(torch.nn.Module):
    def forward(self, x):
        table = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, table))


def logits_there(checkpoint, ids):
    """The same model in PyTorch with llama.cpp's GELU: what is left of the difference when that is taken away."""
    model = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    for block in model.transformer.h:
        block.mlp.act = GeluAsThere()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].numpy()


def worst_difference(logits, answers):
    """Of the log-probabilities of the likeliest tokens from what llama.cpp has answered."""
    logits = logits.astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return max(abs(logprobs[item["id"]] - item["logprob"]) for item in answers)


def text_is_ours(name, checkpoint, path, directory, begins, within=5e-4):
    """Whether a text begins with end-of-text is left to llama.cpp, which goes by the file. Returns the text."""
    end = VOCABULARY - 1
    reader = gguf.GGUFReader(path)
    values = [reader.get_field(f"tokenizer.ggml.{key}").contents() for key in ("add_bos_token", "bos_token_id", "eos_token_id")]
    check(f"{name}: the file says what a text begins with", values == [begins, end, end], values)
    server = open_llama(path)
    answer = server.handle_completions({"prompt": PROMPT, "max_tokens": TEXT_TOKENS, "temperature": 0, "logprobs": 5,
                                        "n_probs": 5, "ignore_eos": True, "cache_prompt": False})
    there = answer["choices"][0]["text"]
    here = greedy_text(checkpoint, PROMPT, TEXT_TOKENS, *([] if begins else ["--no-begin"]), "--no-stop", "--tokenizer",
                       os.path.join(directory, "vocab"))
    check(f"{name}: the same greedy text", here == PROMPT + there, repr(here), repr(PROMPT + there))
    for string in STRINGS:
        ids, theirs = [end] * begins + tokens_here(string, directory), tokens_there(server, string)
        check(f"{name}: the same tokens of {string!r}", ids == theirs, ids, theirs)
    ids = [end] * begins + tokens_here(PROMPT, directory)
    first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    worst = worst_difference(logits_here(checkpoint, ids, directory), first)
    check(f"{name}: log-probabilities equal within {within:g}", worst < within, worst)
    if within < 1e-3:
        worst = worst_difference(logits_there(checkpoint, ids), first)
        check(f"{name}: with its GELU within 1e-5", worst < 1e-5, worst)
    return there


# ---- fewer bits

# How near llama.cpp comes to float32 with the very same weights: it rounds what a matrix is multiplied with to the
# matrix's own type, and for Q8_0 to int8.
TYPES = {"f32": (gguf.GGMLQuantizationType.F32, 5e-4), "f16": (gguf.GGMLQuantizationType.F16, 2e-3),
         "bf16": (gguf.GGMLQuantizationType.BF16, 2e-2), "q8_0": (gguf.GGMLQuantizationType.Q8_0, 5e-2)}
NAMES = {"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "attn_norm": "ln_1", "attn_qkv": "attn.c_attn",
         "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}


def name_here(name):
    *block, part, kind = name.split(".")
    return ".".join(["transformer", *(["h", block[1]] if block else []), NAMES[part], kind])


def numbers_are_theirs(kind, ours, reader):
    """Bit for bit what the `gguf` package makes of our weights; norms, biases and positions as they are. Returns the
    rounded weights in our layout."""
    wrong, rounded = [], {}
    for tensor in reader.tensors:
        mine = ours[name_here(tensor.name)]
        is_matrix = mine.ndim == 2 and not tensor.name.startswith("position")
        mine = np.ascontiguousarray(mine.T) if is_matrix and not tensor.name.startswith("token") else mine
        wanted = TYPES[kind][0] if is_matrix else gguf.GGMLQuantizationType.F32
        expected = gguf.quants.quantize(mine, wanted)
        data = np.array(tensor.data)
        if tensor.tensor_type != wanted or data.tobytes() != expected.tobytes():
            wrong.append(tensor.name)
        values = gguf.quants.dequantize(data, tensor.tensor_type).reshape(mine.shape).astype(np.float32)
        rounded[name_here(tensor.name)] = np.ascontiguousarray(values.T if mine is not ours[name_here(tensor.name)] else values)
    check(f"{kind}: every number is as the gguf package rounds it", not wrong and len(reader.tensors) == len(ours), wrong)
    return rounded


def rounded_copy(checkpoint, tensors, target):
    """Our own checkpoint with the rounded weights."""
    os.mkdir(target)
    for name in "config.json", "tokenizer.tiktoken", "tokenizer.json", "tokenizer_config.json":
        shutil.copy(os.path.join(checkpoint, name), target)
    save_file(tensors, os.path.join(target, "model.safetensors"), {"format": "pt"})
    return target


def fewer_bits(checkpoint, directory):
    ours = load_file(os.path.join(checkpoint, "model.safetensors"))
    sizes = {}
    for kind in ("f32", "q8_0") if QUICK else TYPES:
        path = os.path.join(directory, f"{kind}.gguf")
        run("./export_gguf", checkpoint, path, "--type", kind)
        rounded = numbers_are_theirs(kind, ours, gguf.GGUFReader(path))
        copy = rounded_copy(checkpoint, rounded, os.path.join(directory, f"{kind}_weights"))
        text_is_ours(kind, copy, path, directory, True, TYPES[kind][1])
        sizes[kind] = os.path.getsize(path)
    check("fewer bits are fewer bytes", list(sizes.values()) == sorted(sizes.values(), reverse=True) and
          sizes["f32"] > 2 * sizes["q8_0"], sizes)


def odd_sizes(directory):
    """Rows that are not whole blocks of Q8_0 are F16, and llama.cpp opens that; weights beyond F16 are refused."""
    checkpoint = train_on_stories(directory, "--width", "40", "--steps", "10")
    path = os.path.join(directory, "odd.gguf")
    run("./export_gguf", checkpoint, path, "--type", "q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    check("width 40: F16 where rows are not whole blocks", (kinds["token_embd.weight"], kinds["blk.0.ffn_down.weight"]) ==
          ("F16", "Q8_0"), kinds)
    answer = open_llama(path).handle_completions({"prompt": PROMPT, "max_tokens": 3, "temperature": 0})
    check("width 40: llama.cpp opens it", "choices" in answer, answer)
    tensors = load_file(os.path.join(checkpoint, "model.safetensors"))
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 5] = 1e5
    large = rounded_copy(checkpoint, tensors, os.path.join(directory, "large"))
    result = subprocess.run(["./export_gguf", large, os.path.join(directory, "large.gguf"), "--type", "f16"],
                            capture_output=True, text=True)
    check("a weight beyond half precision is refused", result.returncode == 1 and "use --type bf16" in result.stderr and
          not os.path.exists(os.path.join(directory, "large.gguf")), result.stderr)


def plain_copy(checkpoint, directory):
    """The weights as a Hugging Face directory that says nothing of a tokenizer."""
    plain = os.path.join(directory, "plain")
    os.mkdir(plain)
    for name in "config.json", "model.safetensors":
        shutil.copy(os.path.join(checkpoint, name), plain)
    return plain


def other_attentions_are_refused(directory):
    checkpoint = train_on_stories(directory, "--attention", "slay")
    result = subprocess.run(["./export_gguf", checkpoint, os.path.join(directory, "slay.gguf")], capture_output=True, text=True)
    check("another attention is refused", result.returncode == 1 and "found slay" in result.stderr, result.stderr)
    check("and nothing is written", not os.path.exists(os.path.join(directory, "slay.gguf")))


def main():
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, path = train_on_stories(directory), os.path.join(directory, "model.gguf")
        run("./export_gguf", checkpoint, path)
        tensors_are_ours(checkpoint, path)
        begun = text_is_ours("trained here", checkpoint, path, directory, True)
        plain, plain_path = plain_copy(checkpoint, directory), os.path.join(directory, "plain.gguf")
        run("./export_gguf", plain, plain_path, "--tokenizer", os.path.join(directory, "vocab"))
        other = text_is_ours("of others", plain, plain_path, directory, False)
        check("it makes a difference", begun != other, repr(begun))
        fewer_bits(checkpoint, directory)
        odd_sizes(directory)
        other_attentions_are_refused(directory)
    return summary()


if __name__ == "__main__":
    raise SystemExit(main())
