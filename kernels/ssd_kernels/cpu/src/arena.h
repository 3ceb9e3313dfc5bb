// Weights one behind the other in large pages, in the order in which they are packed: a pass then reads one
// long stream, and the processor's own prefetching never stops at the end of a small page.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ssd {

// A chunk is given back when the last weight in it is.
class WeightArena {
 public:
  static constexpr int64_t PAGE = int64_t(1) << 21, CHUNK = 32 * PAGE, ALIGNMENT = 4096;

  // Zeros, or NULL when memory is short.
  uint8_t* take(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (chunks_.empty() || chunks_.back().size - chunks_.back().used < bytes) {
      if (!add_chunk(bytes > CHUNK ? (bytes + PAGE - 1) / PAGE * PAGE : CHUNK)) return nullptr;
    }
    Chunk& chunk = chunks_.back();
    uint8_t* taken = chunk.data + chunk.used;
    chunk.used += bytes;
    ++chunk.weights;
    return taken;
  }

  void give_back(const uint8_t* taken) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      Chunk& chunk = chunks_[i];
      if (taken < chunk.data || taken >= chunk.data + chunk.size || --chunk.weights) continue;
      release(chunk);
      chunks_.erase(chunks_.begin() + i);
      return;
    }
  }

 private:
  struct Chunk {
    uint8_t* data;
    int64_t size, used, weights;
  };

  bool add_chunk(int64_t size) {
#if defined(__linux__)
    // mapped memory is zero and takes room only once it is written; one page more, to begin at a border
    void* mapped = mmap(nullptr, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    uint8_t* data = (uint8_t*)(((uintptr_t)mapped + PAGE - 1) / PAGE * PAGE);
    const int64_t before = data - (uint8_t*)mapped;
    if (before) munmap(mapped, before);
    if (PAGE - before) munmap(data + size, PAGE - before);
    madvise(data, size, MADV_HUGEPAGE);
#else
    uint8_t* data = (uint8_t*)aligned_alloc(PAGE, size);
    if (!data) return false;
    memset(data, 0, size);
#endif
    chunks_.push_back({data, size, 0, 0});
    return true;
  }

  static void release(const Chunk& chunk) {
#if defined(__linux__)
    munmap(chunk.data, chunk.size);
#else
    free(chunk.data);
#endif
  }

  std::mutex mutex_;
  std::vector<Chunk> chunks_;
};

inline WeightArena& weight_arena() {
  static WeightArena* arena = new WeightArena;  // outlives every matrix, also those freed at exit
  return *arena;
}

}  // namespace ssd
