import type { RouterConfig } from '../config/router.ts';

/**
 * Returns for how many seconds a stream of an upstream goes on when the last of its clients has gone; undefined where it is
 * finished all the same.
 */
export function graceOf(
  { upstreams, on_cancel: standard, cancel_grace_seconds: seconds }: Omit<RouterConfig, 'models' | 'uncertain'>,
  upstream: string,
): number | undefined {
  const own = upstreams.find(({ name }) => name === upstream)?.on_cancel;
  return (own ?? standard) === 'stop' ? seconds : undefined;
}
