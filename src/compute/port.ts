import { Duplex, type Readable } from 'node:stream';
import { deadline } from '../net/deadline.ts';
import type { Backend, GuestSession, Ref } from './backend.ts';

/** No server listens on the port, or the machine has no program that could connect to it. The message names the cause. */
export class PortUnreachable extends Error {}

/** The line that a relay writes once it is connected. */
const CONNECTED = Buffer.from('connected\n');
/** Exit codes of a relay that is not connected: nothing listens (ECONNREFUSED), and no program that can connect. */
const CLOSED = 111;
const NO_PROGRAM = 69;
const CONNECT_MILLISECONDS = 20_000;
/** Buffer size in each direction. */
const WAITING_BYTES = 64 * 1024;
const STDERR_BYTES_MAX = 512;

/** The most bytes that a connection keeps in memory: here, in the streams of its session, and in those that it is piped to. */
export const CONNECTION_BYTES_MAX = 256 * 1024;

const PERL = `use Socket; $port = shift; $SIG{PIPE} = "IGNORE";
socket($s, PF_INET, SOCK_STREAM, 0) && connect($s, sockaddr_in($port, INADDR_LOOPBACK))
  or socket($s, PF_INET6, SOCK_STREAM, 0) && connect($s, pack_sockaddr_in6($port, "\\0" x 15 . "\\1"))
  or exit ${CLOSED};
sub copy { my ($from, $to) = @_;
  while (sysread $from, my $bytes, 65536) {
    for (my $at = 0; $at < length $bytes;) { $at += syswrite($to, $bytes, 65536, $at) || return }
  }
}
syswrite STDOUT, "connected\\n";
unless ($up = fork) { copy(STDIN, $s); shutdown $s, 1; exit }
copy($s, STDOUT); kill 9, $up;`;

const PYTHON = `import os, socket, sys, threading
for host in "127.0.0.1", "::1":
    try:
        s = socket.create_connection((host, int(sys.argv[1])), 10)
        break
    except OSError:
        pass
else:
    os._exit(${CLOSED})
s.settimeout(None)
def up():
    try:
        while True:
            piece = os.read(0, 65536)
            if not piece:
                break
            s.sendall(piece)
        s.shutdown(1)
    except OSError:
        pass
os.write(1, b"connected\\n")
threading.Thread(target=up, daemon=True).start()
try:
    while True:
        piece = s.recv(65536)
        if not piece:
            break
        while piece:
            piece = piece[os.write(1, piece):]
except OSError:
    pass
os._exit(0)`;

/** Bash cannot pass on the end of the input while it still listens. */
const BASH = `{ exec 3<>/dev/tcp/127.0.0.1/$1; } 2>/dev/null || { exec 3<>/dev/tcp/::1/$1; } 2>/dev/null || exit ${CLOSED}
echo connected
exec 4<&0
cat <&4 >&3 & up=$!
cat <&3
kill "$up" 2>/dev/null
exit 0`;

/**
 * Connects standard input and output to the port `$1` on loopback, by the program `$2` if it exists, else by the first tool of the
 * image. Those of the last group do not report a connection: the kernel's table shows whether the port has a listener. nc tries
 * 127.0.0.1 alone, and socat would end half a second after its input.
 */
const RELAY = `[ -x "$2" ] && "$2" relay 2>/dev/null && exec "$2" relay "$1"
has() { command -v "$1" >/dev/null 2>&1; }
has perl && perl -MSocket -e 1 2>/dev/null && exec perl -e '${PERL}' "$1"
has python3 && exec python3 -c '${PYTHON}' "$1"
has bash && exec bash -c '${BASH}' purser "$1"
if has socat; then set -- "$1" socat -t 86400 - "TCP:localhost:$1"
elif has nc; then set -- "$1" nc 127.0.0.1 "$1"
elif has busybox; then set -- "$1" busybox nc 127.0.0.1 "$1"
else exit ${NO_PROGRAM}; fi
listening=$(printf ':%04X 0+:0000 0A' "$1")
[ ! -r /proc/net/tcp ] || grep -qE "$listening" /proc/net/tcp /proc/net/tcp6 2>/dev/null || exit ${CLOSED}
shift
echo connected
exec "$@"`;

const relayCommand = (port: number, program = '') => `set -- ${port} '${program}'\n${RELAY}`;

