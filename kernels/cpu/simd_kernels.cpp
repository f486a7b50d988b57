// SPDX-License-Identifier: Apache-2.0
// Compiled once for each instruction set with BS_ISA naming the copy. Everything here has internal linkage except the
// table, so that the linker can never take one copy's code for another's.
#include "cpu/simd_kernels.h"

#include "cpu/simd_convert.h"
#include "numerics/narrow.h"
#include "numerics/scale.h"

#ifndef BS_ISA
#define BS_ISA baseline
#endif
#define BS_STRING_(name) #name
#define BS_STRING(name) BS_STRING_(name)

namespace blockscale::cpu {
namespace {

// Input dtypes: how 16 or 32 elements are read, and how magnitudes are compared without widening.
struct F32Source {
  using Element = uint32_t;
  static constexpr Element kMagnitude = kMagnitudeMask;
  static f32x16 load(const Element* x) { return load_unaligned<f32x16>(x); }
  static Pairs pairs(const Element* x) { return load_pairs(reinterpret_cast<const float*>(x)); }
  static uint32_t widen_magnitude(Element magnitude) { return magnitude; }
};
struct Bf16Source {
  using Element = uint16_t;
  static constexpr Element kMagnitude = 0x7FFF;
  static f32x16 load(const Element* x) { return float_of(load_widened(x) << 16); }
  static Pairs pairs(const Element* x) {
    const u32x16 raw = load_unaligned<u32x16>(x);
    return {float_of(raw << 16), float_of(raw & 0xFFFF0000u)};
  }
  static uint32_t widen_magnitude(Element magnitude) { return static_cast<uint32_t>(magnitude) << 16; }
  static u32x16 widen_magnitudes(const u32x16& magnitudes) { return magnitudes << 16; }
};
struct F16Source {
  using Element = uint16_t;
  static constexpr Element kMagnitude = 0x7FFF;
  static f32x16 load(const Element* x) { return float_of(widen_f16_bits(load_widened(x))); }
  static Pairs pairs(const Element* x) {
    const u32x16 raw = load_unaligned<u32x16>(x);
    return {float_of(widen_f16_bits(raw & 0xFFFFu)), float_of(widen_f16_bits(raw >> 16))};
  }
  static uint32_t widen_magnitude(Element magnitude) { return bits_of(widen_f16(magnitude)); }
  static u32x16 widen_magnitudes(const u32x16& magnitudes) { return widen_f16_bits(magnitudes); }
};

// Calls work(Source{}) for the source type of a dtype.
template <class Work>
void with_source(int32_t dtype, const Work& work) {
  if (dtype == BS_F32) return work(F32Source{});
  if (dtype == BS_BF16) return work(Bf16Source{});
  return work(F16Source{});
}

// The native register of a source's elements, whose unsigned lanes order as magnitudes do.
template <class Source>
using Register = typename Narrow<typename Source::Element, kNativeBytes / sizeof(typename Source::Element)>::type;

template <class V>
V lane_max(V p, V q) {
  return p > q ? p : q;
}

// Largest magnitude of one block of 16.
template <class Element>
BS_INLINE Element block_max(const Element* x, Element mask) {
#if defined(__SSE4_1__)
  if constexpr (sizeof(Element) == 2) {  // one instruction finds the smallest of eight halfwords
    __m128i parts[2];
    std::memcpy(parts, x, sizeof parts);
    const __m128i wide_mask = _mm_set1_epi16(static_cast<short>(mask));
    const __m128i best = _mm_max_epu16(_mm_and_si128(parts[0], wide_mask), _mm_and_si128(parts[1], wide_mask));
    return static_cast<Element>(~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(best, _mm_set1_epi16(-1)))));
  }
#endif
  using Quarter = typename Narrow<Element, 4>::type;
  Quarter parts[4];
  std::memcpy(parts, x, sizeof parts);
  for (Quarter& part : parts) part &= mask;
  Quarter best = lane_max(lane_max(parts[0], parts[1]), lane_max(parts[2], parts[3]));
  best = lane_max(best, __builtin_shuffle(best, Quarter{2, 3, 0, 1}));
  best = lane_max(best, __builtin_shuffle(best, Quarter{1, 0, 3, 2}));
  return best[0];
}

