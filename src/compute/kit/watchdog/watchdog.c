/*
 * The first process of a leased container. It ends at the deadline, and with it the kernel ends everything in there.
 *
 *   watchdog DEADLINE [/DIRECTORY] as process 1: waits for DEADLINE (Unix seconds), then exits 0. SIGTERM and SIGINT:
 *                       exits 143. The directory is its user's alone; it puts a copy of itself there, as `watchdog`.
 *                       Exits 153 once files that the engine mounted (mounts.h) have grown by more than 16 MiB.
 *   watchdog keep DEADLINE as process 1: waits for DEADLINE, then switches a virtual machine off, each second (keeper.h).
 *   watchdog held | boot as any other process: exits 0 if process 1 holds the power; prints the seconds since the kernel's boot.
 *   watchdog DEADLINE [/DIRECTORY] as any other process: moves the deadline of process 1, which has the same directory.
 *   watchdog [/DIRECTORY] as any other process: changes nothing.
 *   watchdog relay PORT as any other process: connects its input and output to a port on loopback.
 *   watchdog relay      as any other process: exits 0, which an older watchdog does not.
 *   watchdog egress PORT as any other process: hands the connections to a port on loopback over its input and output.
 *   watchdog stop | continue as any other process: stops, or continues, all that its user may signal.
 *   watchdog stopped    as any other process: exits 0 once all processes of other users are stopped, 16 if they do not stop.
 *
 * Those that move or change nothing print the deadline that process 1 then has. They exit with the number of the kernel's error
 * (errno.h) where there is one: then nothing was moved; 64 is a DEADLINE that is no number. A relay exits with the
 * number of the error if it cannot connect; once it has, it writes a line that says so, and then what comes.
 *
 * No library and no file of the image is used: system calls only. The deadline lies in memory that process 1 shares
 * through its descriptor 9; Linux lets only processes of the same user open that (proc(5), ptrace(2)). gVisor lets all of
 * them, and no engine can start /proc/1/exe in it: there the deadline lies in a file of the directory, and the copy beside
 * it is what the engine starts. Process 1 looks at the deadline every second. It counts on the clock that no correction
 * of the time of day moves, from the moment at which it learns of a deadline.
 */

#define SHARED_FD 9
#define SHARED_PATH "/proc/1/fd/9"
#define SHARED_BYTES 4096
#define SELF_PATH "/proc/self/exe"
#define UNFINISHED "unfinished" /* Names in the directory; a file gets its own when it is complete. */
#define DEADLINE "deadline"
#define PROGRAM "watchdog"
#define DIGITS_MAX 10
#define MILLISECONDS 1000

#define STATUS_BYTES 4096 /* The name, the state and the users are in the first lines of the file. */
#define PROCESS_COUNT_MAX 65536
#define LOOK_COUNT 40
#define LOOK_NANOSECONDS 25000000

#define EXIT_USAGE 64
#define EXIT_STOPPED 143
#define EXIT_GROWN 153 /* As a shell says it of SIGXFSZ: the file is too large. */

#define ENOENT 2
#define ESRCH 3
#define EBUSY 16
#define EINVAL 22
#define EPROTO 71
#define ETIMEDOUT 110
#define ECONNREFUSED 111
#define EAGAIN 11
#define AT_FDCWD (-100)
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_CLOEXEC 02000000
#define O_PATH 010000000
#define S_IFMT 0170000
#define S_IFREG 0100000
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
#define SIGCONT 18
#define SIGSTOP 19
#define SIGSET_BYTES 8

#define RELAYED "connected\n"
#define RELAY_BYTES 65536
#define PIPE_BYTES 4096 /* So much fits into a pipe that poll(2) calls writable (PIPE_BUF). */
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_CLOEXEC 02000000
#define SOL_SOCKET 1
#define SO_REUSEADDR 2
#define SHUT_WR 1
#define MSG_DONTWAIT 0x40
#define MSG_NOSIGNAL 0x4000
#define POLLIN 1
#define POLLOUT 4

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, CLOSE = 3, FSTAT = 5, MMAP = 9, SIGACTION = 13, SIGPROCMASK = 14, GETPID = 39, SOCKET = 41,
       CONNECT = 42, SENDTO = 44, RECVFROM = 45, SHUTDOWN = 48, BIND = 49, LISTEN = 50, SETSOCKOPT = 54, KILL = 62,
       FTRUNCATE = 77, GETUID = 102, SIGTIMEDWAIT = 128, GETDENTS64 = 217, CLOCK_GETTIME = 228, EXIT_GROUP = 231, OPENAT = 257, RENAMEAT = 264, PPOLL = 271, ACCEPT4 = 288, DUP3 = 292,
       MEMFD_CREATE = 319 };

