# SPDX-License-Identifier: Apache-2.0
"""The GEMM ops: D[M,N] = A[M,K] @ B[N,K]^T.

On CUDA, where a fused kernel is built that takes the problem, one launch goes from operands to output. Everywhere else
there are two steps, an accumulator by a library's matrix product on exactly decoded operands, and the epilogue:

- CPU: FP64 products over K chunks of at most 1,024. Every product of two codes and two block scales is a multiple of
  2^-20 below 2^23, so a chunk's sum is exact in any order; chunks are added as 64-bit integers and rounded once.
- CUDA: codes times block scales are exact in BF16, so operands are decoded to BF16 and multiplied with FP32 output.

The epilogue (row and column second level, alpha, beta*C, bias, activation, output or NVFP4 output) is ours in all of
them, and the same to the bit but for the smooth activations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._codes import DTYPE_CODE, layout_code
from ._library import register_op
from ._native import _C, backend_of, launch_on, workspace_of
from .dispatch.choice import plan_for
from .dispatch.problem import GemmFacts
from .errors import not_offered
from .formats import ScaleLayout
from .ops import Parts, empty_parts, matrix_of, operand_of, run_dequantize

NVFP4_OUTPUT = 2
OUTPUT_OF_DTYPE = {torch.bfloat16: 0, torch.float16: 0, torch.float32: 1}
"""What a kernel writes: indices of `dispatch.config.OUTPUT_NAMES`."""

EXACT_CHUNK = 1024
"""K elements whose exact FP64 products sum exactly: 2^10 terms below 2^23, in units of 2^-20, fill 53 bits."""

SWIZZLED = layout_code(ScaleLayout.SWIZZLED_128X4)


class Problem(NamedTuple):
    """The arguments that all GEMM ops share, in the order of their schemas."""

    a_qdata: Tensor  # or, with a_scale None, a plain BF16/FP16 matrix (M, K)
    a_scale: Tensor | None
    a_amax: Tensor | None
    a_scaling: int
    a_e4m3_max: int
    a_layout: int
    b_qdata: Tensor
    b_scale: Tensor
    b_amax: Tensor
    b_scaling: int
    b_e4m3_max: int
    b_layout: int
    bias: Tensor | None
    alpha_tensor: Tensor | None
    alpha: float
    c: Tensor | None
    beta: float
    activation: int
    return_kind: int
    plan: list[int]  # a pinned kernel and cluster (GemmConfig.plan), or empty: chosen when the op runs
    batch_invariant: bool

    @property
    def m(self) -> int:
        return self.a_qdata.shape[0]

    @property
    def n(self) -> int:
        return self.b_qdata.shape[0]

    @property
    def k(self) -> int:
        return 2 * self.b_qdata.shape[1]

    def facts(self, output: int) -> GemmFacts:
        """What the choice of a kernel depends on; `output` is an index of `dispatch.config.OUTPUT_NAMES`."""
        returns_amax = self.return_kind >= 0
        return GemmFacts(
            self.m, self.n, self.k, output, self.c is not None, self.activation, returns_amax, self.batch_invariant
        )


_SHARED = (
    "Tensor a_qdata, Tensor? a_scale, Tensor? a_amax, int a_scaling, int a_e4m3_max, int a_layout, "
    "Tensor b_qdata, Tensor b_scale, Tensor b_amax, int b_scaling, int b_e4m3_max, int b_layout, "
    "Tensor? bias, Tensor? alpha_tensor, float alpha, Tensor? c, float beta, int activation, int return_kind, "
    "int[] plan, bool batch_invariant"
)
_COUNT = len(Problem._fields)


class Accumulator(NamedTuple):
    """An accumulator before the epilogue: `values` (FP32 or exact FP64), or `fixed` in units of 2^-20."""

    values: Tensor | None = None
    fixed: Tensor | None = None
    a_nan_rows: Tensor | None = None
    b_nan_rows: Tensor | None = None


def _decode_units(
    parts: Parts, layout: int, start: int, stop: int, dtype: torch.dtype, nan_rows: Tensor | None
) -> Tensor:
    """Codes times block scales of columns start..stop: exact in every dtype used here."""
    out = parts[0].new_empty((parts[0].shape[0], stop - start), dtype=dtype)
    run_dequantize(parts, layout, 0, 448, out, start, stop, True, nan_rows)
    return out


def _widened(x: Tensor) -> Tensor:
    """A matrix as FP64, exactly; torch's own conversion drops subnormals where the thread flushes them."""
    out = x.new_empty(x.shape, dtype=torch.float64)
    problem = _C.WidenProblem(matrix_of(x), matrix_of(out))
    backend_of("gemm", x.device).widen(problem, launch_on(x.device))
    return out


