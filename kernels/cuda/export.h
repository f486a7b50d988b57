// SPDX-License-Identifier: Apache-2.0
// What the library shows: everything else is hidden.
#pragma once
#define BLOCKSCALE_EXPORT __attribute__((visibility("default")))