#define O_NOFOLLOW 0400000
struct status { /* struct stat */
  long device, inode, links;
  unsigned int mode, other[5];
  long size, block_bytes, blocks, more[9];
};

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
enum { DUP3 = 24, RENAMEAT = 38, FTRUNCATE = 46, OPENAT = 56, CLOSE = 57, GETDENTS64 = 61, READ = 63, WRITE = 64, PPOLL = 73, FSTAT = 80, EXIT_GROUP = 94,
       CLOCK_GETTIME = 113, KILL = 129, SIGACTION = 134, SIGPROCMASK = 135, SIGTIMEDWAIT = 137, GETPID = 172, GETUID = 174, SOCKET = 198, BIND = 200,
       LISTEN = 201, CONNECT = 203, SENDTO = 206, RECVFROM = 207, SETSOCKOPT = 208, SHUTDOWN = 210, MMAP = 222,
       ACCEPT4 = 242, MEMFD_CREATE = 279 };

#define O_NOFOLLOW 0100000
struct status { /* struct stat */
  long device, inode;
  unsigned int mode, other[7];
  long size, block_bytes, blocks, more[7];
};

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

/* Opens a file of `directory`, or any other with AT_FDCWD. */
static long open_file(long directory, const char *path, long flags, long mode) {
  return must(kernel(OPENAT, directory, (long)path, flags | O_CLOEXEC, mode, 0, 0));
}

static void finish_file(long directory, const char *name) {
  must(kernel(RENAMEAT, directory, (long)UNFINISHED, directory, (long)name, 0, 0));
}

static void close_file(long fd) { kernel(CLOSE, fd, 0, 0, 0, 0, 0); }

static void copy_self(long directory) {
  static char block[SHARED_BYTES];
  long from = open_file(AT_FDCWD, SELF_PATH, 0, 0);
  long to = open_file(directory, UNFINISHED, O_WRONLY | O_CREAT | O_EXCL, 0500);
  for (long count; (count = must(kernel(READ, from, (long)block, sizeof block, 0, 0, 0))) > 0;)
    for (long at = 0; at < count;) at += must(kernel(WRITE, to, (long)(block + at), count - at, 0, 0, 0));
  close_file(from);
  close_file(to);
  finish_file(directory, PROGRAM);
}

#include "mounts.h"

/* Makes the deadline that process 1 shares, in a file of the directory. Once it can be read, what was written to a mounted
 * file before that no longer passes for a part of it. */
static volatile long *share_file(long deadline, const char *path) {
  long directory = open_file(AT_FDCWD, path, 0, 0);
  long fd = open_file(directory, UNFINISHED, O_RDWR | O_CREAT | O_EXCL, 0600);
  must(kernel(FTRUNCATE, fd, SHARED_BYTES, 0, 0, 0, 0));
  volatile long *shared = share(fd);
  *shared = deadline;
  hold_mounted_files();
  finish_file(directory, DEADLINE);
  copy_self(directory);
  close_file(fd); /* Through a descriptor of process 1, gVisor would let others at what it opened. */
  close_file(directory);
  return shared;
}

/* Makes it in memory. */
static volatile long *share_memory(long deadline) {
  /* A kernel before 6.3 does not know the second flag; a newer one may insist on it (sysctl vm.memfd_noexec). */
  long fd = kernel(MEMFD_CREATE, (long)"deadline", MFD_CLOEXEC | MFD_NOEXEC_SEAL, 0, 0, 0, 0);
  if (fd == -EINVAL) fd = kernel(MEMFD_CREATE, (long)"deadline", MFD_CLOEXEC, 0, 0, 0, 0);
  must(fd);
  must(kernel(FTRUNCATE, fd, SHARED_BYTES, 0, 0, 0, 0));
  volatile long *shared = share(fd);
  *shared = deadline;
  hold_mounted_files();
  if (fd != SHARED_FD) must(kernel(DUP3, fd, SHARED_FD, O_CLOEXEC, 0, 0, 0));
  return shared;
}

