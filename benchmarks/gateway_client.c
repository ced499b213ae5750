// A client that costs little: many keep-alive connections to one server, on one thread, with epoll.
//
//   gateway_client stream   HOST PORT BODY CONNECTIONS SECONDS COUNTER   server-sent events of endless answers
//   gateway_client requests HOST PORT BODY CONNECTIONS SECONDS COUNTER   whole answers, one after another
//
// BODY is the JSON that every connection posts to /v1/chat/completions. Once every connection has had an answer,
// or the beginning of one, it prints "begin", and after SECONDS "end COUNT MICROSECONDS", with what came in
// between: events, or answers. COUNTER is a file of 8 bytes in which the worker reads how many have come at all.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  int socket;
  int begun;       // an answer has come, or its first event
  char last;       // the last byte read: an event's end may be cut in two
  long missing;    // bytes of the answer's body that are still to come; -1 in its head
  size_t head_size;
  char head[2048];
} Connection;

static char request[1 << 16];
static size_t request_size;
static char buffer[1 << 18];

static void fail(const char* what) {
  fprintf(stderr, "gateway_client: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int64_t microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void ask(Connection* connection) {
  if (write(connection->socket, request, request_size) != (ssize_t)request_size) fail("write");
  connection->missing = -1;
  connection->head_size = 0;
}

// Events that end in the bytes read: each ends with an empty line, and only the first is not a token's.
static long events(Connection* connection, const char* data, ssize_t size) {
  long found = 0;
  const char* end = data + size;
  if (connection->last == '\n' && data[0] == '\n') ++found;
  for (const char* at = data; (at = memchr(at, '\n', end - at)) != NULL; ++at)
    if (at + 1 < end && at[1] == '\n') ++found, ++at;
  connection->last = end[-1];
  if (found && !connection->begun) {
    if (!strncmp(data, "HTTP/1.1 200", 12) || strstr(data, "data: ")) return found - 1;
    fprintf(stderr, "gateway_client: refused: %.*s\n", (int)size, data);
    exit(1);
  }
  return found;
}

// Whether an answer is complete; another request may follow it.
static int answer(Connection* connection, const char* data, ssize_t size) {
  if (connection->missing < 0) {
    if (connection->head_size + size >= sizeof connection->head) fail("a head too large");
    memcpy(connection->head + connection->head_size, data, size);
    connection->head_size += size;
    connection->head[connection->head_size] = 0;
    char* end = strstr(connection->head, "\r\n\r\n");
    if (end == NULL) return 0;
    const char* length = strstr(connection->head, "content-length: ");
    if (strncmp(connection->head, "HTTP/1.1 200", 12) || length == NULL || length > end) {
      fprintf(stderr, "gateway_client: refused: %s\n", connection->head);
      exit(1);
    }
    connection->missing = atol(length + 16);
    size = connection->head_size - (end + 4 - connection->head);
  }
  connection->missing -= size;
  return connection->missing == 0;
}

int main(int count, char** arguments) {
  if (count != 8) return fprintf(stderr, "gateway_client: expected 7 arguments\n"), 2;
  int streams = !strcmp(arguments[1], "stream");
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
  inet_pton(AF_INET, arguments[2], &address.sin_addr);
  request_size = snprintf(request, sizeof request,
                          "POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\n"
                          "content-length: %zu\r\n\r\n%s",
                          arguments[2], strlen(arguments[4]), arguments[4]);
  int connections = atoi(arguments[5]), waiting = connections;
  int64_t duration = atof(arguments[6]) * 1e6, began = 0;
  int file = open(arguments[7], O_RDWR);
  volatile int64_t* counter = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (counter == MAP_FAILED) fail("the counter");

  int epoll = epoll_create1(0);
  Connection* all = calloc(connections, sizeof *all);
  for (int i = 0; i < connections; ++i) {
    int on = 1;
    all[i].socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(all[i].socket, (struct sockaddr*)&address, sizeof address)) fail("connect");
    setsockopt(all[i].socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
    epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].socket, &event);
    ask(&all[i]);
  }
  int64_t total = 0, before = 0;
  for (;;) {
    struct epoll_event ready[512];
    int found = epoll_wait(epoll, ready, 512, 100);
    for (int i = 0; i < found; ++i) {
      Connection* connection = ready[i].data.ptr;
      ssize_t size = read(connection->socket, buffer, sizeof buffer - 1);
      if (size <= 0)
        fprintf(stderr, "gateway_client: %d of %d not begun, %lld came\n", waiting, connections, (long long)total),
            fail("a connection ended");
      buffer[size] = 0;
      long came;
      if (streams) {
        came = events(connection, buffer, size);
      } else if ((came = answer(connection, buffer, size))) {
        ask(connection);
      }
      if (came && !connection->begun) connection->begun = 1, --waiting;
      total += came;
    }
    *counter = total;
    int64_t now = microseconds();
    if (!began && !waiting) {
      began = now, before = total;
      puts("begin"), fflush(stdout);
    } else if (began && now - began >= duration) {
      printf("end %lld %lld\n", (long long)(total - before), (long long)(now - began));
      return 0;
    }
  }
}
