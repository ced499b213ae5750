// The kernels' one source, compiled once for each instruction set by the file that includes it and defines
// HEADRACE_KERNELS (the table's name), HEADRACE_ISA_NAME, HEADRACE_NUMERICS, and how much to hold in registers.

#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace headrace {
namespace {

// Work is done for several rows or queries at a time, in the largest pieces there is a kernel for. What comes out for
// one of them does not depend on the piece it was in.
template <int n>
struct Piece {
  static constexpr int count = n;
};
template <int... sizes>
struct Pieces {};

template <int... sizes, class Work>
INLINE void in_pieces(int count, Pieces<sizes...>, const Work& work) {
  int at = 0;
  const auto take = [&](auto piece) {
    for (; count - at >= piece.count; at += piece.count) work(piece, at);
  };
  (take(Piece<sizes>{}), ...);
}

using MatrixRows = Pieces<HEADRACE_MATRIX_ROWS>;
using ScoreQueries = Pieces<HEADRACE_SCORE_QUERIES>;
using BlendQueries = Pieces<HEADRACE_BLEND_QUERIES>;
constexpr int kRowsInFlight = HEADRACE_ROWS_IN_FLIGHT;
constexpr int kScoreSums = HEADRACE_SCORE_SUMS;
constexpr int kValuesAhead = 4 * kBlock;  // tokens
constexpr size_t kAhead = 4096;  // bytes of weights fetched ahead; hardware alone leaves half the bandwidth unused

}  // namespace
}  // namespace headrace

#include "kernel_attention.inl"
#include "kernel_copy.inl"
#include "kernel_products.inl"
#include "kernel_rows.inl"

namespace headrace {

const Kernels HEADRACE_KERNELS = {HEADRACE_ISA_NAME, HEADRACE_NUMERICS, multiply_tile, rms_norm, quantize, swiglu,
                                  to_half,           to_int8,           keys_to_int8,  attend,   merge,    weights,
                                  nearness,          copy_summed};

}  // namespace headrace
