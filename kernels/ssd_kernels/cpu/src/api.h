// The plain C interface of the native lane. Python mirrors these structs in ssd_kernels/cpu/library.py.
#pragma once
#include <stdint.h>

#include "draw_types.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// How a matrix is stored. Groups are 32 inputs of one output with a scale (int4: and a minimum) of their own, in
// float16; WIDE: in float32; FINE: float32 scales of 16 inputs each.
enum ssd_format { SSD_F32 = 0, SSD_BF16 = 1, SSD_INT8 = 2, SSD_INT4 = 3, SSD_INT4_WIDE = 4, SSD_INT8_FINE = 5 };

// How keys and values are stored. The last two have one float32 scale per token, head and kind.
enum ssd_kv_format { SSD_KV_F32 = 0, SSD_KV_F16 = 1, SSD_KV_INT8 = 2, SSD_KV_FP8 = 3 };

typedef struct ssd_matrix {
  int32_t format;
  int32_t panel;        // outputs in a panel
  int64_t out, in;      // as the model sees them
  int64_t padded_in;    // a multiple of 32 for formats with groups
  int64_t panel_bytes;  // distance of two panels
  int64_t bytes;        // all panels
  uint8_t* data;
} ssd_matrix;

typedef struct ssd_layer {
  const ssd_matrix *qkv, *output, *gate_up, *down;
  const float *qkv_bias, *output_bias, *gate_up_bias, *down_bias;  // or NULL
  const float *qk_norm;                                            // [heads + kv_heads, head_dim] or NULL
  const float *input_norm, *post_norm;
  int64_t window;  // 0: all positions
} ssd_layer;

typedef struct ssd_decoder {
  int64_t vocab, hidden, layers, heads, kv_heads, head_dim, intermediate;
  float rms_eps, rope_factor;
  int32_t embedding_bits;  // 32: float32, 16: bfloat16, -16: float16
  int32_t unused;
  const void* embedding;       // [vocab, hidden]
  const float* frequencies;    // [head_dim / 2]
  const float* norm;           // [hidden]
  const ssd_matrix* head;      // [vocab, hidden]
  const ssd_layer* layer;      // [layers]
} ssd_decoder;

// [layers, num_blocks + 1, kv_heads, block_size] entries: keys, values, then their scales if there are any.
typedef struct ssd_kv {
  uint8_t* data;
  int64_t layer_bytes, block_size;
  int32_t format;
  int32_t unused;
} ssd_kv;

typedef struct ssd_pass {
  int64_t tokens, wanted;
  const int64_t* token_ids;      // [tokens]
  const int64_t* positions;      // [tokens]
  const int64_t* table_at;       // [tokens] where the token's block table begins in `tables`
  const int64_t* tables;
  const int64_t* wanted_tokens;  // [wanted] which tokens need logits
  float* logits;                 // [wanted, vocab] or NULL
  const ssd_draw* draws;         // [wanted] or NULL
  const int64_t* expected;       // [wanted] the draft at that place, -1: none; only with draws
  int64_t drawn_vocab;           // draws choose among the first so many tokens
  int64_t count;                 // candidates per row, at most
  int64_t* drawn;                // [wanted]; SSD_SKIPPED behind a draft that was not drawn, or for count -1
  int64_t* candidates;           // [wanted, count]
  float* scores;                 // [wanted, count]
  const int32_t* stop;           // polled between layers, or NULL; see ssd_stop
  int32_t threads;
  int32_t unused;
} ssd_pass;

enum { SSD_SKIPPED = -2 };

// What a stop word says. Either ends a build; a pass that runs is given up for the second alone.
enum ssd_stop { SSD_GO_ON = 0, SSD_STOP_AFTER_STEP = 1, SSD_STOP_AT_ONCE = 2 };

// The first `tokens` slots of a block, which another one gets too, in all layers.
typedef struct ssd_block_copy {
  int64_t source, target, tokens;
} ssd_block_copy;

