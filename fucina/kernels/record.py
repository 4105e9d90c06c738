"""Names of the int64 words that kernels read: one record a stage, one job a pass, one row a token.

A kernel is a C function `void(record, job, u0, u1, tid)` of five int64: the address of its stage record, the address
of the pass's job words, the half-open range of units that it must do, and the number of the thread that runs it.  It
reads everything else from the record and the job.  Floats sit in the low four bytes of their word as float32.

Kernels (p = words P0, P1, …).  `x`, `out`, … are addresses of float32 rows without padding (row stride = columns · 4).

| kernel | rule: unit | words |
|---|---|---|
| embed.FMT | ROWS: row | w, cols, out, scale(f32) |
| gather_rows | ROWS: output row | x, cols, out (out[i] = x[OUTROWS[i]]) |
| rms_norm | ROWS: row | x, out, w (f32), n (width of a head), heads, eps(f32) |
| rope.interleaved, rope.half | ROWS: row | x, out, heads, head_dim, dims, table (row p: cos[dims/2] then sin[dims/2]) |
| kv_append.F | ROWS: row | k, v, kv_heads, k_dim, v_dim, k_offset, v_offset |
| quantise.q8.rows/cols, quantise.q8k.rows/cols | ROWS: row × part, COLS: columns | x, cols, q, d, s, s16 |
| linear.FMT | COLS: output columns | w, cols, x or q, d, s, out, rows of w (N) |
| add, swiglu, geglu | COLS: columns | x, y, out, cols |
| attention.F.G.KD.VD | ATTENTION: kv head × row, or row × kv head × chunk | q, out, kv_heads, k_offset, v_offset, window, scale(f32) |
| combine.F.G.KD.VD | ROWS: row × kv head | the same |

FMT: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q4_k q6_k.  F: f16 f32 (dtype of the cache).  G: query heads a kv head.

Quantised activations of m rows, row after row without padding (`formats.activation_bytes` gives the sizes):

| | q | d | s | s16 |
|---|---|---|---|---|
| q8 | int8 [m, cols] | f32 [m, cols/32] | f32 [m, cols/32], d * sum of 32 | int32 [m, cols/32], -128 * sum of 32 |
| q8k | int8 [m, cols] | f32 [m, cols/256] | int16 [m, cols/32] sums | int16 [m, cols/16] sums |

The word `s` of linear.FMT is the address of what `formats.FORMATS[FMT].sums` names, "s" or "s16" (float formats read
neither d nor s).  UNIT of linear is a multiple of 8, of quantise.*.cols a multiple of the block (32, 256); of the other
COLS kernels anything.  The last unit may reach beyond the last column: kernels stop there.  quantise.*.rows: unit =
row * UNITS + part, part p of the n = UNITS parts does blocks [nb*p//n, nb*(p+1)//n).  `out` never overlaps an input.

attention: unit = head * rows + row; with SPLIT, units run over rows, in each over kv heads, in each over the chunks
first ... last that the row sees; partial result of (row, head, chunk) is number (row*kv_heads + head)*NPART + chunk -
first.  combine with SPLIT = 0 does nothing.  Sizes: `attention.scratch_bytes(G, KD, VD)` a thread,
`attention.part_bytes(G, VD)` a partial result.

pack.FMT (unit: group of 8 output rows; run at load): raw rows of the file, cols, out (packed), rows.
test.add_one: out[i] = x[i] + 1 (COLS; x, out, cols); test.noop does nothing.
"""

# --- stage record ---------------------------------------------------------------------------------------------
FN = 0  # address of the kernel
CHAIN = 1  # index of the record behind the last one of this chain
RULE = 2  # what a unit is: one of the rules below
UNITS = 3  # units: a constant for COLS, units a row for ROWS and ATTENTION
UNIT = 4  # columns in a unit (COLS)
COST = 5  # estimate, bytes a unit
SEL = 6  # 0: the rows of the pass, 1: only the rows that want logits
P0 = 8  # first parameter
WORDS = 32

# --- rules ----------------------------------------------------------------------------------------------------
COLS, ROWS, ATTENTION, HOST = range(4)

# --- job: one block of words a pass ---------------------------------------------------------------------------
M = 0  # rows of the pass
ROWTAB = 1  # address of the row table
NOUT = 2  # rows that want logits
OUTROWS = 3  # address of their indices, int64
SCRATCH = 4  # address of per-thread scratch
SCRATCH_STEP = 5  # bytes of scratch a thread
SPLIT = 6  # attention: 1 when a unit is one chunk of one (row, kv head)
PART = 7  # address of the partial results of a split attention
NPART = 8  # partial results a (row, kv head)

# --- row table: one entry a row of the pass --------------------------------------------------------------------
TOK, POS, KV, STRIDE = range(4)  # token id, position, address of its cache, rows a plane of that cache
ROW_WORDS = 4
ROW_BYTES = ROW_WORDS * 8

CHUNK = 64  # attention works in chunks that start at absolute multiples of this
MAX_ROWS = 128  # rows a pass: few enough that a cancelled prefill ends soon
