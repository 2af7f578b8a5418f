// The passes over rows of tokens that the norms are made of, each fused into one sweep, for CPUs.
//
// x, dy, y and dx are N x C, float32 or bfloat16; all else is float32. `s` is a row after layer-scale: each of its slices
// times its factor in `scales` (N x groups: 1 / the quadratic mean of the slice, written by the first pass and read by
// the others), or the row as it is if there are no `scales`. Rows at padding are not read; what is written there is zero.
// Column sums are taken over blocks of rows that depend on N and the mask alone, and the blocks are added up in their order:
// no result depends on the number of threads. `centre` may be null, for zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

// Floats at the start of a cache line: vectors that straddle two lines take a fifth longer to load.
template <typename T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t LINE{64};
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
  void deallocate(T* data, std::size_t) { ::operator delete(data, LINE); }
  bool operator==(const Aligned&) const { return true; }
};
using Floats = std::vector<float, Aligned<float>>;

// bfloat16 is the upper half of a float.
inline __attribute__((always_inline)) float from_half(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

inline __attribute__((always_inline)) uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(nan ? 0x7fc0 : rounded);
}

// What the passes of a call have in common.
struct Rows {
  int64_t rows, columns, groups;
  bool half;  // x and the like are bfloat16
  const void* x;
  const bool* padding;  // never null: a mask of its own for input without one is cheaper than to ask at each row
  float* scales;
  bool scales_known;
  float eps;

  int64_t count() const;  // of real tokens
};

// Mean of s^2; zero where no token is real.
void square_means(const Rows& rows, float* power);

// Mean of s, and mean of the squared deviations from it.
void moments(const Rows& rows, float* mean, float* variance);

// y = (s - centre) * scale + shift; power = mean of s^2 unless it is null, and then there is no centre.
void affine(const Rows& rows, const float* centre, const float* scale, const float* shift, void* y, float* power);

// sums = sum of dy * (s - centre), and behind it sum of dy.
void gradient_sums(const Rows& rows, const void* dy, const float* centre, float* sums);

// dL/dx where dL/ds = dy * a + (s - centre) * b + c, and c is null if the centre is; sums as above, unless it is null.
void gradient(const Rows& rows, const void* dy, const float* a, const float* b, const float* centre, const float* c,
              void* dx, float* sums);

// A norm of each token's slices: y = (x - mean) * rstd * gamma + beta; the mean is zero unless `centred`. `means` and
// `rstds` are N x groups. There is no layer-scale here.
void token_norm(const Rows& rows, bool centred, const float* gamma, const float* beta, void* y, float* means,
                float* rstds);

// Its gradient, and sums of dy * x_hat and of dy.
void token_gradient(const Rows& rows, bool centred, const void* dy, const float* gamma, const float* means,
                    const float* rstds, void* dx, float* sums);