BS_INLINE uint32_t horizontal_max(const u32x16& v) {
  uint32_t lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  return block_max<uint32_t>(lanes, ~0u);
}

template <class Source>
BS_INLINE uint32_t amax_of_block(const typename Source::Element* x) {
  return Source::widen_magnitude(block_max<typename Source::Element>(x, Source::kMagnitude));
}

uint32_t amax_run(const void* x, int32_t dtype, int64_t count) {
  uint32_t result = 0;
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    using Element = typename Source::Element;
    constexpr int kWide = kNativeBytes / sizeof(Element);
    const auto* values = static_cast<const Element*>(x);
    Register<Source> best[4] = {};
    int64_t i = 0;
    for (; i + 4 * kWide <= count; i += 4 * kWide)
      for (int j = 0; j < 4; ++j)
        best[j] = lane_max(best[j], load_unaligned<Register<Source>>(values + i + j * kWide) & Source::kMagnitude);
    Element partial[4 * kWide];
    std::memcpy(partial, best, sizeof partial);
    Element largest = 0;
    for (const Element magnitude : partial) largest = magnitude > largest ? magnitude : largest;
    for (; i < count; ++i) {
      const Element magnitude = values[i] & Source::kMagnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    result = Source::widen_magnitude(largest);
  });
  return result;
}

void amax_fold(const void* x, int32_t dtype, int64_t count, uint32_t* maxima) {
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    const auto* values = static_cast<const typename Source::Element*>(x);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      store_unaligned(maxima + i, umax(load_unaligned<u32x16>(maxima + i), magnitude_bits(Source::load(values + i))));
    for (; i < count; ++i) maxima[i] = umax(maxima[i], Source::widen_magnitude(values[i] & Source::kMagnitude));
  });
}

// Largest magnitudes of `blocks` (1..16) consecutive blocks, one a lane; zero in the others.
template <class Source>
BS_INLINE u32x16 amaxes_of_blocks(const typename Source::Element* x, int blocks) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(typename Source::Element) == 2) {
    if (blocks == 16) {
      u32x16 maxima;
      maxima.part[0] = reinterpret_cast<u32x16::Part>(block_maxima_u16(x));
      return Source::widen_magnitudes(maxima);
    }
  }
#endif
  uint32_t amaxes[16] = {};
  for (int j = 0; j < blocks; ++j) amaxes[j] = amax_of_block<Source>(x + j * kLanes);
  return load_unaligned<u32x16>(amaxes);
}

// Two consecutive blocks: lanes 0..7 belong to the first, 8..15 to the second.
template <class Source>
BS_INLINE void quantize_pair(const typename Source::Element* x, float first, float second, uint8_t* qdata) {
  const f32x16 factors = two_halves(first, second);
  const Pairs pairs = Source::pairs(x);
  store_low_bytes(qdata, e2m1_byte_of_numbers(pairs.even * factors, pairs.odd * factors));
}

