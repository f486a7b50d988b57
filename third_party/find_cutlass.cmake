# SPDX-License-Identifier: Apache-2.0
# Finds the CUTLASS headers: BLOCKSCALE_CUTLASS_DIR, else the nvidia-cutlass wheel of the Python in use.
# Sets BLOCKSCALE_CUTLASS_INCLUDES, empty if there are none. Nothing is vendored and no header is patched.

set(BLOCKSCALE_CUTLASS_DIR "" CACHE PATH "CUTLASS checkout or unpacked wheel; empty: look in the Python environment")

function(blockscale_find_cutlass)
  set(root "${BLOCKSCALE_CUTLASS_DIR}")
  if(NOT root)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
              "import importlib.util as u, os; s = u.find_spec('cutlass_library'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      OUTPUT_VARIABLE root
      OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET)
    if(root)
      set(root "${root}/source")
    endif()
  endif()
  if(root AND EXISTS "${root}/include/cutlass/version.h")
    set(BLOCKSCALE_CUTLASS_INCLUDES "${root}/include" "${root}/tools/util/include" PARENT_SCOPE)
    message(STATUS "blockscale: CUTLASS headers at ${root}")
  else()
    set(BLOCKSCALE_CUTLASS_INCLUDES "" PARENT_SCOPE)
    message(STATUS "blockscale: no CUTLASS headers (pip install nvidia-cutlass==4.2.0.0); the fused GEMM kernels are left out")
  endif()
endfunction()
