// Which kernels this processor can run.
#include <stdexcept>

#include "kernels.h"

namespace headrace {

Isas available_isas() {
  static const Kernels* found[3];
  static const int count = [] {
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
      found[n++] = &kAvx512Vnni;
    if (avx2) found[n++] = &kAvx2;
#endif
    found[n++] = &kPortable;
    return n;
  }();
  return {found, count};
}

const Kernels& find_kernels(const std::string& isa) {
  const Isas isas = available_isas();
  for (int i = 0; i < isas.count; ++i)
    if (isa == isas.begin_[i]->isa) return *isas.begin_[i];
  throw std::invalid_argument("instruction set '" + isa + "' is not available");
}

}  // namespace headrace
