# SPDX-License-Identifier: Apache-2.0
# The native module (kernels/bind/module.cpp). Addresses are those of Tensor.data_ptr(); 0 is null.
from collections.abc import Sequence

build_compiler: str
build_cuda_archs: str
build_python: str
build_version: str

class Matrix:
    def __init__(self, data: int, dtype: int, rows: int, cols: int, row_stride: int) -> None: ...

class Operand:
    def __init__(
        self,
        qdata: int,
        block_scale: int,
        amax: int,
        rows: int,
        k: int,
        layout: int,
        scaling: int,
        e4m3_max: int,
    ) -> None: ...

class Launch:
    def __init__(self, stream: int, device: int, threads: int, workspace: int, workspace_bytes: int) -> None: ...

class AmaxProblem:
    def __init__(self, x: Matrix, kind: int, amax: int) -> None: ...

class QuantizeProblem:
    def __init__(
        self,
        x: Matrix,
        block_rows: int,
        rowwise_amax: int,
        columnwise_amax: int,
        rowwise: Operand | None,
        columnwise: Operand | None,
    ) -> None: ...

class DequantizeProblem:
    def __init__(self, x: Operand, start_k: int, stop_k: int, units: bool, nan_rows: int, out: Matrix) -> None: ...

class TransposeProblem:
    def __init__(self, x: Operand, y: Operand) -> None: ...

class RelayoutProblem:
    def __init__(self, source: int, target: int, rows: int, k: int, source_layout: int, target_layout: int) -> None: ...

class WidenProblem:
    def __init__(self, x: Matrix, out: Matrix) -> None: ...

class AccumulateProblem:
    def __init__(self, products: int, sums: int, count: int) -> None: ...

class EpilogueProblem:
    def __init__(
        self,
        acc: Matrix,
        acc_fixed: int,
        a_nan_rows: int,
        b_nan_rows: int,
        acc_empty: bool,
        a_amax: int,
        b_amax: int,
        a_scaling: int,
        b_scaling: int,
        a_e4m3_max: int,
        b_e4m3_max: int,
        alpha_pointer: int,
        alpha: float,
        beta: float,
        c: Matrix | None,
        bias: Matrix | None,
        activation: int,
        d: Matrix | None,
        quantized: Operand | None,
        out_amax: int,
        return_kind: int,
        returned_amax: int,
    ) -> None: ...

class PrimaryList:
    """Items of one stage of kernels/contract/primary.h, and the address of their table on the device, or 0."""

    table: int
    def __init__(self, stage: int) -> None: ...
    def __len__(self) -> int: ...
    def add_partial_amax(
        self,
        shard: int,
        dtype: int,
        round_to: int,
        rows: int,
        k: int,
        start: int,
        length: int,
        tile_amax: int,
        amax: int,
    ) -> None: ...
    def add_fused_scale(
        self,
        tile_amax: int,
        amax: int,
        rows: int,
        k: int,
        tile_scales: int,
        block_scale: int,
        stored_amax: int,
        scale_rows: int,
        row_stride: int,
        layout: int,
        e4m3_max: int,
    ) -> None: ...
    def add_partial_cast(
        self,
        shard: int,
        dtype: int,
        round_to: int,
        rows: int,
        k: int,
        start: int,
        length: int,
        tile_scales: int,
        amax: int,
        fragment: int,
        e4m3_max: int,
    ) -> None: ...
    def add_transpose(self, x: Operand, y: Operand) -> None: ...

class AdamItems:
    def __init__(self) -> None: ...
    def append(
        self,
        master: int,
        exp_avg: int,
        exp_avg_sq: int,
        grad: int,
        copy: int,
        step: int,
        count: int,
        grad_dtype: int,
        copy_dtype: int,
    ) -> None: ...
    def set_grads(self, grads: Sequence[int]) -> bool: ...
    def bytes(self) -> bytes: ...
    def __len__(self) -> int: ...

class AdamProblem:
    def __init__(
        self,
        items: AdamItems,
        device_items: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        step: int,
        maximize: bool,
        decoupled: bool,
        lr_tensor: int,
        inv_scale: int,
        found_inf: int,
    ) -> None: ...

class Backend:
    @property
    def name(self) -> str: ...
    def amax_workspace_bytes(self, problem: AmaxProblem) -> int: ...
    def quantize_workspace_bytes(self, problem: QuantizeProblem) -> int: ...
    def epilogue_workspace_bytes(self, problem: EpilogueProblem) -> int: ...
    def amax(self, problem: AmaxProblem, launch: Launch) -> None: ...
    def quantize(self, problem: QuantizeProblem, launch: Launch) -> None: ...
    def dequantize(self, problem: DequantizeProblem, launch: Launch) -> None: ...
    def transpose(self, problem: TransposeProblem, launch: Launch) -> None: ...
    def relayout(self, problem: RelayoutProblem, launch: Launch) -> None: ...
    def widen(self, problem: WidenProblem, launch: Launch) -> None: ...
    def accumulate(self, problem: AccumulateProblem, launch: Launch) -> None: ...
    def epilogue(self, problem: EpilogueProblem, launch: Launch) -> None: ...
    def primary_table_bytes(self, problem: PrimaryList) -> int: ...
    def pack_primary_table(self, problem: PrimaryList, host_table: int) -> None: ...
    def primary(self, problem: PrimaryList, launch: Launch) -> None: ...
    def adam(self, problem: AdamProblem, launch: Launch) -> None: ...

class CudaLibrary:
    def __init__(self, path: str) -> None: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def targets(self) -> str: ...
    def probe(self, device: int) -> None: ...
    def check_codecs(self, mismatches: int, launch: Launch) -> None: ...

class GemmKernel:
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def core(self) -> bool: ...
    @property
    def arch(self) -> int: ...
    @property
    def tile_m(self) -> int: ...
    @property
    def tile_n(self) -> int: ...
    @property
    def tile_k(self) -> int: ...
    @property
    def instruction_k(self) -> int: ...
    @property
    def sms(self) -> int: ...
    @property
    def swapped(self) -> bool: ...
    @property
    def output(self) -> int: ...
    @property
    def schedule(self) -> int: ...
    @property
    def batch_invariant(self) -> bool: ...

class GemmPlan:
    def __init__(self, kernel: int, cluster_m: int, cluster_n: int) -> None: ...
    @property
    def kernel(self) -> int: ...
    @property
    def cluster_m(self) -> int: ...
    @property
    def cluster_n(self) -> int: ...
    @property
    def legal(self) -> bool: ...

class GemmEstimate:
    @property
    def plan(self) -> GemmPlan: ...
    @property
    def clocks(self) -> float: ...
    @property
    def waves(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def clusters(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def padding(self) -> float: ...
    @property
    def bound(self) -> str: ...
    def explain(self) -> str: ...

def gemm_kernels() -> list[GemmKernel]: ...
def choose_gemm(
    arch: int, multiprocessors: int, built: int, m: int, n: int, k: int, output: int, has_c: bool, batch_invariant: bool
) -> GemmPlan | None: ...
def rank_gemm(
    arch: int, multiprocessors: int, built: int, m: int, n: int, k: int, output: int, has_c: bool, batch_invariant: bool
) -> list[GemmEstimate]: ...
def cpu_backend() -> Backend: ...
def cpu_isa() -> str: ...
def set_cpu_isa_level(level: int) -> bool: ...
