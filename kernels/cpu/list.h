// SPDX-License-Identifier: Apache-2.0
// A list of items as one range of equal pieces of work, so that threads share a list whatever the shapes in it are.
#pragma once
#include <algorithm>
#include <vector>

#include "cpu/parallel.h"

namespace blockscale::cpu {

// work(item, unit) for every unit 0 .. units_of(item) - 1 of every item. `elements_of(item)`: what its units cost
// together, in elements.
template <class Item, class UnitsOf, class ElementsOf, class Work>
void for_each_unit(const Item* items, int64_t count, const UnitsOf& units_of, const ElementsOf& elements_of,
                   int threads, const Work& work) {
  std::vector<int64_t> first(count + 1);
  int64_t elements = 0;
  for (int64_t i = 0; i < count; ++i) {
    first[i + 1] = first[i] + units_of(items[i]);
    elements += elements_of(items[i]);
  }
  const int64_t total = first[count];
  parallel_for(total, total > 0 ? elements / total : 0, threads, [&](int64_t begin, int64_t end) {
    int64_t i = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (int64_t unit = begin; unit < end; ++unit) {
      while (unit >= first[i + 1]) ++i;
      work(items[i], unit - first[i]);
    }
  });
}

}  // namespace blockscale::cpu
