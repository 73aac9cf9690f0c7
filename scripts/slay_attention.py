"""Every attention of slay.c in PyTorch, and the GPT-2 around them for `transformers`.

The same file twice: `scripts/slay_attention.py` to import, and `modeling_slay.py` in checkpoints, so that

    AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)

opens them. The attentions need nothing but PyTorch and go into any causal model:

    attention = make_attention({"name": "slay", "decay": "learned"}, heads=12, head_size=64, context=1024)
    out, state = attention(q, k, v)             # (batch, heads, time, head_size) each
    out, state = attention(q, k, v, state)      # the tokens after these; a linear attention's state does not grow

With scores A_ij a row of the output is a mean of the values so far, sum_j A_ij v_j / (sum_j A_ij + delta), or
softmax's. A quadratic attention defines the scores, a linear one features whose products they are. Inside everything
is float32.
"""
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn

try:
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
except ImportError:  # the attentions alone do not need it
    GenerationMixin, PretrainedConfig, PreTrainedModel = object, object, nn.Module

HIDDEN = -1e30  # a logarithm of next to nothing that is still a number


# ---- what all attentions share


class CausalAttention(nn.Module):
    """Decay: scores fade by a factor gamma = 1 - 1 / reach of each head's own for every token of distance."""

    defaults = {}

    def __init__(self, options, heads, head_size, context):
        super().__init__()
        given = {key: value for key, value in options.items() if key not in ("name", "layers", "seed", "chunk")}
        self.options = {"decay": "none", "decay_shortest": 8.0, "decay_longest": 2048.0, "delta": 0.0,
                        "denominator": "add", "window": 0, **self.defaults, **given}
        self.heads, self.head_size, self.context = heads, head_size, context
        self.delta, self.window = self.options["delta"], self.options["window"]
        if self.options["decay"] == "learned":
            self.decay = nn.Parameter(torch.log(self.reaches() - 1).float())

    def reaches(self):
        """In tokens: a geometric ladder over the heads, in double precision."""
        shortest, longest = math.log(self.options["decay_shortest"]), math.log(self.options["decay_longest"])
        along = torch.linspace(0, 1, self.heads, dtype=torch.float64)
        if self.heads == 1:
            along = torch.ones_like(along)
        return torch.exp(shortest + along * (longest - shortest))

    def log_decay(self, device):
        """(heads) the logarithm of gamma; None without decay."""
        if self.options["decay"] == "none":
            return None
        if self.options["decay"] == "learned":
            return F.logsigmoid(self.decay.float())
        return torch.log1p(-1 / self.reaches()).float().to(device)

    def stabilised(self, total, signed=False):
        """What a row is divided by; a negative sum is kept away from zero on its own side."""
        if self.options["denominator"] == "clamp":
            return total.clamp_min(self.delta)
        if not signed:
            return total + self.delta
        return torch.where(total < 0, total.clamp_max(-self.delta), total + self.delta)


# ---- quadratic: every query looks at every key


@dataclass
class KeysAndValues:
    """What later tokens need of the earlier ones: all of it, or as much as the window shows."""

    keys: torch.Tensor    # (B, heads, T, head_size)
    values: torch.Tensor  # (B, heads, T, head_size)
    mask: torch.Tensor    # (B, T): False where padding stands

    def numbers(self):
        return self.keys.numel() + self.values.numel()

    def select(self, rows):
        return KeysAndValues(self.keys[rows], self.values[rows], self.mask[rows])


