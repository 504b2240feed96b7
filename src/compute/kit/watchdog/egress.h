/*
 * The way out of a lease without a network: a part of watchdog.c. It listens on loopback, and carries every connection over its
 * input and output, on which Purser's proxy answers (src/egress/line.ts has the other side, and checks all that comes from here).
 *
 * A frame is its kind, the number of its stream, the length of its content in two bytes, and the content:
 *
 *   OPEN    out      a connection was accepted
 *   DATA    both     its bytes
 *   END     both     no more bytes will come this way
 *   CLOSE   both     this side is done with the stream. Its number is free once both have said so
 *   CREDIT  both     four bytes: so much more may come. Each way begins with WINDOW. Out, a frame costs PIECE_COST as well,
 *                    so that many small pieces fill no memory
 *   PING    both     out: it listens; in, and the answer to it: nothing else has to be said
 *
 * The program ends with its input, and when nothing has come for SILENCE: nobody owns it then.
 */

enum { OPEN = 1, DATA, END, CLOSED, CREDIT, PING };

#define HEAD_BYTES 4
#define STREAMS 64
#define WINDOW 65536
#define PIECE_BYTES 16384
#define PIECE_COST 256
#define SILENCE (60 * MILLISECONDS)

static struct stream {
  /* 0: the number is free, or the connection is closed. */
  int fd;
  char has_opened, has_closed, is_closed_there, out_ended, in_ended;
  /* What may still be said, and what was taken and not yet credited. */
  long credit, taken;
  /* The bytes that the connection has not taken: `count` of them from `at`, around the end. */
  long at, count;
  unsigned char bytes[WINDOW];
} streams[STREAMS];

static void say(long kind, long stream, const unsigned char *content, long length) {
  static unsigned char frame[HEAD_BYTES + PIECE_BYTES];
  frame[0] = kind;
  frame[1] = stream;
  frame[2] = length >> 8;
  frame[3] = length & 255;
  for (long i = 0; i < length; i++) frame[HEAD_BYTES + i] = content[i];
  for (long at = 0; at < HEAD_BYTES + length;)
    at += must(kernel(WRITE, 1, (long)(frame + at), HEAD_BYTES + length - at, 0, 0, 0));
}

/* Ends the connection of a stream, at once. */
static void drop(long number) {
  struct stream *it = &streams[number];
  if (it->fd) kernel(CLOSE, it->fd, 0, 0, 0, 0, 0);
  it->fd = 0;
  it->count = it->taken = 0;
  if (!it->has_closed) say(CLOSED, number, 0, 0);
  it->has_closed = 1;
  if (it->is_closed_there) it->has_opened = 0;
}

/* Ends it if both sides have said everything. */
static void drop_if_done(long number) {
  struct stream *it = &streams[number];
  if (it->in_ended && !it->count && (it->out_ended || it->is_closed_there)) drop(number);
}

static void take_connection(long listener) {
  long fd = kernel(ACCEPT4, listener, 0, 0, SOCK_CLOEXEC, 0, 0);
  if (fd < 0) return;
  for (long number = 0; number < STREAMS; number++) {
    struct stream *it = &streams[number];
    if (it->has_opened) continue;
    it->fd = fd;
    it->has_opened = 1;
    it->has_closed = it->is_closed_there = it->out_ended = it->in_ended = 0;
    it->credit = WINDOW;
    it->taken = it->at = it->count = 0;
    return say(OPEN, number, 0, 0);
  }
  kernel(CLOSE, fd, 0, 0, 0, 0, 0); /* Not reached: it is asked for a connection only if a number is free. */
}

