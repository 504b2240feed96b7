import { existsSync, statSync } from 'node:fs';
import { findLeap, systemTime } from '../base/clock.ts';
import { gapOf, readMarks } from '../books/examine.ts';
import { enterDirectory, keyringOf, knownTimeOf, openBooks, type ReadableBooks } from '../books/open.ts';
import { isClockSynced } from '../books/time-service.ts';
import { recallBounds } from '../chat/learn.ts';
import type { CheckFinding } from '../compute/backend.ts';
import { finding, warning } from '../compute/finding.ts';
import { type Config, searchPath } from '../config/config.ts';
import { type Files, files } from '../files/data-directory.ts';
import { readReplicas } from '../files/drbd.ts';
import { readMount } from '../files/mount.ts';
import { findPrograms } from '../files/programs.ts';
import { describeReportOnly } from '../lease/report-only.ts';
import { listAccounts } from '../ledger/account.ts';
import { audit, newFault } from '../ledger/audit.ts';
import { listCheckouts } from '../ledger/checkout.ts';
import { describeFrozen } from '../ledger/frozen.ts';
import { findInstallation } from '../ledger/installation.ts';
import { type Operation, uncertainOperations } from '../ledger/operation.ts';
import { allLiveResources } from '../ledger/resource.ts';
import { readCertificate } from '../net/certificate.ts';
import { askSocket } from '../operator/ask.ts';
import { createCatalogue } from '../router/catalogue.ts';
import { readStatedModels } from '../router/stated-models.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';
import { judgeBackups } from './backups.ts';
import { judgeCertificate } from './certificate.ts';
import { examineSlots } from './compute.ts';
import { judgeFileSystem, judgeFsync, judgeReplicas, judgeSpace, measureFsync, readDisk, readSpace } from './disk.ts';
import { judgeDirectory, judgeFiles, judgeSecrets } from './files.ts';
import { judgeLeases } from './leases.ts';
import { judgeClock, judgeTools } from './machine.ts';
import { contextFault, describeLearned } from './models.ts';
import { examineServer, judgeLimits, type ServerExamination } from './server.ts';
import { examineServices } from './services.ts';
import { examineStart, findSettings } from './settings.ts';
import { tryUpstream } from './upstream.ts';

/** A healthy server answers within milliseconds; a busy machine may take seconds. */
const SERVER_MILLISECONDS = 10_000;
const CLOCK_SECONDS = 60;
/** The largest database that is verified as a whole here, which takes some seconds. */
const READ_BYTES_MAX = 256 * 1024 * 1024;
/** SQLite checkpoints the log long before this size, unless a long-running reader prevents it. */
const LOG_BYTES_MAX = 128 * 1024 * 1024;
/** Checkouts in trouble that are older are no longer reported. */
const TROUBLE_DAYS = 30;

type RunCheck = (name: string, check: () => string | Promise<string>) => Promise<boolean>;

/**
 * Checks an installation, and returns every finding with its remedy. Changes nothing, and may run beside the server. Calls
 * only configured services. Each backend that can do so at no cost makes one machine and destroys it.
 */
export async function examine(config: Config): Promise<CheckFinding[]> {
  const findings: CheckFinding[] = [findSettings(config), ...examineStart(config)];
  /** Runs one check. An error that it throws is its finding. */
  const check: RunCheck = async (name, run) => {
    const result = await finding(name, run);
    findings.push(result);
    return result.ok;
  };
  const now = () => Math.floor(Date.now() / 1000);
  const { tls } = config;
  if (tls) await check('certificate', () => judgeCertificate(readCertificate(tls), config, now()));
  const server = await examineServer(files(config.dataDirectory).socket);
  const installationId = await examineDirectory(check, config, server);
  await check('tools', () => judgeTools(find));
  const catalogue = createCatalogue(config);
  for (const upstream of config.router.upstreams) {
    let models: ReturnType<typeof readStatedModels> = new Map();
    const { name } = upstream;
    await check(`upstream ${name}`, () =>
      tryUpstream(upstream, (answer) => {
        models = readStatedModels(answer);
      }),
    );
    for (const { id, routes } of catalogue.list)
      for (const route of routes.filter((it) => it.upstream === name && models.has(it.upstreamModel)))
        await check(`context length of ${id} on ${name}`, () => {
          const fault = contextFault(route.contextLength, models.get(route.upstreamModel));
          return fault ? warning(fault) : String(route.contextLength);
        });
  }
  findings.push(...(await examineServices(config, installationId ?? 'inst_none', now())));
  return [...findings, ...(await examineSlots(config, installationId, now, server))];
}

