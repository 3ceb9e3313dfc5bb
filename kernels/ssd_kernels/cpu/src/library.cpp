// The C interface. The whole library is compiled once per instruction set; Python loads the one that fits.
#include "api.h"

#include "build.h"
#include "sample_api.h"

#define SSD_TEXT(name) #name
#define SSD_NAME(name) SSD_TEXT(name)

using namespace ssd;
using namespace ssd::SSD_ISA;

namespace {

bool quantized_rows(const ssd_matrix& w, const float* x, int64_t count, Workspace& space, Rows& rows) {
  const int64_t groups = has_groups(w) ? groups_of(w) : 0;
  if (!space.codes.reserve(count * groups * GROUP) || !space.scales.reserve(count * groups) ||
      !space.sums.reserve(count * groups))
    return false;
  rows = {count, x, w.in, space.codes.get(), space.scales.get(), space.sums.get()};
  for (int64_t m = 0; m < count && groups; ++m)
    quantize_row(x + m * w.in, w.in, groups, &space.codes[m * w.padded_in], &space.scales[m * groups], &space.sums[m * groups]);
  return true;
}

}  // namespace

extern "C" {

const char* ssd_isa(void) { return SSD_NAME(SSD_ISA); }

const char* ssd_interface(void) { return SSD_NAME(SSD_INTERFACE); }

const char* ssd_best_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
  return "portable";
#elif defined(__aarch64__)
  return "neon";
#else
  return "portable";
#endif
}

ssd_matrix* ssd_pack(int32_t format, int64_t out, int64_t in, const void* weight) { return pack(format, out, in, weight); }

ssd_matrix* ssd_pack_groups(int32_t format, int64_t out, int64_t in, const uint8_t* codes, const float* scales,
                            const float* minima) {
  return pack_groups(format, out, in, codes, scales, minima);
}

void ssd_free(ssd_matrix* matrix) {
  if (matrix) weight_arena().give_back(matrix->data);
  free(matrix);
}

void ssd_unpack(const ssd_matrix* matrix, float* weight) { unpack(*matrix, weight); }

int ssd_product(const ssd_matrix* matrix, const float* x, int64_t rows, float* y, int32_t threads) {
  Rows input;
  if (!quantized_rows(*matrix, x, rows, workspace(), input)) return -1;
  in_parallel(threads, [&](Team& team) { product(*matrix, input, {y, matrix->out, nullptr, false}, team); });
  return 0;
}

int ssd_reserve(const ssd_decoder* decoder, int64_t tokens, int64_t wanted, int32_t threads) {
  ssd_pass pass{};
  pass.tokens = tokens, pass.wanted = wanted, pass.threads = threads;
  return Forward(*decoder, {}, pass, workspace()).prepare_pages() ? 0 : -1;
}

int ssd_forward(const ssd_decoder* decoder, const ssd_kv* kv, const ssd_pass* pass) {
  Forward forward(*decoder, *kv, *pass, workspace());
  if (!forward.prepare()) return -1;
  in_parallel(pass->threads, [&](Team& team) { forward.run(team); });
  return forward.interrupted() ? 1 : 0;
}

int ssd_build(const ssd_decoder* decoder, const ssd_kv* kv, ssd_build_call* call) {
  thread_local BuildSpace space;
  return Build(*decoder, *kv, *call, space).run();
}

double ssd_read_seconds(const void* data, int64_t bytes, int32_t threads) {
  std::atomic<int64_t> sink{0};
  const auto started = std::chrono::steady_clock::now();
  in_parallel(threads, [&](Team& team) {
    const Range range = team.share(bytes / 64);
    const uint64_t* words = static_cast<const uint64_t*>(data);
    uint64_t sums[8] = {};
    for (int64_t line = range.begin; line < range.end; ++line)
      for (int i = 0; i < 8; ++i) sums[i] ^= words[line * 8 + i];
    for (int i = 0; i < 8; ++i) sink += int64_t(sums[i]);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

}  // extern "C"
