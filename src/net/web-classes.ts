import { CloseEvent, Headers, Request, Response } from 'undici';

// Hono and its server build on these global classes. Node has them of the same project, and loads them, with a fetch that nothing
// here calls, when one is asked for: a tenth of a start. Those of undici are loaded anyway. So this comes before Hono
// (docs/decisions/0062).
Object.assign(globalThis, { CloseEvent, Headers, Request, Response });
