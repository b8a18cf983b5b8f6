/* Single precision with modifiers, the approximate functions, and half precision. */
#include <fenv.h>
#include <math.h>
#include "vm.h"

#define IV _Pragma("GCC ivdep")
enum { RN = 0, RZ = 1, RM = 2, RP = 3, ROUND = 3, FTZ = 4, SAT = 8, NAN_ = 16, ABS = 32, APPROX = 64 };
static const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
static inline float f_of(u32 v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}
static inline u32 u_of(float f) {
  u32 v;
  memcpy(&v, &f, 4);
  return v;
}
static inline u32 flush(u32 v) { return v & 0x7f800000u ? v : v & 0x80000000u; }

/* kept out of line, so that nothing moves across the change of rounding mode */
__attribute__((noinline)) static void basic(int op, float* d, const float* a, const float* b, const float* c,
                                            int n) {
  switch (op) {
    case OP_ADD_F32:
      IV
      for (int l = 0; l < n; l++) d[l] = a[l] + b[l];
      break;
    case OP_SUB_F32:
      IV
      for (int l = 0; l < n; l++) d[l] = a[l] - b[l];
      break;
    case OP_MUL_F32:
      IV
      for (int l = 0; l < n; l++) d[l] = a[l] * b[l];
      break;
    case OP_FMA_F32:
      for (int l = 0; l < n; l++) d[l] = __builtin_fmaf(a[l], b[l], c[l]);
      break;
    case OP_DIV_F32:
      IV
      for (int l = 0; l < n; l++) d[l] = a[l] / b[l];
      break;
    case OP_SQRT_F32:
      for (int l = 0; l < n; l++) d[l] = __builtin_sqrtf(a[l]);
      break;
  }
}

static float extreme(float a, float b, int max, int nan) {
  if (a != a || b != b) return nan || (a != a && b != b) ? f_of(0x7fffffff) : a != a ? b : a;
  if (a == 0 && b == 0) return max ? (signbit(a) ? b : a) : (signbit(a) ? a : b);
  return max ? (a > b ? a : b) : (a < b ? a : b);
}

void float_modified(const Ins* i, u32* d, const u32* a, const u32* b, const u32* c) {
  int pairs = i->op >= OP_ADD_F32X2 && i->op <= OP_FMA_F32X2, n = pairs ? 64 : 32;
  int op = pairs ? i->op - OP_ADD_F32X2 + OP_ADD_F32 : i->op;
  u32 x[64], y[64], z[64], out[64];
  int three = op == OP_FMA_F32 || ((op == OP_MAX_F32 || op == OP_MIN_F32) && i->mods2),
      one = op == OP_SQRT_F32;
  for (int l = 0; l < n; l++) {
    x[l] = a[l];
    y[l] = one ? 0 : b[l];
    z[l] = three ? c[l] : 0;
  }
  if (i->mods & FTZ)
    for (int l = 0; l < n; l++) {
      x[l] = flush(x[l]);
      y[l] = flush(y[l]);
      z[l] = flush(z[l]);
    }
  if (op == OP_MAX_F32 || op == OP_MIN_F32) {
    int max = op == OP_MAX_F32, nan = !!(i->mods & NAN_);
    for (int l = 0; l < n; l++) {
      if (i->mods & ABS) {
        x[l] &= 0x7fffffff;
        y[l] &= 0x7fffffff;
        z[l] &= 0x7fffffff;
      }
      float f = extreme(f_of(x[l]), f_of(y[l]), max, nan);
      out[l] = u_of(three ? extreme(f, f_of(z[l]), max, nan) : f);
    }
  } else {
    int mode = i->mods & ROUND;
    if (mode) fesetround(modes[mode]);
    basic(op, (float*)out, (float*)x, (float*)y, (float*)z, n);
    if (mode) fesetround(FE_TONEAREST);
  }
  for (int l = 0; l < n; l++) {
    if (i->mods & FTZ) out[l] = flush(out[l]);
    if (i->mods & SAT) {
      float f = f_of(out[l]);
      out[l] = f != f ? 0 : u_of(f < 0 ? 0 : f > 1 ? 1 : f);
    }
    d[l] = out[l];
  }
}

