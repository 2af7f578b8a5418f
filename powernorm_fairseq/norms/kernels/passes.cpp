#include "passes.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif
#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

namespace {

struct BFloat16 {
  uint16_t bits;
};

INLINE float load(float value) { return value; }
INLINE float load(BFloat16 value) { return from_half(value.bits); }
INLINE void store(float* to, float value) { *to = value; }
INLINE void store(BFloat16* to, float value) { to->bits = to_half(value); }

// Writes the factors that layer-scale puts on the slices of a row, 1 / their quadratic means, unless they are known.
template <typename T, int64_t WIDTH = 0>
INLINE void scale_row(const Rows& rows, int64_t row) {
  if (rows.scales == nullptr || rows.scales_known) return;
  const int64_t width = WIDTH > 0 ? WIDTH : rows.columns / rows.groups;
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t group = 0; group < rows.groups; ++group) {
    const T* x = static_cast<const T*>(rows.x) + row * rows.columns + group * width;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += load(x[i]) * load(x[i]);
    rows.scales[row * rows.groups + group] = 1.0f / std::sqrt(squares * share + rows.eps);
  }
}

INLINE float scale_of(const Rows& rows, int64_t row, int64_t group) {
  return rows.scales == nullptr ? 1.0f : rows.scales[row * rows.groups + group];
}

// sums += s^2
template <typename T>
INLINE void add_squares(const Rows& rows, int64_t begin, int64_t end, float* sums) {
  const int64_t width = rows.columns / rows.groups;
  for (int64_t row = begin; row < end; ++row) {
    if (!rows.real(row)) continue;
    scale_row<T>(rows, row);
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t first = group * width;
      const T* x = static_cast<const T*>(rows.x) + row * rows.columns + first;
      float* __restrict sum = sums + first;
      const float r = scale_of(rows, row, group);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float s = load(x[i]) * r;
        sum[i] += s * s;
      }
    }
  }
}

// Sums of s - origin and of its square, where the origin is the block's first real row: nothing large has to cancel.
// Returns the number of real rows. `sums` holds origin, first and second powers.
template <typename T>
INLINE int64_t add_deviations(const Rows& rows, int64_t begin, int64_t end, float* sums) {
  const int64_t width = rows.columns / rows.groups;
  int64_t count = 0;
  for (int64_t row = begin; row < end; ++row) {
    if (!rows.real(row)) continue;
    scale_row<T>(rows, row);
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t first = group * width;
      const T* x = static_cast<const T*>(rows.x) + row * rows.columns + first;
      float* __restrict origin = sums + first;
      float *__restrict one = origin + rows.columns, *__restrict two = one + rows.columns;
      const float r = scale_of(rows, row, group);
      if (count == 0) {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) origin[i] = load(x[i]) * r;
        continue;
      }
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float d = load(x[i]) * r - origin[i];
        one[i] += d;
        two[i] += d * d;
      }
    }
    ++count;
  }
  return count;
}

// y = s * scale + shift, and sums += s^2 if SUMS.
template <typename T, bool SUMS, int64_t WIDTH>
INLINE void apply_affine(const Rows& rows, int64_t begin, int64_t end, const float* scale, const float* shift, void* y,
                         float* sums) {
  const int64_t width = WIDTH > 0 ? WIDTH : rows.columns / rows.groups;
  for (int64_t row = begin; row < end; ++row) {
    T* to = static_cast<T*>(y) + row * rows.columns;
    if (!rows.real(row)) {
      std::memset(static_cast<void*>(to), 0, sizeof(T) * rows.columns);
      continue;
    }
    scale_row<T, WIDTH>(rows, row);
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t first = group * width;
      const T* x = static_cast<const T*>(rows.x) + row * rows.columns + first;
      const float *a = scale + first, *b = shift + first;
      T* __restrict out = to + first;
      float* __restrict sum = sums + first;
      const float r = scale_of(rows, row, group);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float s = load(x[i]) * r;
        store(out + i, s * a[i] + b[i]);
        if (SUMS) sum[i] += s * s;
      }
    }
  }
}

// products += dy * (s - centre), totals += dy; `sums` holds both.
template <typename T, bool CENTRED>
INLINE void add_products(const Rows& rows, int64_t begin, int64_t end, const void* dy, const float* centre,
                         float* sums) {
  const int64_t width = rows.columns / rows.groups;
  for (int64_t row = begin; row < end; ++row) {
    if (!rows.real(row)) continue;
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t first = group * width, at = row * rows.columns + first;
      const T *x = static_cast<const T*>(rows.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float* middle = centre + first;
      float *__restrict product = sums + first, *__restrict total = product + rows.columns;
      const float r = scale_of(rows, row, group);
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float g = load(grad[i]);
        product[i] += g * (load(x[i]) * r - (CENTRED ? middle[i] : 0.0f));
        total[i] += g;
      }
    }
  }
}

