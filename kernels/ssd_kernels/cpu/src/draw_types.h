// How the token of one row is drawn; plain C, mirrored in Python.
#pragma once
#include <stdint.h>

// `ssd_runtime.messages.Draw` with the row's place: 0 < top_p, 0 <= min_p <= 1, top_k 0: no top-k.
typedef struct ssd_draw {
  uint64_t seed;
  int64_t position;  // absolute, of the token that is drawn
  double temperature;
  double top_p;
  double min_p;
  int64_t top_k;
  int64_t count;  // how many candidates are ranked too; 0: the token only
} ssd_draw;
