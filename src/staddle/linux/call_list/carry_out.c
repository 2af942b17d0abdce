/* Carries out a list of system calls in the process that calls it: position-independent code without data.
 *
 * The Python twin is `_carry_out_slowly` in __init__.py; `make call-list` builds x86_64.bin and aarch64.bin.
 * It returns 0, or the place of the call that failed, counted from 1, with its error in slot 0. Nothing but
 * the list is read, and nothing but slots and the buffers of the calls is written. So neither an interpreter
 * nor its memory is touched between a clone and an exec.
 */

typedef long word;
/* The code is entered at its first byte, so nothing but `carry_out` may be a function of its own. */
#define INLINE static inline __attribute__((always_inline))

struct call {
  word number; /* of a system call; below 0 one of the words below */
  word argument[6];
  unsigned char is_slot[6]; /* whether the argument is the number of a slot */
  unsigned char result, may_fail;
};

/* FORK: a child runs the next argument[0] calls, and ends if they end. In our memory, which it leaves at its
 * exec; until then we wait. HOLD: a child with the clone flags argument[0] that only waits to be killed.
 * FIND: look for a text (address, length) in another (address, length). argument[4]: it must be there (1),
 * must not (0), or be all of it (2). WHOLE: read a file (descriptor, address, room) to its end. */
enum { FORK = -1, HOLD = -2, FIND = -3, WHOLE = -4 };
enum { VM = 0x100, VFORK = 0x4000, SIGCHLD = 17, EILSEQ = 84 };

#if defined(__x86_64__)
enum { READ = 0, CLONE = 56, EXIT = 60 };
#define PAUSE_FOREVER "1: mov $34, %%eax\n syscall\n jmp 1b\n"

INLINE word system_call(word number, const word *a) {
  register word r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
  word result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

/* The child shares our stack, so it uses none. */
INLINE word hold(word flags) {
  register word r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
  word result;
  __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 2f\n" PAUSE_FOREVER "2:"
                   : "=a"(result)
                   : "a"(CLONE), "D"(flags), "S"(0), "d"(0), "r"(r10), "r"(r8)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
enum { READ = 63, CLONE = 220, EXIT = 93 };

INLINE word system_call(word number, const word *a) {
  register word x8 __asm__("x8") = number, x0 __asm__("x0") = a[0], x1 __asm__("x1") = a[1];
  register word x2 __asm__("x2") = a[2], x3 __asm__("x3") = a[3], x4 __asm__("x4") = a[4];
  register word x5 __asm__("x5") = a[5];
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}

INLINE word hold(word flags) {
  register word x8 __asm__("x8") = CLONE, x0 __asm__("x0") = flags, x1 __asm__("x1") = 0;
  register word x2 __asm__("x2") = 0, x3 __asm__("x3") = 0, x4 __asm__("x4") = 0;
  __asm__ volatile("svc #0\n cbnz x0, 2f\n"
                   "1: mov x4, #0\n mov x3, #0\n mov x2, #0\n mov x1, #0\n mov x0, #0\n mov x8, #73\n svc #0\n b 1b\n"
                   "2:" /* ppoll without files waits forever */
                   : "+r"(x0), "+r"(x8), "+r"(x1), "+r"(x2), "+r"(x3), "+r"(x4)
                   :
                   : "memory");
  return x0;
}
#endif

INLINE word find(const unsigned char *text, word length, const unsigned char *wanted, word size, word how) {
  word found = 0;
  for (word at = 0; at + size <= length && !found; at++) {
    word same = 0;
    while (same < size && text[at + same] == wanted[same])
      same++;
    found = same == size;
  }
  return found == !!how && (how != 2 || size == length) ? 0 : -EILSEQ;
}

INLINE word whole(word descriptor, word address, word room) {
  word used = 0, got;
  do {
    word a[6] = {descriptor, address + used, room - used, 0, 0, 0};
    got = system_call(READ, a);
    used += got > 0 ? got : 0;
  } while (got > 0);
  return got < 0 ? got : used == room ? -EILSEQ : used;
}

word carry_out(const struct call *calls, word count, word *slots) {
  for (word at = 0; at < count; at++) {
    const struct call *one = calls + at;
    word a[6], result;
    for (int each = 0; each < 6; each++)
      a[each] = one->is_slot[each] ? slots[one->argument[each]] : one->argument[each];
    if (one->number == FORK) {
      word flags[6] = {VM | VFORK | SIGCHLD, 0, 0, 0, 0, 0};
      result = system_call(CLONE, flags);
      if (result == 0) { /* Deeper on the stack that we share with our parent, and never back. */
        word end[6] = {0, 0, 0, 0, 0, 0};
        slots[1] = carry_out(one + 1, a[0], slots);
        for (;;)
          system_call(EXIT, end);
      }
      at += a[0];
    } else if (one->number == HOLD)
      result = hold(a[0] | VM | SIGCHLD);
    else if (one->number == FIND)
      result = find((const unsigned char *)a[0], a[1], (const unsigned char *)a[2], a[3], a[4]);
    else if (one->number == WHOLE)
      result = whole(a[0], a[1], a[2]);
    else
      result = system_call(one->number, a);
    if (result < 0 && result > -4096 && !one->may_fail) {
      slots[0] = result;
      return at + 1;
    }
    slots[one->result] = result;
  }
  return 0;
}