#include "keeper.h"

/* Process 1. */
static void guard(long deadline, const char *directory, int keeps) {
  /* Whatever loses its parent becomes a child of process 1; a child whose end is ignored leaves no zombie. */
  long ignored[4] = {SIG_IGN, 0, 0, 0};
  must(kernel(SIGACTION, SIGCHLD, (long)ignored, 0, SIGSET_BYTES, 0, 0));
  long stops = 1L << (SIGTERM - 1) | 1L << (SIGINT - 1);
  must(kernel(SIGPROCMASK, SIG_BLOCK, (long)&stops, 0, SIGSET_BYTES, 0, 0));

  volatile long *shared = directory ? share_file(deadline, directory) : share_memory(deadline);
  long known = -1, end = 0;
  struct time second = {1, 0};
  for (;;) {
    long told = *shared;
    if (told != known) end = now(CLOCK_BOOTTIME) + told * MILLISECONDS - now(CLOCK_REALTIME);
    known = told;
    long left = end - now(CLOCK_BOOTTIME);
    if (keeps) hold_power(shared);
    if (left <= 0 && !keeps) leave(0);
    if (left <= 0) switch_off();
    if (!keeps && have_grown()) leave(EXIT_GROWN);
    struct time wait = second;
    if (left > 0 && left < MILLISECONDS) {
      wait.seconds = 0;
      wait.nanoseconds = left * 1000000;
    }
    if (kernel(SIGTIMEDWAIT, (long)&stops, 0, (long)&wait, SIGSET_BYTES, 0, 0) > 0) leave(EXIT_STOPPED);
  }
}

static void print(long value) {
  char line[DIGITS_MAX + 1];
  int at = sizeof line;
  line[--at] = '\n';
  do line[--at] = '0' + value % 10;
  while ((value /= 10) && at > 0);
  kernel(WRITE, 1, (long)(line + at), sizeof line - at, 0, 0, 0);
}

/* Any other process; `deadline` below 0 changes nothing. */
static void tell(long deadline, const char *directory) {
  long fd = directory ? open_file(open_file(AT_FDCWD, directory, 0, 0), DEADLINE, O_RDWR, 0)
                      : open_file(AT_FDCWD, SHARED_PATH, O_RDWR, 0);
  volatile long *shared = share(fd);
  if (deadline >= 0) *shared = deadline;
  print(*shared);
  leave(0); /* What was moved is moved, whoever hears of it. */
}

#define LOOPBACK_BYTES 28 /* struct sockaddr_in6; struct sockaddr_in is its first 16 bytes. */
static long bytes_of(long family) { return family == AF_INET ? 16 : LOOPBACK_BYTES; }

/* Both families begin with the port; of `address` the rest is what each has of its own. */
static void loopback(unsigned char *address, long family, long port) {
  volatile unsigned char *at = address;
  for (unsigned long i = 0; i < LOOPBACK_BYTES; i++) at[i] = 0;
  address[0] = family;
  address[2] = port >> 8;
  address[3] = port & 255;
  if (family == AF_INET) address[4] = 127;
  address[family == AF_INET ? 7 : 23] = 1;
}

static long dial(long family, long port) {
  unsigned char address[LOOPBACK_BYTES];
  loopback(address, family, port);
  long fd = kernel(SOCKET, family, SOCK_STREAM, 0, 0, 0, 0);
  if (fd < 0) return fd;
  long failed = kernel(CONNECT, fd, (long)address, bytes_of(family), 0, 0, 0);
  if (failed < 0) close_file(fd);
  return failed < 0 ? failed : fd;
}

struct poll {
  int fd;
  short wanted, found;
};

/* Input goes to the server at `port`, and what the server sends to the output, each no faster than it is taken. The end of
 * the input is passed on; the end of what the server sends ends it all. */
