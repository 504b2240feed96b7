// `npm run test:fast`: runs the files of the gate that need no build (test/layers.ts), several in a process. With files as
// arguments it runs only those, each by itself; other arguments go to Node (`npm run test:fast -- --watch`).
import './helper/pinned-node.mjs';

const { runFast } = await import('./fast.ts');
runFast(process.argv.slice(2));
