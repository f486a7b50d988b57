// SPDX-License-Identifier: Apache-2.0
// All 2^32 floats through the conversions of kernels/numerics, scalar and in sixteen lanes, against rules that are
// written here in another way (a walk along the rounding boundaries), the compiler's casts and, where there are CUDA
// headers, cuda_fp4.h and cuda_fp8.h. Prints one line a check: its name, mismatches, and the bits of the first one.
//
// With the argument "tables" it prints values and codes for Python to compare with ml_dtypes.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "numerics/epilogue.h"
#include "numerics/layout.h"
#include "numerics/narrow.h"

#if defined(HAVE_CUDA_HEADERS)
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#endif

namespace {

using namespace blockscale;

constexpr double kE2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double e4m3(int byte) {  // 1.2: three bits of fraction, bias 7, steps of 2^-9 below 2^-6
  const int exponent = byte >> 3, fraction = byte & 7;
  double value = exponent ? 1 + fraction / 8.0 : fraction / 8.0;
  for (int i = exponent ? exponent : 1; i < 7; ++i) value /= 2;
  for (int i = 7; i < exponent; ++i) value *= 2;
  return value;
}

// first[i]: the smallest magnitude, as bits, that rounds to code i + 1 or above. A midpoint goes to the even code.
struct Boundaries {
  uint32_t first[127];
  int count;

  Boundaries(int codes, double (*value)(int)) : count(codes - 1) {
    for (int i = 0; i < count; ++i) {
      const float middle = static_cast<float>((value(i) + value(i + 1)) / 2);
      first[i] = bits_of(middle) + (i % 2 == 0 ? 1 : 0);
    }
  }
  int code_of(uint32_t magnitude, int from) const {  // `from` is the code of a smaller magnitude
    while (from < count && magnitude >= first[from]) ++from;
    return from;
  }
};

struct Check {
  const char* name;
  uint64_t bad = 0;
  uint32_t at = 0;
  void expect(bool right, uint32_t bits) {
    if (right) return;
    if (!bad++) at = bits;
  }
};

enum { kE2m1Lanes, kE2m1Scalar, kE4m3Lanes, kE4m3Scalar, kBf16, kF16Cast, kCudaFp4, kCudaFp8, kChecks };
const char* const kNames[kChecks] = {"e2m1_lanes",  "e2m1_scalar", "e4m3_lanes", "e4m3_scalar",
                                     "narrow_bf16", "narrow_f16",  "cuda_fp4",   "cuda_fp8"};

bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

bool right_bf16(uint32_t bits, uint32_t got) {
  if (is_nan(bits)) return (got & 0x7FFFu) > 0x7F80u && (got >> 15) == (bits >> 31);
  const uint32_t low = bits & 0xFFFFu, high = bits >> 16;
  const bool up = low > 0x8000u || (low == 0x8000u && high % 2 == 1);
  return got == high + (up ? 1 : 0);
}

bool right_f16(uint32_t bits, uint32_t got) {
  if (is_nan(bits)) return (got & 0x7FFFu) > 0x7C00u;
#if defined(__FLT16_MAX__)
  const _Float16 half = static_cast<_Float16>(float_of(bits));
  uint16_t expected;
  std::memcpy(&expected, &half, sizeof expected);
  return got == expected;
#else
  return true;
#endif
}

void sixteen(uint32_t first, int* e2m1_code_now, int* e4m3_byte_now, const Boundaries& four, const Boundaries& eight,
             Check* checks) {
  uint32_t words[16];
  for (int j = 0; j < 16; ++j) words[j] = first + static_cast<uint32_t>(j);
  u32x16 bits;
  std::memcpy(&bits, words, sizeof words);
  const f32x16 values = float_of(bits);
  uint32_t codes[16], bytes[16], bf16[16], f16[16];
  const u32x16 lanes[4] = {e2m1_code(values), e4m3_byte(values), narrow_bf16_bits(bits), narrow_f16_bits(bits)};
  std::memcpy(codes, &lanes[0], sizeof codes);
  std::memcpy(bytes, &lanes[1], sizeof bytes);
  std::memcpy(bf16, &lanes[2], sizeof bf16);
  std::memcpy(f16, &lanes[3], sizeof f16);
  for (int j = 0; j < 16; ++j) {
    const uint32_t word = words[j], magnitude = word & 0x7FFFFFFFu;
    const float value = float_of(word);
    *e2m1_code_now = four.code_of(magnitude, *e2m1_code_now);
    const uint32_t code = is_nan(word) ? 7u : static_cast<uint32_t>(*e2m1_code_now) | (word >> 31) << 3;
    checks[kE2m1Lanes].expect(codes[j] == code, word);
    checks[kE2m1Scalar].expect(e2m1_code(value) == code, word);
    checks[kBf16].expect(right_bf16(word, bf16[j]), word);
    checks[kF16Cast].expect(right_f16(word, f16[j]), word);
    const bool scale = word >> 31 == 0 && !is_nan(word);
    if (scale) {
      *e4m3_byte_now = eight.code_of(magnitude, *e4m3_byte_now);
      const uint32_t byte = static_cast<uint32_t>(*e4m3_byte_now);
      checks[kE4m3Lanes].expect(bytes[j] == byte, word);
      checks[kE4m3Scalar].expect(e4m3_byte(value) == byte, word);
    }
#if defined(HAVE_CUDA_HEADERS)
    const uint32_t cuda_code = __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest);
    checks[kCudaFp4].expect(codes[j] == cuda_code, word);
    if (scale) checks[kCudaFp8].expect(bytes[j] == __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3), word);
#endif
  }
}

