/* Arithmetic over 32 lanes. Registers hold raw bits; every case chooses the type. Lanes outside the mask
 * are computed too and dropped at the end, so nothing here may trap. */
#include "vm.h"

#define IV _Pragma("GCC ivdep")
#define NONE ((i32)0x80000000)
typedef struct { u32 v[64]; } Scratch; /* a destination whose lanes are not all wanted */

#define UN(NAME, TD, TA, EXPR) case OP_##NAME: { TD* d = dst; const TA* a = A; IV LANES d[l] = (TD)(EXPR); break; }
#define BIN(NAME, TD, TA, EXPR) case OP_##NAME: { TD* d = dst; const TA *a = A, *b = B; IV LANES d[l] = (TD)(EXPR); break; }
#define TRI(NAME, TD, TA, EXPR) case OP_##NAME: { TD* d = dst; const TA *a = A, *b = B; const TD* c = C; IV LANES d[l] = (TD)(EXPR); break; }
#define SHIFT(NAME, T, EXPR) case OP_##NAME: { T* d = dst; const T* a = A; const u32* b = B; IV LANES d[l] = (T)(EXPR); break; }
#define PRED1(NAME, EXPR) case OP_##NAME: { u32 a = *(const u32*)A; *(u32*)dst = EXPR; break; }
#define PRED2(NAME, EXPR) case OP_##NAME: { u32 a = *(const u32*)A, b = *(const u32*)B; *(u32*)dst = EXPR; break; }

#define COMPARE(TYPE, CAST, SRC) { const TYPE *a = A, *b = B; switch (cmp) { \
  case 0: IV LANES m |= (u32)(CAST(a[l]) == CAST(b[l])) << l; break; \
  case 1: IV LANES m |= (u32)(CAST(a[l]) != CAST(b[l])) << l; break; \
  case 2: IV LANES m |= (u32)(CAST(a[l]) < CAST(b[l])) << l; break; \
  case 3: IV LANES m |= (u32)(CAST(a[l]) <= CAST(b[l])) << l; break; \
  case 4: IV LANES m |= (u32)(CAST(a[l]) > CAST(b[l])) << l; break; \
  case 5: IV LANES m |= (u32)(CAST(a[l]) >= CAST(b[l])) << l; break; } break; }

static u32 compare_int(int type, int cmp, const void* A, const void* B) {
  u32 m = 0;
  switch (type) {
    case 0: COMPARE(u32, (u16), )
    case 1: COMPARE(u32, (i16), )
    case 2: COMPARE(u32, , )
    case 3: COMPARE(i32, , )
    case 4: COMPARE(u64, , )
    case 5: COMPARE(i64, , )
  }
  return m;
}

/* cmp: eq ne lt le gt ge | the same + 6 unordered | 12 num, 13 nan */
#define COMPARE_FLOAT(NAME, T) u32 NAME(int cmp, const T* a, const T* b); u32 NAME(int cmp, const T* a, const T* b) { \
  u32 m = 0, nan = 0; \
  IV LANES nan |= (u32)(a[l] != a[l] || b[l] != b[l]) << l; \
  switch (cmp % 6 + (cmp >= 12 ? 12 : 0)) { \
    case 0: IV LANES m |= (u32)(a[l] == b[l]) << l; break; \
    case 1: IV LANES m |= (u32)(a[l] != b[l]) << l; break; \
    case 2: IV LANES m |= (u32)(a[l] < b[l]) << l; break; \
    case 3: IV LANES m |= (u32)(a[l] <= b[l]) << l; break; \
    case 4: IV LANES m |= (u32)(a[l] > b[l]) << l; break; \
    case 5: IV LANES m |= (u32)(a[l] >= b[l]) << l; break; \
    case 12: return ~nan; \
    case 13: return nan; } \
  return cmp < 6 ? m & ~nan : m | nan; }
COMPARE_FLOAT(compare_f32, float)
COMPARE_FLOAT(compare_f64, double)

