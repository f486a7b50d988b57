# SPDX-License-Identifier: Apache-2.0
# Finds nvcc: CUDACXX, PATH, CUDA_HOME, then the PyPI wheels (nvidia/cu13) of the Python in use.
# Call after project(... CXX) and before enable_language(CUDA). Sets BLOCKSCALE_NVCC (empty: none) and
# BLOCKSCALE_NVCC_VERSION, and prepares CMAKE_CUDA_COMPILER and CMAKE_CUDA_FLAGS.
#
# The wheels have lib/, not lib64/, so that the link needs -L. An nvcc on PATH may be a wrapper: its root is asked from
# a dry run, not taken from its path.

function(blockscale_find_nvcc)
  set(candidates "$ENV{CUDACXX}")
  find_program(nvcc_on_path nvcc NO_CACHE)
  if(nvcc_on_path)
    list(APPEND candidates "${nvcc_on_path}")
  endif()
  if(DEFINED ENV{CUDA_HOME})
    list(APPEND candidates "$ENV{CUDA_HOME}/bin/nvcc")
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import sys, sysconfig; print(';'.join(dict.fromkeys(p + '/nvidia/cu13/bin/nvcc' for p in [*sys.path, sysconfig.get_path('purelib')] if p)))"
    OUTPUT_VARIABLE in_wheels
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  list(APPEND candidates ${in_wheels})
  foreach(candidate IN LISTS candidates)
    if(candidate AND EXISTS "${candidate}")
      execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE version_text RESULT_VARIABLE failed)
      if(NOT failed AND version_text MATCHES "release ([0-9]+\\.[0-9]+)")
        set(version "${CMAKE_MATCH_1}")
        file(WRITE "${CMAKE_BINARY_DIR}/probe.cu" "")
        execute_process(
          COMMAND "${candidate}" --dryrun -c "${CMAKE_BINARY_DIR}/probe.cu" -o "${CMAKE_BINARY_DIR}/probe.o"
          OUTPUT_VARIABLE dry
          ERROR_VARIABLE dry)
        string(REGEX MATCH "TOP=([^\n]*)" _ "${dry}")
        get_filename_component(root "${CMAKE_MATCH_1}" REALPATH)
        set(BLOCKSCALE_NVCC "${candidate}" PARENT_SCOPE)
        set(BLOCKSCALE_NVCC_VERSION "${version}" PARENT_SCOPE)
        set(CMAKE_CUDA_COMPILER "${candidate}" PARENT_SCOPE)
        if(NOT EXISTS "${root}/lib64" AND EXISTS "${root}/lib")
          set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -L${root}/lib" PARENT_SCOPE)
        endif()
        message(STATUS "blockscale: nvcc ${version} at ${candidate} (root ${root})")
        return()
      endif()
    endif()
  endforeach()
  set(BLOCKSCALE_NVCC "" PARENT_SCOPE)
  message(STATUS "blockscale: no nvcc found")
endfunction()
