import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { installation } from '../helper/executable.ts';

const PAGE = join(import.meta.dirname, '../../docs/backends.md');
/** A key of nobody, for the sample that shows only the beginning of one. */
const HOST_KEY = `AAAAC3NzaC1lZDI1NTE5AAAAI${'A'.repeat(43)}`;
/** No engine has to answer, here or at the address of the samples. */
const REMOTE = /10\.0\.0\.7/g;

test('the page on backends: every sample is a configuration that can be used, and is answered with notes alone', async (t) => {
  // The other one is Kubernetes' own, which kubernetes-subject.ts applies to a cluster.
  const samples = [...readFileSync(PAGE, 'utf8').matchAll(/^```yaml\n(compute:.*?)^```/gms)].map(
    ([, yaml]) => yaml as string,
  );
  assert.equal(samples.length, 8);
  const env = { VAST_API_KEY: 'no-key-of-anybody' };
  for (const sample of samples) {
    const purser = installation(t, { settings: null, env });
    const yaml = sample.replace('AAAA…', HOST_KEY).replaceAll('…', '').replace(REMOTE, '127.0.0.1');
    writeFileSync(join(purser.directory, 'purser.yaml'), yaml);
    const { code, stdout, stderr } = await purser.cli('config', 'check');
    assert.equal(code, 0, `${sample}\n${stdout}${stderr}`);
    for (const line of stdout.trim().split('\n')) assert.match(line, /^(warn compute\.|ok {3}configuration: )/, sample);
  }
});
