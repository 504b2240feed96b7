import type { Socket } from 'node:net';

/**
 * Breaks a connection off by a reset, or closes it where its end was already sent: there Node's own call fails (EINVAL of
 * `uv_tcp_close_reset`) and leaves its handle open, and the process spins at its end for ever.
 */
export function resetConnection(socket: Socket | null | undefined): void {
  if (socket?.writableEnded) socket.destroy();
  else socket?.resetAndDestroy();
}
