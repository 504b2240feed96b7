import assert from 'node:assert/strict';
import test from 'node:test';
import { ed25519KeyOf, signatureFault } from '../../src/base/ssh-signature.ts';

// Made by OpenSSH's ssh-keygen: `ssh-keygen -Y sign -n purser-release` over CONTENT. Its key is nobody's any more.
const KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+XLkeabJNKgeTMXr7eelWe+qy6AGS9vPueYYoW24xg purser-release';
const OTHER = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJzHJs9n7Qw2fFAkK4VvO2XfYq0mQ1y8p7mC0s3o4d5e';
const CONTENT = Buffer.from('the sums\n');
const [SHA512, SHA256, ECDSA, OF_FILE] = [
  'U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgT5cuR5psk0qB5Mxevt56VZ76rLoAZL28+55hihbbjGAAAAAOcHVyc2VyLXJlbGVhc2UAAAAAAAAABnNoYTUxMgAAAFMAAAALc3NoLWVkMjU1MTkAAABAjLXQvX53Mn2kIO/MKJXBK/gKDw+VpTNeQN50x7JlQPZI4FPblrvf7O5vjWrghyH2hjYRZ+c5nltOgX2+JpijAg==',
  'U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgT5cuR5psk0qB5Mxevt56VZ76rLoAZL28+55hihbbjGAAAAAOcHVyc2VyLXJlbGVhc2UAAAAAAAAABnNoYTI1NgAAAFMAAAALc3NoLWVkMjU1MTkAAABAwKhSMmHxHQsVUVZSf0IxeEA4xCqrH6gSZfFCuNI7n7Y23+wHsqrmxb76PCkFxba0EO6J/+JeJHZoeAfCCKHxBw==',
  'U1NIU0lHAAAAAQAAAGgAAAATZWNkc2Etc2hhMi1uaXN0cDI1NgAAAAhuaXN0cDI1NgAAAEEEGp43pa2NRPvVrNJ1+vV+4W8UtZbern1RSGtoV6hj5sAesO1cv/gQgxpgcXx1qnLE0aAS1KvPvH+vo9niwhiXxQAAAA5wdXJzZXItcmVsZWFzZQAAAAAAAAAGc2hhNTEyAAAAZAAAABNlY2RzYS1zaGEyLW5pc3RwMjU2AAAASQAAACEAuvr82e6wn0BqBIvFagObNg0fr9mHkHR5HdMusvlaQWcAAAAgG9roTaQ9/Vxh+JxPCZx9ZkTOQMqX5AVcT+6mU+RoaoM=',
  'U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgT5cuR5psk0qB5Mxevt56VZ76rLoAZL28+55hihbbjGAAAAAEZmlsZQAAAAAAAAAGc2hhNTEyAAAAUwAAAAtzc2gtZWQyNTUxOQAAAEAyFx1bG6lKROMJwFl90RcrVz9r6PBTyGphyNdlf0mkpHF30A7coRsWTyRwQ8G9C86zjDYI16JmG0mLHMOwwMgF',
] as [string, string, string, string];

const armoured = (blob: string | Buffer) =>
  `-----BEGIN SSH SIGNATURE-----\n${(typeof blob === 'string' ? blob : blob.toString('base64')).replace(/(.{70})/g, '$1\n').trimEnd()}\n-----END SSH SIGNATURE-----\n`;
const trusted = [ed25519KeyOf(KEY) as Buffer];
const fault = (blob: string | Buffer, content = CONTENT, keys = trusted) =>
  signatureFault(content, armoured(blob), 'purser-release', keys);

test('what ssh-keygen has signed is taken, with either digest, and in Windows line ends', () => {
  for (const it of [SHA512, SHA256]) assert.equal(fault(it), undefined);
  assert.equal(
    signatureFault(CONTENT, armoured(SHA512).replaceAll('\n', '\r\n'), 'purser-release', trusted),
    undefined,
  );
});

test('another content, key, name or kind of signature is refused with its reason', () => {
  assert.equal(fault(SHA512, Buffer.from('other sums\n')), 'does not fit what it signs');
  assert.equal(fault(SHA512, CONTENT, []), 'is by a key that is not trusted');
  assert.equal(fault(OF_FILE), 'is for "file"');
  assert.equal(fault(ECDSA), 'cannot be read: its key is no ed25519 key');
  for (const it of ['', 'text', armoured(SHA512).replace('END', 'FIN'), `${armoured(SHA512)}more\n`])
    assert.match(signatureFault(CONTENT, it, 'purser-release', trusted) ?? '', /is not in the form/);
});

test('a signature of which any byte is another, missing or more is no signature, and nothing throws', () => {
  for (const whole of [SHA512, SHA256].map((it) => Buffer.from(it, 'base64'))) {
    for (let at = 0; at < whole.length; at++)
      for (const bit of [1, 0x80]) {
        const changed = Buffer.from(whole);
        changed[at] = (changed[at] as number) ^ bit;
        assert.notEqual(fault(changed), undefined, `byte ${at}`);
      }
    for (let length = 0; length < whole.length; length++) assert.notEqual(fault(whole.subarray(0, length)), undefined);
    assert.notEqual(fault(Buffer.concat([whole, Buffer.of(0)])), undefined);
  }
});

test('a line is a key only if it is one of ed25519, whole and in the one way to write it', () => {
  const [type, text] = KEY.split(' ') as [string, string];
  assert.ok(ed25519KeyOf(`${type} ${text}`));
  for (const it of [
    '',
    type,
    `ssh-rsa ${text}`,
    `${type} ${text.slice(4)}`,
    `${type} ${text}AAAA`,
    `${type} ${text}=`,
    text,
  ])
    assert.equal(ed25519KeyOf(it), undefined, it);
  assert.ok(ed25519KeyOf(OTHER));
});
