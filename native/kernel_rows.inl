// Work on single rows: norm, rounding, activation, the weights of sampling, and how near a point is to others.

namespace headrace {
namespace {

void rms_norm(const float* x, const float* weight, float eps, int n, float* out) {
  f32x16 squares{};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    const f32x16 v = load<f32x16>(x + i);
    squares = fma(v, v, squares);
  }
  float sum = reduce_add(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / float(n) + eps);
  for (i = 0; i + 16 <= n; i += 16) store(out + i, load<f32x16>(x + i) * splat(scale) * load<f32x16>(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

void quantize(const float* x, int n, const Activations& a, int row, int group) {
  for (int done = 0; done < n; done += kGroup, ++group) {
    float padded[kGroup];
    const float* p = x + done;
    if (n - done < kGroup) {
      for (int i = 0; i < kGroup; ++i) padded[i] = done + i < n ? x[done + i] : 0.0f;
      p = padded;
    }
    const f32x16 low = load<f32x16>(p), high = load<f32x16>(p + 16);
    const size_t at = size_t(group) * a.capacity + row;
    if (a.floats) {
      store(a.floats + at * kGroup, low);
      store(a.floats + at * kGroup + 16, high);
    }
    const float largest = reduce_max(max(abs(low), abs(high)));
    const float scale = largest / 127.0f;
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    const i32x16 q_low = round_to_int(low * splat(inverse)), q_high = round_to_int(high * splat(inverse));
    store(a.values + at * kGroup, __builtin_convertvector(q_low, i8x16));
    store(a.values + at * kGroup + 16, __builtin_convertvector(q_high, i8x16));
    const int32_t low_sum = reduce_add(q_low), sum = low_sum + reduce_add(q_high);
    a.scales[at] = scale;
    a.sums[at] = sum;
    a.low_sums[at] = low_sum;
    a.scaled_sums[at] = scale * float(sum);
  }
}

void swiglu(float* gate, const float* up, int n) {
  for (int i = 0; i < n; i += 16) {
    const f32x16 x = load<f32x16>(gate + i);
    // The bound keeps exp finite; beyond it the quotient is zero to the last bit that matters.
    const f32x16 negative = -x;
    const f32x16 e = exp(negative > 88.0f ? splat(88.0f) : negative);
    store(gate + i, x / (e + 1.0f) * load<f32x16>(up + i));
  }
}

float to_int8(const float* x, int n, int8_t* out) {
  f32x16 largest{};
  for (int i = 0; i < n; i += 16) largest = max(abs(load<f32x16>(x + i)), largest);
  const float maximum = reduce_max(largest), inverse = maximum > 0.0f ? 127.0f / maximum : 0.0f;
  for (int i = 0; i < n; i += 16)
    store(out + i, __builtin_convertvector(round_to_int(load<f32x16>(x + i) * splat(inverse)), i8x16));
  return maximum / 127.0f;
}

void keys_to_int8(const float* x, int n, int8_t* out, uint16_t* scales) {
  for (int i = 0; i < n; i += 16) {
    f32x16 largest{};
    const f32x16 size = abs(load<f32x16>(x + i));
    for (int first = 0; first < 16; first += kKeyGroup) {
      float maximum = 0;
      for (int j = 0; j < kKeyGroup; ++j) maximum = size[first + j] > maximum ? size[first + j] : maximum;
      for (int j = 0; j < kKeyGroup; ++j) largest[first + j] = maximum / 127.0f;
    }
    uint16_t rounded[16];
    store_f16(rounded, largest);
    float scale[16];
    for (int first = 0; first < 16; first += kLanes) store(scale + first, load_f16(rounded + first));
    const f32x16 s = load<f32x16>(scale);
    const f32x16 q = s > 0.0f ? load<f32x16>(x + i) / s : f32x16{};
    const f32x16 lowest = splat(-127.0f);  // a scale may have been rounded down
    store(out + i, __builtin_convertvector(round_to_int(-max(-max(q, lowest), lowest)), i8x16));
    for (int g = 0; g < 16 / kKeyGroup; ++g) scales[i / kKeyGroup + g] = rounded[g * kKeyGroup];
  }
}

void to_half(const float* x, int n, uint16_t* out) {
  for (int i = 0; i < n; i += 16) store_f16(out + i, load<f32x16>(x + i));
}

void weights(const float* x, int n, float maximum, float temperature, float* w) {
  int i = 0;
  for (; i + 16 <= n; i += 16) store(w + i, exp((load<f32x16>(x + i) - splat(maximum)) / splat(temperature)));
  for (; i < n; ++i) w[i] = exp((splat(x[i]) - splat(maximum)) / splat(temperature))[0];
}

void nearness(const float* at, const float* points, int dimensions, int tiles, float width, float* near) {
  constexpr int sums = kPointTile / 16;
  for (int tile = 0; tile < tiles; ++tile, near += kPointTile) {
    f32x16 apart[sums]{};
    for (int d = 0; d < dimensions; ++d, points += kPointTile)
      for (int i = 0; i < sums; ++i) {
        const f32x16 difference = splat(at[d]) - load<f32x16>(points + 16 * i);
        apart[i] = fma(difference, difference, apart[i]);
      }
    for (int i = 0; i < sums; ++i) store(near + 16 * i, exp(splat(-width) * apart[i]));
  }
}

}  // namespace
}  // namespace headrace
