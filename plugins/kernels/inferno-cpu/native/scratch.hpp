// Memory for intermediate results of the calling thread: grows, and is kept.
#pragma once
#include <cstddef>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

template <int SLOT>
void* scratch(size_t bytes) {
  struct Block {
    void* data = nullptr;
    size_t size = 0;
    std::align_val_t align{};
    ~Block() { operator delete(data, align); }
  };
  static thread_local Block block;
  constexpr size_t kHugePage = size_t(2) << 20;
  if (bytes > block.size) {
    size_t align = bytes >= kHugePage ? kHugePage : 4096,
           size = (bytes + align - 1) / align * align;
    operator delete(block.data, block.align);
    block = {nullptr, 0, std::align_val_t(align)};
    block.data = operator new(size, block.align);
#if defined(__linux__)
    if (align == kHugePage) madvise(block.data, size, MADV_HUGEPAGE);
#endif
    block.size = size;
  }
  return block.data;
}

}  // namespace
