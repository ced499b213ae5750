#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace headrace {

Mapping::Mapping(size_t bytes) : bytes_(bytes) {
  if (!bytes) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes >= size_t(4) << 20) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(p);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, bytes_);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace headrace
