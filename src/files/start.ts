// The entry point of the executable and of each of its threads: runs the bundle of its name, with the code that V8 compiled when
// it was built (docs/decisions/0062). It has no exports: it is the main of the executable, and the text of its threads.
import sea from 'node:sea';
import { cachedDataVersionTag } from 'node:v8';
import { Script } from 'node:vm';
import { getEnvironmentData, isMainThread, setEnvironmentData, threadName } from 'node:worker_threads';
import { assetBytes } from './asset.ts';

/** Names what V8 asks of compiled code at the start, its flags among it. */
const START_TAG = 'purser.start-tag';
const bundle = isMainThread ? 'purser' : threadName;
const cache = `${bundle}.cache`;
const isCompiled = sea.getAssetKeys().includes(cache);
// As Latin-1 it lies outside V8's heap, and only once.
const script = new Script(assetBytes(`${bundle}.cjs`).toString('latin1'), {
  filename: __filename,
  ...(isCompiled ? { cachedData: assetBytes(cache) } : {}),
});
// A thread that begins late finds the flags that a server sets (src/base/heap-flags.ts), with which V8 takes no compiled code: that is
// no fault of the build, and the server that logs one event a line is ready.
if (isMainThread) setEnvironmentData(START_TAG, cachedDataVersionTag());
if (script.cachedDataRejected && getEnvironmentData(START_TAG) === cachedDataVersionTag())
  process.emitWarning(
    `this start takes longer: V8 does not take what was compiled of the bundle ${bundle} when it was built`,
  );
script.runInThisContext()(require, module, exports, __filename, __dirname);
