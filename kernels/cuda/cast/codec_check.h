/* SPDX-License-Identifier: Apache-2.0
 * A test entry of the CUDA library: the conversions in use on a device against cuda_fp4.h and cuda_fp8.h.
 */
#ifndef BLOCKSCALE_CUDA_CAST_CODEC_CHECK_H_
#define BLOCKSCALE_CUDA_CAST_CODEC_CHECK_H_
#include "contract/types.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Runs all 2^32 floats through the E2M1 conversion (each as an element times 1, by every path that a block can take)
 * and all that are neither negative nor NaN through the E4M3 one. mismatches: two counts in device memory, {E2M1,
 * E4M3}, both overwritten; 0, 0 is a pass. */
BsStatus blockscale_cuda_check_codecs(unsigned long long* mismatches, const BsLaunch* launch);
#ifdef __cplusplus
}
#endif

#endif