/* Sends on what came for a connection, as far as that takes it, and credits it. */
static void pass_in(long number) {
  struct stream *it = &streams[number];
  while (it->fd && it->count) {
    long whole = it->at + it->count > WINDOW ? WINDOW - it->at : it->count;
    long count = kernel(SENDTO, it->fd, (long)(it->bytes + it->at), whole, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
    if (count == -EAGAIN) break;
    if (count < 0) return drop(number);
    it->at = (it->at + count) % WINDOW;
    it->count -= count;
    it->taken += count;
  }
  if (it->fd && it->in_ended && !it->count) kernel(SHUTDOWN, it->fd, SHUT_WR, 0, 0, 0, 0);
  if (it->taken && !it->in_ended && (!it->count || it->taken >= PIECE_BYTES)) {
    unsigned char amount[4] = {0, it->taken >> 16, it->taken >> 8, it->taken};
    say(CREDIT, number, amount, sizeof amount);
    it->taken = 0;
  }
  drop_if_done(number);
}

/* Says what a connection has sent. */
static void pass_out(long number) {
  static unsigned char piece[PIECE_BYTES];
  struct stream *it = &streams[number];
  long room = it->credit - PIECE_COST;
  long count = kernel(RECVFROM, it->fd, (long)piece, room < PIECE_BYTES ? room : PIECE_BYTES, MSG_DONTWAIT, 0, 0);
  if (count == -EAGAIN) return;
  if (count < 0) return drop(number);
  if (count) {
    it->credit -= count + PIECE_COST;
    return say(DATA, number, piece, count);
  }
  it->out_ended = 1;
  say(END, number, 0, 0);
  drop_if_done(number);
}

/* Takes one frame without its content, or one that has come whole: CREDIT. */
static void obey(long kind, long number, const unsigned char *content) {
  if (kind == PING) return say(PING, 0, 0, 0);
  struct stream *it = &streams[number];
  if (kind == CREDIT) it->credit += (long)content[0] << 24 | content[1] << 16 | content[2] << 8 | content[3];
  if (kind == END) it->in_ended = 1;
  if (kind == CLOSED) {
    it->is_closed_there = 1;
    /* Without an end before it, the connection was cut. */
    if (!it->in_ended || it->has_closed) return drop(number);
  }
  if (kind == END || kind == CLOSED) pass_in(number);
}

/* Takes what came over the input, in pieces of any size. */
static void hear(const unsigned char *came, long count) {
  static unsigned char head[HEAD_BYTES], content[4];
  static long has_head, left, has_content;
  for (long at = 0; at < count;) {
    if (has_head < HEAD_BYTES) {
      head[has_head++] = came[at++];
      if (has_head < HEAD_BYTES) continue;
      left = head[2] << 8 | head[3];
      has_content = 0;
      if (head[0] < DATA || head[0] > PING || head[1] >= STREAMS) leave(EPROTO);
      if (head[0] != DATA && left != (head[0] == CREDIT ? 4 : 0)) leave(EPROTO);
    }
    struct stream *it = &streams[head[1]];
    if (head[0] == DATA && it->has_opened) {
      long piece = left < count - at ? left : count - at;
      if (it->fd && (it->in_ended || piece > WINDOW - it->count)) leave(EPROTO);
      for (long i = 0; it->fd && i < piece; i++) it->bytes[(it->at + it->count++) % WINDOW] = came[at + i];
      at += piece;
      left -= piece;
      pass_in(head[1]);
    } else
      for (; left && at < count; left--, at++)
        if (has_content < 4) content[has_content++] = came[at];
    if (left) continue;
    if (head[0] == PING || (head[0] != DATA && it->has_opened)) obey(head[0], head[1], content);
    has_head = 0;
  }
}

static long listen_on(long port) {
  unsigned char address[LOOPBACK_BYTES];
  int on = 1;
  loopback(address, AF_INET, port);
  long listener = must(kernel(SOCKET, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0, 0, 0, 0));
  must(kernel(SETSOCKOPT, listener, SOL_SOCKET, SO_REUSEADDR, (long)&on, sizeof on, 0));
  must(kernel(BIND, listener, (long)address, bytes_of(AF_INET), 0, 0, 0));
  must(kernel(LISTEN, listener, STREAMS, 0, 0, 0, 0));
  return listener;
}

static void egress(long port) {
  static unsigned char came[RELAY_BYTES];
  static struct poll polled[STREAMS + 2];
  if (port < 1 || port > 65535) leave(EXIT_USAGE);
  long listener = listen_on(port);
  say(PING, 0, 0, 0);
  long heard = now(CLOCK_BOOTTIME);
  for (;;) {
    int is_full = 1;
    for (long number = 0; number < STREAMS; number++) {
      struct stream *it = &streams[number];
      if (!it->has_opened) is_full = 0;
      int wanted = (!it->out_ended && it->credit > PIECE_COST ? POLLIN : 0) | (it->count ? POLLOUT : 0);
      /* One that has said everything is looked at for its end alone; one that may not speak is left alone. */
      polled[number].fd = it->fd && (wanted || it->out_ended) ? it->fd : -1;
      polled[number].wanted = wanted;
      polled[number].found = 0;
    }
    polled[STREAMS].fd = 0;
    polled[STREAMS + 1].fd = is_full ? -1 : (int)listener;
    polled[STREAMS].wanted = polled[STREAMS + 1].wanted = POLLIN;
    polled[STREAMS].found = polled[STREAMS + 1].found = 0;
    struct time wait = {SILENCE / MILLISECONDS, 0};
    kernel(PPOLL, (long)polled, STREAMS + 2, (long)&wait, 0, SIGSET_BYTES, 0);

    for (long number = 0; number < STREAMS; number++) {
      struct stream *it = &streams[number];
      if (!polled[number].found || !it->fd) continue;
      if (polled[number].found & POLLOUT) pass_in(number);
      if (it->fd && polled[number].wanted & POLLIN && polled[number].found & ~POLLOUT) pass_out(number);
      else if (it->fd && polled[number].found & ~(POLLIN | POLLOUT)) drop(number);
    }
    if (polled[STREAMS].found) {
      long count = kernel(READ, 0, (long)came, sizeof came, 0, 0, 0);
      if (count <= 0) leave(0);
      heard = now(CLOCK_BOOTTIME);
      hear(came, count);
    } else if (now(CLOCK_BOOTTIME) - heard > SILENCE) leave(ETIMEDOUT);
    if (polled[STREAMS + 1].found) take_connection(listener);
  }
}
