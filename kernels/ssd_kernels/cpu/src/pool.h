// The threads of one lane: one region at a time, in which every thread runs the same function.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace ssd {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins while the other side is surely running, then gives the core away: it may be what the other waits for.
// Asleep, and not by a yield: Linux 6.18 takes a whole time slice for each one, and thousands of them leave a
// thread without its turn for many seconds.
template <class Done>
void spin_until(Done done) {
  for (int i = 0; !done(); ++i) {
    if (i < 20000) pause();
    else std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

struct Range {
  int64_t begin, end;
};

// The threads inside a region, as one of them sees them.
class Team {
 public:
  Team(int size, std::atomic<uint32_t>& arrived, std::atomic<uint32_t>& phase, int rank)
      : size(size), rank(rank), arrived_(arrived), phase_(phase) {}

  const int size, rank;

  // Waits until every thread of the team is here.
  void barrier() {
    if (size == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(size)) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
    } else {
      spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
    }
  }

  // This thread's part of `total` units: adjacent ones, parts as equal as can be.
  Range share(int64_t total) const { return {total * rank / size, total * (rank + 1) / size}; }

 private:
  std::atomic<uint32_t>&arrived_, &phase_;
};

// Belongs to the thread that calls `run`, which works as rank 0. Helpers inherit its cores when they are
// made, spin for `SPIN` after a region and then sleep.
class Pool {
 public:
  using Body = void (*)(void* argument, Team& team);
  static constexpr auto SPIN = std::chrono::microseconds(200);

  Pool() = default;
  Pool(const Pool&) = delete;
  ~Pool() {
    stopping_ = true;
    wake(0);
    for (auto& helper : helpers_) helper.join();
  }

  void run(int threads, Body body, void* argument) {
    while (int(helpers_.size()) + 1 < threads) start_helper();
    body_ = body;
    argument_ = argument;
    running_.store(threads - 1, std::memory_order_relaxed);
    if (threads > 1) wake(threads);
    Team team(threads, arrived_, phase_, 0);
    body(argument, team);
    spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
  }

 private:
  // A ticket names the region and its size in one word, so that a late helper cannot mix two regions.
  static int size_of(uint64_t ticket) { return int(ticket & 0xffff); }

  void wake(int threads) {
    ticket_.store((((ticket_.load() >> 16) + 1) << 16) | uint64_t(threads));
    if (sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      condition_.notify_all();
    }
  }

  void start_helper() {
    const int rank = int(helpers_.size()) + 1;
    helpers_.emplace_back([this, rank, seen = ticket_.load()] { help(rank, seen); });
  }

  void help(int rank, uint64_t seen) {
    while (true) {
      seen = next_ticket(seen);
      if (stopping_) return;
      if (rank >= size_of(seen)) continue;
      Team team(size_of(seen), arrived_, phase_, rank);
      body_(argument_, team);
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  uint64_t next_ticket(uint64_t seen) {
    const auto limit = std::chrono::steady_clock::now() + SPIN;
    do {
      for (int i = 0; i < 64; ++i) {
        const uint64_t ticket = ticket_.load(std::memory_order_acquire);
        if (ticket != seen) return ticket;
        pause();
      }
    } while (std::chrono::steady_clock::now() < limit);
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleeping_;
    condition_.wait(lock, [&] { return ticket_.load() != seen; });
    --sleeping_;
    return ticket_.load();
  }

  std::vector<std::thread> helpers_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> running_{0}, sleeping_{0};
  std::atomic<uint32_t> arrived_{0}, phase_{0};
  std::atomic<bool> stopping_{false};
  Body body_ = nullptr;
  void* argument_ = nullptr;
  std::mutex mutex_;
  std::condition_variable condition_;
};

// Memory that grows and is never given back while its lane lives.
template <class T>
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  ~Room() { free(data_); }

  // At least `size` elements, contents lost; false when memory is short. It grows to powers of two: what it leaves
  // behind as it grows are holes in the heap, and pages that nobody writes take no memory.
  bool reserve(int64_t size) {
    if (size <= size_) return true;
    free(data_);
    size_ = 0;
    size_t bytes = 4096;
    while (bytes < size_t(size) * sizeof(T)) bytes *= 2;
    data_ = static_cast<T*>(aligned_alloc(4096, bytes));
    if (!data_) return false;
    size_ = int64_t(bytes / sizeof(T));
    return true;
  }
  // Writes to each page of the first `size` elements, whose contents are lost.
  bool touch(int64_t size) {
    for (size_t at = 0; at < size_t(size) * sizeof(T); at += 4096) reinterpret_cast<volatile char*>(data_)[at] = 0;
    return true;
  }
  T* get() { return data_; }
  T& operator[](int64_t i) { return data_[i]; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace ssd