/* 2^x in double: whole part by exponent bits, fraction in [-1/2, 1/2] by its series (error below 1e-12), then
 * rounded once */
static void exp2_lanes(u32* d, const u32* a, int ftz) {
  double x[32];
  float out[32];
  const float* f = (const float*)a;
  IV
  LANES {
    float v = f[l];
    x[l] = v < -200.0f ? -200.0 : v > 200.0f ? 200.0 : v;
  }
  IV
  LANES {
    double n = x[l] + 0x1.8p52 - 0x1.8p52, r = x[l] - n;
    double p = 7.0549116208011233e-9 + r * 4.4455382718708115e-10;
    p = 1.0178086009239699e-7 + r * p;
    p = 1.3215486790144309e-6 + r * p;
    p = 1.5252733804059840e-5 + r * p;
    p = 1.5403530393381610e-4 + r * p;
    p = 1.3333558146428443e-3 + r * p;
    p = 9.6181291076284772e-3 + r * p;
    p = 5.5504108664821580e-2 + r * p;
    p = 2.4022650695910071e-1 + r * p;
    p = 6.9314718055994531e-1 + r * p;
    p = 1.0 + r * p;
    union {
      u64 u;
      double f;
    } s = {.u = (u64)((i64)n + 1023) << 52};
    out[l] = (float)(p * s.f);
  }
  LANES {
    u32 v = a[l], o = u_of(out[l]);
    if ((v & 0x7fffffff) > 0x7f800000u) o = 0x7fffffff;
    else if (f[l] >= 128.0f) o = 0x7f800000u;
    else if (f[l] < -150.0f) o = 0;
    d[l] = ftz ? flush(o) : o;
  }
}

static void others(int op, int ftz, u32* d, const u32* a) {
  LANES {
    u32 v = ftz ? flush(a[l]) : a[l];
    double x = f_of(v), y = 0;
    switch (op) {
      case OP_RCP_F32: y = 1.0 / x; break;
      case OP_RSQRT_F32: y = 1.0 / sqrt(x); break;
      case OP_LG2_F32: y = log2(x); break;
      case OP_SIN_F32: y = sin(x); break;
      case OP_COS_F32: y = cos(x); break;
      case OP_TANH_F32: y = tanh(x); break;
    }
    u32 o = u_of((float)y);
    if ((o & 0x7fffffff) > 0x7f800000u) o = 0x7fffffff;
    d[l] = ftz ? flush(o) : o;
  }
}

/* the largest errors that the PTX manual names: 2 ulp, 2^-22 (of the value outside (0.5, 2)), 1 ulp */
static void displace(int op, u32* d, const u32* a) {
  LANES {
    double y = f_of(d[l]), x = f_of(a[l]), size = fabs(y);
    if (!isfinite(y) || y == 0) continue;
    double bound = op == OP_EX2_F32 ? size * 0x1p-22 : op == OP_RCP_F32 ? size * 0x1p-23 : 0x1p-22;
    if (op == OP_LG2_F32 && !(x > 0.5 && x < 2)) bound *= size;
    d[l] = u_of(perturb((float)y, bound, (u64)op << 32 | a[l]));
  }
}

void approximate(int op, u32 mods, u32* d, const u32* a) {
  int ftz = mods & FTZ;
  u32 given[32], which = op == OP_EX2_F32 ? PERTURB_EX2 : op == OP_LG2_F32 ? PERTURB_LG2 : 0;
  if (op == OP_RCP_F32) which = PERTURB_RCP;
  memcpy(given, a, sizeof given);
  if (op == OP_EX2_F32) exp2_lanes(d, a, ftz);
  else others(op, ftz, d, a);
  if (perturbs(which)) displace(op, d, given);
}

