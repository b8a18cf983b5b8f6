/* Matrix operands in shared memory: from a descriptor to the addresses of its 16-byte units, and the product
 * itself. */
#include "vm.h"

static u32 swizzle(u32 s, int mode) { /* mode: 0 none, 1 32B, 2 64B, 3 128B */
  return mode ? s ^ ((s >> 7 & ((1u << mode) - 1)) << 4) : s;
}

static int refuse(Cluster* c, const Warp* w, i32 pc, int lane, const Operand* o, int why) {
  Fault* f = fatal(c, F_DESCRIPTOR, w, pc, lane, o->descriptor);
  if (f) f->a = why;
  return 0;
}

/* Offsets in the CTA's window of the operand's units. K-major: unit (row, k / T) at [row * units + k / T];
 * MN-major: unit (mn / T, k) at [k * (rows / T) + mn / T]. T = elements of 16 bytes. Returns 0 after a fault.
 */
int operand_units(Cluster* c, const Warp* w, i32 pc, int lane, const Operand* o, u32* out) {
  u64 d = o->descriptor;
  u32 start = ((u32)d & 0x3fff) << 4, lbo = ((u32)(d >> 16) & 0x3fff) << 4,
      sbo = ((u32)(d >> 32) & 0x3fff) << 4;
  int mode;
  if (o->hopper) mode = (int)(d >> 62) == 0 ? 0 : 4 - (int)(d >> 62);
  else {
    static const i8 modes[8] = {0, -1, 3, -1, 2, -1, 1, -1};
    mode = modes[d >> 61];
    if ((d >> 46 & 7) != 1) return refuse(c, w, pc, lane, o, 2);
  }
  if (mode < 0) return refuse(c, w, pc, lane, o, 3);
  if (d >> 49 & 7) return refuse(c, w, pc, lane, o, 4);
  u32 T = 16 / (u32)o->elem_bytes, W = 16u << mode, limit = (u32)o->cta->smem_bytes;
  u32 n = 0;
  if (!o->mn_major) {
    u32 units = (u32)o->k_bytes / 16;
    for (u32 r = (u32)o->first_row; r < (u32)(o->first_row + o->rows); r++)
      for (u32 u = 0; u < units; u++) {
        u32 lin = mode ? start + (r % 8) * W + (r / 8) * sbo + u * 16
                       : start + (r % 8) * 16 + (r / 8) * sbo + u * lbo;
        out[n++] = swizzle(lin, mode);
      }
  } else {
    u32 e = W / (u32)o->elem_bytes, ks = (u32)(o->k_bytes / o->elem_bytes);
    for (u32 k = 0; k < ks; k++)
      for (u32 mn = (u32)o->first_row; mn < (u32)(o->first_row + o->rows); mn += T) {
        u32 lin = mode ? start + (mn % e) * (u32)o->elem_bytes + (mn / e) * lbo + (k % 8) * W + (k / 8) * sbo
                       : start + (mn / T) * sbo + (k % 8) * 16 + (k / 8) * lbo;
        out[n++] = swizzle(lin, mode);
      }
  }
  for (u32 k = 0; k < n; k++)
    if (out[k] < SHARED_BASE || out[k] + 16 > limit) {
      Fault* f = fatal(c, F_BOUNDS, w, pc, lane, (u64)o->cta->rank << 24 | out[k]);
      if (f) {
        f->a = 16;
        f->b = limit;
        f->d = 1;
      }
      return 0;
    }
  return (int)n;
}