/**
 * Connects to a port on loopback inside a machine. Destroying the stream ends the relay; so does the machine's end. Throws
 * PortUnreachable, and the errors of a session.
 */
export async function connectPort(backend: Backend, ref: Ref, port: number): Promise<Duplex> {
  const command = relayCommand(port, backend.guest.relay);
  const session = await backend.guest.session(ref, { command, terminal: undefined });
  session.ended.catch(() => {}); // The error reaches those who await it.
  for (const it of [session.stdin, session.stdout, session.stderr]) it?.on('error', () => {}); // `ended` reports it.
  const words = session.stderr ? begin(session.stderr) : () => '';
  const late = () => {
    throw new PortUnreachable(`The connection to port ${port} was not made within ${CONNECT_MILLISECONDS / 1000} s.`);
  };
  try {
    const first = await deadline(connected(session, port, words), CONNECT_MILLISECONDS, late);
    return streamOfSession(session, first);
  } catch (error) {
    session.kill();
    throw error;
  }
}

/** Reads a stream to its end, and keeps its beginning. */
function begin(stream: Readable): () => string {
  let text = '';
  stream.setEncoding('utf8').on('data', (piece: string) => {
    if (text.length < STDERR_BYTES_MAX) text += piece.slice(0, STDERR_BYTES_MAX);
  });
  return () => text.trim();
}

/** Waits for the relay's line. Returns the data after it. */
async function connected({ stdout, ended }: GuestSession, port: number, words: () => string): Promise<Buffer> {
  let received: Buffer = Buffer.alloc(0);
  const line = Promise.withResolvers<void>();
  const listen = () => {
    for (let piece = stdout.read(); piece !== null; piece = stdout.read()) received = Buffer.concat([received, piece]);
    if (received.length >= CONNECTED.length) line.resolve();
  };
  stdout.on('readable', listen);
  listen();
  const end = await Promise.race([line.promise, ended]);
  stdout.off('readable', listen);
  if (received.subarray(0, CONNECTED.length).equals(CONNECTED)) return received.subarray(CONNECTED.length);
  const code = end && 'code' in end ? end.code : undefined;
  if (code === CLOSED)
    throw new PortUnreachable(
      `Nothing listens on port ${port} inside the resource. Start a server there that listens on 127.0.0.1 or on all addresses.`,
    );
  if (code === NO_PROGRAM)
    throw new PortUnreachable(
      'Its image has no program that could connect to a port: it needs one of perl, python3, bash, socat and nc.',
    );
  throw new Error(
    `the relay to a port inside said: ${words() || JSON.stringify(end ?? received.toString('latin1', 0, 80))}`,
  );
}

/** Returns a session as one stream, with back-pressure both ways. `first` has already been read from it. */
function streamOfSession({ stdin, stdout, ended, kill }: GuestSession, first: Buffer): Duplex {
  let hasEnded = false;
  const stream = new Duplex({
    highWaterMark: WAITING_BYTES,
    allowHalfOpen: false, // The relay ends when its server has closed the connection.
    // A relay whose server has closed the connection takes no more, but what that server said may still have to be read.
    write: (piece: Buffer, _, done) =>
      void stdin.write(piece, (error) => (error ? void ended.then(() => done(), done) : done())),
    final(done) {
      stdin.end();
      done();
    },
    read: () => void stdout.resume(),
    destroy(error, done) {
      if (!hasEnded) kill(); // The relay must not outlive its connection.
      done(error);
    },
  });
  if (first.length) stream.push(first);
  stdout.on('data', (piece: Buffer) => stream.push(piece) || stdout.pause());
  // A machine that dies ends its relay too: only a relay that ended by itself shows that the server closed the connection.
  const broken = (cause?: unknown) => stream.destroy(new Error('the connection into the machine broke', { cause }));
  const endAs = (end: Awaited<GuestSession['ended']>) => {
    hasEnded = true;
    if ('code' in end && end.code === 0) stream.push(null);
    else broken(end);
  };
  const finish = () => void ended.then(endAs, broken);
  // A server that sends data and closes at once has ended before the listeners above were added.
  if (stdout.readableEnded) finish();
  else if (stdout.destroyed) broken();
  else {
    stdout.once('end', finish);
    stdout.once('close', () => stdout.readableEnded || broken());
  }
  ended.catch(broken);
  return stream;
}
