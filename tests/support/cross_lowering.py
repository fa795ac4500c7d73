"""Compiles the attention kernels for an H100 (sm_90) without a GPU: python cross_lowering.py GUARD.so CASE

Tensors are fake CUDA tensors, `GUARD` (see `build_guard`) registers an empty CUDA device with torch, and Triton gets a
driver that only names its target. Inductor lowers `attention.block_mask`, `attention.flex` and its backward pass; ptxas
assembles each kernel. Prints one line of JSON per forest, with the kernels' `figures`. Not covered: numbers, speed.
"""

from __future__ import annotations

import ctypes
import io
import json
import re
import subprocess
import sys
import sysconfig
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/detail/CUDAHooksInterface.h>
using namespace c10;
struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Stream stream() const noexcept { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return Device(DeviceType::CUDA, 0); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
extern "C" void guard_device() { static impl::DeviceGuardImplRegistrar mine(DeviceType::CUDA, new Guard()); }
struct CUDAHooks : at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
namespace at { C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, REGISTRY_PREFERRED, CUDAHooks) }
"""


class Case(NamedTuple):
    heads: int
    groups: int
    size: int
    dtype: str = "bfloat16"
    window: int = 0


CASES = {
    "qwen2.5-7b": Case(28, 4, 128),
    "qwen2.5-0.5b": Case(14, 2, 64),
    "qwen3-4b": Case(32, 8, 128),
    "heads of 256": Case(8, 4, 256),
    "window": Case(32, 8, 128, window=512),
    "float32": Case(14, 2, 64, "float32"),
}
FORESTS = ((2048, 2048, True), (2048, 300, True), (16, 12, False), (1500, 130, True), (2, 1, True))
"""Places, queries, backward pass: a layer; the last one; a probe's forest; lengths that compile nothing; padding."""


def forests_of(case: str) -> tuple[tuple[int, int, bool], ...]:
    return FORESTS if case == next(iter(CASES)) else FORESTS[1:3]


def torch_folder() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    return Path(str(spec.origin)).parent


def build_guard(folder: Path, compiler: str) -> Path:
    source, library, torch = folder / "guard.cpp", folder / "guard.so", torch_folder()
    source.write_text(GUARD)
    folders = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", f"-L{torch}/lib"]
    flags = ["-O0", "-std=c++20", "-fPIC", "-shared", f"-I{sysconfig.get_path('include')}"]
    command = [compiler, *flags, *folders, str(source), "-lc10", "-ltorch_cpu", "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


_PASSES = ("fx_graph_cache", "pattern_matcher", "joint_graph_constant_folding", "use_static_cuda_launcher")
OFF = {"compile_threads": 1, **dict.fromkeys(_PASSES, False)}
"""Inductor always compiles in this process, without passes that compute on the device."""


class Launched(Exception):
    """The graph would run now."""


def pretend(guard: Path) -> Any:
    """Import torch with an H100 that can only be compiled for; returns torch."""
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(guard), mode=ctypes.RTLD_GLOBAL)  # before a CUDA build registers its own hooks
    import torch
    from torch._subclasses import fake_tensor

    library.guard_device()  # after it has registered its guard
    answer(fake_tensor, init_gpu_context=None)
    state = torch.zeros(16, dtype=torch.uint8)
    nothing = ("synchronize", "_lazy_init", "set_rng_state")
    zero = ("current_device", "_exchange_device", "_maybe_exchange_device")
    answer(torch.cuda, **dict.fromkeys(nothing), **dict.fromkeys(zero, 0), device_count=1, get_rng_state=state)
    answer(torch.cuda, get_device_properties=H100, get_device_capability=(9, 0), get_device_name=H100.name)
    answer(torch.cuda, is_available=True, is_initialized=True, is_current_stream_capturing=False)
    answer(torch.cuda, get_arch_list=["sm_90"])
    import torch._dynamo.device_interface as interface  # keeps functions of torch.cuda
    import torch.utils._triton
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    calls = ("getDevice", "getCurrentRawStream", "setDevice", "maybeExchangeDevice", "exchangeDevice")
    answer(torch._C, _cuda_getArchFlags="sm_90", **{f"_cuda_{name}": 0 for name in calls})
    methods = ("exchange_device", "maybe_exchange_device", "current_device", "get_raw_stream", "synchronize")
    for owner in (interface.CudaInterface, interface.CudaInterface.Worker):
        answer(owner, **dict.fromkeys(methods, 0))
    torch.version.cuda = "13.0"
    answer(torch.utils._triton, has_triton=True)
    answer(triton_helpers, set_driver_to_gpu=None)
    no_driver = SimpleNamespace()
    target = GPUTarget("cuda", 90, 32)
    answer(no_driver, get_current_target=target, is_active=True, get_current_device=0, get_current_stream=0)
    device = torch.device("cuda", 0)
    answer(no_driver, get_device_capability=(9, 0), get_active_torch_device=device, get_benchmarker=None)
    driver.set_active(no_driver)
    return torch


