"""Names of the int64 words that kernels read: one record per stage, one job per pass, tables of its rows and streams.

A kernel is a C function `void(record, job, u0, u1, tid)` of five int64: addresses of its stage record and of the
pass's job words, the half-open range of units that it must do, and the number of the thread that runs it.  It
reads everything else from the record and the job.  Float parameters sit in the low four bytes of their word as float32.

`print(fucina.kernels.catalogue.describe())` lists the kernels with their parameters.  What the names mean:

- `x`, `out`, … are addresses of float32 rows.  Outputs lie row after row; an input's `x_step` is the distance of its rows
  and `x_head` that of its heads, in numbers, so that a part of a wider tensor can be an input.  `out` never overlaps one.
- `cols` are columns of the input, `n` output columns, `heads` equal parts of a row.
- `area` is the word of a stream's entry at which the two words of an area of its state begin (`area_word`).  For K/V they
  are the address of its first plane and the rows per plane, for recurrent parts the banks to read and to write.

Rules: what a unit is.

- columns: UNIT columns of every row; the last unit may reach beyond the last column, kernels stop there.  UNIT of a
  matrix product is a multiple of 8, of quantise.*.cols a multiple of the block (32, 256), else anything.
- rows: one row, or one of UNITS parts of it (unit = row * UNITS + part): heads, or the parts of quantise.*.rows, of which
  part p does blocks [nb*p//UNITS, nb*(p+1)//UNITS).  Rows are those of the stage's row space, streams may be rows too.
- attention: head * M + row, over kv heads; with SPLIT, units run over rows, in each over kv heads, in each over the chunks first
  ... last that the row sees; the partial result of (row, head, chunk) is number (row*kv_heads + head)*NPART + chunk -
  first.  `combine` adds them up, and does nothing when SPLIT is 0.
- groups: eight rows of a matrix (packing, at load).

A row space says which rows a stage has: ROWS_TIMES times the number in word ROWS_WORD of the job.

Quantised activations of m rows, row after row without padding (`formats.activation_bytes` gives the sizes):

| | q | d | s | s16 |
|---|---|---|---|---|
| q8 | int8 [m, cols] | f32 [m, cols/32] | f32 [m, cols/32], d * sum of 32 | int32 [m, cols/32], -128 * sum of 32 |
| q8k | int8 [m, cols] | f32 [m, cols/256] | int16 [m, cols/32] sums | int16 [m, cols/16] sums |

The parameter `s` of a matrix product is the address of what `formats.FORMATS[FMT].sums` names, "s" or "s16" (float
formats read neither d nor s).
"""

from ..cache.parts import MAX_AREAS

# --- stage record ---------------------------------------------------------------------------------------------
FN = 0  # address of the kernel
RULE = 1  # what a unit is: one of the rules below
UNITS = 2  # units: a constant for COLS, units per row for ROWS and ATTENTION
UNIT = 3  # columns per unit (COLS)
COST = 4  # estimate, bytes per unit
ROWS_WORD = 5  # the job's word that the number of rows follows from …
ROWS_TIMES = 6  # … and how many rows each of them stands for
P0 = 8  # first parameter
WORDS = 32

# --- rules ----------------------------------------------------------------------------------------------------
COLS, ROWS, ATTENTION, HOST = range(4)

# --- job: one block of words per pass -------------------------------------------------------------------------
M = 0  # rows of the pass
ROW_TABLE = 1  # address of the row table
N_OUT = 2  # rows that want logits or their hidden state
OUT_ROWS = 3  # address of their indices, int64
N_STREAMS = 4  # streams of the pass
STREAM_TABLE = 5  # address of the stream table
SCRATCH = 6  # address of per-thread scratch
SCRATCH_STEP = 7  # bytes of scratch per thread
SPLIT = 8  # attention: 1 when a unit is one chunk of one (row, kv head)
PART = 9  # address of the partial results of a split attention
NPART = 10  # partial results per (row, kv head)
N_LOGITS = 11  # rows that want logits: the first of OUT_ROWS
JOB_WORDS = 16

# --- row table: one entry per row of the pass -----------------------------------------------------------------
TOK, POS, STREAM = range(3)  # token id, position, number of its stream in the stream table
ROW_WORDS = 4
ROW_BYTES = ROW_WORDS * 8

# --- stream table: one entry per stream of the pass -----------------------------------------------------------
STREAM_FIRST, STREAM_ROWS = range(2)  # its first row in the pass, and how many it has
STREAM_STATE = 2  # from here on: the words of its state, two per area
STREAM_WORDS = STREAM_STATE + 2 * MAX_AREAS
STREAM_BYTES = STREAM_WORDS * 8


def area_word(area: int) -> int:
    """The word of a stream's entry at which the two words of an area begin."""
    return STREAM_STATE + 2 * area
