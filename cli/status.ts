import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { duration, relative } from '../src/base/shown.ts';
import { describeReplicas, hasFullCopy, type Replicas } from '../src/files/drbd.ts';
import type { CommandOutput } from '../src/operator/commands.ts';
import { example, type Globals } from './context.ts';
import { print, say, show } from './report.ts';
import { terminalWidth, toned, wrap } from './terminal.ts';
import { exact } from './time.ts';

type ServerStatus = CommandOutput<'status'>;

const WATCH_MILLISECONDS = 2000;
/** Moves the cursor home and clears the screen (ECMA-48). */
const CLEAR = '\u001b[H\u001b[2J';

/** Registers `status`: one screen about the state of the installation. */
export function statusCommand(program: Command): void {
  program
    .command('status')
    .description('what is going on, on one screen; without a server, what the books say')
    .option('--watch', 'show it again every 2 seconds, until Ctrl-C')
    .addHelpText('after', example('purser status', 'purser status --watch'))
    .action(status);
}

async function status({ watch }: { watch?: boolean }, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const { json } = command.optsWithGlobals<Globals>();
  if (watch && json) return command.error('error: --watch is for people; ask for --json again yourself');
  for (;;) {
    const it = await ask(command, 'status', {});
    if (watch && process.stdout.isTTY) process.stdout.write(CLEAR);
    if (it.uptime_seconds === null && !json)
      say('No server is running on this data directory. This is what the books say:');
    if (json) print(JSON.stringify(it));
    else show(screen(it));
    if (!watch || process.stdout.errored) return;
    await sleep(WATCH_MILLISECONDS);
  }
}

const copies = (replicas: Replicas): [string, string] => {
  const says = describeReplicas(replicas);
  return ['copies', hasFullCopy(replicas) ? says : toned('warn', says)];
};

function screen(it: ServerStatus): string {
  const ago = (at: number | null) => (at === null ? 'never' : relative(at, it.clock.now, 1));
  const holds = ({ count, amount_usd, oldest_at }: ServerStatus['uncertain']) =>
    count ? `${count} with ${amount_usd} USD, the oldest ${ago(oldest_at)}` : 'none';
  const upOrDown = (up: boolean, name: string, why: string) =>
    up ? `${name} up` : `${toned('bad', `${name} DOWN`)}${why}`;
  const upstream = ({ up, name, reason, failing_since: since, failure }: ServerStatus['upstreams'][0]) => {
    const why = [up ? failure : reason, since == null ? undefined : `since ${duration(it.clock.now - since, 1)}`];
    return upOrDown(up && failure == null, name, ` (${why.filter(Boolean).join(', ')})`);
  };
  const backend = (at: ServerStatus['backends'][0]) => {
    const name = `${at.slot} ${at.backend}`;
    const state = upOrDown(at.up, name, `: ${at.failing_leases} leases fail, first ${ago(at.failing_since)}`);
    return at.warm ? `${state} (${at.warm.ready} of ${at.warm.wanted} machines warm)` : state;
  };
  const rows: [string, string][] = [
    ['version', it.version],
    ['server', it.uptime_seconds === null ? 'not running' : `up ${duration(it.uptime_seconds, 1)}`],
    ['ready', it.ready ? 'yes' : `${toned('bad', 'NO')}: ${it.reason}`],
    ['frozen', it.frozen.sentence === null ? 'no' : toned('warn', it.frozen.sentence)],
    ...(it.moved ? [movedRow(it.moved, ago)] : []),
    ['clock', `${exact(it.clock.now)}${it.clock.holds_blocked ? `, ${it.clock.holds_blocked}` : ''}`],
    ['disk', it.disk.shortage ?? `${mebibytes(it.disk.free_bytes)} free`],
    ...(it.disk.replicas ? [copies(it.disk.replicas)] : []),
    ['backup', it.backup ? `${ago(it.backup.at)}: ${it.backup.file}` : 'none noted'],
    [
      'accounts',
      `${it.accounts.count}: ${it.accounts.available_usd} USD available, ${it.accounts.in_wallets_usd} in wallets, ${it.accounts.spent_usd} spent${it.accounts.owed_usd === '0.00' ? '' : `, ${it.accounts.owed_usd} owed`}`,
    ],
    [
      'wallets',
      `${it.wallets.open} open: ${it.wallets.used_usd} of ${it.wallets.budget_usd} USD used, ${it.wallets.held_usd} held, ${it.wallets.available_usd} available`,
    ],
    [
      'holds',
      `${holds(it.holds)}${it.holds.waiting ? `; ${it.holds.waiting} requests wait for money that they hold` : ''}`,
    ],
    ['uncertain', holds(it.uncertain)],
    ['leases', leasesOf(it)],
    ['upstreams', it.upstreams.map(upstream).join(', ') || 'none'],
    ['backends', it.backends.map(backend).join(', ') || 'none'],
    [
      'faults',
      it.faults.count
        ? toned(
            'bad',
            `${it.faults.count} ${it.faults.count === 1 ? 'error has' : 'errors have'} ended one request each, the last ${ago(it.faults.last_at)} (${it.faults.last_where}): the log has ${it.faults.last_where}.failed`,
          )
        : 'none',
    ],
    ['events', it.events.waiting ? `${it.events.waiting} waiting` : 'none waiting'],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  const room = (terminalWidth() ?? Number.POSITIVE_INFINITY) - width - 2;
  const below = `\n${' '.repeat(width)}  `;
  return rows.map(([name, value]) => `${name.padEnd(width)}  ${wrap(value, room).join(below)}`).join('\n');
}

const movedRow = (
  { from, host, at, last_written_at: writtenAt }: NonNullable<ServerStatus['moved']>,
  ago: (at: number | null) => string,
): [string, string] => [
  'moved',
  `${ago(at)} from ${from ?? 'another machine'} to ${host}; last written there ${ago(writtenAt)}`,
];

function leasesOf({ leases: { live, by_status: byStatus, unreachable } }: ServerStatus): string {
  if (!live) return 'none';
  const counts = Object.entries(byStatus).map(([name, n]) => `${n} ${name}`);
  const away = unreachable.map(({ leases, engine }) => toned('warn', `${leases} unreachable on ${engine}`));
  return [`${live} live: ${counts.join(', ')}`, ...away].join('; ');
}

const mebibytes = (bytes: number) => `${(bytes / 1024 / 1024).toFixed(0)} MiB`;