/** Checks the data directory and its files. Returns the installation's id, if a database has it. */
async function examineDirectory(
  check: RunCheck,
  config: Config,
  server: ServerExamination | undefined,
): Promise<string | undefined> {
  const directory = config.dataDirectory;
  let entered: Files | undefined;
  await check('data directory', async () => {
    entered = await enterDirectory(directory);
    return judgeDirectory(directory);
  });
  if (!entered) return undefined;
  const at = entered;

  await check('files', () => judgeFiles(directory));
  const mount = readMount(directory);
  await check('file system', () => judgeFileSystem(directory, mount));
  const replicas = await readReplicas(mount);
  if (replicas) await check('copies of the disk', () => judgeReplicas(replicas));
  await check('disk space', () => judgeSpace(directory, readSpace(directory, at.reserve)));
  await check('durability', () => judgeFsync(measureFsync(directory), mount, readDisk(mount)));
  await check('server', async () => {
    const signal = AbortSignal.timeout(SERVER_MILLISECONDS);
    const answer = await askSocket(at.socket, 'ledger.head', {}, signal).catch((error: Error) => {
      if (!signal.aborted) return error;
      throw new Error(
        `The server that listens on ${at.socket} does not answer. If it is suspended, resume it (kill -CONT); if it hangs, end it (kill -9) and start it again: nothing that was acknowledged is lost.`,
      );
    });
    return answer ? `running, listens on ${at.socket}` : 'not running';
  });
  await check('limits', () => (server ? judgeLimits(server.limits) : 'not known: no server answers'));

  let opened: ReadableBooks | undefined;
  await check('database', () => {
    opened = openBooks(at.database, { access: 'read' });
    const [fault] = (opened.client.pragma('quick_check(1)') as { quick_check: string }[]).map((row) => row.quick_check);
    if (fault !== 'ok') throw new Error(`${at.database} is damaged: ${fault}. Restore the newest backup.`);
    return `${at.database}, ${Math.ceil(statSync(at.database).size / 1024)} KiB, whole; every commit is synced`;
  });
  if (!opened) return undefined;
  using books = opened;
  return await examineBooks(check, books, at, config, server);
}

const WHAT_NOW = 'Restore the newest good backup, or accept the loss: purser serve --accept-loss';
const find = (name: string) => findPrograms(name, searchPath());

/** Checks the books and their settings. Returns the installation's id. */
async function examineBooks(
  check: RunCheck,
  books: ReadableBooks,
  at: Files,
  config: Config,
  server: ServerExamination | undefined,
): Promise<string | undefined> {
  const { client, read } = books;
  await check('journal', async () => {
    const marks = await readMarks(at);
    const gap = gapOf(books, marks);
    if (gap) throw new Error(`${gap}. ${WHAT_NOW}`);
    if (marks.tip === undefined && existsSync(at.tip) && statSync(at.tip).size)
      return warning(
        `the newest entries follow each other and ledger.head agrees, but ledger.tip is damaged: it cannot show that the last second is there. The next commit writes it anew; check the disk, and run \`purser ledger verify\`.`,
      );
    return 'the newest entries follow each other; ledger.head and ledger.tip agree';
  });
  await check('books', () => {
    const bytes = statSync(at.database).size;
    if (bytes > READ_BYTES_MAX)
      return `not verified here: it has ${Math.round(bytes / 1024 / 1024)} MiB; \`purser ledger verify\` does it, and the server every day`;
    const { entries, problems, faults } = audit(client);
    const fault = newFault(read, { problems, faults });
    if (fault) throw new Error(`${fault}. \`purser ledger verify\` names all. ${WHAT_NOW}`);
    if (faults)
      return warning(
        `${faults} faults, all accepted by \`purser serve --accept-loss\`. \`purser ledger verify\` names them.`,
      );
    return `all ${entries} entries are chained and add up, and every checksum fits`;
  });
  await check('log', () => {
    const bytes = statSync(`${at.database}-wal`, { throwIfNoEntry: false })?.size ?? 0;
    const text = `the write-ahead log has ${Math.ceil(bytes / 1024)} KiB`;
    if (bytes > LOG_BYTES_MAX)
      return warning(
        `${text}: a long-running reader keeps SQLite from checkpointing it. Look for a Litestream or sqlite3 that hangs (lsof ${at.database}).`,
      );
    return text;
  });
  const names = new Set(listAccounts(read).map(({ name }) => name));
  for (const name of Object.keys(config.accounts).filter((it) => !names.has(it)))
    await check(`accounts.${name}`, () =>
      warning(`there is no account of this name: what is set for it has no effect. \`purser account list\` shows all.`),
    );
  await check('master key', () => {
    const { given, current } = keyringOf(read, config.masterKey);
    const from = `from the ${config.masterKey.from}`;
    if (current.id === given.id) return `${given.id}, ${from}`;
    return warning(
      `${given.id}, ${from}, which has been rotated since: anybody who has it can open the new one, ${current.id}. Put the new key in its place, or run \`purser master-key rotate\` again if it was lost.`,
    );
  });
  await check('secrets', () => judgeSecrets(config));
  return await examineBusiness(check, books, at, config, server);
}