static void relay(long port) {
  if (port < 1 || port > 65535) leave(EXIT_USAGE);
  long server = dial(AF_INET, port);
  if (server == -ECONNREFUSED) {
    server = dial(AF_INET6, port);
    if (server < 0) leave(ECONNREFUSED); /* Whatever it is: without IPv6 another error says nothing. */
  }
  must(server);
  must(kernel(WRITE, 1, (long)RELAYED, sizeof RELAYED - 1, 0, 0, 0));

  static char up[RELAY_BYTES], down[RELAY_BYTES];
  long up_at = 0, up_end = 0, down_at = 0, down_end = 0, has_input = 1;
  for (;;) {
    int sends = up_at < up_end, takes = down_at == down_end;
    struct poll polled[3];
    polled[0].fd = has_input && !sends ? 0 : -1;
    polled[0].wanted = POLLIN;
    polled[1].fd = sends || takes ? server : -1;
    polled[1].wanted = (sends ? POLLOUT : 0) | (takes ? POLLIN : 0);
    polled[2].fd = 1; /* Always: its reader may go. */
    polled[2].wanted = takes ? 0 : POLLOUT;
    for (int i = 0; i < 3; i++) polled[i].found = 0;
    if (kernel(PPOLL, (long)polled, 3, 0, 0, SIGSET_BYTES, 0) < 0) continue;

    if (polled[0].found) {
      long count = kernel(READ, 0, (long)up, RELAY_BYTES, 0, 0, 0);
      up_at = 0;
      up_end = count > 0 ? count : 0;
      has_input = count > 0;
      if (!has_input) kernel(SHUTDOWN, server, SHUT_WR, 0, 0, 0, 0);
    }
    if (sends && polled[1].found & ~POLLIN) {
      long count = kernel(SENDTO, server, (long)(up + up_at), up_end - up_at, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
      if (count >= 0) up_at += count;
      else if (count != -EAGAIN) up_at = up_end, has_input = 0; /* It takes no more, but may still have something to say. */
    }
    if (takes && polled[1].found & ~POLLOUT) {
      long count = kernel(RECVFROM, server, (long)down, RELAY_BYTES, MSG_DONTWAIT, 0, 0);
      if (count == 0 || (count < 0 && count != -EAGAIN)) leave(0);
      down_at = 0;
      down_end = count > 0 ? count : 0;
    }
    if (polled[2].found & ~POLLOUT) leave(0);
    if (!takes && polled[2].found) {
      long count = down_end - down_at;
      down_at += must(kernel(WRITE, 1, (long)(down + down_at), count < PIPE_BYTES ? count : PIPE_BYTES, 0, 0, 0));
    }
  }
}

#include "egress.h"
#include "processes.h"

static int is(const char *text, const char *wanted) {
  while (*text && *text == *wanted) text++, wanted++;
  return *text == *wanted;
}

/* `stack` holds the number of arguments, then their addresses. */
__attribute__((used)) void begin(long *stack) {
  char **arguments = (char **)(stack + 1);
  long count = stack[0];
  int is_first = kernel(GETPID, 0, 0, 0, 0, 0, 0) == 1;
  if (!is_first && count > 1 && is(arguments[1], "relay")) {
    if (count == 2) leave(0);
    if (count == 3) relay(parse(arguments[2]));
  }
  if (!is_first && count == 3 && is(arguments[1], "egress")) egress(parse(arguments[2]));
  if (!is_first && count == 2 && is(arguments[1], "stop")) stop_all();
  if (!is_first && count == 2 && is(arguments[1], "continue")) continue_all();
  if (!is_first && count == 2 && is(arguments[1], "stopped")) await_stopped();
  if (!is_first && count == 2 && is(arguments[1], "held")) say_held();
  if (!is_first && count == 2 && is(arguments[1], "boot")) {
    print(now(CLOCK_BOOTTIME) / MILLISECONDS);
    leave(0);
  }
  if (is_first && count == 3 && is(arguments[1], "keep")) guard(parse(arguments[2]), 0, 1);
  const char *directory = count > 1 && arguments[count - 1][0] == '/' ? arguments[--count] : 0;
  if (count > 2 || (is_first && count != 2)) leave(EXIT_USAGE);
  long deadline = count == 2 ? parse(arguments[1]) : -1;
  if (is_first) guard(deadline, directory, 0);
  tell(deadline, directory);
}
