/*
 * The first process of a leased container. It ends at the deadline, and with it the kernel ends everything in there.
 *
 *   watchdog DEADLINE   as process 1: waits for DEADLINE (Unix seconds), then exits 0. SIGTERM and SIGINT: exits 143.
 *   watchdog DEADLINE   as any other process: moves the deadline of process 1.
 *   watchdog            as any other process: changes nothing.
 *
 * The last two print the deadline that process 1 then has. They exit with the number of the kernel's error (errno.h)
 * where there is one: then nothing was moved; 64 is a DEADLINE that is no number.
 *
 * No library and no file of the image is used: system calls only. The deadline lies in memory that process 1 shares
 * through its descriptor 9; the kernel lets only processes of the same user open that (proc(5), ptrace(2)). Process 1
 * looks at it every second. It counts on the clock that no correction of the time of day moves, from the moment at which
 * it learns of a deadline.
 */

#define SHARED_FD 9
#define SHARED_PATH "/proc/1/fd/9"
#define SHARED_BYTES 4096
#define DIGITS_MAX 10
#define MILLISECONDS 1000

#define EXIT_USAGE 64
#define EXIT_STOPPED 143

#define EINVAL 22
#define AT_FDCWD (-100)
#define O_RDWR 2
#define O_CLOEXEC 02000000
#define PROT_READ_WRITE 3
#define MAP_SHARED 1
#define MFD_CLOEXEC 1
#define MFD_NOEXEC_SEAL 8
#define CLOCK_REALTIME 0
#define CLOCK_BOOTTIME 7
#define SIG_IGN 1
#define SIG_BLOCK 0
#define SIGINT 2
#define SIGTERM 15
#define SIGCHLD 17
#define SIGSET_BYTES 8

#if defined(__x86_64__)
enum { WRITE = 1, MMAP = 9, SIGACTION = 13, SIGPROCMASK = 14, GETPID = 39, FTRUNCATE = 77, SIGTIMEDWAIT = 128,
       CLOCK_GETTIME = 228, EXIT_GROUP = 231, OPENAT = 257, DUP3 = 292, MEMFD_CREATE = 319 };

__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
enum { DUP3 = 24, FTRUNCATE = 46, OPENAT = 56, WRITE = 64, EXIT_GROUP = 94, CLOCK_GETTIME = 113, SIGACTION = 134,
       SIGPROCMASK = 135, SIGTIMEDWAIT = 137, GETPID = 172, MMAP = 222, MEMFD_CREATE = 279 };

__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n mov x0, sp\n b begin\n");

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
}
#else
#error "system call numbers of this architecture are missing"
#endif

struct time {
  long seconds, nanoseconds;
};

static void leave(long code) {
  for (;;) kernel(EXIT_GROUP, code, 0, 0, 0, 0, 0);
}

/* The result of a system call; an error ends the program with the error's number. */
static long must(long result) {
  if (result < 0 && result > -4096) leave(-result);
  return result;
}

static long now(long clock) {
  struct time time;
  must(kernel(CLOCK_GETTIME, clock, (long)&time, 0, 0, 0, 0));
  return time.seconds * MILLISECONDS + time.nanoseconds / 1000000;
}

static volatile long *share(long fd) {
  return (volatile long *)must(kernel(MMAP, 0, SHARED_BYTES, PROT_READ_WRITE, MAP_SHARED, fd, 0));
}

static long parse(const char *text) {
  long value = 0;
  int digits = 0;
  for (; *text; text++, digits++) {
    if (*text < '0' || *text > '9' || digits == DIGITS_MAX) leave(EXIT_USAGE);
    value = value * 10 + (*text - '0');
  }
  if (digits == 0) leave(EXIT_USAGE);
  return value;
}

/* Process 1. */
static void guard(long deadline) {
  /* Whatever loses its parent becomes a child of process 1; a child whose end is ignored leaves no zombie. */
  long ignored[4] = {SIG_IGN, 0, 0, 0};
  must(kernel(SIGACTION, SIGCHLD, (long)ignored, 0, SIGSET_BYTES, 0, 0));
  long stops = 1L << (SIGTERM - 1) | 1L << (SIGINT - 1);
  must(kernel(SIGPROCMASK, SIG_BLOCK, (long)&stops, 0, SIGSET_BYTES, 0, 0));

  /* A kernel before 6.3 does not know the second flag; a newer one may insist on it (sysctl vm.memfd_noexec). */
  long fd = kernel(MEMFD_CREATE, (long)"deadline", MFD_CLOEXEC | MFD_NOEXEC_SEAL, 0, 0, 0, 0);
  if (fd == -EINVAL) fd = kernel(MEMFD_CREATE, (long)"deadline", MFD_CLOEXEC, 0, 0, 0, 0);
  must(fd);
  must(kernel(FTRUNCATE, fd, SHARED_BYTES, 0, 0, 0, 0));
  volatile long *shared = share(fd);
  *shared = deadline;
  if (fd != SHARED_FD) must(kernel(DUP3, fd, SHARED_FD, O_CLOEXEC, 0, 0, 0));

  long known = -1, end = 0;
  struct time second = {1, 0};
  for (;;) {
    long told = *shared;
    if (told != known) end = now(CLOCK_BOOTTIME) + told * MILLISECONDS - now(CLOCK_REALTIME);
    known = told;
    long left = end - now(CLOCK_BOOTTIME);
    if (left <= 0) leave(0);
    struct time wait = second;
    if (left < MILLISECONDS) {
      wait.seconds = 0;
      wait.nanoseconds = left * 1000000;
    }
    if (kernel(SIGTIMEDWAIT, (long)&stops, 0, (long)&wait, SIGSET_BYTES, 0, 0) > 0) leave(EXIT_STOPPED);
  }
}

/* Any other process; `deadline` below 0 changes nothing. */
static void tell(long deadline) {
  long fd = must(kernel(OPENAT, AT_FDCWD, (long)SHARED_PATH, O_RDWR | O_CLOEXEC, 0, 0, 0));
  volatile long *shared = share(fd);
  if (deadline >= 0) *shared = deadline;

  char line[DIGITS_MAX + 1];
  int at = sizeof line;
  line[--at] = '\n';
  long value = *shared;
  do line[--at] = '0' + value % 10;
  while ((value /= 10) && at > 0);
  kernel(WRITE, 1, (long)(line + at), sizeof line - at, 0, 0, 0);
  leave(0); /* What was moved is moved, whoever hears of it. */
}

/* `stack` holds the number of arguments, then their addresses. */
__attribute__((used)) void begin(long *stack) {
  char **arguments = (char **)(stack + 1);
  int is_first = kernel(GETPID, 0, 0, 0, 0, 0, 0) == 1;
  if (stack[0] > 2 || (is_first && stack[0] != 2)) leave(EXIT_USAGE);
  long deadline = stack[0] == 2 ? parse(arguments[1]) : -1;
  if (is_first) guard(deadline);
  tell(deadline);
}
