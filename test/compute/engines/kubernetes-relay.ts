// Runs inside a test cluster's network namespace. Passes connections from a Unix socket, which has a name in the file system
// and so is reachable from other network namespaces, to an address inside. Ends with its standard input.
import { connect, createServer } from 'node:net';

const [socket, port, host = '127.0.0.1'] = process.argv.slice(2);
const server = createServer({ allowHalfOpen: true }, (near) => {
  const far = connect({ host, port: Number(port), allowHalfOpen: true });
  for (const [it, other] of [
    [near, far],
    [far, near],
  ] as const) {
    it.on('error', () => {});
    it.once('close', () => other.destroy());
    it.pipe(other);
  }
});
server.listen(socket, () => process.stdout.write('ready\n'));
process.stdin.resume().once('end', () => process.kill(process.pid));
