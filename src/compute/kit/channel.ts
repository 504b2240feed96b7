import type { Client, ClientChannel } from 'ssh2';
import { contain } from '../../net/contain.ts';
import { takesPackets } from '../../net/ssh-algorithms.ts';
import type { SessionOrder } from '../backend.ts';
import { nameOfSignal } from '../machine/shell.ts';

/** The milliseconds that a line may wait for a channel, and for the machine to take it. Below the grace of a command's time limit. */
export const BEGIN_MILLISECONDS = 15_000;
const BLANK = 0x20;

/** The machine received nothing of the request, and never will. */
export class NeverSent extends Error {}
/** The machine opens no further channel on this connection. */
export class ChannelRefused extends NeverSent {}

/** A line that runs on a machine. */
export type RunningLine = {
  channel: ClientChannel;
  /** Resolves when the line ends. Rejects when its channel or its connection was lost, so that the end is unknown. */
  ended: Promise<{ code: number } | { signal: string }>;
  /** Closes the channel, and discards further output. Rejects `ended` with `error` if the line still runs. */
  close(error?: Error): void;
};

/** Runs lines of shell on a machine, each on a channel of its own. */
export type Channels = {
  /** Begins a line. Throws NeverSent if the machine received nothing, another Error if it may have. */
  begin(line: string, terminal?: SessionOrder['terminal']): Promise<RunningLine>;
};

/** The end of a channel: it was never opened, its line has ended, or it was left before that. */
export type Fate = 'refused' | 'ended' | 'left';

/** Runs a line on a channel of `client`. `over` is called once, when the channel has ended. Throws as `begin` does. */
export function openChannel(
  client: Client,
  line: string,
  {
    terminal,
    milliseconds = BEGIN_MILLISECONDS,
    onEnd = () => {},
  }: { terminal?: SessionOrder['terminal']; milliseconds?: number; onEnd?: (fate: Fate) => void } = {},
): Promise<RunningLine> {
  const { promise, resolve, reject } = Promise.withResolvers<RunningLine>();
  const end = Promise.withResolvers<{ code: number } | { signal: string }>();
  end.promise.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  const pty = terminal && { term: terminal.term, cols: terminal.columns, rows: terminal.rows, width: 0, height: 0 };
  const text = Buffer.from(line);
  let isSent = false;
  let hasEnded = false;
  let isLate = false;
  let cause: Error | undefined;

  const fail = (reason: string) => reject(new (isSent ? Error : NeverSent)(reason, { cause }));
  const note = (error: Error) => {
    cause = error;
  };
  const lost = () => {
    fail(LOST);
    end.reject(new Error(LOST, { cause }));
    finish('left');
  };
  function finish(fate: Fate) {
    clearTimeout(late);
    client.off('error', note).off('close', lost);
    if (hasEnded && fate === 'left') onEnd('ended');
    else onEnd(fate);
    onEnd = () => {};
  }
  const late = setTimeout(() => {
    isLate = true;
    // Should the channel be opened after all, a blank line is sent on it.
    if (!isSent) text.fill(BLANK);
    fail(`the machine did not answer within ${milliseconds / 1000} s`);
  }, milliseconds);

  client.on('error', note).once('close', lost);
  const options = {
    // ssh2 reads this when the channel is open, right before it sends the first request on it.
    get pty() {
      isSent = true;
      return pty;
    },
  };
  function begun(error: (Error & { reason?: unknown }) | undefined, channel: ClientChannel): void {
    clearTimeout(late);
    if (error) {
      note(error);
      const isRefused = typeof error.reason === 'number' && !isSent;
      if (isRefused) reject(new ChannelRefused(`the machine opens no channel: ${error.message}`));
      else fail(error.message);
      finish(isRefused ? 'refused' : 'left');
      return;
    }
    for (const it of [channel, channel.stderr]) contain(it, (thrown) => client.emit('error', thrown));
    channel.on('error', (thrown: Error) => end.reject(thrown));
    channel.once('exit', (code: number | null, signal?: string) => {
      hasEnded = true;
      end.resolve(typeof code === 'number' ? { code } : { signal: nameOfSignal(signal ?? 'KILL') });
    });
    channel.once('close', () => {
      end.reject(new Error('the machine closed the channel'));
      finish('left');
    });
    const close = (reason = new Error('it was not waited for')) => {
      end.reject(reason);
      for (const it of [channel, channel.stderr]) it.removeAllListeners('data').resume();
      channel.close();
    };
    if (isLate) close();
    else if (takesPackets(channel)) resolve({ channel, ended: end.promise, close });
    else {
      fail('the machine takes no packets of a usable size');
      client.destroy();
    }
  }
  try {
    // A buffer is sent as it is at that moment; the types of ssh2 do not have it.
    client.exec(text as unknown as string, options as { pty?: never }, begun);
  } catch (error) {
    note(error as Error);
    lost();
  }
  return promise;
}

const LOST = 'the connection to the machine was lost';

/** Runs every line on this one connection. */
export const channelsOf = (client: Client): Channels => ({
  begin: (line, terminal) => openChannel(client, line, { terminal }),
});

/** Runs every line on a connection of its own, which ends with it. */
export const separateChannels = (connect: () => Promise<Client>): Channels => ({
  async begin(line, terminal) {
    const client = await connect();
    return openChannel(client, line, { terminal, onEnd: () => client.end() });
  },
});