class QuadraticAttention(CausalAttention):
    def scores(self, q, k):
        """(B, heads, queries, keys)"""
        raise NotImplementedError

    def is_softmax(self):
        return False

    def forward(self, q, k, v, state=None, mask=None):
        dtype, T = q.dtype, q.shape[2]
        q, k, v = q.float(), k.float(), v.float()
        mask = torch.ones(k.shape[0], T, dtype=torch.bool, device=k.device) if mask is None else mask.bool()
        if state is not None:
            k, v = torch.cat([state.keys, k], 2), torch.cat([state.values, v], 2)
            mask = torch.cat([state.mask, mask], 1)
        out = self.weights(self.scores(q, k), mask) @ v
        kept = max(k.shape[2] - self.window + 1, 0) if self.window else 0
        return out.to(dtype), KeysAndValues(k[:, :, kept:], v[:, :, kept:], mask[:, kept:])

    def weights(self, scores, mask):
        queries, keys = scores.shape[2:]
        places = torch.arange(keys, device=scores.device)
        distance = places[keys - queries:, None] - places[None, :]
        seen = (distance >= 0) & ((distance < self.window) if self.window else (distance >= 0))
        seen = seen & (mask[:, None, None, :] | (distance == 0))  # padding sees itself alone
        log_decay, fade = self.log_decay(scores.device), 0
        if log_decay is not None:
            fade = distance.clamp_min(0) * log_decay[:, None, None]
        if self.is_softmax():
            return torch.softmax((scores + fade).masked_fill(~seen, -math.inf), -1)
        scores = (scores * torch.exp(fade) if log_decay is not None else scores).masked_fill(~seen, 0)
        return scores / self.stabilised(scores.sum(-1, keepdim=True))


class Softmax(QuadraticAttention):
    """exp(<q,k> / sqrt(d))"""

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / math.sqrt(self.head_size)

    def is_softmax(self):
        return True


def squared_distance(q, k):
    """Summed directly: |q|^2 + |k|^2 - 2 <q,k> has no digits left where q is near k."""
    return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square()


class Yat(QuadraticAttention):
    """<q,k>^2 / (|q - k|^2 + eps), normalised by the row's sum or by a softmax over these values"""

    defaults = {"eps": 1e-3, "delta": 1e-6, "normalizer": "kernel"}

    def scores(self, q, k):
        return (q @ k.transpose(-1, -2)).square() / (squared_distance(q, k) + self.options["eps"])

    def is_softmax(self):
        return self.options["normalizer"] == "softmax"


class YatSpherical(QuadraticAttention):
    """x^2 / (2 + eps - 2x), x the cosine of q and k"""

    defaults = {"eps": 1e-3, "delta": 1e-6}

    def scores(self, q, k):
        q, k = unit(q), unit(k)
        return (q @ k.transpose(-1, -2)).square() / (squared_distance(q, k) + self.options["eps"])


# ---- linear: A_ij = <phi(q_i), phi(k_j)>, so that the sums over j are a state of constant size


@dataclass
class LinearState:
    """sum_j gamma^(i-j) phi(k_j) [v_j, 1]^T, in units of exp(log_scale)."""

    sums: torch.Tensor       # (B, heads, features, head_size + 1)
    log_scale: torch.Tensor  # (B, heads)
    position: int            # of the next token

    def numbers(self):
        return self.sums.numel() + self.log_scale.numel()

    def select(self, rows):
        return LinearState(self.sums[rows], self.log_scale[rows], self.position)


