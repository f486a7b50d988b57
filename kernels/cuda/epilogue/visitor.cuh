// SPDX-License-Identifier: Apache-2.0
// What every visitor node of ours shares: the parts of CUTLASS's visitor interface that do not differ between them, and
// where a thread stands. A node is one root without children: CUTLASS hands it accumulators, it returns what is stored.
#pragma once
#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>

#include "cuda/epilogue/fused_tile.cuh"

namespace blockscale::cuda {

namespace fusion = cutlass::epilogue::fusion;

// Node: a class template over the type of the thread's coordinates, constructed from (FusedTile, coordinates).
template <class Shape, template <class, class> class Node>
struct Visitor {
  using SharedStorage = TileStorage<Shape>;
  using Arguments = FusedParams;
  using Params = FusedParams;
  using ElementAux = uint8_t;  // stands for D's element where the collective stores no D

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(const ProblemShape&, const Arguments& args, void*) {
    return args;
  }
  template <class ProblemShape>
  static bool can_implement(const ProblemShape&, const Arguments&) {
    return true;
  }
  template <class ProblemShape>
  static size_t get_workspace_size(const ProblemShape&, const Arguments&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(const ProblemShape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Visitor() {}
  CUTLASS_HOST_DEVICE Visitor(const Params& params, const SharedStorage& storage)
      : params(&params), storage(const_cast<SharedStorage*>(&storage)) {}

  // C is read where it is used: nothing is loaded for us.
  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }
  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const fusion::detail::ProducerLoadArgs<Args...>&) {
    return fusion::EmptyProducerLoadCallbacks{};
  }

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const auto problem = cute::take<0, 2>(args.problem_shape_mnkl);
    const Site tile = site_of<Shape>(difference(problem, args.residue_cD));
    const Site thread = site_of<Shape>(difference(args.residue_cD, args.residue_tCcD));
    return Node<Shape, decltype(args.tCcD)>(FusedTile<Shape>(params, storage, tile, thread, args.thread_idx),
                                            args.tCcD);
  }

  const Params* params = nullptr;
  SharedStorage* storage = nullptr;

 private:
  template <class P, class Q>
  CUTLASS_DEVICE static auto difference(const P& p, const Q& q) {
    return cute::make_coord(static_cast<int>(cute::get<0>(p)) - static_cast<int>(cute::get<0>(q)),
                            static_cast<int>(cute::get<1>(p)) - static_cast<int>(cute::get<1>(q)));
  }
};

// A thread's elements of one subtile, as places in D relative to the thread's first element.
template <class Shape, class Coordinates>
struct Node : fusion::EmptyConsumerStoreCallbacks {
  FusedTile<Shape> tile;
  Coordinates coordinates;  // (copy, copy_m, copy_n, subtile_m, subtile_n), static

  CUTLASS_DEVICE Node(const FusedTile<Shape>& tile, const Coordinates& coordinates)
      : tile(tile), coordinates(coordinates) {}

  CUTLASS_DEVICE void begin() { tile.prepare(); }
  CUTLASS_DEVICE bool begin_sync_needed() const { return true; }

  CUTLASS_DEVICE auto places(int first, int epi_m, int epi_n) const {
    const auto subtile = coordinates(cute::_, cute::_, cute::_, epi_m, epi_n);
    return [subtile, first](int i) { return site_of<Shape>(subtile(first + i)); };
  }
};

}  // namespace blockscale::cuda
