"""Compiled kernels: everything that touches numbers during a pass.

Read in this order:

- `record`: the contract, what a kernel is called with.
- `lang` (and `value`): the language that kernels are written in.  `isa`: what differs between CPUs.
- `rowops`: short kernels that show the language.  `quantise`, `embed`, `tile`, `linear`: the formats.  `superblocks`:
  coded formats, which share a layout.  `shapes`, `chunks`, `attention`.
  `experts`: a matrix per head or per expert.  `delta`: the recurrence.
- `formats`, `pack`, `coded_packing`, `packing`: how weights lie in memory, and how they get there at load.
- `registry`, `catalogue`: kernels by name, their parameters by name.  `compile`: from a name to an address.
  `cache_folder`: where compiled code is kept.  `disassembly`: its assembly.
- `invoke`: one kernel called from Python.  `reference`: the same kernels in NumPy, equal bit for bit.

What the sampler and the drafters compute lies here too: `draw`, with `masses`, `softmax_weights` and `penalties`: the
choice of a token; `top_k`: the highest logits; `suffix`: drafts.
`merges`: byte-pair encoding of long texts.
"""
