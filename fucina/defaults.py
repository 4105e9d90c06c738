"""Default of every option, in the one place that the Python API, the command line and its help read.

No module is imported here: `fucina chat --help` must not wait for NumPy.
"""

# how a token is chosen: greedy, every cut and penalty off
TEMPERATURE = 0.0
TOP_K = 0
TOP_P = 1.0
MIN_P = 0.0
REPEAT_PENALTY = 1.0
FREQUENCY_PENALTY = 0.0
PRESENCE_PENALTY = 0.0
REPEAT_LAST_N = 64
SEED = 0

# how long: new tokens of one call
GENERATE_TOKENS = 64
REPLY_TOKENS = 1024

# how long others may wait: a pass with decode rows may take about this many times as long for the prompts that join it
PREFILL_STRETCH = 2.2