class LinearAttention(CausalAttention):
    defaults = {"delta": 1e-6}
    chunk = 64  # rows whose pairs are formed one by one; the result does not depend on it
    signed = False

    def features(self, x, positions):
        """(B, heads, T, head_size) -> (B, heads, T, features), and the logarithm (B, heads, T) of what each row of them
        has been divided by, or None."""
        raise NotImplementedError

    def forward(self, q, k, v, state=None, mask=None):
        dtype, T, first = q.dtype, q.shape[2], state.position if state else 0
        q, k = q.float(), k.float()
        v = torch.cat([v.float(), torch.ones_like(v[..., :1], dtype=torch.float32)], -1)
        positions = torch.arange(first, first + T, device=q.device)
        phi_q, _ = self.features(q, positions)
        phi_k, scale = self.features(k, positions)
        if mask is not None:
            shown = mask[:, None, :].bool()
            phi_k = phi_k * shown[..., None]
            scale = None if scale is None else scale.masked_fill(~shown, HIDDEN)
        sums, log_scale = (state.sums, state.log_scale) if state else self.empty(phi_k, v, scale)
        out = []
        for start in range(0, T, self.chunk):
            rows = slice(start, start + self.chunk)
            chunk_scale = None if scale is None else scale[:, :, rows]
            rows_out, sums, log_scale = self.forward_chunk(phi_q[:, :, rows], phi_k[:, :, rows], v[:, :, rows],
                                                           chunk_scale, sums, log_scale)
            out.append(rows_out)
        out = torch.cat(out, 2)
        out = out[..., :-1] / self.stabilised(out[..., -1:], self.signed)
        return out.to(dtype), LinearState(sums, log_scale, first + T)

    @staticmethod
    def empty(phi, v, scale):
        B, heads, _, features = phi.shape
        sums = torch.zeros(B, heads, features, v.shape[-1], device=phi.device)
        return sums, torch.full((B, heads), 0.0 if scale is None else -math.inf, device=phi.device)

    def forward_chunk(self, phi_q, phi_k, v, scale, sums, log_scale):
        """Rows a of a chunk of n: what they see of the state has faded by gamma^(a+1), their own keys b by gamma^(a-b).
        Features that have been divided by exp(scale) are brought to the largest scale so far, as in online softmax."""
        n = phi_q.shape[2]
        a = torch.arange(n, device=v.device)
        log_decay = self.log_decay(v.device)
        fade = torch.zeros(self.heads, device=v.device) if log_decay is None else log_decay
        from_state = (a + 1) * fade[:, None]                       # (heads, n)
        to_state = (n - 1 - a) * fade[:, None]                     # (heads, n)
        between = (a[:, None] - a[None, :]) * fade[:, None, None]  # (heads, n, n)
        last = n * fade                                            # (heads)
        if scale is not None:
            largest = torch.cummax(scale - a * fade[:, None], -1).values + a * fade[:, None]
            largest = torch.maximum(largest, log_scale[..., None] + from_state)
            from_state = from_state + log_scale[..., None] - largest
            to_state = to_state + scale - largest[..., -1:]
            between = between + scale[..., None, :] - largest[..., None]
            last = last + log_scale - largest[..., -1]
            log_scale = largest[..., -1]
        future = a[:, None] < a[None, :]
        pairs = phi_q @ phi_k.transpose(-1, -2) * torch.exp(between.masked_fill(future, -math.inf))
        out = pairs @ v + torch.exp(from_state)[..., None] * (phi_q @ sums)
        sums = torch.exp(last)[..., None, None] * sums + (phi_k * torch.exp(to_state)[..., None]).transpose(-1, -2) @ v
        return out, sums, log_scale


class Uniform(LinearAttention):
    """1: the mean of the values so far"""

    defaults = {}

    def features(self, x, positions):
        return torch.ones_like(x[..., :1]), None


class Elu(LinearAttention):
    """phi = elu + 1"""

    def features(self, x, positions):
        return F.elu(x) + 1, None


class Cosformer(LinearAttention):
    """<relu(q),relu(k)> cos(pi/2 (i - j) / context): phi = relu(x) (cos, sin) of the position"""

    def features(self, x, positions):
        angle = (math.pi / 2 * positions / self.context)[:, None]
        return torch.cat([F.relu(x) * torch.cos(angle), F.relu(x) * torch.sin(angle)], -1), None


class Favor(LinearAttention):
    """Random features: relu(x W), or FAVOR+'s exp(<omega,x'> - |x'|^2 / 2) / sqrt(M), x' = x / d^(1/4)"""

    defaults = {"delta": 1e-6, "M": 64, "features": "relu", "omega": None, "scale_features": 1}

    def __init__(self, options, heads, head_size, context):
        super().__init__(options, heads, head_size, context)
        self.is_exp = self.options["features"] == "exp"
        kind = self.options["omega"] or ("orthogonal" if self.is_exp else "gaussian")
        drawn = draw_omega((heads,), head_size, self.options["M"], kind)
        if self.is_exp:
            self.register_buffer("omega", drawn)
        else:
            self.register_buffer("proj_matrix", drawn / math.sqrt(head_size))

    def features(self, x, positions):
        if not self.is_exp:
            return F.relu(x @ self.proj_matrix.float()), None
        x = x / self.head_size**0.25
        exponents = x @ self.omega.float()
        largest = exponents.amax(-1, keepdim=True)
        scale = largest.squeeze(-1) - x.square().sum(-1) / 2
        return torch.exp(exponents - largest) / math.sqrt(self.options["M"]), scale