double e2m1_magnitude(int code) { return kE2m1[code]; }

int check_all_floats() {
  constexpr int64_t kChunk = 1 << 20;
  const Boundaries four(8, e2m1_magnitude), eight(127, e4m3);
  Check total[kChecks];
  for (int i = 0; i < kChecks; ++i) total[i].name = kNames[i];
#pragma omp parallel
  {
    Check mine[kChecks];
#pragma omp for schedule(dynamic, 16)
    for (int64_t chunk = 0; chunk < (int64_t{1} << 32) / kChunk; ++chunk) {
      int code = 0, byte = 0;
      for (int64_t i = 0; i < kChunk; i += 16)
        sixteen(static_cast<uint32_t>(chunk * kChunk + i), &code, &byte, four, eight, mine);
    }
#pragma omp critical
    for (int i = 0; i < kChecks; ++i) {
      if (mine[i].bad && !total[i].bad) total[i].at = mine[i].at;
      total[i].bad += mine[i].bad;
    }
  }
  uint64_t bad = 0;
  for (const Check& check : total) {
    std::printf("%s %" PRIu64 " %08X\n", check.name, check.bad, check.at);
    bad += check.bad;
  }
  return bad != 0;
}

void print_tables() {
  for (uint32_t code = 0; code < 16; ++code)
    std::printf("e2m1_value %u %08X\n", code, bits_of(e2m1_value<float>(code)));
  for (uint32_t byte = 0; byte < 128; ++byte)
    std::printf("e4m3_value %u %08X\n", byte, bits_of(e4m3_value<float>(byte)));
  for (uint32_t half = 0; half < 65536; ++half) {
    const uint16_t word = static_cast<uint16_t>(half);
    const float wide = widen_f16(word), from_bf16 = widen_bf16(word);
    std::printf("half %u %08X %08X %X %X\n", half, bits_of(wide), bits_of(from_bf16), e2m1_code(from_bf16),
                e4m3_byte(float_of(bits_of(from_bf16) & 0x7FFFFFFFu)));
  }
  std::printf("constant sixth %08X\n", bits_of(1.0f / 6.0f));
  std::printf("constant used_sixth %08X\n", kOneSixthBits);
  std::printf("constant range_448 %08X\n", bits_of(1.0f / second_level_range(448)));
  std::printf("constant range_256 %08X\n", bits_of(1.0f / second_level_range(256)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && !std::strcmp(argv[1], "tables")) {
    print_tables();
    return 0;
  }
  return check_all_floats();
}
