// What every lane's thread has for itself: a pool of helpers, and memory for passes.
#pragma once
#include "forward.h"

namespace ssd {
namespace SSD_ISA {

inline Pool& pool() {
  thread_local Pool pool;
  return pool;
}

inline Workspace& workspace() {
  thread_local Workspace space;
  return space;
}

template <class Body>
void in_parallel(int threads, Body body) {
  pool().run(threads < 1 ? 1 : threads, [](void* argument, Team& team) { (*static_cast<Body*>(argument))(team); }, &body);
}

}  // namespace SSD_ISA
}  // namespace ssd
