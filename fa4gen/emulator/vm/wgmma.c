/* The Hopper tensor core: wgmma, executed warp by warp (each owns 16 rows), at issue or at the thread's wait.
 */
#include <math.h>
#include <stdlib.h>
#include "vm.h"

#define NONE ((i32)0x80000000)

/* ext: n accumulator registers, then 4 of A if it is in registers; o[1] A descriptor or NONE, o[2] B
 * descriptor, o[3] scale-d predicate; mods: format | N << 8 | a_major << 20 | b_major << 21 | negate a << 22
 * | negate b << 23 | f16 accumulators << 24 */
static void operands(const Warp* w, const Ins* i, Operand* a, Operand* b) {
  static const int size[] = {2, 2, 4, 1, 1, 1, 1};
  int format = i->mods & 15, N = i->mods >> 8 & 511;
  memset(a, 0, sizeof *a);
  a->cta = w->cta;
  a->first_row = 16 * (w->index % 4);
  a->rows = 16;
  a->k_bytes = 32;
  a->elem_bytes = size[format];
  a->format = format;
  a->hopper = 1;
  *b = *a;
  a->mn_major = i->mods >> 20 & 1;
  a->negate = i->mods >> 22 & 1;
  b->first_row = 0;
  b->rows = N;
  b->format = i->mods >> 4 & 15;
  b->mn_major = i->mods >> 21 & 1;
  b->negate = i->mods >> 23 & 1;
}

static void issue(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  i32 pc = (i32)(i - c->program->ins);
  if (exec != FULL) {
    fatal(c, F_DIVERGED, w, pc, -1, exec);
    return;
  }
  Async* op = async_new(w, A_WGMMA, -1);
  op->a = (u64)(uintptr_t)i;
  op->b = i->o[1] == NONE ? 0 : lane64(w, i->o[1], 0);
  op->c = lane64(w, i->o[2], 0);
  op->d = *r32(w, i->o[3]) & 1;
  op->group = w->wg_group;
  op->clock = ++w->clock[C_WGMMA];
  if (races(c)) {
    Operand a, b;
    Actor actor;
    operands(w, i, &a, &b);
    a.descriptor = op->b;
    b.descriptor = op->c;
    tensor_actor(w, C_WGMMA, pc, -1, &actor);
    if (i->o[1] != NONE) operand_race(c, w, pc, -1, &a, 1, &actor);
    operand_race(c, w, pc, -1, &b, 0, &actor);
    race_wgmma_registers(w, i, pc, op->clock);
    log_add(&w->wg_log, 0, op->group, op->clock);
  }
  async_issue(c, op, P_WGMMA);
}

static u32 bits_of(float f) {
  u32 v;
  memcpy(&v, &f, 4);
  return v;
}

static void register_operand(const Warp* w, const Ins* i, const Operand* a, float* out) {
  const i32* regs = w->cta->cluster->program->ext + i->ext + i->n;
  int k = 32 / a->elem_bytes;
  for (int j = 0; j < 4; j++) {
    const u32* r = r32(w, regs[j]);
    for (int l = 0; l < 32; l++) {
      int row = l / 4 + 8 * (j % 2), per = 4 / a->elem_bytes, k0 = per * (l % 4) + (k / 2) * (j / 2);
      for (int e = 0; e < per; e++) {
        u32 v = r[l] >> 8 * a->elem_bytes * e;
        float f;
        switch (a->format) {
          case FMT_BF16: f = bf16_to_float(v & 0xffff); break;
          case FMT_F16: f = half_to_float(v & 0xffff); break;
          case FMT_TF32:
            v = r[l] & ~0x1fffu;
            memcpy(&f, &v, 4);
            break;
          case FMT_E4M3: f = e4m3_to_float(v & 255); break;
          case FMT_E5M2: f = e5m2_to_float(v & 255); break;
          case FMT_U8: f = (float)(v & 255); break;
          default: f = (float)(i8)v;
        }
        out[row * k + k0 + e] = a->negate ? -f : f;
      }
    }
  }
}

void wgmma_complete(Cluster* c, Async* op) {
  static __thread float A[16 * 32], B[32 * 256], D[16 * 256], M[16 * 256];
  Warp* w = op->warp;
  const Ins* i = (const Ins*)(uintptr_t)op->a;
  Operand a, b;
  operands(w, i, &a, &b);
  a.descriptor = op->b;
  b.descriptor = op->c;
  int N = b.rows, k = 32 / a.elem_bytes, pitch = (N + 15) / 16 * 16;
  if (i->o[1] == NONE) register_operand(w, i, &a, A);
  else if (!operand_gather(c, w, op->pc, -1, &a, A, 0, k)) return;
  if (!operand_gather(c, w, op->pc, -1, &b, B, 1, pitch)) return;
  multiply(D, A, B, 16, pitch, k, pitch);
  int displaced = perturbs(PERTURB_WGMMA);
  if (displaced) {
    for (int n = 0; n < 16 * k; n++) A[n] = fabsf(A[n]);
    for (int n = 0; n < k * pitch; n++) B[n] = fabsf(B[n]);
    multiply(M, A, B, 16, pitch, k, pitch);
  }
  const i32* regs = c->program->ext + i->ext;
  int half = i->mods >> 24 & 1;
  for (int r = 0; r < i->n; r++) {
    u32* d = r32(w, regs[r]);
    for (int l = 0; l < 32; l++) {
      int reg = half ? 2 * r : r, row = l / 4 + 8 * ((reg / 2) % 2),
          col = 8 * (reg / 4) + 2 * (l % 4) + reg % 2;
      float v = D[row * pitch + col], old;
      if (half) {
        float x = v + (op->d ? half_to_float(d[l] & 0xffff) : 0),
              y = D[row * pitch + col + 1] + (op->d ? half_to_float(d[l] >> 16) : 0);
        d[l] = float_to_half(y) << 16 | float_to_half(x);
        continue;
      }
      memcpy(&old, &d[l], 4);
      float base = op->d ? old : 0;
      if (displaced) /* sums in any order and of any rounding; the bound is a quarter of 16 roundings' */
        v = perturb(v, 0x1p-22 * (fabsf(base) + M[row * pitch + col]), (u64)d[l] << 32 | bits_of(v));
      v = op->d ? old + v : v;
      memcpy(&d[l], &v, 4);
    }
  }
}

void wgmma_operation(Warp* w, const Ins* i, u32 exec) {
  Cluster* c = w->cta->cluster;
  switch (i->op) {
    case OP_WG_FENCE: w->wg_fence_stamp = w->now; break;
    case OP_WG_MMA: issue(w, i, exec); break;
    case OP_WG_COMMIT: w->wg_group++; break;
    case OP_WG_WAIT: {
      u32 pending = (u32)i->imm, below = w->wg_group > pending ? w->wg_group - pending : 0;
      async_drain_warp(w, 1u << A_WGMMA, -1, below);
      if (races(c))
        stream_done(w, C_WGMMA, log_wait(&w->wg_log, 1, &w->wg_group, pending, w->clock[C_WGMMA]));
    }
  }
}