// dL/ds = dy * a + s * b + c, and dx from it through layer-scale; if SUMS, also products += dy * s and totals += dy.
template <typename T, bool SUMS, bool CENTRED, int64_t WIDTH>
INLINE void apply_backward(const Rows& rows, int64_t begin, int64_t end, const void* dy, const float* a, const float* b,
                           const float* c, void* dx, float* sums) {
  const int64_t width = WIDTH > 0 ? WIDTH : rows.columns / rows.groups;
  const float share = 1.0f / static_cast<float>(width);
  std::vector<float> along(rows.groups);  // means of dL/ds * s: the part of dL/ds that layer-scale takes out
  for (int64_t row = begin; row < end; ++row) {
    T* to = static_cast<T*>(dx) + row * rows.columns;
    if (!rows.real(row)) {
      std::memset(static_cast<void*>(to), 0, sizeof(T) * rows.columns);
      continue;
    }
    for (int64_t group = 0; rows.scales != nullptr && group < rows.groups; ++group) {
      const int64_t first = group * width, at = row * rows.columns + first;
      const T *x = static_cast<const T*>(rows.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float *a_ = a + first, *b_ = b + first, *c_ = c + first;
      const float r = scale_of(rows, row, group);
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) {
        const float s = load(x[i]) * r;
        sum += (load(grad[i]) * a_[i] + s * b_[i] + (CENTRED ? c_[i] : 0.0f)) * s;
      }
      along[group] = sum * share;
    }
    for (int64_t group = 0; group < rows.groups; ++group) {
      const int64_t first = group * width, at = row * rows.columns + first;
      const T *x = static_cast<const T*>(rows.x) + at, *grad = static_cast<const T*>(dy) + at;
      const float *a_ = a + first, *b_ = b + first, *c_ = c + first;
      T* __restrict out = to + first;
      float *__restrict product = sums + first, *__restrict total = product + rows.columns;
      const float r = scale_of(rows, row, group), taken = along[group];
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) {
        const float g = load(grad[i]), s = load(x[i]) * r;
        store(out + i, (g * a_[i] + s * (b_[i] - taken) + (CENTRED ? c_[i] : 0.0f)) * r);
        if (SUMS) {
          product[i] += g * s;
          total[i] += g;
        }
      }
    }
  }
}

// Calls pass with the width of a slice as a constant where it is a usual one, so that short loops are unrolled, else 0.
template <typename Pass>
INLINE void for_width(const Rows& rows, const Pass& pass) {
  const int64_t width = rows.scales == nullptr ? 0 : rows.columns / rows.groups;
  if (width == 32) return pass(std::integral_constant<int64_t, 32>());
  if (width == 64) return pass(std::integral_constant<int64_t, 64>());
  if (width == 128) return pass(std::integral_constant<int64_t, 128>());
  pass(std::integral_constant<int64_t, 0>());
}

// One clone of each pass for each instruction set, chosen at run time; the templates above are inlined into them.

VECTORISED void squares_pass(const Rows& rows, int64_t begin, int64_t end, float* sums) {
  rows.half ? add_squares<BFloat16>(rows, begin, end, sums) : add_squares<float>(rows, begin, end, sums);
}

VECTORISED int64_t deviations_pass(const Rows& rows, int64_t begin, int64_t end, float* sums) {
  return rows.half ? add_deviations<BFloat16>(rows, begin, end, sums) : add_deviations<float>(rows, begin, end, sums);
}

VECTORISED void affine_pass(const Rows& rows, int64_t begin, int64_t end, const float* scale, const float* shift,
                            void* y, float* sums) {
  for_width(rows, [&](auto width) ALWAYS_INLINE {
    constexpr int64_t WIDTH = decltype(width)::value;
    if (rows.half && sums) return apply_affine<BFloat16, true, WIDTH>(rows, begin, end, scale, shift, y, sums);
    if (rows.half) return apply_affine<BFloat16, false, WIDTH>(rows, begin, end, scale, shift, y, sums);
    if (sums) return apply_affine<float, true, WIDTH>(rows, begin, end, scale, shift, y, sums);
    apply_affine<float, false, WIDTH>(rows, begin, end, scale, shift, y, sums);
  });
}

VECTORISED void products_pass(const Rows& rows, int64_t begin, int64_t end, const void* dy, const float* centre,
                              float* sums) {
  if (rows.half && centre) return add_products<BFloat16, true>(rows, begin, end, dy, centre, sums);
  if (rows.half) return add_products<BFloat16, false>(rows, begin, end, dy, centre, sums);
  if (centre) return add_products<float, true>(rows, begin, end, dy, centre, sums);
  add_products<float, false>(rows, begin, end, dy, centre, sums);
}

template <typename T, int64_t WIDTH>
INLINE void backward_of(const Rows& rows, int64_t begin, int64_t end, const void* dy, const float* a, const float* b,
                        const float* c, void* dx, float* sums) {
  if (c && sums) return apply_backward<T, true, true, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
  if (c) return apply_backward<T, false, true, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
  if (sums) return apply_backward<T, true, false, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
  apply_backward<T, false, false, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
}