// `blocks` (1..16) consecutive blocks of a row: their scales are computed as one vector.
template <class Source>
BS_INLINE void quantize_blocks(const typename Source::Element* x, int blocks, const f32x16& encode, uint8_t* qdata,
                               uint8_t* scales) {
  const u32x16 wide_bytes = block_scale_byte(float_of(amaxes_of_blocks<Source>(x, blocks)), encode);
  float factors[16];
  store_unaligned(factors, element_scale(wide_bytes, encode));
  uint8_t bytes[16];
  store_u8(bytes, wide_bytes);
  std::memcpy(scales, bytes, blocks);
  int j = 0;
  for (; j + 2 <= blocks; j += 2) quantize_pair<Source>(x + j * kLanes, factors[j], factors[j + 1], qdata + j * 8);
  if (j < blocks) {
    typename Source::Element last[2 * kLanes] = {};
    std::memcpy(last, x + j * kLanes, sizeof last / 2);
    uint8_t codes[16];
    quantize_pair<Source>(last, factors[j], 0.0f, codes);
    std::memcpy(qdata + j * 8, codes, 8);
  }
  if (horizontal_max(wide_bytes) == kE4m3NanByte)  // rare: such a block's codes are all 7
    for (j = 0; j < blocks; ++j)
      if (bytes[j] == kE4m3NanByte) std::memset(qdata + j * 8, 0x77, 8);
}

void quantize_row(const void* x, int32_t dtype, int64_t count, float encode, uint8_t* qdata, uint8_t* scales) {
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    const auto* values = static_cast<const typename Source::Element*>(x);
    const f32x16 wide_encode = f32x16::of(encode);
    int64_t i = 0;
    for (; i + kLanes * 16 <= count; i += kLanes * 16) {
      // The scattered stores of swizzled scales break the hardware's prefetching of the input.
      constexpr int64_t kBytes = kLanes * 16 * sizeof(typename Source::Element);
      const char* ahead = reinterpret_cast<const char*>(values + i) + 4 * kBytes;
      for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead + line);
      quantize_blocks<Source>(values + i, 16, wide_encode, qdata + i / 2, scales + i / 16);
    }
    if (i < count)
      quantize_blocks<Source>(values + i, static_cast<int>((count - i) / 16), wide_encode, qdata + i / 2,
                              scales + i / 16);
  });
}

// The codes of 16 rows by 16 columns, one vector a row, to eight bytes for each column.
BS_INLINE void store_columns(const u32x16 (&codes)[16], uint8_t* qdata, int64_t pitch) {
  u32x16 words[2];
  for (int half = 0; half < 2; ++half) {
    words[half] = codes[8 * half];
    for (int r = 1; r < 8; ++r) words[half] = words[half] | (codes[8 * half + r] << (4 * r));
  }
  uint32_t lanes[2][16];
  std::memcpy(lanes, words, sizeof words);
  for (int c = 0; c < 16; ++c)
    store_unaligned(qdata + c * pitch, static_cast<uint64_t>(lanes[1][c]) << 32 | lanes[0][c]);
}

// Sixteen codes, one a lane, to eight bytes.
BS_INLINE void store_codes(uint8_t* to, const u32x16& codes) {
  uint64_t pairs[8];
  std::memcpy(pairs, &codes, sizeof pairs);
  for (int i = 0; i < 8; ++i) to[i] = static_cast<uint8_t>(pairs[i] | (pairs[i] >> 28));
}

template <class Source>
BS_INLINE u32x16 load_tile(const Strip& strip, int64_t col, f32x16 (&values)[16]) {
  const auto* x = static_cast<const typename Source::Element*>(strip.x) + col;
  u32x16 column_amax = splat<u32x16>(0);
  for (int r = 0; r < 16; ++r) {
    values[r] = r < strip.rows ? Source::load(x + r * strip.row_stride) : f32x16::of(0.0f);
    column_amax = umax(column_amax, magnitude_bits(values[r]));
  }
  return column_amax;
}

void quantize_strip_columnwise(const Strip& strip, int32_t dtype) {
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    f32x16 encode = f32x16::of(strip.encode);
    for (int64_t col = 0; col < strip.cols; col += 16) {
      f32x16 values[16];
      const u32x16 amaxes = load_tile<Source>(strip, col, values);
      if (strip.row_encode) encode = load_unaligned<f32x16>(strip.row_encode + col);
      const u32x16 bytes = block_scale_byte(float_of(amaxes), encode);
      const f32x16 factors = element_scale(bytes, encode);
      const i32x16 finite = bytes != kE4m3NanByte;
      u32x16 codes[16];
      for (int r = 0; r < 16; ++r)
        codes[r] = select(finite, e2m1_code_of_number(values[r] * factors), splat<u32x16>(7));
      store_columns(codes, strip.columnwise_qdata + col * strip.columnwise_pitch, strip.columnwise_pitch);
      store_u8(strip.scales + col, bytes);
    }
  });
}