/* ---- half precision ---- */
float half_to_float(u32 h) {
  u32 s = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 31) return f_of(s | 0x7f800000u | m << 13);
  if (e == 0) {
    float f = (float)m * 0x1p-24f;
    return s ? -f : f;
  }
  return f_of(s | (e + 112) << 23 | m << 13);
}
float bf16_to_float(u32 h) { return f_of(h << 16); }

/* rounds to nearest even (or toward zero) in a format of `eb` exponent and `mb` mantissa bits with infinities
 */
static u32 narrow(double v, int eb, int mb, int rz) {
  u32 s = signbit(v) ? 1u << (eb + mb) : 0;
  int bias = (1 << (eb - 1)) - 1, top = (1 << eb) - 1;
  if (v != v) return (1u << (eb + mb)) - 1;
  double m = fabs(v);
  if (isinf(m)) return s | (u32)top << mb;
  if (m == 0) return s;
  int e;
  frexp(m, &e);
  e -= 1;
  if (e < 1 - bias) e = 1 - bias;
  double q = ldexp(m, mb - e);
  double r = rz ? floor(q) : nearbyint(q);
  if (r >= (double)(2 << mb)) {
    r /= 2;
    e += 1;
  }
  u32 bits = r < (double)(1 << mb) ? (u32)r : (u32)(e + bias) << mb | ((u32)r & ((1u << mb) - 1));
  if ((int)(bits >> mb) >= top) return s | (rz ? ((u32)top << mb) - 1 : (u32)top << mb);
  return s | bits;
}
u32 float_to_half(float f) { return narrow(f, 5, 10, 0); }
u32 float_to_bf16(float f) {
  u32 x = u_of(f);
  return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16;
}

/* op: 0 add 1 sub 2 mul 3 fma 4 min 5 max 6 neg 7 abs 8 ex2 9 tanh; mods2: 1 bf16, 2 packed, 4 ftz, 8 nan, 16
 * relu, 32 sat */
static u32 half_one(u32 op, u32 how, u32 a, u32 b, u32 c) {
  int bf = how & 1;
  u32 sign = 0x8000;
  if (op == 6) return a ^ sign;
  if (op == 7) return a & ~sign;
  double x = bf ? bf16_to_float(a) : half_to_float(a), y = bf ? bf16_to_float(b) : half_to_float(b),
         z = bf ? bf16_to_float(c) : half_to_float(c), v = 0;
  switch (op) {
    case 0: v = x + y; break;
    case 1: v = x - y; break;
    case 2: v = x * y; break;
    case 3: v = x * y + z; break;
    case 4:
    case 5: v = extreme((float)x, (float)y, op == 5, how & 8); break;
    case 8: v = exp2(x); break;
    case 9: v = tanh(x); break;
  }
  if (how & 16) v = v > 0 ? v : 0;
  if (how & 32) v = v > 1 ? 1 : v > 0 ? v : 0;
  u32 out = bf ? narrow(v, 8, 7, 0) : narrow(v, 5, 10, 0);
  if (how & 4 && !(out & (bf ? 0x7f80 : 0x7c00))) out &= sign;
  return out;
}
void half_arithmetic(const Ins* i, u32* d, const u32* a, const u32* b, const u32* c) {
  LANES {
    u32 o = half_one(i->mods, i->mods2, a[l] & 0xffff, b[l] & 0xffff, c[l] & 0xffff);
    if (i->mods2 & 2) o |= half_one(i->mods, i->mods2, a[l] >> 16, b[l] >> 16, c[l] >> 16) << 16;
    d[l] = o;
  }
}

u32 compare_f32(int cmp, const float* a, const float* b);
u32 setp_half(const Ins* i, const u32* a, const u32* b) {
  float x[32], y[32];
  int bf = i->op == OP_SETP_BF16;
  LANES {
    x[l] = bf ? bf16_to_float(a[l] & 0xffff) : half_to_float(a[l] & 0xffff);
    y[l] = bf ? bf16_to_float(b[l] & 0xffff) : half_to_float(b[l] & 0xffff);
  }
  return compare_f32(i->mods & 0xff, x, y);
}