def _accumulate_exact(p: Problem, a: Parts, b: Parts) -> Accumulator:
    """The exact sum of products on the CPU. Rows that hold a scale byte 7F are set apart: NaN is no integer."""
    a_nan = p.a_qdata.new_zeros(p.m)
    b_nan = p.b_qdata.new_zeros(p.n)
    fixed: Tensor | None = None
    for start in range(0, p.k, EXACT_CHUNK):
        stop = min(start + EXACT_CHUNK, p.k)
        a_units = _decode_units(a, p.a_layout, start, stop, torch.float64, a_nan)
        b_units = _decode_units(b, p.b_layout, start, stop, torch.float64, b_nan)
        products = torch.mm(a_units, b_units.t())
        if p.k <= EXACT_CHUNK:
            return Accumulator(values=products, a_nan_rows=a_nan, b_nan_rows=b_nan)
        if fixed is None:
            fixed = torch.zeros_like(products, dtype=torch.int64)
        problem = _C.AccumulateProblem(products.data_ptr(), fixed.data_ptr(), products.numel())
        backend_of("gemm", products.device).accumulate(problem, launch_on(products.device))
    return Accumulator(fixed=fixed, a_nan_rows=a_nan, b_nan_rows=b_nan)


def _refuse_choice(p: Problem) -> None:
    """The product of a library can honour neither a choice of kernel nor independence of M: it takes its own by M."""
    hint = "This build has no fused kernel for it."
    if p.plan:
        raise not_offered("gemm", "config", f"None on {p.b_qdata.device}", f"kernel {p.plan[0]}", hint)
    if p.batch_invariant:
        raise not_offered("gemm", "batch_invariant", f"False on {p.b_qdata.device}", True, hint)


def _accumulate(p: Problem) -> Accumulator:
    on_cpu = p.b_qdata.device.type == "cpu"
    if not on_cpu:
        _refuse_choice(p)
    b: Parts = (p.b_qdata, p.b_scale, p.b_amax)
    if p.a_scale is None or p.a_amax is None:
        a_plain = p.a_qdata
        if on_cpu:
            b_units = _decode_units(b, p.b_layout, 0, p.k, torch.float64, None)
            return Accumulator(values=torch.mm(_widened(a_plain), b_units.t()))
        b_units = _decode_units(b, p.b_layout, 0, p.k, a_plain.dtype, None)
        return Accumulator(values=torch.mm(a_plain, b_units.t(), out_dtype=torch.float32))
    a: Parts = (p.a_qdata, p.a_scale, p.a_amax)
    if on_cpu:
        return _accumulate_exact(p, a, b)
    a_units = _decode_units(a, p.a_layout, 0, p.k, torch.bfloat16, None)
    b_units = _decode_units(b, p.b_layout, 0, p.k, torch.bfloat16, None)
    return Accumulator(values=torch.mm(a_units, b_units.t(), out_dtype=torch.float32))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _returned(p: Problem) -> Tensor:
    """The second result: amax of the output, or nothing (shape (0,)) if it was not asked for."""
    shape = {-1: (0,), 0: (), 1: (p.m,)}[p.return_kind]
    return p.b_qdata.new_empty(shape, dtype=torch.float32)


def _epilogue_fields(
    p: Problem,
    acc: Accumulator,
    d: Tensor | None,
    quantized: _C.Operand | None,
    out_amax: Tensor | None,
    returned: Tensor,
    empty: bool,
) -> tuple[Any, ...]:
    """The arguments of `_C.EpilogueProblem`."""
    acc_matrix = _C.Matrix(0, 0, p.m, p.n, p.n) if acc.values is None else matrix_of(acc.values)
    bias = None if p.bias is None else _C.Matrix(p.bias.data_ptr(), DTYPE_CODE[p.bias.dtype], 1, p.n, p.n)
    return (
        acc_matrix,
        _address(acc.fixed),
        _address(acc.a_nan_rows),
        _address(acc.b_nan_rows),
        empty,
        _address(p.a_amax),
        _address(p.b_amax),
        p.a_scaling,
        p.b_scaling,
        p.a_e4m3_max,
        p.b_e4m3_max,
        _address(p.alpha_tensor),
        p.alpha,
        p.beta,
        None if p.c is None else matrix_of(p.c),
        bias,
        p.activation,
        None if d is None else matrix_of(d),
        quantized,
        _address(out_amax),
        p.return_kind,
        _address(returned),
    )