class Rff(LinearAttention):
    """Random Fourier features of exp(-|q - k|^2 / 2): sqrt(2 / M) cos(<omega,x> + bias)"""

    defaults = {"delta": 1e-6, "M": 64, "omega": "gaussian"}
    signed = True

    def __init__(self, options, heads, head_size, context):
        super().__init__(options, heads, head_size, context)
        M = self.options["M"]
        self.register_buffer("omega", draw_omega((heads,), head_size, M, self.options["omega"]))
        self.register_buffer("bias", 2 * math.pi * torch.rand(heads, M))

    def features(self, x, positions):
        angle = x @ self.omega.float() + self.bias.float()[:, None, :]
        return math.sqrt(2 / self.options["M"]) * torch.cos(angle), None


# ---- slay: x^2 / (2 + eps - 2x) = integral over s of x^2 exp(2 s x - (2 + eps) s). Quadrature makes it a sum of R
# exponentials, positive random features make each a product, a polynomial map does the same for x^2.

SLAY_DEFAULTS = {"delta": 1e-6, "eps": 1e-3, "R": 3, "M": 16, "P": 8, "poly": "anchor", "fusion": "tensor",
                 "omega": "gaussian", "learn": "none", "scale_features": 1}


class SlayTensors(CausalAttention):
    """The tensors of a layer, drawn or learned, and the exponential features, which both kinds of slay have."""

    def __init__(self, options, heads, head_size, context):
        if options.get("preset") == "recall":
            options = {"R": 1, "M": 4, "P": 96, "poly": "nystrom", **options}
        if options.get("fusion") == "flat":
            options = {"M": 384, **options, "R": 1, "P": 1}
        super().__init__(options, heads, head_size, context)
        R, M, P, d = (*(self.options[key] for key in "RMP"), head_size)
        self.add("omega", draw_omega((R, heads), d, M, self.options["omega"]), "omega")
        if self.options["fusion"] == "flat":
            self.add("flat_scales", -torch.log1p(-torch.rand(heads, M)) / (2 + self.options["eps"]))
            self.add("flat_anchors", unit(torch.randn(heads, M, d)), "anchors")
            return
        nodes, weights = laguerre(R)
        C = 2 + self.options["eps"]
        is_bare = self.options["poly"] == "none" and self.options["fusion"] == "tensor"
        self.add("quad_nodes", (nodes / C).float())
        self.add("quad_weights", (weights * C / 4 if is_bare else weights / C).float())
        if self.options["fusion"] == "tensor":
            self.add_polynomial(self.options["poly"], P, d)

    def add(self, name, tensor, learned_with=None):
        if learned_with and self.options["learn"] in (learned_with, "both"):
            setattr(self, name, nn.Parameter(tensor))
        else:
            self.register_buffer(name, tensor)

    def add_polynomial(self, poly, P, d):
        if poly == "anchor":
            self.add("anchor_vectors", unit(torch.randn(P, d)), "anchors")
        elif poly == "nystrom":
            anchors = unit(torch.randn(P, d))
            self.add("nystrom_anchors", anchors)
            self.add("nystrom_W", inverse_root((anchors @ anchors.T).square()))
        elif poly in ("maclaurin", "rademacher"):
            for name in "rm_r1", "rm_r2":
                drawn = torch.randn(P, d) if poly == "maclaurin" else 2.0 * torch.randint(2, (P, d)) - 1
                self.add(name, drawn / math.sqrt(d))
        elif poly == "tensorsketch":
            for number in "12":
                self.add("ts_hash" + number, torch.randint(P, (d,)).float())
                self.add("ts_sign" + number, 2.0 * torch.randint(2, (d,)) - 1)

    def exponentials(self, u):
        """(B, heads, T, R M): sqrt(w_r / M) exp(sqrt(2 s_r) <omega,u> - s_r), exponents within +-20"""
        M, fusion = self.options["M"], self.options["fusion"]
        y = torch.einsum("bhtd,rhdm->bhtrm", u, self.omega.float())
        if fusion == "flat":
            s, weight = self.flat_scales.float()[:, None, None, :], 1 / (2 + self.options["eps"])
        else:
            s, weight = self.quad_nodes.float()[:, None], self.quad_weights.float()[:, None]
        features = (weight / M)**0.5 * torch.exp((torch.sqrt(2 * s) * y - s).clamp(-20, 20))
        if fusion == "hadamard":
            features = features * y.square() / math.sqrt(M)
        features = features.flatten(-2)
        if fusion == "flat":
            d = self.head_size
            scale = math.sqrt(d * (d + 2)) if self.options["scale_features"] else 1
            features = features * scale * (u @ self.flat_anchors.float().transpose(-1, -2)).square()
        return features


