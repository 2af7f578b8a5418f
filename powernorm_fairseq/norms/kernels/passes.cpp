#include "passes.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

// ---------------------------------------------------------------- tensors

namespace {

bool is_half(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::BFloat16; }

}  // namespace

float* floats(const Tensor& tensor, int64_t size, const char* name) {
  STD_TORCH_CHECK(tensor.scalar_type() == ScalarType::Float, name, " must be float32");
  STD_TORCH_CHECK(tensor.is_contiguous(), name, " must be contiguous");
  STD_TORCH_CHECK(tensor.numel() == size, name, " has ", tensor.numel(), " elements; it must have ", size);
  return static_cast<float*>(tensor.mutable_data_ptr());
}

int64_t* counter(const Tensor& num_updates) {
  STD_TORCH_CHECK(num_updates.scalar_type() == ScalarType::Long && num_updates.numel() == 1,
                  "num_updates must be one int64");
  return static_cast<int64_t*>(num_updates.mutable_data_ptr());
}

float number(const MaybeTensor& loss_scale) { return loss_scale ? *floats(*loss_scale, 1, "loss_scale") : 1.0f; }

Floats columns_of(const MaybeTensor& tensor, int64_t width, float otherwise, const char* name) {
  Floats values(width, otherwise);
  if (!tensor) return values;
  STD_TORCH_CHECK(tensor->dim() == 1 && tensor->numel() == width, name, " has ", tensor->numel(),
                  " elements; the width is ", width);
  STD_TORCH_CHECK(is_half(*tensor) || tensor->scalar_type() == ScalarType::Float, name,
                  " must be float32 or bfloat16");
  const int64_t stride = tensor->stride(0);
  const auto copy = [&](const auto* data) {
    for (int64_t i = 0; i < width; ++i) values[i] = load(data[i * stride]);
  };
  const void* data = tensor->const_data_ptr();
  is_half(*tensor) ? copy(static_cast<const BFloat16*>(data)) : copy(static_cast<const float*>(data));
  return values;
}

Tensor allocate(const std::vector<int64_t>& sizes, bool half) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * sizes[i - 1];
  const int32_t type = half ? aoti_torch_dtype_bfloat16() : aoti_torch_dtype_float32();
  AtenTensorHandle handle;
  const int64_t dimensions = static_cast<int64_t>(sizes.size());
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dimensions, sizes.data(), strides.data(), type,
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor allocate_like(const Tensor& x) {
  const auto sizes = x.sizes();
  return allocate(std::vector<int64_t>(sizes.begin(), sizes.end()), is_half(x));
}

Tensor copy_of(const float* values, int64_t count) {
  const Tensor result = allocate({count});
  std::copy(values, values + count, data_of(result));
  return result;
}

// ---------------------------------------------------------------- running statistics

Floats moved(const float* old, const float* fresh, int64_t width, double weight) {
  Floats next(width);
  for (int64_t i = 0; i < width; ++i) next[i] = old[i] + static_cast<float>(weight) * (fresh[i] - old[i]);
  return next;
}

void move(bool moves, float count, std::initializer_list<Move> all, int64_t* updates) {
  if (!moves || count == 0) return;
  for (const Move& one : all)
    if (!all_finite(one.next)) return;
  for (const Move& one : all) std::copy(one.next.begin(), one.next.end(), one.to);
  if (updates) ++*updates;
}

// ---------------------------------------------------------------- rows

namespace {

// Copies a mask of two dimensions and any strides; of others, torch makes a copy without gaps first.
void copy_mask(const Tensor& mask, char* to) {
  if (mask.dim() != 2) {
    const Tensor whole = torch::stable::contiguous(mask);
    std::memcpy(to, whole.const_data_ptr(), whole.numel());
    return;
  }
  const char* from = static_cast<const char*>(mask.const_data_ptr());
  const int64_t across = mask.size(1), down = mask.stride(0), step = mask.stride(1);
  for (int64_t i = 0; i < mask.size(0); ++i)
    for (int64_t j = 0; j < across; ++j) *to++ = from[i * down + j * step];
}

// How many of eight are true.
int64_t sum_of_bytes(const bool* eight) {
  uint64_t word;
  std::memcpy(&word, eight, sizeof(word));
  return static_cast<int64_t>((word * 0x0101010101010101u) >> 56);
}

}  // namespace

