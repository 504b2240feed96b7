import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { dirname, resolve } from 'node:path';
import type { ConnectionOptions } from 'node:tls';
import * as v from 'valibot';
import { parse } from 'yaml';
import { parseJson } from '../../../base/parse-json.ts';

/**
 * The address of a cluster's API server, and Purser's credentials there: from a kubeconfig file, or from the service account of
 * Purser's own pod. Files are read again after a minute, or when the server refused their credentials, since tokens and
 * certificates rotate. No message contains a secret.
 */

/** The proofs of a connection: the credentials of the client, and those that the server must present. */
export type Credentials = { token: string | undefined; tls: ConnectionOptions };
export type Cluster = {
  /** The address of the API server, without a slash at its end. */
  server: string;
  /** Returns the current credentials. Throws when there are none. */
  credentials(): Promise<Credentials>;
  /** Makes the next request read them again: the server refused these. */
  renew(): void;
};

const ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';
const KEPT_SECONDS = 60;
const PLUGIN_MILLISECONDS = 30_000;
const PLUGIN_BYTES_MAX = 1024 * 1024;
/** Credentials of a plugin are requested again this long before they expire. */
const EARLY_SECONDS = 30;

const text = v.pipe(v.string(), v.minLength(1));
const optionalText = v.nullish(v.string());
const ClusterEntry = v.object({
  server: v.pipe(text, v.regex(/^https?:\/\/[^\s?#]+$/, 'is not an http:// or https:// address')),
  'certificate-authority': optionalText,
  'certificate-authority-data': optionalText,
  'insecure-skip-tls-verify': v.nullish(v.boolean()),
  'tls-server-name': optionalText,
  'proxy-url': optionalText,
});
const Plugin = v.object({
  apiVersion: v.nullish(v.string(), 'client.authentication.k8s.io/v1'),
  command: text,
  args: v.nullish(v.array(v.string()), []),
  env: v.nullish(v.array(v.object({ name: text, value: v.string() })), []),
  provideClusterInfo: v.nullish(v.boolean()),
});
const UserEntry = v.object({
  token: optionalText,
  tokenFile: optionalText,
  'client-certificate': optionalText,
  'client-certificate-data': optionalText,
  'client-key': optionalText,
  'client-key-data': optionalText,
  exec: v.nullish(Plugin),
});
const Context = v.object({ cluster: text, user: v.nullish(v.string(), '') });
const Kubeconfig = v.object({
  'current-context': optionalText,
  clusters: v.nullish(v.array(v.object({ name: text, cluster: ClusterEntry })), []),
  users: v.nullish(v.array(v.object({ name: text, user: v.nullish(UserEntry, {}) })), []),
  contexts: v.nullish(v.array(v.object({ name: text, context: Context })), []),
});
const ExecCredential = v.object({
  kind: v.literal('ExecCredential'),
  status: v.object({
    expirationTimestamp: optionalText,
    token: optionalText,
    clientCertificateData: optionalText,
    clientKeyData: optionalText,
  }),
});
type ClusterSettings = v.InferOutput<typeof ClusterEntry>;
type UserSettings = v.InferOutput<typeof UserEntry>;
type PluginSettings = v.InferOutput<typeof Plugin>;
type ExpiringCredentials = Credentials & { until?: number };

/** Reads where the cluster is. `now` is in Unix seconds. Throws an Error that names the fault of the file. */
export async function readCluster(
  { kubeconfig, context }: { kubeconfig?: string | undefined; context?: string | undefined },
  now: () => number,
): Promise<Cluster> {
  if (kubeconfig === undefined) return ownCluster(now);
  const { server } = (await readKubeconfig(kubeconfig, context)).cluster;
  return keep(server, now, async () => {
    const { cluster, user } = await readKubeconfig(kubeconfig, context);
    if (cluster.server !== server) throw new Error(`${kubeconfig} names another server than before: restart Purser`);
    return credentialsOf(dirname(kubeconfig), cluster, user);
  });
}

/** Returns the cluster of the pod that Purser runs in. */
function ownCluster(now: () => number): Cluster {
  const { KUBERNETES_SERVICE_HOST: host, KUBERNETES_SERVICE_PORT: port = '443' } = process.env;
  if (!host) throw new Error('Purser does not run in a pod: name a kubeconfig');
  return keep(`https://${isIP(host) === 6 ? `[${host}]` : host}:${port}`, now, async () => {
    const [token, ca] = await Promise.all([
      readFile(`${ACCOUNT}/token`, 'utf8').catch(() => {
        throw new Error(`${ACCOUNT}/token cannot be read: give Purser's pod a service account with its token`);
      }),
      readFile(`${ACCOUNT}/ca.crt`),
    ]);
    return { token: token.trim(), tls: { ca } };
  });
}

/** Keeps what `read` returns. Concurrent callers share one reading. */
function keep(server: string, now: () => number, read: () => Promise<ExpiringCredentials>): Cluster {
  let held: { reading: Promise<ExpiringCredentials>; until: number } | undefined;
  return {
    server: server.replace(/\/+$/, ''),
    renew() {
      held = undefined;
    },
    async credentials() {
      if (!held || held.until <= now()) {
        const mine = { reading: read(), until: now() + KEPT_SECONDS };
        held = mine;
        mine.reading.then(
          ({ until }) => {
            if (until !== undefined) mine.until = until - EARLY_SECONDS;
          },
          () => {
            if (held === mine) held = undefined;
          },
        );
      }
      return held.reading;
    },
  };
}

async function readKubeconfig(path: string, context: string | undefined) {
  const source = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new Error(`${path} cannot be read (${error.code})`);
  });
  let config: v.InferOutput<typeof Kubeconfig>;
  try {
    config = v.parse(Kubeconfig, parse(source));
  } catch (error) {
    // The parser's own message may quote a line, and so a secret.
    const where = error instanceof v.ValiError ? `: ${v.getDotPath(error.issues[0]) ?? ''} ${error.message}` : '';
    throw new Error(`${path} is not a kubeconfig file${where}`);
  }
  const wanted = context ?? config['current-context'];
  const find = <T extends { name: string }>(what: string, list: readonly T[], name: string | null | undefined): T => {
    const match = list.find((it) => it.name === name);
    if (!match) throw new Error(`${path} has no ${what} ${JSON.stringify(name ?? '')}`);
    return match;
  };
  const { context: at } = find('context', config.contexts, wanted);
  const { cluster } = find('cluster', config.clusters, at.cluster);
  if (cluster['proxy-url']) throw new Error(`${path}: proxy-url is not supported`);
  const { user } = at.user ? find('user', config.users, at.user) : { user: {} };
  return { cluster, user };
}

async function credentialsOf(
  folder: string,
  cluster: ClusterSettings,
  user: UserSettings,
): Promise<ExpiringCredentials> {
  const bytes = async (data: string | null | undefined, file: string | null | undefined) => {
    if (data) return Buffer.from(data, 'base64');
    if (!file) return undefined;
    return readFile(resolve(folder, file)).catch((error: NodeJS.ErrnoException) => {
      throw new Error(`${file} cannot be read (${error.code})`);
    });
  };
  const ca = await bytes(cluster['certificate-authority-data'], cluster['certificate-authority']);
  const serverName = cluster['tls-server-name'];
  const toServer: ConnectionOptions = {
    ...(ca ? { ca } : {}),
    ...(serverName ? { servername: serverName } : {}),
    ...(cluster['insecure-skip-tls-verify'] ? { rejectUnauthorized: false } : {}),
  };
  if (user.exec) return askPlugin(folder, user.exec, { server: cluster.server, ca, tls: toServer });
  const cert = await bytes(user['client-certificate-data'], user['client-certificate']);
  const key = await bytes(user['client-key-data'], user['client-key']);
  const token = user.token || (await bytes(undefined, user.tokenFile))?.toString().trim();
  return { token: token || undefined, tls: { ...toServer, ...(cert && key ? { cert, key } : {}) } };
}

/** Runs the plugin that a kubeconfig names (KEP-541). It gets PATH, HOME and the variables of the file, nothing of Purser's. */
async function askPlugin(
  folder: string,
  { command, args, env, apiVersion, provideClusterInfo }: PluginSettings,
  { server, ca, tls }: { server: string; ca: Buffer | undefined; tls: ConnectionOptions },
): Promise<ExpiringCredentials> {
  const info = { server, 'certificate-authority-data': ca?.toString('base64') };
  const spec = { interactive: false, ...(provideClusterInfo ? { cluster: info } : {}) };
  const { PATH = '/usr/local/bin:/usr/bin:/bin', HOME = '/' } = process.env;
  const output = await new Promise<string>((done, fail) => {
    execFile(
      command.includes('/') ? resolve(folder, command) : command,
      args,
      {
        env: {
          ...{ PATH, HOME },
          ...Object.fromEntries(env.map((it) => [it.name, it.value])),
          KUBERNETES_EXEC_INFO: JSON.stringify({ kind: 'ExecCredential', apiVersion, spec }),
        },
        timeout: PLUGIN_MILLISECONDS,
        killSignal: 'SIGKILL',
        maxBuffer: PLUGIN_BYTES_MAX,
      },
      (error, stdout) => {
        if (!error) return done(stdout);
        const why = error.killed ? `took longer than ${PLUGIN_MILLISECONDS / 1000} s` : `failed (${error.code})`;
        fail(new Error(`${command}, which the kubeconfig names, ${why}`)); // The plugin's own words may contain a secret.
      },
    );
  });
  let status: v.InferOutput<typeof ExecCredential>['status'];
  try {
    status = v.parse(ExecCredential, parseJson(output)).status;
  } catch {
    throw new Error(`${command}, which the kubeconfig names, printed no ExecCredential`);
  }
  const { token, clientCertificateData: cert, clientKeyData: key, expirationTimestamp: expires } = status;
  const until = expires ? Date.parse(expires) / 1000 : Number.POSITIVE_INFINITY;
  return {
    token: token || undefined,
    tls: { ...tls, ...(cert && key ? { cert, key } : {}) },
    ...(Number.isNaN(until) ? {} : { until }),
  };
}
