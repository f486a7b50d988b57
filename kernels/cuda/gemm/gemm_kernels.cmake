# SPDX-License-Identifier: Apache-2.0
# Compiles the lines of gemm_kernels.def whose target is selected, each as an object library of its own: instance.cu with
# the line's fields as macros. Writes gemm_built.h, which says to registry.cu which there are.
set(BLOCKSCALE_GEMM_KERNELS "core" CACHE STRING "GEMM kernels to build: core (every shape and output) or full (all tiles)")
if(NOT BLOCKSCALE_GEMM_KERNELS MATCHES "^(core|full)$")
  message(FATAL_ERROR "BLOCKSCALE_GEMM_KERNELS must be core or full; got ${BLOCKSCALE_GEMM_KERNELS}.")
endif()

# One compilation takes about 5 GB and a minute: as many at once as memory holds.
cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR jobs "${memory} / 5500")
if(jobs LESS 1)
  set(jobs 1)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS "cutlass=${jobs}")

function(blockscale_add_gemm_kernel name target arch m n k sms swapped output schedule)
  add_library(gemm_${name} OBJECT gemm/instance.cu)
  target_include_directories(gemm_${name} PRIVATE "${CMAKE_SOURCE_DIR}/kernels")
  target_include_directories(gemm_${name} SYSTEM PRIVATE ${BLOCKSCALE_CUTLASS_INCLUDES})
  target_compile_definitions(gemm_${name} PRIVATE
    BS_SYMBOL=gemm_kernel_${name} BS_ARCH=${arch} BS_TILE_M=${m} BS_TILE_N=${n} BS_TILE_K=${k} BS_SMS=${sms}
    BS_SWAPPED=${swapped} BS_OUTPUT=${output} BS_SCHEDULE=${schedule})
  # Prints registers and spills of each kernel: docs/gemm_kernels.md, step 3.
  target_compile_options(gemm_${name} PRIVATE -fmad=false -lineinfo --expt-relaxed-constexpr -Xptxas=-v
                                              -Xcompiler=-ffp-contract=off)
  set_target_properties(gemm_${name} PROPERTIES
    CUDA_ARCHITECTURES "${target}-real"
    CUDA_STANDARD 17
    CUDA_STANDARD_REQUIRED ON
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    JOB_POOL_COMPILE cutlass)
  target_sources(blockscale_cuda PRIVATE $<TARGET_OBJECTS:gemm_${name}>)
endfunction()

# The selected target that a line is compiled for: its own architecture's, and for 120 the first of 120a and 121a.
function(blockscale_gemm_target arch out)
  set(found "")
  foreach(target IN LISTS BLOCKSCALE_SELECTED_ARCHS)
    if(target STREQUAL "${arch}a" OR (arch EQUAL 120 AND target STREQUAL "121a"))
      list(APPEND found "${target}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

set(built "")
file(STRINGS "${CMAKE_SOURCE_DIR}/kernels/contract/gemm_kernels.def" lines REGEX "^BS_GEMM_KERNEL")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^BS_GEMM_KERNEL\\((.*)\\)$" "\\1" fields "${line}")
  string(REPLACE ", " ";" fields "${fields}")
  list(POP_FRONT fields name set arch)
  blockscale_gemm_target(${arch} targets)
  if(BLOCKSCALE_CUTLASS_INCLUDES AND targets AND (set STREQUAL "CORE" OR BLOCKSCALE_GEMM_KERNELS STREQUAL "full"))
    list(JOIN targets "-real;" architectures)
    blockscale_add_gemm_kernel(${name} "${architectures}" ${arch} ${fields})
    string(APPEND built "namespace blockscale::cuda { extern const GemmKernel gemm_kernel_${name}; }\n"
                        "#define BS_BUILT_${name} &gemm_kernel_${name}\n")
  else()
    string(APPEND built "#define BS_BUILT_${name} nullptr\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/generated/gemm_built.h" CONTENT
  "#pragma once\n#include \"cuda/gemm/gemm_kernel.h\"\n${built}" @ONLY)