Rows::Rows(const Tensor& x, const MaybeTensor& padding_mask, int64_t groups, double eps)
    : columns(x.dim() > 0 ? x.size(x.dim() - 1) : 0), rows(columns > 0 ? x.numel() / columns : 0),
      groups(std::max<int64_t>(groups, 1)), half(is_half(x)), x(x.const_data_ptr()), eps(static_cast<float>(eps)),
      scaled(groups > 0) {
  STD_TORCH_CHECK(half || x.scalar_type() == ScalarType::Float, "x must be float32 or bfloat16");
  STD_TORCH_CHECK(columns > 0 && x.is_contiguous(), "x must be contiguous and have a width");
  STD_TORCH_CHECK(groups >= 0 && columns % this->groups == 0, "groups must divide the width");
  if (padding_mask) {
    STD_TORCH_CHECK(padding_mask->scalar_type() == ScalarType::Bool, "padding must be bool");
    STD_TORCH_CHECK(padding_mask->numel() == rows, "padding has ", padding_mask->numel(), " elements; there are ", rows,
                    " tokens");
    padding = static_cast<const bool*>(padding_mask->const_data_ptr());
    if (!padding_mask->is_contiguous()) {  // masks of T x B are often a transposed view
      mask.resize(rows);
      copy_mask(*padding_mask, mask.data());
      padding = reinterpret_cast<const bool*>(mask.data());
    }
  } else {
    mask.resize(rows);
    padding = reinterpret_cast<const bool*>(mask.data());
  }
  count = padding_mask ? std::count(padding, padding + rows, false) : rows;
  // Blocks have as many real tokens each, because padding takes next to no time and often lies together. Neighbours
  // stay together: the operation before this one has left them in the cache of one core.
  constexpr int64_t MOST = 32, LEAST_ROWS = 32;
  const int64_t blocks = std::min(MOST, (rows + LEAST_ROWS - 1) / LEAST_ROWS);
  starts.assign(blocks + 1, rows);
  for (int64_t number = 0, row = 0, seen = 0; number < blocks; ++number) {
    const int64_t end = (count * (number + 1) + blocks - 1) / blocks;  // real tokens in this block and those before
    starts[number] = row;
    if (count == rows) row = seen = end;
    for (; row + 8 <= rows && seen + 8 < end; row += 8) seen += 8 - sum_of_bytes(padding + row);
    for (; row < rows && seen < end; ++row) seen += !padding[row];
  }
}

Tensor Rows::new_scales() {
  kept = scaled ? allocate({rows, groups}) : allocate({0});
  if (scaled) scales = data_of(*kept);
  return *kept;
}

void Rows::use_scales(const Tensor& known) {
  if (scaled) scales = floats(known, rows * groups, "scales");
  scales_known = true;
}

const void* Rows::like_x(const Tensor& dy) const {
  STD_TORCH_CHECK(is_half(dy) == half && (half || dy.scalar_type() == ScalarType::Float) && dy.is_contiguous() &&
                      dy.numel() == rows * columns,
                  "dy must be contiguous, and of the size and type of x");
  return dy.const_data_ptr();
}

// ---------------------------------------------------------------- passes

namespace {

// Means of (s - centre)^2 once more, in double: for input so large that sums of its squares overflow.
void power_in_double(const Rows& rows, const float* centre, float* power) {
  std::vector<double> total(rows.columns);
  const auto pass = [&](const Slice& slice, const auto* x, auto*, float*) {
    for (int64_t i = 0; i < slice.width; ++i) {
      const double d = static_cast<double>(load(x[i]) * slice.r) - (centre ? centre[slice.column + i] : 0.0f);
      total[slice.column + i] += d * d / static_cast<double>(rows.count);
    }
  };
  sweep(rows, 0, rows.rows, nullptr, nullptr, LayerScale{rows}, pass);
  std::copy(total.begin(), total.end(), power);
}

// From sums of s^2 to means.
void divide_squares(const Rows& rows, float* power) {
  const float count = std::max(1.0f, static_cast<float>(rows.count));
  if (!all_finite(power, rows.columns)) return power_in_double(rows, nullptr, power);
  for (int64_t i = 0; i < rows.columns; ++i) power[i] /= count;
}

}  // namespace

void square_means(const Rows& rows, float* power) {
  rows.sum(rows.columns, power, nullptr, [&](const Slice& slice, const auto* x, auto*, float* sums) ALWAYS_INLINE {
    float* __restrict sum = sums + slice.column;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) {
      const float s = load(x[i]) * slice.r;
      sum[i] += s * s;
    }
  });
  divide_squares(rows, power);
}

