import { conform } from './conformance.ts';
import { openRemote, overSsh, overTls } from './engines/docker-remote.ts';
import { containerSubject } from './engines/subject.ts';

for (const [name, settings] of [
  ['TLS', overTls],
  ['SSH', overSsh],
] as const)
  conform(`container on Docker over ${name}`, async (t) => {
    const opened = await openRemote(t);
    if (!opened) return undefined;
    const subject = containerSubject(settings(opened));
    t.after(() => subject.backend.close());
    return subject;
  });
