"""From LLVM IR to code that runs in this process: llvmlite's target machine and linker."""

import ctypes
import hashlib
import itertools
import os
import platform
import threading
from functools import cache
from typing import Any

import numpy as np

VECTOR_BYTES = (("avx512f", 64), ("avx2", 32), ("neon", 16), ("sse2", 16))
PATIENCE = 0.05  # seconds between checks of a running compilation
MOST_TEXT = 16_000_000  # characters of LLVM IR, some 150,000 operations and 4 MB of stack, up to which level 0 is possible
_lock = threading.Lock()
_loaded: list[Any] = []
_numbers = itertools.count()


@cache
def llvm() -> Any:
    """llvmlite's binding, ready for this processor; ImportError where there is none.

    LLVM's own scheduling of instructions, before and after registers are allocated, is switched off (for the whole process:
    there is no other way): kernels already come in a good order, and scheduling takes long and makes them spill more
    registers.
    """
    import llvmlite.binding as binding

    for option in ("-enable-misched=0", "-post-RA-scheduler=0"):
        binding.set_option("", option)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def supported() -> str:
    """Why kernels cannot be compiled here; empty if they can."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"no kernels for processors of type '{platform.machine()}'"
    if platform.system() not in ("Linux", "Darwin"):
        return f"no kernels under {platform.system()}"
    try:
        llvm()
    except (ImportError, OSError, RuntimeError) as error:
        return f"llvmlite does not load ({error})"
    return ""


@cache
def processor() -> tuple[str, str]:
    """Name and features of this processor, as LLVM knows them."""
    features = llvm().get_host_cpu_features()
    return llvm().get_host_cpu_name(), ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))


@cache
def vector_bytes() -> int:
    """Width of this processor's vectors."""
    features = processor()[1]
    return next((size for name, size in VECTOR_BYTES if f"+{name}" in features), 16)


def lanes_for(dtype: np.dtype) -> int:
    """Examples that fit a vector of the given type."""
    return vector_bytes() // dtype.itemsize


@cache
def identity() -> str:
    """What object code depends on besides the program: processor and versions."""
    binding = llvm()
    import llvmlite

    text = f"{processor()}|{binding.llvm_version_info}|{llvmlite.__version__}|{binding.get_process_triple()}"
    return hashlib.sha256(text.encode()).hexdigest()


def level() -> int:
    """How hard LLVM works on machine code: 2 unless FLEXOR_SIMD_LEVEL says otherwise. At level 0 it takes an eighth of the time,
    and the code, which gives the same numbers, runs more slowly."""
    chosen = os.environ.get("FLEXOR_SIMD_LEVEL", "2")
    if chosen not in ("0", "1", "2", "3"):
        raise ValueError(f"FLEXOR_SIMD_LEVEL must be 0, 1, 2 or 3, got '{chosen}'.")
    return int(chosen)


def _target_machine(level: int) -> Any:
    name, features = processor()
    target = llvm().Target.from_triple(llvm().get_process_triple())
    return target.create_target_machine(cpu=name, features=features, opt=level, reloc="pic", codemodel="small")


def compile_object(text: str) -> bytes:
    """Object code of LLVM IR.

    LLVM works in a thread of its own while this one waits, so that Ctrl-C works at once; an abandoned compilation finishes
    by itself, and its result is dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return _emit(text)
    result: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            result.append(_emit(text))
        except BaseException as error:  # handed to the thread that waits
            result.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="flexor-simd-compile", daemon=True).start()
    while not done.wait(PATIENCE):
        pass
    if isinstance(result[0], BaseException):
        raise result[0]
    return bytes(result[0])


def _emit(text: str) -> bytes:
    binding = llvm()
    # at level 0 every value has a place of its own on the stack, so that a large kernel would need more of it than threads have
    machine = _target_machine(level() if len(text) < MOST_TEXT else max(level(), 2))
    module = binding.parse_assembly(text, context=binding.create_context())
    module.triple = binding.get_process_triple()
    module.data_layout = str(machine.target_data)
    return bytes(machine.emit_object(module))


@cache
def _linker() -> Any:
    """LLVM's JIT linker, which keeps code and constants of an object close together."""
    return llvm().create_lljit_compiler(_target_machine(2), use_jit_link=True)


def load(code: bytes, name: str) -> int:
    """Links object code into the process, for good; the address of the function `name`."""
    with _lock:
        library = llvm().JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(name)
        tracker = library.link(_linker(), f"{name}_{next(_numbers)}")
        _loaded.append(tracker)
        return int(tracker[name])


def load_direct(code: bytes, name: str) -> tuple[int, Any]:
    """Links object code into the process for as long as the second result lives; the address of its plain entry."""
    with _lock:
        entry = f"{name}_direct"
        library = llvm().JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(entry)
        tracker = library.link(_linker(), f"{entry}_{next(_numbers)}")
        return int(tracker[entry]), tracker


def capsule(address: int) -> Any:
    """A PyCapsule around a function pointer, as JAX wants it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)