// A path that a build lets grow: a step reads its last token, and draws the next one behind it.
typedef struct ssd_line {
  int64_t table_at;     // where its block table begins: room for all that it may read
  int64_t result_at;    // its first result; it has up to `limit` of them
  int64_t limit;        // most tokens to draw
  int64_t length;       // tokens read; grows
  int64_t first;        // the token that it begins with, -1 for a line that is not open yet; set as it opens
  int64_t drawn;        // tokens drawn; grows
  ssd_block_copy copy;  // carried out as it opens; of 0 tokens: none
} ssd_line;

// One sequence of a build. Lines that wait open as soon as its trunk is read: either one for each of the likeliest
// tokens there that do not end the answer, or, where it `continues`, one that begins by drawing a token there.
typedef struct ssd_build_row {
  ssd_draw draw;                // of all its tokens; position and count are the build's
  int64_t end_at, end_count;    // the tokens that end the answer
  int64_t token_at, tokens;     // what the trunk has not read yet
  int64_t table_at, length;     // the trunk, and the tokens that it has read, which grow
  int64_t read;                 // how many of `tokens` were read
  int64_t result_at;            // what its last token draws; where it continues, the line's first result
  int64_t line_at, lines, waiting;  // lines that are open, and those behind them that wait
  int64_t continues;
} ssd_build_row;

// Steps until every line is done. Each one is a pass over the next token of every open line, and over the next
// `chunk` tokens of every trunk.
typedef struct ssd_build_call {
  int64_t rows, copies, chunk, steps;  // steps: at most
  ssd_build_row* row;                  // [rows]
  ssd_line* line;                      // of row after row
  const ssd_block_copy* copy;          // [copies] carried out first, one after the other
  const int64_t* token_ids;            // what `token_at` counts in
  const int64_t* end_ids;
  const int64_t* tables;
  int64_t drawn_vocab, count;  // draws choose among the first so many tokens, and rank so many candidates
  int64_t* drawn;              // [results]
  int64_t* candidates;         // [results, count]
  float* scores;               // [results, count]
  int64_t* step_tokens;        // [steps] tokens that each step fed
  double* step_seconds;        // [steps]
  const int32_t* stop;         // polled between steps and between layers, or NULL
  int32_t progress;            // steps that are finished
  int32_t threads;
} ssd_build_call;

// The instruction set that this library was compiled for, and the best one that this machine has.
const char* ssd_isa(void);
// A digest of this file and of draw_types.h, by which Python knows that its structs fit.
const char* ssd_interface(void);
const char* ssd_best_isa(void);

// NULL when memory is short. `weight` is float32 or bfloat16 [out, in].
ssd_matrix* ssd_pack(int32_t format, int64_t out, int64_t in, const void* weight);
// codes [out, in]: int8, or 0 … 15, `in` a multiple of 32; scales [out, groups] and for int4 minima, which the
// format must hold exactly. NULL when memory is short.
ssd_matrix* ssd_pack_groups(int32_t format, int64_t out, int64_t in, const uint8_t* codes, const float* scales,
                            const float* minima);
void ssd_free(ssd_matrix* matrix);
// The values that products use: float32 [out, in].
void ssd_unpack(const ssd_matrix* matrix, float* weight);
// x [rows, in] -> y [rows, out]. 0, or -1 when memory is short.
int ssd_product(const ssd_matrix* matrix, const float* x, int64_t rows, float* y, int32_t threads);
// Memory for passes of up to so many tokens that draw behind `wanted` of them, on the calling thread: taken now, and
// not by the first such pass. 0, or -1 when memory is short.
int ssd_reserve(const ssd_decoder* decoder, int64_t tokens, int64_t wanted, int32_t threads);
// One forward pass: 0 done, 1 interrupted by the stop word, -1 memory is short.
int ssd_forward(const ssd_decoder* decoder, const ssd_kv* kv, const ssd_pass* pass);
// Steps of several paths: 0 all are done, 1 ended by the stop word, -1 memory is short. A step counts whole or not at
// all: of one that was given up only the KV behind `length` is written.
int ssd_build(const ssd_decoder* decoder, const ssd_kv* kv, ssd_build_call* call);
// Reads `bytes` bytes once on each of `threads` threads; seconds.
double ssd_read_seconds(const void* data, int64_t bytes, int32_t threads);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
