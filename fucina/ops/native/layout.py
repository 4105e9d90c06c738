"""Where the words of the team lie: control block, bank of a pass, and the static tables of a recorded forward.

All are blocks of int64 words, addressed in bytes.  Words that different threads write sit on different cache lines.

- The *program* is static: records (fucina.kernels.record), chains of records, steps of chains.
- A *bank* holds one pass: its job words, its plan (chunks of every chain), and the counters of every step.
- The *control block* belongs to the team: which bank is open to whom, who sleeps, and the addresses of the few C
  functions that the team calls.
"""

LINE = 64
PAIR = 128  # adjacent lines are fetched together: words that two threads hammer are kept this far apart

# --- static tables ----------------------------------------------------------------------------------------------
CHAIN_BYTES = 16  # first record, index after the last
STEP_BYTES = 16  # first chain, index after the last

# --- bank -------------------------------------------------------------------------------------------------------
B_PROGRESS = 128  # first step that is not complete
B_INSIDE = 256  # workers that may still look at this bank
B_PLAN = 384  # one entry per chain: chunks, units, index of its first chunk in the step, -
PLAN_BYTES = 32
# then one word per step: chunks (1: whoever comes first runs the whole step)
# then two counters per step, PAIR apart: chunks claimed, chunks done
COUNTER_BYTES = 2 * PAIR
C_CLAIM, C_DONE = 0, PAIR

# --- control block ----------------------------------------------------------------------------------------------
EPOCH = 0  # counts publications; workers follow it
SLOTS = PAIR  # four of (bank, first step, index after the last), used in turn
SLOT_BYTES = LINE
N_SLOTS = 4
FIXED = SLOTS + N_SLOTS * SLOT_BYTES  # words below never change while threads run
(
    F_RECORDS,  # address of the records
    F_CHAINS,  # address of the chains
    F_STEPS,  # address of the steps
    F_N_STEPS,
    F_TOTALS,  # offset in a bank of the chunks per step
    F_COUNTERS,  # offset in a bank of the counters
    F_THREADS,
    F_SPIN,  # pauses before a worker without work goes to sleep
    F_TARGET,  # nanoseconds of a chunk
    F_TINY,  # steps below this many nanoseconds are one chunk
    F_YIELD,  # addresses of C functions
    F_ACQUIRE,
    F_RELEASE,
    F_HOOK,  # 0, or a function called at every delicate point (tests of the protocol)
    F_HOOK_DATA,  # its first argument
) = range(FIXED, FIXED + 15 * 8, 8)
WORKERS = FIXED + 2 * PAIR  # one entry per thread
WORKER_BYTES = PAIR
W_PARKED = 0  # 1 while its thread sleeps, or is about to
W_LOCK = 64  # the lock that it sleeps on
MAX_THREADS = 256


def control_bytes(threads: int) -> int:
    """Size of a control block."""
    return WORKERS + threads * WORKER_BYTES


def totals_offset(chains: int) -> int:
    """Where the chunks per step lie in a bank."""
    return -(-(B_PLAN + chains * PLAN_BYTES) // PAIR) * PAIR


def counters_offset(chains: int, steps: int) -> int:
    """Where the counters lie in a bank."""
    return -(-(totals_offset(chains) + steps * 8) // PAIR) * PAIR


def bank_bytes(chains: int, steps: int) -> int:
    """Size of a bank."""
    return counters_offset(chains, steps) + steps * COUNTER_BYTES
