/* Operations on bit fields and bytes of one word. */
#include "vm.h"

u32 prmt(u32 a, u32 b, u32 s, u32 mode) {
  u64 v = (u64)b << 32 | a;
  u32 d = 0, k = s & 3;
  static const u8 fixed[6][4][4] = {
      {{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}}, /* f4e */
      {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}}, /* b4e */
      {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}, /* rc8 */
      {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}}, /* ecl */
      {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}}, /* ecr */
      {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}, /* rc16 */
  };
  for (int i = 0; i < 4; i++) {
    u32 n = mode ? fixed[mode - 1][k][i] : s >> 4 * i & 15;
    u32 byte = (u32)(v >> 8 * (n & 7)) & 255;
    d |= (n & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return d;
}

u32 dot_product(u32 a, u32 b, u32 c, u32 mods, int four) { /* mods: 1 a signed, 2 b signed, 4 hi */
  i64 s = 0;
  if (four) {
    for (int k = 0; k < 4; k++)
      s += (i64)(mods & 1 ? (i8)(a >> 8 * k) : (i32)(u8)(a >> 8 * k)) *
           (mods & 2 ? (i8)(b >> 8 * k) : (i32)(u8)(b >> 8 * k));
  } else {
    for (int k = 0; k < 2; k++) {
      u32 byte = b >> (8 * k + (mods & 4 ? 16 : 0));
      s += (i64)(mods & 1 ? (i16)(a >> 16 * k) : (i32)(u16)(a >> 16 * k)) *
           (mods & 2 ? (i8)byte : (i32)(u8)byte);
    }
  }
  return c + (u32)s;
}

/* the field of `len` bits at `pos`; bits beyond the word or the field are 0, or copies of the field's top bit
 */
u64 bfe(u64 a, u32 pos, u32 len, int bits, int sign) {
  pos &= 255;
  len &= 255;
  if (!len) return 0;
  u32 top = pos + len - 1 < (u32)bits ? pos + len - 1 : (u32)bits - 1;
  u64 fill = sign ? a >> top & 1 : 0, d = 0;
  for (u32 k = 0; k < (u32)bits; k++) d |= (k < len && pos + k < (u32)bits ? a >> (pos + k) & 1 : fill) << k;
  return d;
}

u64 bfi(u64 a, u64 b, u32 pos, u32 len, int bits) {
  pos &= 255;
  len &= 255;
  if (pos >= (u32)bits || !len) return b;
  u64 mask = (len >= 64 ? ~0ull : (1ull << len) - 1) << pos;
  return (b & ~mask) | (a << pos & mask);
}

u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 d = 0;
  for (int k = 0; k < 8; k++)
    if (table >> k & 1) d |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return d;
}

u32 reverse_bits(u32 v) {
  u32 d = 0;
  for (int k = 0; k < 32; k++) d |= (v >> k & 1) << (31 - k);
  return d;
}
i32 bfind(u32 v, int sign, int shiftamt) {
  if (sign && (i32)v < 0) v = ~v;
  if (!v) return -1;
  int p = 31 - __builtin_clz(v);
  return shiftamt ? 31 - p : p;
}