/* ---- conversions ---- */
enum { T_U8, T_S8, T_U16, T_S16, T_U32, T_S32, T_U64, T_S64, T_F16, T_BF16, T_F32, T_F64 };
static double integral(double v, int mode) {
  return mode == RN ? nearbyint(v) : mode == RZ ? trunc(v) : mode == RM ? floor(v) : ceil(v);
}

static u64 clamp_int(double v, int t) {
  if (v != v) return t == T_S32 ? 0 : t == T_S64 ? 1ull << 63 : 0;
  static const double
      lo[8] = {0, -128, 0, -32768, 0, -2147483648.0, 0, -9223372036854775808.0},
      hi[8] = {
          255, 127, 65535, 32767, 4294967295.0, 2147483647.0, 18446744073709551615.0, 9223372036854775807.0};
  if (v <= lo[t]) return t == T_S64 ? 1ull << 63 : (u64)(i64)lo[t];
  if (v >= hi[t]) return t == T_U64 ? ~0ull : t == T_S64 ? ~0ull >> 1 : (u64)hi[t];
  return t == T_U64 ? (u64)v : (u64)(i64)v;
}

static u64 int_of(int t, u64 v) {
  switch (t) {
    case T_U8: return (u8)v;
    case T_S8: return (u64)(i64)(i8)v;
    case T_U16: return (u16)v;
    case T_S16: return (u64)(i64)(i16)v;
    case T_U32: return (u32)v;
    case T_S32: return (u64)(i64)(i32)v;
    default: return v;
  }
}

__attribute__((noinline)) static u32 double_to_f32(double v) { return u_of((float)v); }
__attribute__((noinline)) static u32 s64_to_f32(i64 v) { return u_of((float)v); }
__attribute__((noinline)) static u32 u64_to_f32(u64 v) { return u_of((float)v); }

static u64 convert_one(u64 raw, int from, int to, u32 mods) {
  int mode = mods & ROUND, whole = mods & 128;
  if (from < T_F16 && to < T_F16) {
    u64 v = int_of(from, raw);
    if (mods & SAT) {
      int neg = (from & 1) && (i64)v < 0;
      return int_of(to, clamp_int(neg ? (double)(i64)v : (double)v, to));
    }
    return int_of(to, v);
  }
  if (from < T_F16) {
    u64 v = int_of(from, raw);
    if (to == T_F32) return from & 1 ? s64_to_f32((i64)v) : u64_to_f32(v);
    double x = from & 1 ? (double)(i64)v : (double)v;
    if (to == T_F64) {
      u64 o;
      memcpy(&o, &x, 8);
      return o;
    }
    return to == T_F16 ? narrow(x, 5, 10, mode == RZ) : narrow(x, 8, 7, mode == RZ);
  }
  double x;
  if (from == T_F64) memcpy(&x, &raw, 8);
  else if (from == T_F32) x = f_of(mods & FTZ ? flush((u32)raw) : (u32)raw);
  else x = from == T_F16 ? half_to_float((u32)raw & 0xffff) : bf16_to_float((u32)raw & 0xffff);
  if (to < T_F16) return int_of(to, clamp_int(integral(x, mode), to));
  if (whole) x = integral(x, mode);
  if (mods & SAT) x = x != x ? 0 : x < 0 ? 0 : x > 1 ? 1 : x;
  if (mods & 256 && !(x > 0)) x = x != x ? x : 0; /* relu */
  if (to == T_F64) {
    u64 o;
    memcpy(&o, &x, 8);
    return o;
  }
  if (to == T_F32) {
    u32 o = double_to_f32(x);
    if (x != x) o = 0x7fffffff;
    return mods & FTZ ? flush(o) : o;
  }
  u32 o = to == T_F16 ? narrow(x, 5, 10, mode == RZ) : narrow(x, 8, 7, mode == RZ);
  return o;
}

