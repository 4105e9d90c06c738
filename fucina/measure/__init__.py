"""Timing an engine: what `fucina bench` and the benchmarks in bench/ share.

Each engine lives in a process of its own (`worker`) and answers timing questions (`questions`); the parent (`duel`)
asks them in turn, A B A B, with every other process stopped, so that a slow moment of the machine falls on all alike.
Nothing here is imported by `import fucina`. `worker`, `questions` and `llama_cpp` need NumPy alone, since they also
run inside the Python that holds llama.cpp.
"""