static void flush_inputs(u32* d, const u32* a) {
  IV
  LANES
    d[l] = (a[l] & 0x7f800000u) ? a[l] : a[l] & 0x80000000u;
}

static u32 setp(const Ins* i, const void* A, const void* B) {
  int cmp = i->mods & 0xff;
  u32 fa[32], fb[32];
  switch (i->op) {
    case OP_SETP_F32:
      if (i->mods & 0x10000) {
        flush_inputs(fa, A);
        flush_inputs(fb, B);
        A = fa;
        B = fb;
      }
      return compare_f32(cmp, A, B);
    case OP_SETP_F64: return compare_f64(cmp, A, B);
    case OP_SETP_F16:
    case OP_SETP_BF16: return setp_half(i, A, B);
    default: return compare_int((int)i->imm, cmp, A, B);
  }
}

static void setp_store(Warp* w, const Ins* i, u32 m, u32 exec) {
  u32 q = ~m, how = i->mods >> 8 & 0xff;
  if (how) {
    u32 c = *(u32*)ref(w, i->o[4]);
    c = i->mods & 0x20000 ? ~c : c;
    m = how == 1 ? m & c : how == 2 ? m | c : m ^ c;
    q = how == 1 ? q & c : how == 2 ? q | c : q ^ c;
  }
  if (i->o[0] != NONE) {
    u32* p = r32(w, i->o[0]);
    *p = (*p & ~exec) | (m & exec);
  }
  if (i->o[3] != NONE) {
    u32* p = r32(w, i->o[3]);
    *p = (*p & ~exec) | (q & exec);
  }
}

/* destinations of several registers, or of irregular shape */
static void unpack(Warp* w, const Ins* i, u32 exec) {
  const void* A = ref(w, i->o[4]);
  if (i->op == OP_UNPACK_2X64) {
    for (int k = 0; k < 2; k++)
      if (i->o[k] != NONE) {
        u64* d = r64(w, i->o[k]);
        EACH (exec) d[l] = ((const u64*)A)[32 * k + (int)l];
      }
    return;
  }
  if (i->op == OP_PACK_2X64) {
    u64 *d = r64(w, i->o[0]), *a = r64(w, i->o[1]), *b = r64(w, i->o[2]);
    EACH (exec) {
      d[l] = a[l];
      d[32 + l] = b[l];
    }
    return;
  }
  int n = i->op == OP_UNPACK_4X16 ? 4 : 2;
  for (int k = 0; k < n; k++) {
    if (i->o[k] == NONE) continue;
    u32* d = r32(w, i->o[k]);
    EACH (exec)
      d[l] = i->op == OP_UNPACK_2X32   ? (u32)(((const u64*)A)[l] >> 32 * k)
             : i->op == OP_UNPACK_2X16 ? ((const u32*)A)[l] >> 16 * k & 0xffff
                                       : (u32)(((const u64*)A)[l] >> 16 * k) & 0xffff;
  }
}

static void blend(Warp* w, const Ins* i, const void* from, u32 exec) {
  if (i->o[0] == NONE) return;
  if (i->flags == DEST_32) {
    u32* d = r32(w, i->o[0]);
    const u32* s = from;
    EACH (exec) d[l] = s[l];
  } else if (i->flags == DEST_64) {
    u64* d = r64(w, i->o[0]);
    const u64* s = from;
    EACH (exec) d[l] = s[l];
  } else if (i->flags == DEST_PRED) {
    u32* d = r32(w, i->o[0]);
    *d = (*d & ~exec) | (*(const u32*)from & exec);
  }
}

