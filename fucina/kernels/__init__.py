"""Compiled kernels: everything that touches numbers during a pass.

Read in this order:

- `record`: the contract, what a kernel is called with.
- `lang` (and `value`): the language that kernels are written in.  `isa`: what differs between CPUs.
- `rowops`: short kernels that show the language.  `quantise`, `embed`, `linear`: the formats.  `chunks`, `attention`.
- `formats`, `pack`: how weights lie in memory, and how they get there at load.
- `draw`, with `masses`, `weighing` and `penalties`: the choice of a token.  `top_k`: the highest logits.  `suffix`: drafts.
- `compile`: from a kernel's name to its address, and the cache on disk.  `listing`: its assembly.
- `reference`: the same kernels in NumPy, equal bit for bit.  `call`: single kernels on arrays, checked.
"""
