/*
 * Ends a machine that fills files beside its own disk. Included by watchdog.c.
 *
 * An engine mounts single files of its own into a machine, such as /etc/hosts and a pod's /dev/termination-log, and counts
 * nowhere what a tenant writes to them. A tenant may move or hide the directory that such a file is mounted in, so
 * process 1 holds all of them open from the beginning. Blocks are counted, since a file may have more than its length needs.
 */

#define MOUNTS_PATH "/proc/self/mountinfo"
#define MOUNT_PATH_BYTES 512
#define HELD_COUNT_MAX 256
#define BLOCK_BYTES 512
#define GROWN_BYTES_MAX (16 * 1024 * 1024)

/* Fields of a line of that file, counted from 0 (proc(5)). */
enum { MOUNT_POINT = 4, MOUNT_OPTIONS = 5 };

static struct {
  long fd, blocks;
} held[HELD_COUNT_MAX];
static long held_count;

/* Returns how many blocks an open file has; below 0 for all that is no plain file. */
static long blocks_of(long fd) {
  struct status status;
  if (kernel(FSTAT, fd, (long)&status, 0, 0, 0, 0) < 0) return -1;
  return (status.mode & S_IFMT) == S_IFREG ? status.blocks : -1;
}

static long open_held(const char *path) {
  return kernel(OPENAT, AT_FDCWD, (long)path, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0, 0, 0);
}

static void hold_file(const char *path) {
  if (held_count == HELD_COUNT_MAX) return;
  long fd = open_held(path);
  if (fd == SHARED_FD) { /* The next is another one: this number is the deadline's. */
    fd = open_held(path);
    close_file(SHARED_FD);
  }
  if (fd < 0) return;
  long blocks = blocks_of(fd);
  if (blocks < 0) {
    close_file(fd);
    return;
  }
  held[held_count].fd = fd;
  held[held_count++].blocks = blocks;
}

/* Holds every plain file that something is mounted on and that can be written. */
static void hold_mounted_files(void) {
  static char block[SHARED_BYTES], path[MOUNT_PATH_BYTES];
  long list = kernel(OPENAT, AT_FDCWD, (long)MOUNTS_PATH, O_CLOEXEC, 0, 0, 0);
  if (list < 0) return;
  long field = 0, length = 0, at_option = 0;
  for (long count; (count = kernel(READ, list, (long)block, sizeof block, 0, 0, 0)) > 0;)
    for (long i = 0; i < count; i++) {
      if (block[i] == ' ' || block[i] == '\n') {
        field = block[i] == ' ' ? field + 1 : 0;
        if (field == MOUNT_POINT) length = at_option = 0;
      } else if (field == MOUNT_POINT && length < MOUNT_PATH_BYTES - 1) {
        path[length++] = block[i];
        path[length] = 0;
      } else if (field == MOUNT_OPTIONS && ++at_option == 2 && block[i] == 'w') /* It begins with `rw` or `ro`. */
        hold_file(path);
    }
  close_file(list);
}

static int have_grown(void) {
  long grown = 0;
  for (long i = 0; i < held_count; i++) {
    long more = blocks_of(held[i].fd) - held[i].blocks;
    if (more > 0) grown += more;
  }
  return grown > GROWN_BYTES_MAX / BLOCK_BYTES;
}