class Slay(SlayTensors, LinearAttention):
    """phi = exponentials (x) polynomials"""

    defaults = SLAY_DEFAULTS

    def __init__(self, options, heads, head_size, context):
        super().__init__(options, heads, head_size, context)
        has_sketch = self.options["poly"] in ("nystrom", "maclaurin", "rademacher", "tensorsketch")
        self.signed = self.options["fusion"] == "tensor" and has_sketch

    def features(self, x, positions):
        u = unit(x)
        exponentials = self.exponentials(u)
        if self.options["fusion"] != "tensor" or self.options["poly"] == "none":
            return exponentials, None
        return (exponentials[..., :, None] * self.polynomials(u)[..., None, :]).flatten(-2), None

    def polynomials(self, u):
        """(B, heads, T, P), whose products estimate x^2; scaled to its size, which leaves delta negligible"""
        poly, P, d, scale = self.options["poly"], self.options["P"], self.head_size, 1
        if poly == "anchor":
            scale, p = math.sqrt(d * (d + 2)), (u @ self.anchor_vectors.float().T).square()
        elif poly == "nystrom":
            scale, p = math.sqrt(P), (u @ self.nystrom_anchors.float().T).square() @ self.nystrom_W.float()
        elif poly in ("maclaurin", "rademacher"):
            scale, p = d, (u @ self.rm_r1.float().T) * (u @ self.rm_r2.float().T)
        else:
            scale, p = math.sqrt(P), self.sketch(u, P)
        return p * (scale if self.options["scale_features"] else 1) / math.sqrt(P)

    def sketch(self, u, P):
        """The count sketch of u (x) u: the circular convolution of two count sketches of u."""
        counts = []
        for hash, sign in (self.ts_hash1, self.ts_sign1), (self.ts_hash2, self.ts_sign2):
            places = F.one_hot(hash.long(), P).float() * sign.float()[:, None]
            counts.append(u @ places)
        shifted = (torch.arange(P, device=u.device)[:, None] - torch.arange(P, device=u.device)[None, :]) % P
        return torch.einsum("bhtm,bhtnm->bhtn", counts[0], counts[1][..., shifted])


class SlayExact(SlayTensors, QuadraticAttention):
    """x^2 itself in place of features for it: quadratic, since d^2 R M features would be too many"""

    defaults = SLAY_DEFAULTS

    def scores(self, q, k):
        q, k = unit(q), unit(k)
        exponentials = self.exponentials(q) @ self.exponentials(k).transpose(-1, -2)
        return (q @ k.transpose(-1, -2)).square() * exponentials


# ---- drawing what a new layer starts with (a checkpoint's tensors replace it)


def unit(x):
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def draw_omega(groups, d, M, kind):
    """(*groups, d, M): Gaussian columns; `orthogonal` ones are so within blocks of d and keep their lengths."""
    omega = torch.randn(*groups, d, M)
    if kind == "gaussian":
        return omega
    blocks = [torch.linalg.qr(block)[0] * block.norm(dim=-2, keepdim=True) for block in omega.split(d, -1)]
    return torch.cat(blocks, -1)


def laguerre(R):
    """Nodes and weights of the integral of exp(-t) f(t) over t > 0: eigenvalues of the polynomials' Jacobi matrix."""
    k = torch.arange(R, dtype=torch.float64)
    matrix = torch.diag(2 * k + 1) + torch.diag(k[1:], 1) + torch.diag(k[1:], -1)
    nodes, vectors = torch.linalg.eigh(matrix)
    return nodes, vectors[0].square()