void moments(const Rows& rows, float* mean, float* variance) {
  const int64_t columns = rows.columns, first = std::find(rows.padding, rows.padding + rows.rows, false) - rows.padding;
  Floats origin(columns), sums(2 * columns);
  const auto begin = [](const Slice& slice, const auto* x, auto*, float* to) {
    for (int64_t i = 0; i < slice.width; ++i) to[slice.column + i] = load(x[i]) * slice.r;
  };
  // Deviations are from the first real row: nothing large has to cancel.
  const auto pass = [&](const Slice& slice, const auto* x, auto*, float* sums) ALWAYS_INLINE {
    const float* m = origin.data() + slice.column;
    float *__restrict one = sums + slice.column, *__restrict two = one + columns;
#pragma omp simd
    for (int64_t i = 0; i < slice.width; ++i) {
      const float d = load(x[i]) * slice.r - m[i];
      one[i] += d;
      two[i] += d * d;
    }
  };
  if (first < rows.rows) sweep(rows, first, first + 1, nullptr, origin.data(), LayerScale{rows}, begin);
  rows.sum(2 * columns, sums.data(), nullptr, pass);
  const float share = 1.0f / std::max(1.0f, static_cast<float>(rows.count));
  for (int64_t i = 0; i < columns; ++i) {
    const float off = sums[i] * share;
    mean[i] = origin[i] + off;
    variance[i] = std::max(0.0f, sums[columns + i] * share - off * off);
  }
  // A sum that overflowed is infinite, or NaN, which std::max has made zero.
  if (!all_finite(sums)) power_in_double(rows, mean, variance);
}

void affine(const Rows& rows, const float* centre, const float* scale, const float* shift, void* y, float* power) {
  const auto pass = [&](auto CENTRED, auto SUMS) {
    return [=](const Slice& slice, const auto* x, auto* to, float* sums) ALWAYS_INLINE {
      const float *a = scale + slice.column, *b = shift + slice.column, *m = centre + slice.column;
      auto* __restrict out = to;
      float* __restrict sum = sums + slice.column;
#pragma omp simd
      for (int64_t i = 0; i < slice.width; ++i) {
        const float s = load(x[i]) * slice.r;
        store(out + i, (CENTRED ? s - m[i] : s) * a[i] + b[i]);
        if (SUMS) sum[i] += s * s;
      }
    };
  };
  if (power) {
    rows.sum<UNROLLED>(rows.columns, power, y, pass(std::false_type(), std::true_type()));
    return divide_squares(rows, power);
  }
  if_constant(centre, [&](auto CENTRED) { rows.each<UNROLLED>(y, pass(CENTRED, std::false_type())); });
}

void gradient_sums(const Rows& rows, const void* dy, const float* centre, float* total) {
  const auto pass = [&](auto CENTRED) {
    return [=, &rows](const Slice& slice, const auto* x, auto*, float* sums) ALWAYS_INLINE {
      const auto* grad = beside(x, dy, slice);
      const float* m = centre + slice.column;
      float *__restrict product = sums + slice.column, *__restrict total = product + rows.columns;
#pragma omp simd
      for (int64_t i = 0; i < slice.width; ++i) {
        const float g = load(grad[i]), s = load(x[i]) * slice.r;
        product[i] += g * (CENTRED ? s - m[i] : s);
        total[i] += g;
      }
    };
  };
  if_constant(centre, [&](auto CENTRED) { rows.sum(2 * rows.columns, total, nullptr, pass(CENTRED)); });
}

void gradient(const Rows& rows, const void* dy, const float* a, const float* b, const float* centre, const float* c,
              void* dx, float* sums) {
  const auto pass = [&](auto CENTRED, auto SUMS) {
    return [=, &rows](const Slice& slice, const auto* x, auto* to, float* sums) ALWAYS_INLINE {
      const auto* grad = beside(x, dy, slice);
      const float *a_ = a + slice.column, *b_ = b + slice.column, *c_ = c + slice.column, *m = centre + slice.column;
      const float r = slice.r;
      float along = 0.0f;  // mean of dL/ds * s: the part of dL/ds that layer-scale takes out
      if (rows.scales) {
#pragma omp simd reduction(+ : along)
        for (int64_t i = 0; i < slice.width; ++i) {
          const float s = load(x[i]) * r;
          along += (load(grad[i]) * a_[i] + (CENTRED ? (s - m[i]) * b_[i] + c_[i] : s * b_[i])) * s;
        }
        along /= static_cast<float>(slice.width);
      }
      auto* __restrict out = to;
      float *__restrict product = sums + slice.column, *__restrict total = product + rows.columns;
#pragma omp simd
      for (int64_t i = 0; i < slice.width; ++i) {
        const float g = load(grad[i]), s = load(x[i]) * r, d = CENTRED ? s - m[i] : s;
        store(out + i, (g * a_[i] + d * b_[i] + (CENTRED ? c_[i] : 0.0f) - s * along) * r);
        if (SUMS) {
          product[i] += g * d;
          total[i] += g;
        }
      }
    };
  };
  if_constant(centre, [&](auto CENTRED) {
    if (sums) return rows.sum<UNROLLED>(2 * rows.columns, sums, dx, pass(CENTRED, std::true_type()));
    rows.each<UNROLLED>(dx, pass(CENTRED, std::false_type()));
  });
}
