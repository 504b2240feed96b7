import * as v from 'valibot';
import { parseNested } from '../../../base/json-text.ts';

const Words = v.nullish(v.string());
const Status = v.object({
  status: Words,
  reason: Words,
  message: Words,
  details: v.nullish(v.object({ causes: v.nullish(v.array(v.object({ reason: Words, message: Words }))) })),
});

/** Parses the server's status into an exit code or a fault. */
export function parseStatus(text: string): { code?: number; fault?: string } {
  if (!text) return {};
  let parsed: v.InferOutput<typeof Status>;
  try {
    parsed = v.parse(Status, parseNested(text)?.value);
  } catch {
    return { fault: 'its status cannot be read' };
  }
  if (parsed.status === 'Success') return { code: 0 };
  const code = parsed.details?.causes?.find((it) => it.reason === 'ExitCode')?.message;
  if (parsed.reason === 'NonZeroExitCode' && code && /^\d+$/.test(code)) return { code: Number(code) };
  return { fault: parsed.message ?? parsed.reason ?? 'it failed' };
}