def answer(owner: Any, **values: Any) -> None:
    """Replace functions of `owner` by ones that return these values; dynamo wants a separate function for each."""

    def returning(value: Any) -> Any:
        return lambda *_, **__: value

    for name, value in values.items():
        function = returning(value)
        setattr(owner, name, staticmethod(function) if isinstance(owner, type) else function)


class H100:
    name, major, minor, multi_processor_count, warp_size, total_memory = "NVIDIA H100", 9, 0, 132, 32, 85_000_000_000
    max_threads_per_multi_processor, regs_per_multiprocessor, max_threads_per_block = 2048, 65_536, 1024
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49_152, 232_448, 233_472
    L2_cache_size, gcnArchName, is_integrated, uuid, pci_bus_id = 50 << 20, "", 0, "", 0


def captured() -> list[dict[str, Any]]:
    """List of the kernels that inductor compiles from now on; a compiled graph raises Launched instead of running."""
    import torch._inductor.fx_passes.joint_graph as joint
    import torch._inductor.fx_passes.post_grad as post
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton import knobs

    found: list[dict[str, Any]] = []
    graphs: Any = GraphLowering
    kernels: Any = CachingAutotuner
    lower, compile_one = graphs.compile_to_module, kernels._precompile_config

    def stop(*_: Any) -> None:
        raise Launched

    def to_module(self: Any) -> Any:
        module = lower(self)
        module.call = stop
        return module

    def assemble(self: Any, config: Any) -> Any:
        with redirect_stdout(io.StringIO()) as output:
            result = compile_one(self, config)
        found.append(figures(result.kernel, self.inductor_meta["kernel_name"], self.fn.src, output.getvalue()))
        return result

    graphs.compile_to_module, kernels._precompile_config = to_module, assemble
    answer(kernels, _make_launchers=None)
    answer(joint, lazy_init=None)  # patterns that would be traced on the device
    answer(post, lazy_init=None)
    knobs.compilation.always_compile = knobs.nvidia.dump_ptxas_log = True
    functorch.force_non_lazy_backward_lowering = True
    for name, value in OFF.items():
        setattr(inductor, name, value)
    return found


def figures(kernel: Any, name: str, source: str, output: str) -> dict[str, Any]:
    """Figures of a compiled kernel; `decodes`: it is torch's for few queries; `output` of ptxas."""
    units = {"registers": "registers", "spilled": "bytes spill stores"}
    return {
        "name": name,
        "decodes": "SPLIT_KV" in source,
        "shared": kernel.metadata.shared,
        "wgmma": kernel.asm["ptx"].count("wgmma.mma_async"),
        **{figure: max(map(int, re.findall(rf"(\d+) {unit}", output))) for figure, unit in units.items()},
    }


def lower(torch: Any, case: Case, forest: tuple[int, int, bool], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Kernels of a forest; `found`: the list that gets new kernels."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.nn.attention.flex_attention import create_block_mask

    from palimpsest.engines.embedded.forest import attention

    places, queries, gradient = forest
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.set_grad_enabled(gradient):
        exits, where, depths = (torch.empty(n, dtype=torch.long, device="cuda") for n in (places, queries, places))
        window = (depths, case.window) if case.window else ()
        found.clear()
        with suppress(Launched):
            attention.block_mask(exits, where, *window)
        mask = found.copy()
        sees = attention.mask_mod(exits, where, *window)
        blocks = create_block_mask(sees, None, None, queries, places, device="cuda")
        sizes = ((case.heads, queries), (case.groups, places), (case.groups, places))
        dtype = getattr(torch, case.dtype)
        query, key, value = (
            torch.empty(1, heads, length, case.size, dtype=dtype, device="cuda", requires_grad=gradient)
            for heads, length in sizes
        )
        found.clear()
        with suppress(Launched):
            attention.flex(query, key, value, blocks, 0.3)
    return {"places": places, "queries": queries, "gradient": gradient, "mask": mask, "attention": found}


def main() -> None:
    torch = pretend(Path(sys.argv[1]))
    found = captured()
    for forest in forests_of(sys.argv[2]):
        print(json.dumps(lower(torch, CASES[sys.argv[2]], forest, found)), flush=True)


if __name__ == "__main__":
    main()
