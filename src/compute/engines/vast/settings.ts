import * as v from 'valibot';
import { secret } from '../../../base/secret.ts';
import type { Backend, Surroundings } from '../../backend.ts';
import { noEgress } from '../../kit/egress.ts';
import { CLOUD_PROVISION_SECONDS, whole } from '../../kit/fields.ts';

/** Machines rented at Vast: the settings, the notes for the operator, and how the backend is opened. */

/** It has what every lease needs (a shell, Python and the CUDA runtime), and many of Vast's hosts have it already. */
const VAST_IMAGE = 'pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime';

const Vast = v.strictObject({
  backend: v.literal('vast'),
  api_key: secret(v.pipe(v.string(), v.minLength(8))),
  base_url: v.optional(
    v.pipe(
      v.string(),
      v.maxLength(500),
      v.check((it) => /^https?:\/\/[^\s'?#]+$/.test(it) && URL.canParse(it), 'not an http:// or https:// address'),
      v.transform((it) => it.replace(/\/+$/, '')),
    ),
    'https://console.vast.ai',
  ),
  /** The percentage added to Vast's price. It has to cover bandwidth, which Vast bills separately. At most two decimals. */
  markup_percent: v.optional(
    v.pipe(
      v.number(),
      v.minValue(0),
      v.maxValue(1000),
      v.check((it) => Number(it.toFixed(2)) === it, 'has more than two decimals'),
    ),
    0,
  ),
  image: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(300)), VAST_IMAGE),
  egress: noEgress('a machine is in the network of Vast’s host, which Purser does not filter'),
  runtype: v.optional(v.picklist(['ssh_direct', 'ssh_proxy']), 'ssh_direct'),
  provision_seconds: v.optional(whole(60, 86_400), CLOUD_PROVISION_SECONDS),
});

export const slots = { provider_three: Vast };
export type VastSettings = v.InferOutput<typeof Vast>;

export function notes({ markup_percent: markup }: VastSettings): string[] {
  return [
    'the deadline is kept by Purser, and while it is down by a watchdog in the machine, where the tenant is root',
    ...(markup === 0 ? ['Vast bills traffic apart, and markup_percent is 0: nobody pays you for it'] : []),
  ];
}

export async function open(settings: VastSettings, { leases, now }: Surroundings): Promise<Backend> {
  const { openVastBackend } = await import('./vast.ts');
  return openVastBackend(settings, { leases, now });
}