/** Checks the rows of the books: leases, backups, freezes, the time, and what waits for the operator. */
async function examineBusiness(
  check: RunCheck,
  { read }: ReadableBooks,
  at: Files,
  config: Config,
  server: ServerExamination | undefined,
): Promise<string | undefined> {
  await check('leases', () => {
    const reportOnly = describeReportOnly(read);
    if (reportOnly) throw new Error(`${reportOnly.sentence}. Review it with: purser resource reconcile`);
    return judgeLeases(allLiveResources(read), Math.floor(Date.now() / 1000));
  });
  const { backup } = config;
  const { installationId } = findInstallation(read) ?? {};
  if (backup && installationId)
    await check('backups', () => judgeBackups(backup, installationId, Math.floor(Date.now() / 1000), server));
  await check('frozen', () => {
    const frozen = describeFrozen(read, Math.floor(Date.now() / 1000));
    return frozen
      ? warning(`${frozen}. End it with: purser unfreeze, purser wallet unfreeze, purser account resume`)
      : 'nothing';
  });
  await check('clock', async () => {
    const now = Date.now() / 1000;
    const leap = findLeap(now, knownTimeOf(read, at), systemTime.boot?.());
    return judgeClock(leap, await isClockSynced(now));
  });
  await check('uncertain operations', () => {
    const waiting = uncertainOperations(read, Number.MAX_SAFE_INTEGER);
    return judgeUncertain(waiting, config.router, Math.floor(Date.now() / 1000));
  });
  await check('checkouts', () => {
    const since = Math.floor(Date.now() / 1000) - TROUBLE_DAYS * 86_400;
    const [newest] = listCheckouts(read, { trouble: true }).filter((it) => it.createdAt > since);
    if (newest)
      throw new Error(
        `${newest.id} is ${newest.status} (${newest.lastError ?? 'no error was reported'}): nothing was credited. Check its payment, then run: purser checkout list --trouble`,
      );
    return 'none needs the operator';
  });
  await check('prompt bounds', () => {
    const catalogue = createCatalogue(config);
    const now = Math.floor(Date.now() / 1000);
    recallBounds(read, catalogue, now);
    const learned = catalogue.list.flatMap(({ id, routes }) =>
      routes.flatMap((route) => {
        const text = describeLearned(route, now);
        return text ? [`${id} on ${route.upstream}: ${text}`] : [];
      }),
    );
    return learned.length ? warning(learned.join(' ')) : 'no count was above its bound';
  });
  return installationId;
}

/**
 * Describes how operations of unknown outcome, given oldest first, will be resolved: those of models by a policy, those of leases
 * only by the backend's evidence (design 2.9). Throws where a policy is overdue at `now`, Unix seconds.
 */
export function judgeUncertain(
  waiting: readonly Pick<Operation, 'id' | 'resourceId' | 'uncertainAt' | 'subject' | 'usage'>[],
  router: Config['router'],
  now: number,
): string {
  const model = waiting.find((it) => it.resourceId === null);
  const lease = waiting.find((it) => it.resourceId !== null);
  const seconds = model ? now - (model.uncertainAt as number) : 0;
  if (model && seconds > uncertainPolicyOf(router, model).after_seconds + CLOCK_SECONDS)
    throw new Error(
      `${model.id} has waited ${seconds} s for its policy. Make sure that the server is running, or run: purser operation resolve`,
    );
  const parts = [
    ...(model ? [`oldest of a model ${model.id}; its policy will resolve it`] : []),
    ...(lease
      ? [`oldest of a lease ${lease.id}; what its backend shows will resolve it, or: purser operation resolve`]
      : []),
  ];
  return parts.join('; ') || 'none';
}
