// Kernels for any processor, compiled for the platform's baseline.
#define HEADRACE_KERNELS kPortable
#define HEADRACE_ISA_NAME "portable"
#define HEADRACE_NUMERICS "separate"

namespace headrace {
namespace {
constexpr int kMaxRows = 4;      // rows whose sums of one tile are held in registers
constexpr int kRowsInFlight = 2;  // of these, the integer sums
constexpr int kScoreSums = 12;    // query times block of a key product
constexpr int kBlendQueries = 2;  // queries of a value product, four registers each
}  // namespace
}  // namespace headrace

#include "kernels.inl"
