// The model server of the bench where a C compiler is: it answers each POST with one canned chat completion, and GET /count with
// how many it has given. One thread, keep-alive connections, bodies by Content-Length; no streams, pauses or errors, which
// mock-upstream.ts has.
//   mock-upstream PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 8192, READ_BYTES = 1 << 18, EVENTS = 256 };

struct connection {
  int socket;
  int head_length;  // Bytes of the head so far.
  long body_left;   // Bytes of the body that have not come.
  int is_count;     // The request is GET /count.
  char head[HEAD_BYTES];
};

static const char COMPLETION[] =
    "{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"mock-1\",\"choices\":[{\"index\":0,"
    "\"message\":{\"role\":\"assistant\",\"content\":\"Hello from the mock.\"},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":5,\"total_tokens\":17}}";
static long completions;
static char bytes[READ_BYTES];

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void answer(struct connection *to) {
  char body[512], response[1024];
  if (to->is_count) snprintf(body, sizeof body, "%ld", completions);
  else {
    completions++;
    memcpy(body, COMPLETION, sizeof COMPLETION);
  }
  int length = snprintf(response, sizeof response,
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
                        "Content-Length: %zu\r\n\r\n%s",
                        strlen(body), body);
  // An answer is smaller than the buffer of a socket whose client waits for it, so it is taken whole.
  if (write(to->socket, response, length) != length && errno != EPIPE && errno != ECONNRESET) fail("write");
}

// Takes in what has come on a connection, and answers each request that is whole. Returns 0 if a head is too long.
static int take(struct connection *from, char *at, long left) {
  while (left > 0) {
    if (from->body_left > 0) {
      long taken = left < from->body_left ? left : from->body_left;
      from->body_left -= taken;
      at += taken;
      left -= taken;
    } else {
      int before = from->head_length, room = HEAD_BYTES - 1 - before;
      if (room == 0) return 0;
      int copied = left < room ? (int)left : room;
      memcpy(from->head + before, at, copied);
      from->head[from->head_length += copied] = 0;
      // The end of the head may have begun in an earlier piece.
      char *end = strstr(from->head + (before > 3 ? before - 3 : 0), "\r\n\r\n");
      long used = end ? end + 4 - from->head - before : copied;
      at += used;
      left -= used;
      if (!end) continue;
      *end = 0;
      char *length = strcasestr(from->head, "content-length:");
      from->body_left = length ? atol(length + strlen("content-length:")) : 0;
      from->is_count = strncmp(from->head, "GET ", 4) == 0;
      from->head_length = 0;
    }
    if (from->head_length == 0 && from->body_left == 0) answer(from);
  }
  return 1;
}

int main(int count, char **arguments) {
  if (count != 2) return fputs("mock-upstream PORT\n", stderr), 2;
  signal(SIGPIPE, SIG_IGN); // A client that has gone is seen by its read.
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) fail("listen");
  int epoll = epoll_create1(0);
  struct epoll_event interest = {.events = EPOLLIN}, ready[EVENTS]; // Without data: the listener.
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &interest);
  for (;;) {
    int events = epoll_wait(epoll, ready, EVENTS, -1);
    for (int i = 0; i < events; i++) {
      struct connection *it = ready[i].data.ptr;
      if (!it) {
        int accepted = accept4(listener, 0, 0, SOCK_NONBLOCK);
        if (accepted < 0) continue;
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (!(it = calloc(1, sizeof *it))) fail("calloc");
        it->socket = accepted;
        struct epoll_event readable = {.events = EPOLLIN, .data.ptr = it};
        epoll_ctl(epoll, EPOLL_CTL_ADD, accepted, &readable);
        continue;
      }
      long length = read(it->socket, bytes, sizeof bytes);
      if (length < 0 && errno == EAGAIN) continue;
      if (length <= 0 || !take(it, bytes, length)) {
        close(it->socket);
        free(it);
      }
    }
  }
}
