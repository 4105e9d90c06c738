"""What a kernel becomes: its LLVM code, and its assembly for this CPU or another one.

print(assembly("linear.q4_1"))
print(assembly("linear.q4_1", "neon", "aarch64-linux-gnu", "cortex-a76"))
"""

from __future__ import annotations

from llvmlite import binding, ir

from ..errors import IsaError
from . import isa as isas
from .catalogue import find
from .lang import I64, Emitter


def llvm(name: str, isa: str | None = None) -> str:
    """The LLVM module of a kernel, as the kernel language emits it.

    Raises
    ------
    UnknownKernel, IsaError
    """
    lowering = isas.LOWERINGS.get(isa or isas.choose().name)
    if lowering is None:
        raise IsaError(f"instruction set {isa!r} is unknown; known: {', '.join(isas.LOWERINGS)}")
    kernel, args = find(name)
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 5), "kernel")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    kernel.emit(Emitter(builder, lowering, function.args, kernel.params), *args)
    builder.ret_void()
    return str(module)


def assembly(name: str, isa: str | None = None, triple: str | None = None, cpu: str = "", features: str = "") -> str:
    """The assembly of a kernel, for this CPU unless `triple`, `cpu` and `features` name another.

    Raises
    ------
    IsaError
        This build of LLVM has no such target.
    """
    module, machine = _optimised(name, isa, triple, cpu, features)
    return machine.emit_assembly(module)


def object_code(
    name: str, isa: str | None = None, triple: str | None = None, cpu: str = "", features: str = ""
) -> bytes:
    """As `assembly`, but the object file: symbol `kernel`, to be relocated by whoever runs it."""
    module, machine = _optimised(name, isa, triple, cpu, features)
    return machine.emit_object(module)


def _optimised(name: str, isa: str | None, triple: str | None, cpu: str, features: str):
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple(triple or binding.get_process_triple())
    except RuntimeError as e:
        raise IsaError(f"this LLVM does not compile for {triple!r}: {e}") from e
    if triple is None:
        cpu, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
    module = binding.parse_assembly(llvm(name, isa))
    module.triple = triple or binding.get_process_triple()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return module, machine
