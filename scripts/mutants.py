# SPDX-License-Identifier: Apache-2.0
"""Small faults put into the sources on purpose, each with the quick tests of which at least one must fail.

`scripts/mutation_check.py` applies them one at a time to a copy of the tree. The old text occurs exactly once in its
file; `tests/build/test_mutants_apply.py` sees to that, so a change of the sources shows here at once.
"""

from __future__ import annotations

from mutant import Mutant
from mutants_dispatch import DISPATCH as KERNEL_CHOICE
from mutants_training import TRAINING

SIMD = "kernels/cpu/simd_kernels.cpp"
SCALE = "kernels/numerics/scale.h"
E2M1 = "kernels/numerics/e2m1.h"
E4M3 = "kernels/numerics/e4m3.h"
LAYOUT = "kernels/numerics/layout.h"
LINES = "kernels/numerics/epilogue.h"
NARROW = "kernels/numerics/narrow.h"
EPILOGUE = "kernels/cpu/epilogue.cpp"
OPS = "python/blockscale/gemm_ops.py"
MATMUL = "python/blockscale/matmul.py"
MERGE = "python/blockscale/primary.py"
PRIMARY = "kernels/cpu/primary.cpp"
HELD = "python/blockscale/tensor/held.py"
DISPATCH = "python/blockscale/tensor/dispatch.py"
HOOKS = "python/blockscale/tensor/fsdp.py"
TILE_SCALES = "python/blockscale/tensor/tile_scales.py"


TABLES = "tests/casts/test_tables.py"
NUMERICS = "tests/casts/test_bugs_numerics.py"
REFERENCE = "tests/casts/test_against_reference.py"
DECODE = "tests/casts/test_dequantize.py"
LAYOUTS = "tests/casts/test_layouts.py"
AMAX = "tests/casts/test_amax.py"
CASES = "tests/gemm/test_tables.py"
GRID = "tests/gemm/test_exact_grid.py"
PLACES = "tests/gemm/test_placement.py"
SUMS = "tests/gemm/test_accumulator.py"
MEMORY = "tests/gemm/test_epilogue_memory.py"
OUTPUT = "tests/gemm/test_nvfp4_output.py"
SHARDS = "tests/primary/test_against_reference.py"
LISTS = "tests/primary/test_multi_tensor.py"
ODD = "tests/primary/test_odd_offsets.py"