def inverse_root(K):
    """(K + lambda I)^(-1/2)"""
    values, vectors = torch.linalg.eigh(K.double() + 1e-3 * torch.eye(len(K), dtype=torch.float64))
    return ((vectors / values.clamp_min(1e-6).sqrt()) @ vectors.T).float()


ATTENTIONS = {"softmax": Softmax, "yat": Yat, "yat-spherical": YatSpherical, "uniform": Uniform, "elu": Elu,
              "cosformer": Cosformer, "favor": Favor, "rff": Rff, "slay": Slay}


def make_attention(options, heads, head_size, context):
    """`options` as in config.json: {"name": "slay", "P": 32, "decay": "learned", ...}; what is left out has its
    default. `context` is the horizon of cosformer."""
    name = options["name"]
    if name not in ATTENTIONS:
        raise ValueError(f"expected an attention among {', '.join(ATTENTIONS)}, found {name}: "
                         "add it to slay_attention.py as a class")
    is_exact = name == "slay" and options.get("poly") == "exact" and options.get("fusion", "tensor") == "tensor"
    return (SlayExact if is_exact else ATTENTIONS[name])(options, heads, head_size, context)


# ---- the GPT-2 around them, under Hugging Face's names


class SlayGPT2Config(PretrainedConfig):
    """config.json of a checkpoint: GPT-2's entries, `attention` (one, or a list that is repeated over the layers, each
    entry for "layers" of them) and `positions`, "learned" or "none"."""

    model_type = "slay-gpt2"
    attribute_map = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
                     "num_hidden_layers": "n_layer"}

    def __init__(self, attention=None, positions="learned", vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12,
                 n_head=12, layer_norm_epsilon=1e-5, initializer_range=0.02, embd_pdrop=0.0, resid_pdrop=0.0,
                 use_cache=True, **kwargs):
        self.attention, self.positions = attention or {"name": "slay"}, positions
        self.vocab_size, self.n_positions, self.n_embd = vocab_size, n_positions, n_embd
        self.n_layer, self.n_head = n_layer, n_head
        self.layer_norm_epsilon, self.initializer_range = layer_norm_epsilon, initializer_range
        self.embd_pdrop, self.resid_pdrop, self.use_cache = embd_pdrop, resid_pdrop, use_cache
        super().__init__(**kwargs)

    def attention_of(self, layer):
        entries = self.attention if isinstance(self.attention, list) else [self.attention]
        layers = [entry for entry in entries for _ in range(entry.get("layers", 1))]
        return layers[layer % len(layers)]


class SlayCache:
    """The attentions' states, one per layer, and how many tokens they have seen."""

    is_compileable = False

    def __init__(self, layers):
        self.states, self.seen = [None] * layers, 0

    def get_seq_length(self, layer_idx=0):
        return self.seen

    def numbers(self):
        """How many it holds: constant as the text grows, unless there are attentions that look at every key."""
        return sum(state.numbers() for state in self.states)

    def reorder_cache(self, rows):
        """For beam search: what was row rows[i] becomes row i."""
        self.states = [state.select(rows.to(device_of(state))) for state in self.states]


def device_of(state):
    return (state.sums if isinstance(state, LinearState) else state.keys).device


