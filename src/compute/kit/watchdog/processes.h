/*
 * Stops the processes of a machine that is paused, and continues them. Included by watchdog.c.
 *
 * kill(2) of all processes reaches a program that forks without end as well: a fork that meets a signal begins again after it.
 * A process can wake itself by a timer that sends SIGCONT. What keeps that from mattering is the machine's limit of CPU.
 */

struct entry {
  unsigned long inode;
  long offset;
  unsigned short bytes;
  unsigned char type;
  char name[];
};

/* Signals a process that may have gone. All but the first process and this one, if `process` is -1. */
static void signal_process(long process, long number) { kernel(KILL, process, number, 0, 0, 0, 0); }

static void stop_all(void) {
  signal_process(-1, SIGSTOP);
  leave(0);
}

/* Fills `found` with the numbers of the processes, from the oldest to the newest, and returns how many there are. */
static long list_processes(long proc, int *found) {
  static char block[STATUS_BYTES] __attribute__((aligned(8)));
  long count = 0;
  for (long bytes; (bytes = must(kernel(GETDENTS64, proc, (long)block, sizeof block, 0, 0, 0))) > 0;)
    for (long at = 0; at < bytes;) {
      struct entry *entry = (struct entry *)(block + at);
      at += entry->bytes;
      long number = 0;
      const char *digit = entry->name;
      while (*digit >= '0' && *digit <= '9') number = number * 10 + (*digit++ - '0');
      if (!*digit && count < PROCESS_COUNT_MAX) found[count++] = number;
    }
  return count;
}

static int processes[PROCESS_COUNT_MAX];

/* The newest first: a shell that is continued before its child would take that for a job that was stopped. */
static void continue_all(void) {
  long count = list_processes(open_file(AT_FDCWD, "/proc", 0, 0), processes);
  while (count-- > 0)
    if (processes[count] > 1) signal_process(processes[count], SIGCONT);
  signal_process(-1, SIGCONT); /* Those beyond the list. */
  leave(0);
}

/* Returns what follows `name` at the beginning of a line, without blanks. */
static const char *field(const char *text, const char *name) {
  for (;;) {
    const char *at = text, *wanted = name;
    while (*wanted && *at == *wanted) at++, wanted++;
    if (!*wanted) {
      while (*at == '\t' || *at == ' ') at++;
      return at;
    }
    while (*text && *text != '\n') text++;
    if (!*text++) return "";
  }
}

/* Returns whether a process of another user than this one runs, or may run. One that has gone does not. */
static int runs(long proc, long process) {
  static char status[STATUS_BYTES];
  char path[32];
  int at = sizeof path;
  const char *rest = "/status";
  at -= 8;
  for (int i = 0; i < 8; i++) path[at + i] = rest[i];
  do path[--at] = '0' + process % 10;
  while (process /= 10);
  long fd = kernel(OPENAT, proc, (long)(path + at), O_CLOEXEC, 0, 0, 0);
  if (fd < 0) return fd != -ENOENT;
  long count = kernel(READ, fd, (long)status, sizeof status - 1, 0, 0, 0);
  close_file(fd);
  if (count <= 0) return count != -ESRCH;
  status[count] = 0;
  char state = *field(status, "State:");
  if (state == 'T' || state == 't' || state == 'Z' || state == 'X') return 0;
  long user = 0;
  for (const char *digit = field(status, "Uid:"); *digit >= '0' && *digit <= '9'; digit++)
    user = user * 10 + (*digit - '0');
  return user != kernel(GETUID, 0, 0, 0, 0, 0, 0);
}

static void await_stopped(void) {
  for (int look = 0; look < LOOK_COUNT; look++) {
    struct time wait = {0, LOOK_NANOSECONDS};
    if (look) kernel(PPOLL, 0, 0, (long)&wait, 0, SIGSET_BYTES, 0);
    long proc = open_file(AT_FDCWD, "/proc", 0, 0);
    long count = list_processes(proc, processes);
    long running = count == PROCESS_COUNT_MAX;
    while (count-- > 0) running += runs(proc, processes[count]);
    close_file(proc);
    if (!running) leave(0);
  }
  leave(EBUSY);
}
