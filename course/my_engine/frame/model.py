# ruff: noqa: F821
# mypy: ignore-errors
from time import perf_counter
from types import SimpleNamespace

import numpy as np

# ======================================================================================================================
# 3. The forward, in NumPy (chapter 03), and the cache that can forget (chapter 05)
# ======================================================================================================================

#: ch03.rms_norm
#: ch03.rope
#: ch03.attention
#: ch03.swiglu
#: ch03.layer
#: ch03.forward
#: ch05.truncate


class Cache:
    """Keys and values of all layers of one stream, float32.

    `k[layer]` and `v[layer]` are [kv_heads, capacity, head_dim]; the first `len` positions count.
    """

    def __init__(self, layers, kv_heads, head_dim, capacity):
        self.k = np.full((layers, kv_heads, capacity, head_dim), np.nan, np.float32)
        self.v = np.full((layers, kv_heads, capacity, head_dim), np.nan, np.float32)
        self.capacity = capacity
        self.len = 0

    def truncate(self, keep):
        """Keep the first `keep` positions."""
        truncate(self, keep)


def in_float32(piece):
    """A piece whose result is float32 again: one float64 number on the way makes every product after it slow."""

    def call(*arguments):
        return np.asarray(piece(*arguments), np.float32)

    return call


OPS = SimpleNamespace(
    rms_norm=in_float32(rms_norm),
    angles=angles,
    rotate=in_float32(rotate),
    attention=in_float32(attention),
    swiglu=in_float32(swiglu),
    run_layer=in_float32(run_layer),
)
LAYER_MATRICES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "attn_output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
LAYER_VECTORS = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}


class NumPyModel:
    """A model of the llama family, from the bytes of its file to logits, in NumPy alone.

    Parameters
    ----------
    path : of a .gguf
    """

    def __init__(self, path):
        metadata, tensors = read_file(path)
        kind = metadata["general.architecture"]
        if kind != "llama" or "rope_freqs.weight" in tensors:
            raise UnknownModel(f"this forward knows the llama family with plain RoPE; the file holds {kind!r}")

        def weights(name):
            return decoded(*tensors[name + ".weight"])

        def size(key, otherwise=None):
            return metadata.get(f"{kind}.{key}", otherwise)

        heads = size("attention.head_count")
        head_dim = size("attention.key_length", size("embedding_length") // heads)
        turned = SimpleNamespace(
            dims=size("rope.dimension_count", head_dim), base=size("rope.freq_base", 10000.0), pairing="interleaved"
        )
        self.c = SimpleNamespace(
            heads=heads,
            kv_heads=size("attention.head_count_kv", heads),
            head_dim=head_dim,
            eps=size("attention.layer_norm_rms_epsilon"),
            rope=turned,
            layers=size("block_count"),
        )
        names = LAYER_MATRICES | LAYER_VECTORS
        layers = [
            SimpleNamespace(**{field: weights(f"blk.{i}.{name}") for field, name in names.items()})
            for i in range(self.c.layers)
        ]
        self.w = SimpleNamespace(
            embedding=weights("token_embd"), layers=layers, output_norm=weights("output_norm").reshape(-1)
        )
        self.w.output = weights("output") if "output.weight" in tensors else self.w.embedding
        self._costs = None

    def new_cache(self, capacity):
        """An empty cache for one stream."""
        return Cache(self.c.layers, self.c.kv_heads, self.c.head_dim, capacity)

    def forward(self, tokens, cache):
        """The next tokens of a stream: a row of logits for each."""
        if cache.len + len(tokens) > cache.capacity:
            raise KvCacheOverflow(f"{len(tokens)} rows more do not fit: {cache.len} of {cache.capacity} are taken")
        return forward(OPS, list(tokens), self.w, self.c, cache)

    def forward_rows(self, requests):
        """Several streams, (cache, tokens, want) each.  In NumPy one stream runs after the other."""
        out = []
        for cache, tokens, want in requests:
            rows = self.forward(tokens, cache)
            out.append({"all": rows, "last": rows[-1:], "none": rows[:0]}[want])
        return out

    def copy_rows(self, source, target, keep):
        """Let a cache hold the first `keep` rows of another one."""
        target.k[:, :, :keep], target.v[:, :, :keep] = source.k[:, :, :keep], source.v[:, :, :keep]
        target.len = keep

    def costs(self):
        """Points (rows, cost in plain steps) of passes, measured when they are first asked for."""
        if self._costs is None:
            seconds = {}
            for rows in (1, 4, 8, 17) * 2:
                cache = self.new_cache(rows)
                began = perf_counter()
                self.forward([0] * rows, cache)
                seconds[rows] = min(perf_counter() - began, seconds.get(rows, np.inf))
            self._costs = [(rows, max(s / seconds[1], 1.0)) for rows, s in seconds.items()]
        return self._costs


class CompiledModel:
    """The same face in front of fucina's compiled engine: your loop, its forward.

    Parameters
    ----------
    model : a path or a name that `fucina.load` knows, or a model that it has loaded
    """

    def __init__(self, model):
        if isinstance(model, str):
            import fucina

            model = fucina.load(model)
        self.model = model

    def new_cache(self, capacity):
        """An empty cache for one stream."""
        return self.model.new_cache(capacity)

    def forward(self, tokens, cache):
        """The next tokens of a stream: a row of logits for each."""
        return self.model.forward_rows([(cache, list(tokens), "all")])[0]

    def forward_rows(self, requests):
        """Several streams in one pass, (cache, tokens, want) each."""
        return self.model.forward_rows(requests)

    def copy_rows(self, source, target, keep):
        """Let a cache hold the first `keep` rows of another one."""
        target.reset()
        target.copy_rows(source, 0, keep)

    def costs(self):
        """Points (rows, cost in plain steps), from the table that comes with the engine."""
        from fucina.speculative import default_table

        return list(enumerate(default_table().curve(128)))[1:33]