class Conv1D(nn.Module):
    """A linear layer whose matrix is (in, out), as GPT-2 has it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        C, self.heads = config.n_embd, config.n_head
        self.ln_1 = nn.LayerNorm(C, eps=config.layer_norm_epsilon)
        # its tensors stand beside those of the projections
        self.attn = make_attention(config.attention_of(layer), config.n_head, C // config.n_head, config.n_positions)
        self.attn.c_attn, self.attn.c_proj = Conv1D(C, 3 * C), Conv1D(C, C)
        self.ln_2 = nn.LayerNorm(C, eps=config.layer_norm_epsilon)
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(C, 4 * C), "c_proj": Conv1D(4 * C, C)})
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x, state, mask):
        B, T, C = x.shape
        qkv = self.attn.c_attn(self.ln_1(x)).split(C, 2)
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in qkv)
        out, state = self.attn(q, k, v, state, mask)
        x = x + self.dropout(self.attn.c_proj(out.transpose(1, 2).reshape(B, T, C)))
        hidden = F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.mlp.c_proj(hidden)), state


class SlayGPT2PreTrainedModel(PreTrainedModel):
    config_class = SlayGPT2Config
    base_model_prefix = "transformer"
    _no_split_modules = ["Block"]
    _is_stateful = True  # a state cannot go back to an earlier token

    def _init_weights(self, module):
        std = self.config.initializer_range
        if isinstance(module, Conv1D):
            nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Block):
            for projection in module.attn.c_proj, module.mlp.c_proj:
                nn.init.normal_(projection.weight, std=std / math.sqrt(2 * self.config.n_layer))


class SlayGPT2Model(SlayGPT2PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd) if config.positions == "learned" else None
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList([Block(config, layer) for layer in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def set_input_embeddings(self, embeddings):
        self.wte = embeddings

    def positions_of(self, x, seen, mask):
        """Counted from the first token that is not padding."""
        if mask is None:
            return torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        return (mask.long().cumsum(-1) - 1).clamp_min(0)[:, -x.shape[1]:]

    def forward(self, input_ids=None, past_key_values: Optional[SlayCache] = None, attention_mask=None,
                position_ids=None, inputs_embeds=None, use_cache=None, output_hidden_states=None, return_dict=None,
                **kwargs):
        """attention_mask (B, T so far): 0 where padding stands."""
        x = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if isinstance(past_key_values, SlayCache) else SlayCache(len(self.h))
        if self.wpe is not None:
            places = self.positions_of(x, cache.seen, attention_mask) if position_ids is None else position_ids
            x = x + self.wpe(places)
        x = self.drop(x)
        mask = None if attention_mask is None or attention_mask.all() else attention_mask[:, -x.shape[1]:]
        hidden = [x] if output_hidden_states else None
        for layer, block in enumerate(self.h):
            x, cache.states[layer] = block(x, cache.states[layer], mask)
            if hidden:
                hidden.append(x)
        cache.seen += x.shape[1]
        x = self.ln_f(x)
        if hidden:
            hidden[-1] = x
        keeps = self.config.use_cache if use_cache is None else use_cache
        out = BaseModelOutputWithPast(last_hidden_state=x, past_key_values=cache if keeps else None,
                                      hidden_states=tuple(hidden) if hidden else None)
        return out if return_dict is None or return_dict else out.to_tuple()


class SlayGPT2LMHeadModel(SlayGPT2PreTrainedModel, GenerationMixin):
    """The head is the embedding: there is no matrix of its own, in the model or in its file."""

    accepts_loss_kwargs = False

    def __init__(self, config):
        super().__init__(config)
        self.transformer = SlayGPT2Model(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.transformer.wte

    def set_input_embeddings(self, embeddings):
        self.transformer.wte = embeddings

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids=None, past_key_values: Optional[SlayCache] = None, attention_mask=None,
                position_ids=None, inputs_embeds=None, labels=None, use_cache=None, output_hidden_states=None,
                return_dict=None, logits_to_keep=0, **kwargs):
        """labels (B, T): the tokens themselves, -100 where they do not count; they are shifted here."""
        base = self.transformer(input_ids, past_key_values, attention_mask, position_ids, inputs_embeds, use_cache,
                                output_hidden_states)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = F.linear(base.last_hidden_state[:, kept], self.transformer.wte.weight)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten().to(logits.device))
        out = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=base.past_key_values,
                                     hidden_states=base.hidden_states)
        return out if return_dict is None or return_dict else out.to_tuple()

    # what generate() asks for

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # forward makes its own

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None,
                                      use_cache=True, **kwargs):
        seen = past_key_values.seen if isinstance(past_key_values, SlayCache) else 0
        inputs = {"input_ids": input_ids[:, seen:]}
        if inputs_embeds is not None and seen == 0:
            inputs = {"inputs_embeds": inputs_embeds}
        return {**inputs, "past_key_values": past_key_values, "attention_mask": attention_mask, "use_cache": use_cache}

    def _reorder_cache(self, past_key_values, beam_idx):
        past_key_values.reorder_cache(beam_idx)
        return past_key_values
