// SPDX-License-Identifier: Apache-2.0
// L1: the one function that builds an error text in C++: "<op>: <arg> must be <rule>; got <value>."
#pragma once
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "types.h"

namespace blockscale {

inline BsStatus ok_status() {
  BsStatus status;
  status.code = BS_OK;
  status.message[0] = 0;
  return status;
}

inline BsStatus failure(BsCode code, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline BsStatus failure(BsCode code, const char* format, ...) {
  BsStatus status;
  status.code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof status.message, format, arguments);
  va_end(arguments);
  return status;
}

// A broken contract with a number in it.
inline BsStatus broken_rule(const char* op, const char* arg, const char* rule, int64_t got) {
  return failure(BS_INVALID, "%s: %s must be %s; got %" PRId64 ".", op, arg, rule, got);
}

}  // namespace blockscale
