import type { ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { breakOff, DONE, event, forever, resetIt, streaming } from '../test/helper/sse.ts';
import { failure, halfBody, hang, openUpstream, reset, type UpstreamCall } from '../test/helper/upstream.ts';
import type { Chance } from './chance.ts';
import { DELIVERED_BYTES, SLOW, TOKENS_MAX } from './prices.ts';

/** The model server's record of one operation: its own count, which the books are compared with. */
export type Call = {
  /** The order's key, which is the text of the message. */
  key: string;
  model: string;
  seen: number;
  /** The calls of these that it refused. */
  refused: number;
  /** `part`: it may have worked, but the answer was not complete. */
  answered: 'no' | 'part' | 'whole';
  usage: object | undefined;
  fault: string;
};

type Asked = UpstreamCall & { id: string; usage: object | undefined };
/** A fault of one call. `answered` is what the model server records, of a request that does not stream too unless `plainly` says. */
type Fault = { answered: Call['answered']; plainly?: Call['answered']; plain: Handle; stream: Handle };
type Handle = (asked: Asked, response: ServerResponse) => unknown;

const chunk = ({ id }: Asked, choices: object[], usage?: object) =>
  event({ id, object: 'chat.completion.chunk', created: 1, choices, ...(usage === undefined ? {} : { usage }) });
const delta = (asked: Asked, content: string, reason: string | null = null) =>
  chunk(asked, [{ index: 0, delta: { content }, finish_reason: reason }]);
const begun = (asked: Asked) => [delta(asked, 'hel'), delta(asked, 'lo')];

/** A complete answer. Its id is the operation's, so that the client learns which operation it was charged for. */
const plain: Handle = ({ id, body, usage }, response) => {
  response.writeHead(200, { 'content-type': 'application/json' });
  const choices = [{ index: 0, message: { role: 'assistant', content: 'hello' }, finish_reason: 'stop' }];
  response.end(JSON.stringify({ id, object: 'chat.completion', created: 1, model: body.model, choices, usage }));
};
const stream: Handle = (asked, response) =>
  streaming(
    ...begun(asked),
    delta(asked, '', 'stop'),
    ...(asked.usage === undefined ? [] : [chunk(asked, [], asked.usage)]),
    DONE,
  )(asked, response);
const broken =
  (...end: Parameters<typeof streaming>): Handle =>
  (asked, response) =>
    streaming(...begun(asked), ...end)(asked, response);

const LATE_MILLISECONDS = 300;
const late =
  (handle: Handle): Handle =>
  async (asked, response) => {
    await sleep(LATE_MILLISECONDS);
    return handle(asked, response);
  };
const SLOW_MILLISECONDS = 1500;
/** A stream that takes so long that its client may leave. */
const slow: Handle = (asked, response) =>
  streaming(
    ...begun(asked),
    () => sleep(SLOW_MILLISECONDS),
    delta(asked, '', 'stop'),
    chunk(asked, [], asked.usage),
    DONE,
  )(asked, response);
const both = (answered: Call['answered'], handle: Handle): Fault => ({ answered, plain: handle, stream: handle });
const says = (status: number) => both('no', failure(status));
const garbage: Handle = (_, response) => void response.writeHead(200, { 'content-type': 'text/html' }).end('<html>');

const WHOLE: Fault = { answered: 'whole', plain, stream };
const FAULTS: Record<string, Fault> = {
  late: { answered: 'whole', plain: late(plain), stream: late(stream) },
  'bad usage': WHOLE,
  '429': says(429),
  '500': says(500),
  '502': says(502), // A complete error is nobody's bill, whatever was worked for it.
  '503': says(503),
  '504': both('part', failure(504)),
  '529': says(529),
  garbage: both('part', garbage),
  'half a body': { answered: 'part', plain: halfBody, stream: broken(breakOff) },
  'reset after the request': both('part', reset),
  'reset in the middle': { answered: 'part', plain: reset, stream: broken(resetIt) },
  'an error in the middle': {
    answered: 'part',
    plainly: 'no',
    plain: failure(502),
    stream: broken(event({ error: { message: 'no' } })),
  },
  'no answer': both('part', hang),
  'no end': { answered: 'part', plain: hang, stream: broken(forever) },
};
const BAD_USAGES = [
  undefined,
  {},
  { prompt_tokens: -5, completion_tokens: DELIVERED_BYTES },
  { prompt_tokens: 1.5, completion_tokens: DELIVERED_BYTES },
  { prompt_tokens: '7', completion_tokens: DELIVERED_BYTES },
  { prompt_tokens: 5, completion_tokens: 1_000_000 },
];
/** The rate of faulty calls: normally, and in a storm. */
const [EVER, STORM] = [0.06, 0.7];

export type Models = {
  url: string;
  calls: Map<string, Call>;
  /** How often each fault was caused. */
  faults: Map<string, number>;
  /** Sets how many calls fail: few (`ever`), most (`storm`) or none (`calm`). */
  weather: 'ever' | 'storm' | 'calm';
  leave(): Promise<() => Promise<void>>;
};

/** Opens the model server: a real HTTP server that fails in every way it can, and counts what it did. */
export async function openModels(t: Parameters<typeof openUpstream>[0], chance: Chance): Promise<Models> {
  const upstream = await openUpstream(t);
  const models: Models = {
    url: upstream.url,
    calls: new Map(),
    faults: new Map(),
    weather: 'ever',
    leave: () => upstream.leave(),
  };
  upstream.handle = (call, response) => {
    upstream.calls.length = 0; // It would keep all of them, and there are many.
    const rate = { ever: EVER, storm: STORM, calm: 0 }[models.weather];
    const name = chance.of(rate) ? chance.pick(Object.keys(FAULTS)) : undefined;
    const usage = { prompt_tokens: chance.whole(1, 20), completion_tokens: chance.whole(0, TOKENS_MAX) };
    const id = String(call.headers['idempotency-key']);
    const asked = { ...call, id, usage: name === 'bad usage' ? chance.pick(BAD_USAGES) : usage };
    const fault = name === undefined ? WHOLE : (FAULTS[name] as Fault);
    if (name !== undefined) models.faults.set(name, (models.faults.get(name) ?? 0) + 1);
    const [{ content }] = call.body.messages as [{ content: string }];
    const before = models.calls.get(id);
    const answered = call.body.stream ? fault.answered : (fault.plainly ?? fault.answered);
    const record: Call = {
      key: content,
      model: String(call.body.model),
      seen: (before?.seen ?? 0) + 1,
      refused: (before?.refused ?? 0) + (answered === 'no' ? 1 : 0),
      answered,
      usage: asked.usage,
      fault: name ?? 'none',
    };
    models.calls.set(id, record);
    if (fault === WHOLE && Array.isArray(call.body.stop) && call.body.stop.includes(SLOW)) {
      response.once('close', () => {
        if (!response.writableFinished) record.answered = 'part';
      });
      return slow(asked, response);
    }
    return (call.body.stream ? fault.stream : fault.plain)(asked, response);
  };
  return models;
}