static void wide_arithmetic(const Ins* i, void* dst, const void* A, const void* B, const void* C) {
  switch (i->op) {
    BIN(MULHI_S64, u64, i64, (u64)((__int128)a[l] * b[l] >> 64))
    BIN(MULHI_U64, u64, u64, (u64)((unsigned __int128)a[l] * b[l] >> 64))
    BIN(DIV_S16, u32, u32, (u16)((i16)b[l] ? (i16)a[l] / (i16)b[l] : -1))
    BIN(DIV_U16, u32, u32, (u16)((u16)b[l] ? (u16)a[l] / (u16)b[l] : 0xffff))
    BIN(DIV_S32, u32, i32, b[l] == 0 ? FULL : b[l] == -1 ? 0u - (u32)a[l] : (u32)(a[l] / b[l]))
    BIN(DIV_U32, u32, u32, b[l] ? a[l] / b[l] : FULL)
    BIN(DIV_S64, u64, i64, b[l] == 0 ? ~0ull : b[l] == -1 ? 0ull - (u64)a[l] : (u64)(a[l] / b[l]))
    BIN(DIV_U64, u64, u64, b[l] ? a[l] / b[l] : ~0ull)
    BIN(REM_S16, u32, u32, (u16)((i16)b[l] ? (i16)a[l] % (i16)b[l] : (i16)a[l]))
    BIN(REM_U16, u32, u32, (u16)((u16)b[l] ? (u16)a[l] % (u16)b[l] : (u16)a[l]))
    BIN(REM_S32, u32, i32, b[l] == 0 ? a[l] : b[l] == -1 ? 0 : a[l] % b[l])
    BIN(REM_U32, u32, u32, b[l] ? a[l] % b[l] : a[l])
    BIN(REM_S64, u64, i64, b[l] == 0 ? a[l] : b[l] == -1 ? 0 : a[l] % b[l])
    BIN(REM_U64, u64, u64, b[l] ? a[l] % b[l] : a[l])
    TRI(SHF_L, u32, u32, ((u64)b[l] << 32 | a[l]) << (i->mods ? (c[l] > 32 ? 32 : c[l]) : (c[l] & 31)) >> 32)
    TRI(SHF_R, u32, u32, ((u64)b[l] << 32 | a[l]) >> (i->mods ? (c[l] > 32 ? 32 : c[l]) : (c[l] & 31)))
    TRI(LOP3, u32, u32, lop3(a[l], b[l], c[l], (u32)i->imm))
    UN(POPC_B32, u32, u32, __builtin_popcount(a[l]))
    UN(POPC_B64, u32, u64, __builtin_popcountll(a[l]))
    UN(CLZ_B32, u32, u32, a[l] ? __builtin_clz(a[l]) : 32)
    UN(CLZ_B64, u32, u64, a[l] ? __builtin_clzll(a[l]) : 64)
    UN(BREV_B32, u32, u32, reverse_bits(a[l]))
    UN(BREV_B64, u64, u64, (u64)reverse_bits((u32)a[l]) << 32 | reverse_bits((u32)(a[l] >> 32)))
    UN(BFIND_U32, u32, u32, bfind(a[l], 0, (int)i->mods))
    UN(BFIND_S32, u32, u32, bfind(a[l], 1, (int)i->mods))
    TRI(BFE_U32, u32, u32, bfe(a[l], b[l], c[l], 32, 0))
    TRI(BFE_S32, u32, u32, bfe(a[l], b[l], c[l], 32, 1))
    case OP_BFE_U64: case OP_BFE_S64: { u64* d = dst; const u64* a = A; const u32 *b = B, *c = C; LANES d[l] = bfe(a[l], b[l], c[l], 64, i->op == OP_BFE_S64); break; }
    TRI(PRMT, u32, u32, prmt(a[l], b[l], c[l], i->mods))
    TRI(DP2A, u32, u32, dot_product(a[l], b[l], c[l], i->mods, 0))
    TRI(DP4A, u32, u32, dot_product(a[l], b[l], c[l], i->mods, 1))
  }
}

