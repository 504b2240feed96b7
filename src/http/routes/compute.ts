import { Refusal } from '../../refusal.ts';
import {
  ComputeRequest,
  ExecRequest,
  ExecResult,
  ExtendRequest,
  Offers,
  ResourceId,
  ResourceList,
  ResourceSummary,
  SshAccess,
  UploadRequest,
  UploadResult,
} from '../../wire/compute.ts';
import { endpoint, type Reply } from '../door.ts';

// Leases come with the compute room. Until then no slot is configured, nothing is on offer, and no resource exists.

const UPLOAD_BYTES_MAX = 12 * 1024 * 1024;
const CONTENT_BYTES_MAX = 8 * 1024 * 1024;
const ID = 'res_01k9v3c2mq8r5t7w1x4z6b0d2f';
const EXAMPLE = {
  id: ID,
  provider_id: 'f3a1',
  provider: 'provider_one',
  status: 'running',
  billing_state: 'settled',
  billing_policy: 'prepaid_time',
  charged_usd: '0.025',
  reserved_usd: '0.00',
  expires_at: 1795003600,
  purchased_seconds: 3600,
  price_hourly_usd: '0.025',
  supports_extension: false,
  wallet_id: 'wal_01k9v3c2mq8r5t7w1x4z6b0d2f',
  spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 },
  created_at: 1795000000,
  ready_at: 1795000000,
  ended_at: null,
  end_reason: null,
};

/** The caller's own ids come before configuration and state (design 2.6): there is no such resource. */
function noResource(): Reply {
  throw new Refusal('not_found', 'There is no such resource.');
}

export const listOffers = endpoint({
  summary: 'List what can be leased; the spec of an offer can be posted back unchanged',
  scope: 'wallet',
  answer: Offers,
  example: { answer: { offers: [], as_of: 1795000000 } },
  run: (app) => ({ body: { offers: [], as_of: app.clock.now() } }),
});

export const listCompute = endpoint({
  summary: 'List the wallet’s resources',
  scope: 'wallet',
  answer: ResourceList,
  example: { answer: { resources: [] } },
  run: () => ({ body: { resources: [] } }),
});

export const createCompute = endpoint({
  summary: 'Prepay a fixed-duration lease',
  scope: 'wallet',
  idempotent: true,
  body: ComputeRequest,
  answer: ResourceSummary,
  refusals: ['provider_not_configured', 'wallet_closed', 'wallet_expired'],
  example: {
    body: { provider: 'provider_one', spec: { gpu: null, gpus: 0, cpus: 1, memory_gib: 1, max_seconds: 3600 } },
    answer: EXAMPLE,
  },
  run: (_, { body }) => {
    throw new Refusal('provider_not_configured', `This installation has nothing configured behind ${body.provider}.`);
  },
});

export const extendCompute = endpoint({
  summary: 'Prepay more seconds on an active lease',
  scope: 'wallet',
  idempotent: true,
  body: ExtendRequest,
  answer: ResourceSummary,
  refusals: ['not_found', 'extension_not_supported', 'resource_not_active', 'lease_limit_exceeded'],
  example: { body: { id: ID, additional_seconds: 600 }, answer: EXAMPLE },
  run: noResource,
});

export const stopCompute = endpoint({
  summary: 'Stop a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: {
    body: { id: ID },
    answer: { ...EXAMPLE, status: 'stopped', ended_at: 1795000600, end_reason: 'requested' },
  },
  run: noResource,
});

export const sshCompute = endpoint({
  summary: 'Get ssh access to a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: SshAccess,
  refusals: ['not_found', 'resource_not_active'],
  example: {
    body: { id: ID },
    answer: {
      id: ID,
      host: '127.0.0.1',
      port: 7422,
      username: ID,
      private_key: '-----BEGIN OPENSSH PRIVATE KEY-----…',
      host_key: 'ssh-ed25519 AAAA…',
      command: `ssh -p 7422 ${ID}@127.0.0.1`,
      expires_at: 1795003600,
    },
  },
  run: noResource,
});

export const readCompute = endpoint({
  summary: 'Read a resource',
  scope: 'wallet',
  body: ResourceId,
  answer: ResourceSummary,
  refusals: ['not_found'],
  example: { body: { id: ID }, answer: EXAMPLE },
  run: noResource,
});

export const execCompute = endpoint({
  summary: 'Run a command inside a resource',
  scope: 'wallet',
  body: ExecRequest,
  answer: ExecResult,
  refusals: ['not_found', 'resource_not_active'],
  example: {
    body: { id: ID, command: 'uname -s', timeout: 60 },
    answer: {
      id: ID,
      exit_code: 0,
      stdout: 'Linux\n',
      stderr: '',
      stdout_truncated: false,
      stderr_truncated: false,
      timed_out: false,
      duration_ms: 12,
    },
  },
  run: noResource,
});

export const uploadCompute = endpoint({
  summary: 'Upload a file of at most 8 MiB to a resource',
  scope: 'wallet',
  body: UploadRequest,
  bodyBytesMax: UPLOAD_BYTES_MAX,
  answer: UploadResult,
  refusals: ['not_found', 'resource_not_active'],
  example: {
    body: { id: ID, path: '/work/hello.txt', content_base64: 'aGVsbG8K' },
    answer: {
      id: ID,
      path: '/work/hello.txt',
      bytes: 6,
      sha256: '5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03',
    },
  },
  run(_, { body }) {
    if (Buffer.byteLength(body.content_base64, 'base64') > CONTENT_BYTES_MAX)
      throw new Refusal(
        'payload_too_large',
        `The content is larger than the ${CONTENT_BYTES_MAX} bytes that may be uploaded.`,
      );
    return noResource();
  },
});