static void unit_floats(const u8* p, int format, float* out) { /* one 16-byte unit */
  u16 h[8];
  switch (format) {
    case FMT_BF16:
      memcpy(h, p, 16);
      for (int k = 0; k < 8; k++) {
        u32 v = (u32)h[k] << 16;
        memcpy(&out[k], &v, 4);
      }
      break;
    case FMT_F16:
      memcpy(h, p, 16);
      for (int k = 0; k < 8; k++) out[k] = half_to_float(h[k]);
      break;
    case FMT_TF32:
      for (int k = 0; k < 4; k++) {
        u32 v;
        memcpy(&v, p + 4 * k, 4);
        v &= ~0x1fffu;
        memcpy(&out[k], &v, 4);
      }
      break;
    case FMT_E4M3:
      for (int k = 0; k < 16; k++) out[k] = e4m3_to_float(p[k]);
      break;
    case FMT_E5M2:
      for (int k = 0; k < 16; k++) out[k] = e5m2_to_float(p[k]);
      break;
    case FMT_U8:
      for (int k = 0; k < 16; k++) out[k] = p[k];
      break;
    case FMT_S8:
      for (int k = 0; k < 16; k++) out[k] = (i8)p[k];
      break;
  }
}

/* the operand as floats: out[row * pitch + k], or out[k * pitch + row] if `transposed` */
int operand_gather(Cluster* c, const Warp* w, i32 pc, int lane, const Operand* o, float* out, int transposed,
                   int pitch) {
  u32 offsets[2048];
  int n = operand_units(c, w, pc, lane, o, offsets), T = 16 / o->elem_bytes;
  if (!n) return 0;
  int across = o->mn_major ? o->rows / T : o->k_bytes / 16;
  for (int u = 0; u < n; u++) {
    float v[16];
    unit_floats(o->cta->smem + offsets[u], o->format, v);
    if (o->negate)
      for (int k = 0; k < T; k++) v[k] = -v[k];
    int row = o->mn_major ? (u % across) * T : u / across, k0 = o->mn_major ? u / across : (u % across) * T;
    for (int k = 0; k < T; k++) {
      int r = o->mn_major ? row + k : row, kk = o->mn_major ? k0 : k0 + k;
      out[transposed ? kk * pitch + r : r * pitch + kk] = v[k];
    }
  }
  return n;
}

static int row_written(const Cta* t, const u32* offsets, int units) {
  for (int u = 0; u < units; u++)
    for (int k = 0; k < 4; k++)
      if (t->smem_cells[(offsets[u] >> 2) + k].wclock) return 1;
  return 0;
}

/* A tile that the problem does not fill may leave whole rows unwritten (of A, all): they reach only rows of
 * the result that nobody keeps. A row written in part, a B without a written row, or unwritten steps of K
 * spoil what is kept. */
void operand_race(Cluster* c, const Warp* w, i32 pc, int lane, const Operand* o, int is_a,
                  const Actor* actor) {
  if (!races(c)) return;
  u32 offsets[2048];
  int n = operand_units(c, w, pc, lane, o, offsets), units = o->k_bytes / 16, some = is_a && !o->mn_major;
  Actor lenient = *actor;
  lenient.async = ASYNC_LENIENT;
  if (!o->mn_major)
    for (int u = 0; u < n && !some; u += units) some = row_written(o->cta, offsets + u, units);
  for (int u = 0; u < n; u++) {
    int keep = !some || row_written(o->cta, offsets + u / units * units, units);
    race_smem(c, o->cta, offsets[u], 16, 0, keep ? actor : &lenient);
  }
}

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

/* d[m][n] = sum over k of a[m][k] * bt[k][n], in single precision; a has pitch k, d and bt have `pitch`, a
 * multiple of 16. The order and rounding of the hardware's sum are not known: multiply-add may be fused here,
 * and only here. */
__attribute__((optimize("fp-contract=fast"))) void multiply(float* restrict d, const float* restrict a,
                                                            const float* restrict bt, int m, int n, int k,
                                                            int pitch) {
  for (int i = 0; i < m; i += 4)
    for (int j = 0; j < n; j += 16) {
      Eight s[4][2] = {{{0}}};
      for (int x = 0; x < k; x++) {
        const Eight* b = (const Eight*)(bt + x * pitch + j);
        for (int r = 0; r < 4; r++)
          for (int h = 0; h < 2; h++) s[r][h] += a[(i + r) * k + x] * b[h];
      }
      for (int r = 0; r < 4; r++) memcpy(&d[(i + r) * pitch + j], s[r], 64);
    }
}
