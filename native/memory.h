// Large anonymous mappings, on huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Zeroed memory, aligned to a page, freed when it goes out of scope. Throws std::bad_alloc.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(size_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr, other.bytes_ = 0;
  }
  Mapping& operator=(Mapping&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace headrace