void convert(const Ins* i, void* d, const void* a) {
  int from = i->mods2 & 255, to = i->mods2 >> 8 & 255, mode = i->mods & ROUND;
  int wide_a = from == T_U64 || from == T_S64 || from == T_F64,
      wide_d = to == T_U64 || to == T_S64 || to == T_F64;
  int turn = mode && !(i->mods & 128) && to >= T_F32 && !(from < to && from >= T_F16);
  if (turn) fesetround(modes[mode]);
  u64 out[32];
  LANES
    out[l] = convert_one(wide_a ? ((const u64*)a)[l] : ((const u32*)a)[l], from, to, i->mods);
  if (turn) fesetround(FE_TONEAREST);
  if (wide_d)
    LANES ((u64*)d) [l] = out[l];
  else if (to == T_U32 || to == T_S32 || to == T_F32)
    LANES ((u32*)d) [l] = (u32)out[l];
  else
    LANES ((u32*)d) [l] = (i->imm == 32 ? (u32)out[l] : (u32)out[l] & 0xffff);
}

float e4m3_to_float(u32 v) {
  u32 e = v >> 3 & 15, m = v & 7;
  float f = (e == 15 && m == 7) ? f_of(0x7fffffff)
            : e                 ? ldexpf(1.0f + m / 8.0f, (int)e - 7)
                                : ldexpf(m / 8.0f, -6);
  return v & 128 ? -f : f;
}
float e5m2_to_float(u32 v) { return half_to_float(v << 8 & 0xffff); }

static u32 to_e4m3(float f) { /* satfinite: 448; no infinities */
  if (f != f) return 0x7f;
  u32 s = signbit(f) ? 128 : 0;
  double m = fabs((double)f);
  if (m >= 448) return s | 0x7e;
  int e = m >= 0x1p-6 ? (int)floor(log2(m)) : -6;
  u32 q = (u32)nearbyint(ldexp(m, 3 - e));
  return s | (q < 8 && e == -6 ? q : (u32)(e + 7) * 8 + q - 8);
}
static u32 to_e5m2(float f) {
  u32 o = narrow(f, 5, 2, 0);
  if (f == f && (o & 0x7f) == 0x7c) o -= 1;
  return o;
}

/* cvt.rn{.relu}{.satfinite}.{f16x2,bf16x2,e4m3x2,e5m2x2}.f32 d, a, b: a goes to the upper half. mods2: 0 f16
 * 1 bf16 2 e4m3 3 e5m2 */
void convert_pack(const Ins* i, u32* d, const u32* a, const u32* b) {
  LANES {
    float x = f_of(a[l]), y = f_of(b[l]);
    if (i->mods & 256) {
      x = x > 0 || x != x ? x : 0;
      y = y > 0 || y != y ? y : 0;
    }
    int rz = (i->mods & ROUND) == RZ;
    switch (i->mods2) {
      case 0: d[l] = narrow(x, 5, 10, rz) << 16 | narrow(y, 5, 10, rz); break;
      case 1: d[l] = narrow(x, 8, 7, rz) << 16 | narrow(y, 8, 7, rz); break;
      case 2: d[l] = to_e4m3(x) << 8 | to_e4m3(y); break;
      default: d[l] = to_e5m2(x) << 8 | to_e5m2(y);
    }
  }
}
void convert_unpack(const Ins* i, u32* d, const u32* a) { /* cvt.rn.f16x2.e4m3x2 / e5m2x2 */
  LANES {
    u32 lo = a[l] & 255, hi = a[l] >> 8 & 255;
    d[l] = i->mods2 == 2 ? float_to_half(e4m3_to_float(hi)) << 16 | float_to_half(e4m3_to_float(lo))
                         : hi << 24 | lo << 8;
  }
}