void quantize_strip_tiles(const Strip& strip, int32_t dtype) {
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    for (int64_t col = 0; col < strip.cols; col += 16) {
      f32x16 values[16];
      const float amax = float_of(horizontal_max(load_tile<Source>(strip, col, values)));
      const uint32_t byte = block_scale_byte(amax, strip.encode);
      const float factor = element_scale(byte, strip.encode);
      u32x16 codes[16];
      for (int r = 0; r < 16; ++r)
        codes[r] = byte == kE4m3NanByte ? splat<u32x16>(7) : e2m1_code_of_number(values[r] * factor);
      if (strip.rowwise_qdata)
        for (int r = 0; r < strip.rows; ++r)
          store_codes(strip.rowwise_qdata + r * strip.rowwise_pitch + col / 2, codes[r]);
      if (strip.columnwise_qdata)
        store_columns(codes, strip.columnwise_qdata + col * strip.columnwise_pitch, strip.columnwise_pitch);
      strip.scales[col / 16] = static_cast<uint8_t>(byte);
    }
  });
}

BS_INLINE void store_values(void* out, int32_t dtype, const f32x16& values) {
  if (dtype == BS_F32) return store_unaligned(static_cast<float*>(out), values);
  if (dtype == BS_F64) return store_f64(static_cast<double*>(out), values);
  const u32x16 bits = bits_of(values);
  store_u16(static_cast<uint16_t*>(out), dtype == BS_BF16 ? narrow_bf16_bits(bits) : narrow_f16_bits(bits));
}

// Two consecutive blocks: sixteen bytes to 32 values.
BS_INLINE void decode_pair(const uint8_t* qdata, float first, float second, void* out, int32_t dtype,
                           int64_t element_bytes) {
  const u32x16 bytes = load_widened(qdata);
  const f32x16 factors = two_halves(first, second);
  const Pairs pairs = {e2m1_value<f32x16>(bytes & 15u) * factors, e2m1_value<f32x16>(bytes >> 4) * factors};
  f32x16 values[2];
  interleave(pairs, values);
  store_values(out, dtype, values[0]);
  store_values(static_cast<char*>(out) + kLanes * element_bytes, dtype, values[1]);
}

void decode_row(const uint8_t* qdata, const float* factors, int64_t count, void* out, int32_t dtype) {
  const int64_t element_bytes = dtype == BS_F64 ? 8 : dtype == BS_F32 ? 4 : 2;
  auto* target = static_cast<char*>(out);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    decode_pair(qdata + i / 2, factors[i / 16], factors[i / 16 + 1], target + i * element_bytes, dtype, element_bytes);
  if (i < count) {
    uint8_t codes[16] = {};
    std::memcpy(codes, qdata + i / 2, 8);
    double values[32];  // room for the widest dtype
    decode_pair(codes, factors[i / 16], 0.0f, values, dtype, element_bytes);
    std::memcpy(target + i * element_bytes, values, 16 * element_bytes);
  }
}

void block_scales(const float* amaxes, int64_t count, float encode, uint8_t* scales) {
  const f32x16 wide_encode = f32x16::of(encode);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store_u8(scales + i, block_scale_byte(load_unaligned<f32x16>(amaxes + i), wide_encode));
  for (; i < count; ++i) scales[i] = static_cast<uint8_t>(block_scale_byte(amaxes[i], encode));
}

void element_scales(const uint8_t* scales, int64_t count, float encode, float* factors) {
  const f32x16 wide_encode = f32x16::of(encode);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store_unaligned(factors + i, element_scale(load_widened(scales + i), wide_encode));
  for (; i < count; ++i) factors[i] = element_scale<float>(scales[i], encode);
}