static void float_arithmetic(const Ins* i, void* dst, const void* A, const void* B, const void* C) {
  switch (i->op) {
    BIN(ADD_F32, float, float, a[l] + b[l])
    BIN(SUB_F32, float, float, a[l] - b[l])
    BIN(MUL_F32, float, float, a[l] * b[l])
    TRI(FMA_F32, float, float, __builtin_fmaf(a[l], b[l], c[l]))
#define PAIRS(EXPR) { float* d = dst; const float *a = A, *b = B, *c = C; (void)c; IV for (int l = 0; l < 64; l++) d[l] = EXPR; break; }
    case OP_ADD_F32X2: PAIRS(a[l] + b[l])
    case OP_SUB_F32X2: PAIRS(a[l] - b[l])
    case OP_MUL_F32X2: PAIRS(a[l] * b[l])
    case OP_FMA_F32X2: PAIRS(__builtin_fmaf(a[l], b[l], c[l]))
    UN(NEG_F32, u32, u32, a[l] ^ 0x80000000u)
    UN(ABS_F32, u32, u32, a[l] & 0x7fffffffu)
    BIN(COPYSIGN_F32, u32, u32, (b[l] & 0x7fffffffu) | (a[l] & 0x80000000u))
    BIN(ADD_F64, double, double, a[l] + b[l])
    BIN(SUB_F64, double, double, a[l] - b[l])
    BIN(MUL_F64, double, double, a[l] * b[l])
    BIN(DIV_F64, double, double, a[l] / b[l])
    TRI(FMA_F64, double, double, __builtin_fma(a[l], b[l], c[l]))
    BIN(MIN_F64, double, double, b[l] != b[l] || a[l] < b[l] ? a[l] : b[l])
    BIN(MAX_F64, double, double, b[l] != b[l] || a[l] > b[l] ? a[l] : b[l])
    UN(NEG_F64, double, double, -a[l])
    UN(ABS_F64, double, double, __builtin_fabs(a[l]))
    UN(SQRT_F64, double, double, __builtin_sqrt(a[l]))
    UN(RCP_F64, double, double, 1.0 / a[l])
    case OP_TESTP_F32: {
      const u32* a = A; u32 m = 0;
      LANES { u32 e = a[l] >> 23 & 255, f = a[l] & 0x7fffff; int k = e == 255 ? (f ? 1 : 0) : e ? 2 : f ? 3 : 4;
        m |= (u32)(i->mods == 0 ? k >= 2 : i->mods == 1 ? k == 0 : i->mods == 2 ? k < 2 && k != 1 ? 0 : k != 1 : i->mods == 3 ? k == 1 : i->mods == 4 ? k == 2 : k == 3) << l; }
      *(u32*)dst = m; break; }
  }
}

static void widened_arithmetic(const Ins* i, u32* dst, const u32* a, const u32* b,
                               const u32* c) { /* fma.rn.f32.bf16 and kin */
  int bf = i->mods2 & 1;
  LANES {
    float x = bf ? bf16_to_float(a[l]) : half_to_float(a[l]);
    float z, f;
    if (i->op == OP_FMA_F32_MIXED) {
      float y = bf ? bf16_to_float(b[l]) : half_to_float(b[l]);
      memcpy(&z, &c[l], 4);
      f = __builtin_fmaf(x, y, z);
    } else {
      memcpy(&z, &b[l], 4);
      f = i->op == OP_ADD_F32_MIXED ? x + z : x - z;
    }
    memcpy(&dst[l], &f, 4);
  }
}