MUTANTS: tuple[Mutant, ...] = (
    # Codes
    Mutant(
        "swapped_nibbles",
        SIMD,
        "e2m1_byte_of_numbers(pairs.even * factors, pairs.odd * factors)",
        "e2m1_byte_of_numbers(pairs.odd * factors, pairs.even * factors)",
        (TABLES,),
    ),
    Mutant(
        "odd_nibble_of_the_transpose",
        SIMD,
        "swap_quarters<1>(rows, 0x0F0F0F0F0F0F0F0Fu);",
        "swap_quarters<1>(rows, 0x0F0F0F0F0F0F0F0Eu);",
        (LAYOUTS,),
    ),
    Mutant("swapped_rows_of_a_strip", SIMD, "<< (4 * r));", "<< (4 * (r ^ 1)));", ("tests/casts/test_laws.py",)),
    Mutant(
        "e2m1_ties_to_odd",
        E2M1,
        "((22u << kFloatMantissaBits) + 6u);\n  const U sum = bits_of(float_of(magnitude) + float_of(magic));",
        "((22u << kFloatMantissaBits) + 7u);\n  const U sum = bits_of(float_of(magnitude) + float_of(magic)) - 1u;",
        (TABLES,),
    ),
    Mutant(
        "e2m1_drops_the_sign_of_zero",
        E2M1,
        "select_bits(0x08u, bits_of(even) >> 28,",
        "select_bits(0x08u, (bits_of(even) >> 28) & (bits_of(even) >> 20),",
        (TABLES,),
    ),
    Mutant(
        "e4m3_ties_to_odd",
        E4M3,
        "const U magic = binade + (20u << kFloatMantissaBits);",
        "const U magic = binade + ((20u << kFloatMantissaBits) + 1u);",
        (REFERENCE, TABLES),
    ),
    Mutant("e4m3_saturates_too_late", E4M3, "kMax = 0x43E00000u;", "kMax = 0x43F00000u;", (TABLES,)),
    Mutant(
        "scale_7f_is_480",
        E4M3,
        "return select(byte == kE4m3NanByte, float_of(splat<U>(kNanBits)), e4m3_value_of_number<F>(byte));",
        "return e4m3_value_of_number<F>(byte);",
        (TABLES, DECODE),
    ),
    # Scales of a cast
    Mutant("scale_2_percent_up", SCALE, "block_amax * sixth;", "block_amax * sixth * 1.02f;", (TABLES,)),
    Mutant(
        "other_order_of_the_block_scale",
        SCALE,
        "const F decode = block_amax * sixth;",
        "const F decode = block_amax * float_of(splat<U>(kOneSixthBits)) * encode;",
        (TABLES, REFERENCE),
    ),
    Mutant(
        "other_order_of_the_element_scale",
        SCALE,
        "1.0f / (e4m3_value_of_number<F>(byte) * decode);",
        "encode / e4m3_value_of_number<F>(byte);",
        (TABLES, REFERENCE),
    ),
    Mutant(
        "true_division",
        SIMD,
        "e2m1_byte_of_numbers(pairs.even * factors, pairs.odd * factors)",
        "e2m1_byte_of_numbers(pairs.even / (1.0f / factors), pairs.odd / (1.0f / factors))",
        (TABLES, NUMERICS),
    ),
    Mutant(
        "nan_byte_dropped",
        SCALE,
        "return select(worst >= kInfBits, splat<U>(kE4m3NanByte), byte);",
        "return select(worst > splat<U>(0xFFFFFFFEu), splat<U>(kE4m3NanByte), byte);",
        (TABLES,),
    ),
    Mutant(
        "zero_amax_has_no_factor_1", SCALE, "select(magnitude == 0u,", "select(magnitude == 0xFFFFFFFFu,", (TABLES,)
    ),
    Mutant(
        "encode_may_be_inf", SCALE, "umin(bits_of(quotient), splat<U>(kFloatMaxBits))", "bits_of(quotient)", (TABLES,)
    ),
    Mutant(
        "element_scale_may_be_inf",
        SCALE,
        "umin(bits_of(reciprocal), splat<U>(kFloatMaxBits))",
        "bits_of(reciprocal)",
        (TABLES,),
    ),
    Mutant(
        "e4m3_max_ignored",
        SCALE,
        "return 6.0f * static_cast<float>(e4m3_max);",
        "return e4m3_max > 0 ? 2688.0f : 0.0f;",
        (TABLES,),
    ),
    Mutant(
        "element_scale_of_the_next_block",
        SIMD,
        "quantize_pair<Source>(x + j * kLanes, factors[j], factors[j + 1], qdata + j * 8);",
        "quantize_pair<Source>(x + j * kLanes, factors[j + 1], factors[j], qdata + j * 8);",
        (TABLES,),
    ),
    Mutant(
        "tile_misses_a_row",
        SIMD,
        "column_amax = umax(column_amax, magnitude_bits(values[r]));",
        "if (r < 15) column_amax = umax(column_amax, magnitude_bits(values[r]));",
        (REFERENCE,),
    ),
    Mutant(
        "second_level_of_another_column",
        SIMD,
        "load_unaligned<f32x16>(strip.row_encode + col)",
        "load_unaligned<f32x16>(strip.row_encode)",
        (REFERENCE,),
    ),
    # Maxima
    Mutant(
        "amax_without_abs",
        SIMD,
        "  using Element = uint32_t;\n  static constexpr Element kMagnitude = kMagnitudeMask;",
        "  using Element = uint32_t;\n  static constexpr Element kMagnitude = ~0u;",
        (NUMERICS, AMAX),
    ),
    Mutant(
        "amax_misses_the_last_element",
        SIMD,
        "    for (; i < count; ++i) {\n      const Element magnitude",
        "    for (; i + 1 < count; ++i) {\n      const Element magnitude",
        (AMAX,),
    ),
    Mutant(
        "amax_keeps_the_payload_of_nan",
        "kernels/numerics/bits.h",
        "return magnitude > kInfBits ? kNanBits : magnitude;",
        "return magnitude;",
        (AMAX, REFERENCE),
    ),
    # Layouts and decoding
    Mutant(
        "padding_not_written",
        "kernels/cpu/matrix.cpp",
        "if (grid.rows != grid.padded_rows || grid.blocks != grid.padded_blocks)",
        "if (grid.rows < 0)",
        ("tests/casts/test_out.py", LAYOUTS),
    ),
    Mutant(
        "transposed_scale_offsets",
        LAYOUT,
        "(row % 32) * 16 + ((row % kAtomRows) / 32) * 4 + block % kAtomBlocks",
        "((row % kAtomRows) / 4) * 16 + (row % 4) * 4 + block % kAtomBlocks",
        (LAYOUTS,),
    ),
    Mutant(
        "decode_order",
        SCALE,
        "(e4m3_value<float>(byte) * factors.amax) * factors.reciprocal",
        "e4m3_value<float>(byte) * (factors.amax * factors.reciprocal)",
        ("tests/gemm/test_decoding.py",),
    ),
    Mutant(
        "decode_overflows",
        SCALE,
        "const bool shift = amax >= 1.0f;",
        "const bool shift = amax < 0.0f;",
        (TABLES, DECODE),
    ),
    Mutant(
        "decode_scale_of_the_next_block",
        SIMD,
        "decode_pair(qdata + i / 2, factors[i / 16], factors[i / 16 + 1], target",
        "decode_pair(qdata + i / 2, factors[i / 16 + 1], factors[i / 16], target",
        (DECODE, PLACES),
    ),
    Mutant(
        "decode_of_the_last_block_is_short",
        SIMD,
        "std::memcpy(target + i * element_bytes, values, 16 * element_bytes);",
        "std::memcpy(target + i * element_bytes, values, 8 * element_bytes);",
        (DECODE, PLACES),
    ),
    Mutant(
        "bfloat16_is_truncated",
        NARROW,
        "const U rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;",
        "const U rounded = bits >> 16;",
        (DECODE, CASES),
    ),
    Mutant("float16_ties_go_up", NARROW, "0xFFFu + ((magnitude >> 13) & 1u)", "0x1000u", (DECODE, GRID)),
    # Accumulator
    Mutant("sum_in_one_fp64_chunk", OPS, "EXACT_CHUNK = 1024\n", "EXACT_CHUNK = 1 << 20\n", (SUMS,)),
    Mutant(
        "last_chunk_of_k_lost",
        OPS,
        "for start in range(0, p.k, EXACT_CHUNK):",
        "for start in range(0, max(1, p.k - 16), EXACT_CHUNK):",
        (GRID,),
    ),
    Mutant(
        "plain_a_summed_in_fp32",
        OPS,
        "b_units = _decode_units(b, p.b_layout, 0, p.k, torch.float64, None)",
        "b_units = _decode_units(b, p.b_layout, 0, p.k, torch.float64, None)\n"
        "            return Accumulator(values=torch.mm(a_plain.float(), b_units.float().t()))",
        ("tests/gemm/test_plain_a.py",),
    ),
    Mutant(
        "nan_columns_dropped",
        EPILOGUE,
        "(p.a_nan_rows && p.a_nan_rows[row]) || (p.b_nan_rows && p.b_nan_rows[col])",
        "p.a_nan_rows && p.a_nan_rows[row]",
        ("tests/gemm/test_nonfinite.py",),
    ),
    Mutant(
        "layout_of_b_ignored",
        OPS,
        "_decode_units(b, p.b_layout, start, stop,",
        "_decode_units(b, p.a_layout, start, stop,",
        (CASES, PLACES),
    ),
    # Epilogue
    Mutant(
        "bias_scaled_by_the_row",
        EPILOGUE,
        "value = value + f.bias[col];",
        "value = value + f.bias[col] * f.a_decode;",
        (CASES,),
    ),
    Mutant("bias_dropped", EPILOGUE, "if (f.bias) value", "if (f.bias && f.alpha == 0.0f) value", (CASES,)),
    Mutant(
        "c_scaled_by_alpha",
        EPILOGUE,
        "value = value + p.beta * load_as_float",
        "value = value + f.alpha * p.beta * load_as_float",
        (CASES,),
    ),
    Mutant(
        "beta_dropped", EPILOGUE, "value = value + p.beta * load_as_float", "value = value + load_as_float", (CASES,)
    ),
    Mutant("alpha_dropped", LINES, "return alpha * t;", "return alpha == 0.0f ? alpha * t : t;", (CASES,)),
    Mutant(
        "second_levels_multiplied_first",
        LINES,
        "  t = t * a_decode;\n  t = t * b_decode;",
        "  t = t * (a_decode * b_decode);",
        (CASES, GRID),
    ),
    Mutant(
        "row_scale_of_the_first_row",
        EPILOGUE,
        "p.a_amax[p.a_scaling == BS_SCALING_ROW ? row : 0]",
        "p.a_amax[p.a_scaling == BS_SCALING_ROW && row < 0 ? row : 0]",
        (CASES,),
    ),
    Mutant("relu_drops_nan", LINES, "t > 0.0f || t != t ? t : 0.0f", "t > 0.0f ? t : 0.0f", (CASES,)),
    Mutant(
        "gelu_is_the_other_gelu",
        EPILOGUE,
        "return gelu(t);",
        "return gelu_tanh(t);",
        ("tests/gemm/test_activations.py",),
    ),
    Mutant(
        "beta_0_reads_c",
        MATMUL,
        "return (None, 0.0) if value == 0.0 else (matrix, value)",
        "return matrix, value or 1e-30",
        (CASES,),
    ),
    Mutant(
        "columnwise_pair_accepted",
        MATMUL,
        'if a.orientation == "columnwise" and b.orientation == "rowwise":',
        'if a.orientation == "columnwise" and b.orientation == "":',
        ("tests/gemm/test_bugs_shapes.py",),
    ),
    # NVFP4 output
    Mutant(
        "output_narrowed_before_it_is_quantized",
        EPILOGUE,
        "t[col] = activate(p.activation, value);",
        "t[col] = is_present(p.quantized) ? widen_bf16(narrow_bf16(activate(p.activation, value)))\n"
        "                                    : activate(p.activation, value);",
        (OUTPUT,),
    ),
    Mutant(
        "output_level_of_the_first_row",
        EPILOGUE,
        "encode_scale(p.quantized.amax[out_by_row ? row : 0]",
        "encode_scale(p.quantized.amax[out_by_row && row < 0 ? row : 0]",
        (OUTPUT,),
    ),
    Mutant(
        "returned_amax_before_the_rounding",
        EPILOGUE,
        "largest = umax(largest, magnitude_bits(store_float(p.d, row, col, t[col])));",
        "store_float(p.d, row, col, t[col]), largest = umax(largest, magnitude_bits(t[col]));",
        (OUTPUT,),
    ),
    # Primary weights
    Mutant(
        "nibble_by_the_shards_start",
        PRIMARY,
        "byte = static_cast<uint8_t>(i & 1 ?",
        "byte = static_cast<uint8_t>((i - x.start) & 1 ?",
        (ODD,),
    ),
    Mutant(
        "byte_by_the_shards_start",
        PRIMARY,
        "item.fragment[(i >> 1) - (x.start >> 1)];",
        "item.fragment[(i - x.start) >> 1];",
        (ODD,),
    ),
    Mutant("neighbours_nibble_cleared", PRIMARY, "(byte & 0x0Fu) | code << 4", "code << 4", (ODD,)),
    Mutant(
        "tile_of_the_row_below",
        PRIMARY,
        "element_scales(item.tile_scales + (tile_row * x.k + col) / kBlock,",
        "element_scales(item.tile_scales + (tile_row / 2 * 2 * x.k + col) / kBlock,",
        (SHARDS,),
    ),
    Mutant(
        "amax_of_a_master_not_rounded",
        PRIMARY,
        "const float amax = rounded(x, float_of(*std::max_element(tile, tile + kBlock)));",
        "const float amax = float_of(*std::max_element(tile, tile + kBlock));",
        (SHARDS,),
    ),
    Mutant(
        "codes_of_a_master_not_rounded",
        SIMD,
        "if (round_to == BS_BF16 && dtype != BS_BF16)",
        "if (round_to == BS_BF16 && dtype == BS_BF16)",
        (SHARDS,),
    ),
    Mutant(
        "pad_columns_of_a_row_stride",
        PRIMARY,
        "blocks, 0, item.row_stride - blocks);",
        "blocks, 0, 0);",
        (SHARDS,),
    ),
    Mutant(
        "nan_under_given_scales_rounded",
        SIMD,
        "store_u8(qdata, e2m1_code(round(pairs.even) * factors) |",
        "store_u8(qdata, e2m1_code_of_number(round(pairs.even) * factors) |",
        (SHARDS,),
    ),
    Mutant("second_item_of_a_list", "kernels/cpu/list.h", "unit - first[i]);", "unit);", (LISTS,)),
    Mutant(
        "fragments_may_overlap",
        "kernels/contract/primary_checks.h",
        "fragment_bytes(items[before].shard) > order[i].first)",
        "fragment_bytes(items[before].shard) > order[i].first + 1)",
        (LISTS,),
    ),
    Mutant("merge_takes_whole_bytes", MERGE, "(target[0] & 0x0F) | (fragment[0] & 0xF0)", "fragment[0]", (ODD,)),
    # Environment
    Mutant(
        "subnormals_flushed_with_the_caller",
        "kernels/cpu/environment.h",
        "_mm_setcsr(saved_ & ~0xE040u);",
        "_mm_setcsr(saved_ & ~0x0u);",
        ("tests/gemm/test_environment.py", "tests/casts/test_cpu_environment.py"),
    ),
    # NVFP4Tensor
    Mutant(
        "stale_columnwise_is_read",
        HELD,
        "            if self.state is Columnwise.STALE:\n                self.rebuild_columnwise()",
        "            if self.columnwise is None:\n                self.rebuild_columnwise()",
        ("tests/tensor/test_nvfp4_tensor.py",),
    ),
    Mutant(
        "manual_staleness_ends_at_a_read",
        HELD,
        "if self.state is Columnwise.MANUAL:",
        "if self.state is Columnwise.MANUAL and self.columnwise is None:",
        ("tests/tensor/test_nvfp4_tensor.py",),
    ),
    Mutant(
        "unwritten_rows_are_read",
        HELD,
        "        if missing:\n            spans",
        "        if len(missing) > 1:\n            spans",
        ("tests/tensor/test_nvfp4_tensor.py",),
    ),
    Mutant(
        "a_part_changes_the_amax_of_all",
        HELD,
        "            self._before_amax(row.amax)\n",
        "",
        ("tests/tensor/test_dispatch.py",),
    ),
    Mutant(
        "a_part_leaves_columnwise_as_it_was",
        HELD,
        "if (rebuild or self.root is not None) and",
        "if rebuild and self.root is None and",
        ("tests/tensor/test_dispatch.py",),
    ),
    Mutant(
        "a_slice_forgets_its_step",
        DISPATCH,
        'if given["step"] != 1:',
        'if given["step"] < 1:',
        ("tests/tensor/test_dispatch.py",),
    ),
    Mutant(
        "as_strided_forgets_its_offset",
        DISPATCH,
        'and not given["storage_offset"]',
        'and given["storage_offset"] != 1',
        ("tests/tensor/test_dispatch.py",),
    ),
    Mutant(
        "differing_amaxes_are_trusted",
        HOOKS,
        "differs = (bits != bits[0]).any()",
        "differs = (bits != bits).any()",
        ("tests/tensor/test_hooks.py",),
    ),
    Mutant(
        "gathered_columnwise_is_not_made",
        HOOKS,
        "    if held.columnwise is not None:\n        held.rebuild_columnwise()",
        "    if held.columnwise is not None:\n        held.state = Columnwise.READY",
        ("tests/tensor/test_hooks.py",),
    ),
    Mutant(
        "uneven_rows_are_gathered",
        HOOKS,
        "if rows % world_size or shape[0] % world_size:",
        "if world_size > rows:",
        ("tests/tensor/test_hooks.py",),
    ),
    Mutant(
        "tile_scales_of_the_other_half",
        TILE_SCALES,
        "first_rows.permute(0, 3, 2, 1, 4)",
        "first_rows.flip(2).permute(0, 3, 2, 1, 4)",
        ("tests/tensor/test_tile_scales.py",),
    ),
    *TRAINING,
    *KERNEL_CHOICE,
)
