/*
 * Holds the power of a virtual machine, as process 1 of a container beside it. Included by watchdog.c.
 *
 * POWER is a door to the chardev of the machine's management controller (QEMU, ipmi-bmc-extern). It is held open all the time, so
 * that nobody else comes in between, and is opened again each second where the machine starts anew. QEMU greets whoever comes; all
 * else that comes is the machine's own, and is dropped.
 */

#define POWER "/power"
#define POWER_OFF "\x03\xa1" /* VM_CMD_POWEROFF, VM_CMD_CHAR of QEMU's hw/ipmi/ipmi_bmc_extern.c. */
#define HELD 1 /* The place in the shared memory that says whether QEMU has greeted. */

#define AF_UNIX 1
#define SOCK_NONBLOCK 04000

static long power = -1;

static void hold_power(volatile long *shared) {
  static struct {
    unsigned short family;
    char path[sizeof POWER];
  } address = {AF_UNIX, POWER};
  static char dropped[SHARED_BYTES];
  if (power < 0) {
    power = must(kernel(SOCKET, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0));
    if (kernel(CONNECT, power, (long)&address, sizeof address, 0, 0, 0) < 0) goto closed;
  }
  long count = kernel(RECVFROM, power, (long)dropped, sizeof dropped, MSG_DONTWAIT, 0, 0);
  if (count > 0) shared[HELD] = 1;
  if (count > 0 || count == -EAGAIN) return;
closed:
  close_file(power);
  power = -1;
  shared[HELD] = 0;
}

/* The machine may be starting anew, so this is repeated until somebody removes this container. */
static void switch_off(void) {
  if (power >= 0) kernel(SENDTO, power, (long)POWER_OFF, sizeof POWER_OFF - 1, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
}

static void say_held(void) {
  leave(share(open_file(AT_FDCWD, SHARED_PATH, O_RDWR, 0))[HELD] ? 0 : ECONNREFUSED);
}
