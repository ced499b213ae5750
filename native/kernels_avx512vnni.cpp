// Kernels for AVX-512 with VNNI: one vector of sixteen lanes is one register, and there are thirty-two.
#define HEADRACE_AVX512VNNI
#define HEADRACE_KERNELS kAvx512Vnni
#define HEADRACE_ISA_NAME "avx512vnni"
#define HEADRACE_NUMERICS "fma"

namespace headrace {
namespace {
constexpr int kMaxRows = 16;      // rows whose sums of one tile are held in registers
constexpr int kRowsInFlight = 4;  // of these, the integer sums
constexpr int kScoreSums = 24;    // query times block of a key product
constexpr int kBlendQueries = 6;  // queries of a value product, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