def _run_fused(
    p: Problem, d: Tensor | None, quantized: _C.Operand | None, out_amax: Tensor | None, returned: Tensor
) -> bool:
    """One kernel from operands to output, where one is built that takes the problem; false where none is."""
    device = p.b_qdata.device
    if device.type == "cpu" or p.a_scale is None or p.a_amax is None:
        return False
    backend = backend_of("gemm", device)
    a = operand_of((p.a_qdata, p.a_scale, p.a_amax), p.a_layout, p.a_scaling, p.a_e4m3_max)
    b = operand_of((p.b_qdata, p.b_scale, p.b_amax), p.b_layout, p.b_scaling, p.b_e4m3_max)
    epilogue = _C.EpilogueProblem(*_epilogue_fields(p, Accumulator(), d, quantized, out_amax, returned, False))
    problem = _C.GemmProblem(a, b, epilogue)
    output = NVFP4_OUTPUT if d is None else OUTPUT_OF_DTYPE[d.dtype]
    plan = plan_for(p.facts(output), device, p.plan, lambda candidate: backend.gemm_check(problem, candidate))
    if plan is None:
        return False
    workspace = workspace_of(backend.gemm_workspace_bytes(problem, plan), device)
    backend.gemm(problem, plan, launch_on(device, workspace))
    return True


def _run(p: Problem, d: Tensor | None, quantized: _C.Operand | None, out_amax: Tensor | None) -> Tensor:
    device = p.b_qdata.device
    returned = _returned(p)
    empty = p.k == 0 or p.m == 0 or p.n == 0
    if not empty and _run_fused(p, d, quantized, out_amax, returned):
        return returned
    backend = backend_of("gemm", device)
    acc = Accumulator() if empty else _accumulate(p)
    problem = _C.EpilogueProblem(*_epilogue_fields(p, acc, d, quantized, out_amax, returned, empty))
    workspace = workspace_of(backend.epilogue_workspace_bytes(problem), device)
    backend.epilogue(problem, launch_on(device, workspace))
    return returned


# Float output --------------------------------------------------------------------------------------------------------


def _gemm_out(*args: Any) -> Tensor:
    return _run(Problem(*args[:_COUNT]), args[_COUNT], None, None)


def _gemm(*args: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*args[:_COUNT])
    d = p.b_qdata.new_empty((p.m, p.n), dtype=args[_COUNT])
    return d, _run(p, d, None, None)


def _gemm_fake(*args: Any) -> tuple[Tensor, Tensor]:
    p = Problem(*args[:_COUNT])
    return p.b_qdata.new_empty((p.m, p.n), dtype=args[_COUNT]), _returned(p)


def _returned_fake(*args: Any) -> Tensor:
    return _returned(Problem(*args[:_COUNT]))


gemm = register_op(f"gemm({_SHARED}, ScalarType out_dtype) -> (Tensor, Tensor)", _gemm, _gemm_fake)
gemm_out = register_op(f"gemm_out({_SHARED}, Tensor(a!) out) -> Tensor", _gemm_out, _returned_fake)


# NVFP4 output --------------------------------------------------------------------------------------------------------


def _gemm_nvfp4_out(*args: Any) -> Tensor:
    p = Problem(*args[:_COUNT])
    out_amax, scaling, e4m3_max, layout, *parts = args[_COUNT:]
    quantized = operand_of((parts[0], parts[1], parts[2]), layout, scaling, e4m3_max)
    return _run(p, None, quantized, out_amax)


def _gemm_nvfp4_parts(*args: Any) -> Parts:
    p = Problem(*args[:_COUNT])
    _, scaling, _, layout = args[_COUNT:]
    return empty_parts(p.b_qdata, p.m, p.n, layout, scaling)


def _gemm_nvfp4(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = _gemm_nvfp4_parts(*args)
    return *parts, _gemm_nvfp4_out(*args, *parts)


def _gemm_nvfp4_fake(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_gemm_nvfp4_parts(*args), _returned_fake(*args)


_NVFP4_OUT = "Tensor out_amax, int out_scaling, int out_e4m3_max, int out_layout"
gemm_nvfp4 = register_op(
    f"gemm_nvfp4({_SHARED}, {_NVFP4_OUT}) -> (Tensor, Tensor, Tensor, Tensor)", _gemm_nvfp4, _gemm_nvfp4_fake
)
gemm_nvfp4_out = register_op(
    f"gemm_nvfp4_out({_SHARED}, {_NVFP4_OUT}, Tensor(a!) qdata, Tensor(b!) block_scale, Tensor(c!) amax_out) -> Tensor",
    _gemm_nvfp4_out,
    _returned_fake,
)