VECTORISED void backward_pass(const Rows& rows, int64_t begin, int64_t end, const void* dy, const float* a,
                              const float* b, const float* c, void* dx, float* sums) {
  for_width(rows, [&](auto width) ALWAYS_INLINE {
    constexpr int64_t WIDTH = decltype(width)::value;
    if (rows.half) return backward_of<BFloat16, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
    backward_of<float, WIDTH>(rows, begin, end, dy, a, b, c, dx, sums);
  });
}

// How rows are cut into blocks: with as many real tokens in each, because padding takes next to no time and often lies
// together. Neighbours stay together: the operation before this one has left them in the cache of one core.
struct Blocks {
  static constexpr int64_t MOST = 32, LEAST_ROWS = 32;

  int64_t count;
  std::vector<int64_t> starts;  // first row of each block, and the end

  explicit Blocks(const Rows& rows)
      : count(std::min(MOST, (rows.rows + LEAST_ROWS - 1) / LEAST_ROWS)), starts(count + 1, rows.rows) {
    const int64_t real = rows.count();
    for (int64_t number = 0, row = 0, seen = 0; number < count; ++number) {
      starts[number] = rows.padding == nullptr ? number * rows.rows / count : row;
      for (; rows.padding != nullptr && row < rows.rows && seen * count < (number + 1) * real; ++row)
        seen += rows.real(row);
    }
  }

  // Calls pass(begin, end, number of the block) for all blocks, in parallel.
  template <typename Pass>
  void each(const Pass& pass) const {
    torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
      for (int64_t number = first; number < last; ++number) pass(starts[number], starts[number + 1], number);
    });
  }

  // The same for a pass(begin, end, sums) that adds to `width` sums; `total` becomes the sum over the blocks.
  template <typename Pass>
  void sum(int64_t width, float* total, const Pass& pass) const {
    std::vector<float> partial(count * width);
    each([&](int64_t begin, int64_t end, int64_t number) { pass(begin, end, partial.data() + number * width); });
    std::fill(total, total + width, 0.0f);
    for (int64_t number = 0; number < count; ++number)
      for (int64_t i = 0; i < width; ++i) total[i] += partial[number * width + i];
  }
};

}  // namespace

int64_t Rows::count() const { return padding == nullptr ? rows : std::count(padding, padding + rows, false); }

void square_sums(const Rows& rows, float* sums) {
  Blocks(rows).sum(rows.columns, sums,
                   [&](int64_t begin, int64_t end, float* partial) { squares_pass(rows, begin, end, partial); });
}

void moments(const Rows& rows, float* mean, float* squares) {
  const Blocks blocks(rows);
  const int64_t columns = rows.columns, width = 3 * columns;
  std::vector<float> partial(blocks.count * width);
  std::vector<int64_t> counts(blocks.count);
  blocks.each([&](int64_t begin, int64_t end, int64_t number) {
    counts[number] = deviations_pass(rows, begin, end, partial.data() + number * width);
  });
  std::fill(mean, mean + columns, 0.0f);
  std::fill(squares, squares + columns, 0.0f);
  const float* origin = nullptr;  // of the first block that has any token: means are measured from there
  float all = 0.0f;
  for (int64_t number = 0; number < blocks.count; ++number) {
    if (counts[number] == 0) continue;
    const float count = static_cast<float>(counts[number]);
    const float share = count / (all + count), weight = all * share;
    const float *start = partial.data() + number * width, *one = start + columns, *two = one + columns;
    if (origin == nullptr) origin = start;
    for (int64_t i = 0; i < columns; ++i) {  // the block's own moments, then both parts together (Chan et al., 1979)
      const float own_mean = (start[i] - origin[i]) + one[i] / count;
      const float own_squares = std::max(0.0f, two[i] - one[i] * one[i] / count);
      const float distance = own_mean - mean[i];
      squares[i] += own_squares + distance * distance * weight;
      mean[i] += distance * share;
    }
    all += count;
  }
  for (int64_t i = 0; origin != nullptr && i < columns; ++i) mean[i] += origin[i];
}

void affine(const Rows& rows, const float* scale, const float* shift, void* y, float* sums) {
  if (sums == nullptr)
    return Blocks(rows).each([&](int64_t begin, int64_t end, int64_t) {
      affine_pass(rows, begin, end, scale, shift, y, nullptr);
    });
  Blocks(rows).sum(rows.columns, sums, [&](int64_t begin, int64_t end, float* partial) {
    affine_pass(rows, begin, end, scale, shift, y, partial);
  });
}

void backward_sums(const Rows& rows, const void* dy, const float* centre, float* sums) {
  Blocks(rows).sum(2 * rows.columns, sums, [&](int64_t begin, int64_t end, float* partial) {
    products_pass(rows, begin, end, dy, centre, partial);
  });
}

void backward(const Rows& rows, const void* dy, const float* a, const float* b, const float* c, void* dx, float* sums) {
  if (sums == nullptr)
    return Blocks(rows).each([&](int64_t begin, int64_t end, int64_t) {
      backward_pass(rows, begin, end, dy, a, b, c, dx, nullptr);
    });
  Blocks(rows).sum(2 * rows.columns, sums, [&](int64_t begin, int64_t end, float* partial) {
    backward_pass(rows, begin, end, dy, a, b, c, dx, partial);
  });
}