static void integer(Warp* w, const Ins* i, void* dst, const void* A, const void* B, const void* C) {
  switch (i->op) {
    UN(MOV_B32, u32, u32, a[l])
    UN(MOV_B64, u64, u64, a[l])
    PRED1(MOV_PRED, a)
    BIN(PACK_2X32, u64, u32, (u64)b[l] << 32 | a[l])
    BIN(PACK_2X16, u32, u32, b[l] << 16 | (a[l] & 0xffff))
    case OP_PACK_4X16: { u64* d = dst; const u32 *a = A, *b = B, *c = C, *e = r32(w, i->o[4]);
      LANES d[l] = (u64)(a[l] & 0xffff) | (u64)(b[l] & 0xffff) << 16 | (u64)(c[l] & 0xffff) << 32 | (u64)(e[l] & 0xffff) << 48; break; }
    BIN(ADD_B16, u32, u32, (u16)(a[l] + b[l]))
    BIN(ADD_B32, u32, u32, a[l] + b[l])
    BIN(ADD_B64, u64, u64, a[l] + b[l])
    BIN(SUB_B16, u32, u32, (u16)(a[l] - b[l]))
    BIN(SUB_B32, u32, u32, a[l] - b[l])
    BIN(SUB_B64, u64, u64, a[l] - b[l])
    BIN(MUL_B16, u32, u32, (u16)(a[l] * b[l]))
    BIN(MUL_B32, u32, u32, a[l] * b[l])
    BIN(MUL_B64, u64, u64, a[l] * b[l])
    BIN(MULHI_S16, u32, u32, (u16)((i32)(i16)a[l] * (i16)b[l] >> 16))
    BIN(MULHI_U16, u32, u32, (u32)(u16)a[l] * (u16)b[l] >> 16)
    BIN(MULHI_S32, u32, i32, (u32)((i64)a[l] * b[l] >> 32))
    BIN(MULHI_U32, u32, u32, (u32)((u64)a[l] * b[l] >> 32))
    BIN(MULWIDE_S16, u32, u32, (u32)((i32)(i16)a[l] * (i16)b[l]))
    BIN(MULWIDE_U16, u32, u32, (u32)(u16)a[l] * (u16)b[l])
    BIN(MULWIDE_S32, u64, i32, (u64)((i64)a[l] * b[l]))
    BIN(MULWIDE_U32, u64, u32, (u64)a[l] * b[l])
    TRI(MAD_B16, u32, u32, (u16)(a[l] * b[l] + c[l]))
    TRI(MAD_B32, u32, u32, a[l] * b[l] + c[l])
    TRI(MAD_B64, u64, u64, a[l] * b[l] + c[l])
    TRI(MADHI_S32, u32, i32, (u32)((i64)a[l] * b[l] >> 32) + c[l])
    TRI(MADHI_U32, u32, u32, (u32)((u64)a[l] * b[l] >> 32) + c[l])
    TRI(MADWIDE_S16, u32, u32, (u32)((i32)(i16)a[l] * (i16)b[l]) + c[l])
    TRI(MADWIDE_U16, u32, u32, (u32)(u16)a[l] * (u16)b[l] + c[l])
    TRI(MADWIDE_S32, u64, i32, (u64)((i64)a[l] * b[l]) + c[l])
    TRI(MADWIDE_U32, u64, u32, (u64)a[l] * b[l] + c[l])
    BIN(MIN_S16, u32, u32, (u16)((i16)a[l] < (i16)b[l] ? a[l] : b[l]))
    BIN(MIN_U16, u32, u32, (u16)a[l] < (u16)b[l] ? (u16)a[l] : (u16)b[l])
    BIN(MIN_S32, i32, i32, a[l] < b[l] ? a[l] : b[l])
    BIN(MIN_U32, u32, u32, a[l] < b[l] ? a[l] : b[l])
    BIN(MIN_S64, i64, i64, a[l] < b[l] ? a[l] : b[l])
    BIN(MIN_U64, u64, u64, a[l] < b[l] ? a[l] : b[l])
    BIN(MAX_S16, u32, u32, (u16)((i16)a[l] > (i16)b[l] ? a[l] : b[l]))
    BIN(MAX_U16, u32, u32, (u16)a[l] > (u16)b[l] ? (u16)a[l] : (u16)b[l])
    BIN(MAX_S32, i32, i32, a[l] > b[l] ? a[l] : b[l])
    BIN(MAX_U32, u32, u32, a[l] > b[l] ? a[l] : b[l])
    BIN(MAX_S64, i64, i64, a[l] > b[l] ? a[l] : b[l])
    BIN(MINRELU_S32, i32, i32, (a[l] < b[l] ? a[l] : b[l]) > 0 ? (a[l] < b[l] ? a[l] : b[l]) : 0)
    BIN(MAXRELU_S32, i32, i32, (a[l] > b[l] ? a[l] : b[l]) > 0 ? (a[l] > b[l] ? a[l] : b[l]) : 0)
    BIN(MAX_U64, u64, u64, a[l] > b[l] ? a[l] : b[l])
    UN(NEG_S16, u32, u32, (u16)(0 - a[l]))
    UN(NEG_S32, u32, u32, 0u - a[l])
    UN(NEG_S64, u64, u64, 0ull - a[l])
    UN(ABS_S16, u32, u32, (u16)((i16)a[l] < 0 ? 0 - a[l] : a[l]))
    UN(ABS_S32, u32, u32, (i32)a[l] < 0 ? 0u - a[l] : a[l])
    UN(ABS_S64, u64, u64, (i64)a[l] < 0 ? 0ull - a[l] : a[l])
    BIN(AND_B16, u32, u32, a[l] & b[l])
    BIN(AND_B32, u32, u32, a[l] & b[l])
    BIN(AND_B64, u64, u64, a[l] & b[l])
    PRED2(AND_PRED, a & b)
    BIN(OR_B16, u32, u32, a[l] | b[l])
    BIN(OR_B32, u32, u32, a[l] | b[l])
    BIN(OR_B64, u64, u64, a[l] | b[l])
    PRED2(OR_PRED, a | b)
    BIN(XOR_B16, u32, u32, a[l] ^ b[l])
    BIN(XOR_B32, u32, u32, a[l] ^ b[l])
    BIN(XOR_B64, u64, u64, a[l] ^ b[l])
    PRED2(XOR_PRED, a ^ b)
    UN(NOT_B16, u32, u32, (u16)~a[l])
    UN(NOT_B32, u32, u32, ~a[l])
    UN(NOT_B64, u64, u64, ~a[l])
    PRED1(NOT_PRED, ~a)
    SHIFT(SHL_B16, u32, (u16)(b[l] > 15 ? 0 : a[l] << b[l]))
    SHIFT(SHL_B32, u32, b[l] > 31 ? 0 : a[l] << (b[l] & 31))
    SHIFT(SHL_B64, u64, b[l] > 63 ? 0 : a[l] << (b[l] & 63))
    SHIFT(SHR_U16, u32, b[l] > 15 ? 0 : (u16)a[l] >> b[l])
    SHIFT(SHR_U32, u32, b[l] > 31 ? 0 : a[l] >> (b[l] & 31))
    SHIFT(SHR_U64, u64, b[l] > 63 ? 0 : a[l] >> (b[l] & 63))
    SHIFT(SHR_S16, u32, (u16)((i16)a[l] >> (b[l] > 15 ? 15 : b[l])))
    SHIFT(SHR_S32, i32, a[l] >> (b[l] > 31 ? 31 : b[l]))
    SHIFT(SHR_S64, i64, a[l] >> (b[l] > 63 ? 63 : b[l]))
    case OP_SELP_B32: { u32* d = dst; const u32 *a = A, *b = B; u32 p = *(const u32*)C; IV LANES d[l] = p >> l & 1 ? a[l] : b[l]; break; }
    case OP_SELP_B64: { u64* d = dst; const u64 *a = A, *b = B; u32 p = *(const u32*)C; IV LANES d[l] = p >> l & 1 ? a[l] : b[l]; break; }
    case OP_BFI_B32: { u32* d = dst; const u32 *a = A, *b = B, *c = C, *e = r32(w, i->o[4]); LANES d[l] = (u32)bfi(a[l], b[l], c[l], e[l], 32); break; }
    case OP_BFI_B64: { u64* d = dst; const u64 *a = A, *b = B; const u32 *c = C, *e = r32(w, i->o[4]); LANES d[l] = bfi(a[l], b[l], c[l], e[l], 64); break; }
    case OP_CLOCK: { u64 t = w->executed * 4; if (i->flags == DEST_64) { u64* d = dst; LANES d[l] = t; } else { u32* d = dst; LANES d[l] = (u32)t; } break; }
  }
}

