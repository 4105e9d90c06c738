"""Runs kernels compiled for arm64 in an emulator (the package unicorn), on this process's own arrays.

The emulated CPU sees the memory of this process at its own addresses: a page is mapped when it is first touched.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cache

import numpy as np

from fucina.kernels.disassembly import object_code

CODE, STACK, END = 0x10_0000, 0x4000_0000, 0x8000_0000  # addresses that no array has
PAGE = 4096


def sections(elf: bytes) -> list[tuple]:
    """(name, type, flags, offset, size, link, info) of each section of an ELF64 file."""
    table, entry, count = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry) for i in range(count)]
    return [(r[0], r[1], r[2], r[4], r[5], r[6], r[7]) for r in raw]


def link(elf: bytes) -> tuple[bytes, int]:
    """The image of an object file to be loaded at CODE, and the address of its symbol `kernel`."""
    parts, image, at = sections(elf), bytearray(), {}
    for i, (_, kind, flags, offset, size, _, _) in enumerate(parts):
        if flags & 2 and kind == 1:  # occupies memory, has contents
            image += bytes(-len(image) % 64)
            at[i] = CODE + len(image)
            image += elf[offset : offset + size]
    symbols, names = next((p, parts[p[5]]) for p in parts if p[1] == 2)
    entries = [struct.unpack_from("<IBBHQQ", elf, symbols[3] + i * 24) for i in range(symbols[4] // 24)]
    address = [at.get(e[3], 0) + e[4] for e in entries]
    for _, kind, _, offset, size, _, target in parts:
        if kind == 4 and target in at:  # relocations with addends
            for i in range(size // 24):
                where, info, addend = struct.unpack_from("<QQq", elf, offset + i * 24)
                relocate(image, at[target] + where, info & 0xFFFFFFFF, address[info >> 32] + addend)
    text = lambda e: elf[names[3] + e[0] : elf.index(b"\0", names[3] + e[0])]
    return bytes(image), next(a for e, a in zip(entries, address) if text(e) == b"kernel")


def relocate(image: bytearray, place: int, kind: int, value: int) -> None:
    word = struct.unpack_from("<I", image, place - CODE)[0]
    shifts = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # R_AARCH64_ADD/LDST*_ABS_LO12_NC
    if 263 <= kind <= 269:  # R_AARCH64_MOVW_UABS_G0 ... G3: sixteen bits of the address
        word |= (value >> 16 * ((kind - 263) // 2) & 0xFFFF) << 5
    elif kind == 275:  # R_AARCH64_ADR_PREL_PG_HI21
        pages = (value >> 12) - (place >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind in shifts:
        word |= (value & 0xFFF) >> shifts[kind] << 10
    else:
        raise NotImplementedError(f"relocation {kind}")
    struct.pack_into("<I", image, place - CODE, word)


@cache
def function(name: str, isa: str | None = None):
    """As `fucina.kernels.invoke.function`, emulated."""
    import unicorn
    from unicorn import arm64_const as arm

    image, entry = link(object_code(name, isa, "aarch64-linux-gnu", features="+neon,+dotprod"))

    def call(*words: int) -> None:
        cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        cpu.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
        cpu.mem_map(CODE, -(-len(image) // PAGE) * PAGE)
        cpu.mem_write(CODE, image)
        cpu.mem_map(STACK, 1 << 20)
        cpu.mem_map(END, PAGE)

        def touched(cpu, access, address, size, value, _) -> bool:
            for page in range(address // PAGE, (address + size - 1) // PAGE + 1):
                with suppress(unicorn.UcError):  # the first of two pages was there already
                    cpu.mem_map_ptr(page * PAGE, PAGE, unicorn.UC_PROT_READ | unicorn.UC_PROT_WRITE, page * PAGE)
            return True

        cpu.hook_add(unicorn.UC_HOOK_MEM_UNMAPPED, touched)
        cpu.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vector registers on
        cpu.reg_write(arm.UC_ARM64_REG_SP, STACK + (1 << 20) - 256)
        cpu.reg_write(arm.UC_ARM64_REG_LR, END)
        for i, word in enumerate(words):
            cpu.reg_write(arm.UC_ARM64_REG_X0 + i, int(np.int64(word)))
        cpu.emu_start(entry, END)

    return call
