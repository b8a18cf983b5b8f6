/* Results that PTX only bounds: a launch may displace them to its ends, always alike for the same operands,
 * as another implementation would. Outputs that change are those that rest on that approximation. */
#include "vm.h"

static __thread u32 displaced; /* PERTURB_* of this worker's launch */
static __thread u64 salt;

void perturb_launch(const Launch* L) {
  displaced = L->perturb;
  salt = L->seed * 0x9e3779b97f4a7c15ull;
}

int perturbs(u32 which) { return (displaced & which) != 0; }

float perturb(float y, double bound, u64 operands) {
  u64 h = operands + salt;
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 27) * 0x94d049bb133111ebull;
  h ^= h >> 31;
  return (float)(h >> 63 ? y - bound : y + bound);
}