void alu(Warp* w, const Ins* i, u32 exec) {
  Scratch scratch;
  void* dst = exec == FULL && i->o[0] != NONE ? (void*)ref(w, i->o[0]) : (void*)&scratch;
  const void *A = ref(w, i->o[1]), *B = ref(w, i->o[2]), *C = ref(w, i->o[3] == NONE ? i->o[1] : i->o[3]);
  switch (i->op) {
    case OP_NOP: return;
    case OP_UNPACK_2X32:
    case OP_UNPACK_2X16:
    case OP_UNPACK_4X16:
    case OP_PACK_2X64:
    case OP_UNPACK_2X64: unpack(w, i, exec); return;
    case OP_SETP_I:
    case OP_SETP_F32:
    case OP_SETP_F64:
    case OP_SETP_F16:
    case OP_SETP_BF16: setp_store(w, i, setp(i, A, B), exec); return;
    case OP_SET_B32: {
      u32 m =
          (i->mods2 & 1) ? compare_f32(i->mods & 0xff, A, B) : compare_int((int)i->imm, i->mods & 0xff, A, B);
      u32* d = dst;
      u32 one = i->mods2 & 2 ? 0x3f800000u : FULL;
      LANES
        d[l] = m >> l & 1 ? one : 0;
      break;
    }
    case OP_ADD_F32:
    case OP_SUB_F32:
    case OP_MUL_F32:
    case OP_FMA_F32:
    case OP_ADD_F32X2:
    case OP_SUB_F32X2:
    case OP_MUL_F32X2:
    case OP_FMA_F32X2:
      if (!i->mods) {
        float_arithmetic(i, dst, A, B, C);
        break;
      } /* fall through */
    case OP_MIN_F32:
    case OP_MAX_F32:
    case OP_DIV_F32:
    case OP_SQRT_F32: float_modified(i, dst, A, B, C); break;
    case OP_RCP_F32:
    case OP_RSQRT_F32:
    case OP_EX2_F32:
    case OP_LG2_F32:
    case OP_SIN_F32:
    case OP_COS_F32:
    case OP_TANH_F32: approximate(i->op, i->mods, dst, A); break;
    case OP_FMA_F32_MIXED:
    case OP_ADD_F32_MIXED:
    case OP_SUB_F32_MIXED: widened_arithmetic(i, dst, A, B, C); break;
    case OP_ARITH_HALF: half_arithmetic(i, dst, A, B, C); break;
    case OP_CVT: convert(i, dst, A); break;
    case OP_CVT_PACK: convert_pack(i, dst, A, B); break;
    case OP_CVT_UNPACK: convert_unpack(i, dst, A); break;
    case OP_CVT_BF16X2_F32: {
      u32* d = dst;
      const u32 *a = A, *b = B; /* a to the upper half */
#define BF(x) (((x) & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : ((x) + 0x7fffu + ((x) >> 16 & 1)) >> 16)
      IV
      LANES {
        u32 hi = BF(a[l]), lo = BF(b[l]);
        d[l] = hi << 16 | lo;
      }
      break;
    }
    default:
      if (i->op >= OP_NEG_F32 && i->op <= OP_RCP_F64) float_arithmetic(i, dst, A, B, C);
      else if ((i->op >= OP_DIV_S16 && i->op <= OP_REM_U64) || (i->op >= OP_SHF_L && i->op <= OP_BFE_S64) ||
               (i->op >= OP_PRMT && i->op <= OP_DP4A) || i->op == OP_MULHI_S64 || i->op == OP_MULHI_U64)
        wide_arithmetic(i, dst, A, B, C);
      else integer(w, i, dst, A, B, C);
  }
  if (exec != FULL) blend(w, i, &scratch, exec);
}