// Calls work(round) for the rounding of 16 lanes to a dtype.
template <class Work>
void with_rounding(int32_t dtype, int32_t round_to, const Work& work) {
  if (round_to == BS_BF16 && dtype != BS_BF16)
    return work([](const f32x16& x) { return float_of(round_to_bf16_bits(bits_of(x))); });
  if (round_to == BS_F16 && dtype != BS_F16)
    return work([](const f32x16& x) { return float_of(round_to_f16_bits(bits_of(x))); });
  return work([](const f32x16& x) { return x; });
}

template <class Source, class Round>
BS_INLINE void cast_pair(const typename Source::Element* x, float first, float second, const Round& round,
                         uint8_t* qdata) {
  const f32x16 factors = two_halves(first, second);
  const Pairs pairs = Source::pairs(x);
  store_u8(qdata, e2m1_code(round(pairs.even) * factors) | (e2m1_code(round(pairs.odd) * factors) << 4));
}

void cast_row(const void* x, int32_t dtype, int32_t round_to, int64_t count, const float* factors, uint8_t* qdata) {
  with_source(dtype, [&](auto source) {
    using Source = decltype(source);
    const auto* values = static_cast<const typename Source::Element*>(x);
    with_rounding(dtype, round_to, [&](const auto& round) {
      int64_t i = 0;
      for (; i + 2 * kLanes <= count; i += 2 * kLanes)
        cast_pair<Source>(values + i, factors[i / kLanes], factors[i / kLanes + 1], round, qdata + i / 2);
      if (i == count) return;
      typename Source::Element last[2 * kLanes] = {};
      std::memcpy(last, values + i, sizeof last / 2);
      uint8_t codes[kLanes];
      cast_pair<Source>(last, factors[i / kLanes], 0.0f, round, codes);
      std::memcpy(qdata + i / 2, codes, 8);
    });
  });
}

// Swaps the off-diagonal quarters of squares of 2 * distance codes; a row of 16 codes is a word, column 0 lowest.
template <int distance>
BS_INLINE void swap_quarters(uint64_t (&rows)[16], uint64_t mask) {
  for (int base = 0; base < 16; base += 2 * distance)
    for (int i = base; i < base + distance; ++i) {
      const uint64_t swap = ((rows[i] >> (4 * distance)) ^ rows[i + distance]) & mask;
      rows[i + distance] ^= swap;
      rows[i] ^= swap << (4 * distance);
    }
}

void transpose_tile(const uint8_t* in, int64_t in_pitch, uint8_t* out, int64_t out_pitch) {
  uint64_t rows[16];
  for (int r = 0; r < 16; ++r) std::memcpy(&rows[r], in + r * in_pitch, 8);
  swap_quarters<8>(rows, 0x00000000FFFFFFFFu);
  swap_quarters<4>(rows, 0x0000FFFF0000FFFFu);
  swap_quarters<2>(rows, 0x00FF00FF00FF00FFu);
  swap_quarters<1>(rows, 0x0F0F0F0F0F0F0F0Fu);
  for (int r = 0; r < 16; ++r) std::memcpy(out + r * out_pitch, &rows[r], 8);
}

}  // namespace
}  // namespace blockscale::cpu

#include "cpu/simd_adam.h"

namespace blockscale::cpu {

#define BS_TABLE_(isa) simd_kernels_##isa
#define BS_TABLE(isa) BS_TABLE_(isa)
extern const SimdKernels BS_TABLE(BS_ISA);
const SimdKernels BS_TABLE(BS_ISA) = {
    BS_STRING(BS_ISA),    amax_run,   amax_fold,    quantize_row,   quantize_strip_columnwise,
    quantize_strip_tiles, decode_row, block_scales, element_scales, cast_row,
    transpose_tile,       adam_run,
};

}  // namespace blockscale::cpu
