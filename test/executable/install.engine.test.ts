import assert from 'node:assert/strict';
import test from 'node:test';
import { EXECUTABLE } from '../helper/executable.ts';
import { bootMachine } from '../helper/systemd.ts';
import { until } from '../helper/waiting.ts';

test('install is refused where others could change what root writes, is the same twice, and --remove keeps what is money', async (t) => {
  const machine = await bootMachine(t, ['adduser', 'curl'], { [EXECUTABLE]: '/opt/purser' });
  if (!machine) return;
  const { sh } = machine;
  /** Returns what a line of shell says, and its exit code. */
  const tried = (line: string) => sh(`{ ${line}; } 2>&1 && echo 'exit 0' || echo "exit $?"`);
  const install = '/opt/purser install --yes --server http://127.0.0.1:9';
  /** Sets a trap for root, sees that the install refuses it and has started nothing, and clears it. */
  const refuses = async (trap: string, said: RegExp, clear: string) => {
    await sh(trap);
    const answer = await tried(install);
    assert.match(answer, said);
    assert.match(answer, /^exit 4$/m);
    assert.match(await tried('systemctl is-active purser'), /inactive/);
    await sh(clear);
  };

  assert.match(await tried(`setpriv --reuid 65534 --clear-groups ${install}`), /Run it as root\.\nexit 4$/);
  await refuses(
    'chmod o+w /usr/local/bin',
    /^\/usr\/local\/bin can be written by everybody/m,
    'chmod o-w /usr/local/bin',
  );
  await refuses(
    'mkdir -m 777 /etc/purser',
    /^\/etc\/purser can be written by everybody/m,
    'rmdir /etc/purser && test ! -e /etc/purser',
  );
  await refuses(
    'mkdir /etc/purser && touch /etc/purser/purser.yaml && chgrp daemon /etc/purser && chmod 775 /etc/purser',
    /^\/etc\/purser can be written by its group 1, /m,
    'rm -r /etc/purser',
  );
  await refuses(
    'mkdir /home/x && chown 65534 /home/x && ln -s /home/x /etc/purser',
    /^\/etc\/purser belongs to user 65534/m,
    'rm /etc/purser && rmdir /home/x',
  );
  await refuses(
    'mkdir /etc/purser && echo "backup: { directory: /etc }" > /etc/purser/purser.yaml && chown 65534 /etc/purser/purser.yaml',
    /^\/etc\/purser\/purser\.yaml can be changed by others than root\./m,
    'rm -r /etc/purser',
  );
  await refuses(
    'rm -rf /var/lib/purser && mkdir /var/lib/purser && chown 65534 /var/lib/purser',
    /^\/var\/lib\/purser belongs to user 65534/m,
    'rmdir /var/lib/purser',
  );
  await refuses(
    'mv /usr/local/bin/purser /root/ && cp /bin/true /usr/local/bin/purser',
    /^\/usr\/local\/bin\/purser is another build\./m,
    'mv /root/purser /usr/local/bin/purser',
  );

  await refuses(
    'printf "[Service]\\nEnvironment=PURSER_DATA=/srv/books\\nExecStart=/opt/purser serve\\n" > /etc/systemd/system/purser.service',
    /^\/etc\/systemd\/system\/purser\.service is not what this command writes/m,
    'grep -q /srv/books /etc/systemd/system/purser.service && rm /etc/systemd/system/purser.service',
  );
  await refuses(
    'cp /var/lib/dpkg/status /root/status && printf "\\nPackage: purser\\nStatus: deinstall ok config-files\\nArchitecture: amd64\\nVersion: 0.2.0\\nMaintainer: p <p@p.invalid>\\nDescription: p\\n" >> /var/lib/dpkg/status',
    /^A package was removed and not purged/m,
    'mv /root/status /var/lib/dpkg/status',
  );
  await refuses(
    'usermod --shell /bin/sh purser',
    /^The user purser can log in \(\/bin\/sh\)/m,
    'usermod --shell /usr/sbin/nologin purser',
  );

  // A link where root writes is replaced, and what it leads to stays.
  await sh('cp /etc/shadow /root/shadow && ln -s /etc/shadow /etc/systemd/system/purser.service');
  assert.match(await tried(install), /^Started the service\..*$/m);
  await sh(
    'cmp /etc/shadow /root/shadow && test -f /etc/systemd/system/purser.service && test ! -L /etc/systemd/system/purser.service',
  );

  await sh('echo "# mine" >> /etc/purser/purser.yaml');
  const again = await tried(install);
  assert.equal(again, 'Kept /etc/purser/purser.yaml.\nThe service runs.\nexit 0');
  assert.equal(await sh('tail -1 /etc/purser/purser.yaml'), '# mine');
  assert.equal(await sh('stat -c %U:%G:%a /etc/purser/purser.yaml'), 'root:purser:640');
  assert.match(
    await sh('bash -c ". /usr/local/share/bash-completion/completions/purser; complete -p purser"'),
    /_purser purser/,
  );

  await sh('purser account credit default 50.00');
  // Where another user has put a data directory for root to run in, root's commands are on the service all the same.
  await sh(
    'mkdir /tmp/trap && cd /tmp/trap && mkdir purser-data && chown 65534 purser-data && purser wallet create --name a --budget 5.00',
  );
  // What the settings name stands in a file of root's, and root's commands know it.
  const upstream = `{ name: hosted, base_url: "http://127.0.0.1:9/v1", api_key: \${HOUSE_KEY} }`;
  await sh(`echo 'router: { upstreams: [${upstream}] }' >> /etc/purser/purser.yaml`);
  assert.match(await tried('purser config check'), /HOUSE_KEY/);
  await sh(
    'umask 077; echo "HOUSE_KEY=of-the-house" > /etc/purser/purser.env; purser config check\n systemctl restart purser',
  );
  // Install reads them as the service does, with variables, and shows no line of them where they are wrong.
  await sh('cp /etc/purser/purser.yaml /root/ && echo PLACE=/mnt >> /etc/purser/purser.env');
  await sh(`echo 'backup: { every: 6h, directory: \${PLACE} }' >> /etc/purser/purser.yaml`);
  assert.match(await tried(install), /the service may write \/mnt\.$/m);
  await sh(`printf 'payments: { a: "sk-secret\n' >> /etc/purser/purser.yaml`);
  assert.doesNotMatch(await tried(install), /sk-secret/);
  await sh('cp /root/purser.yaml /etc/purser/ && systemctl restart purser');
  await until('the service is ready', () =>
    sh('test -S /var/lib/purser/purser.sock && curl -sf http://127.0.0.1:7420/readyz').catch(() => undefined),
  );
  const ran = await sh('cd /root && purser run --budget 1.00 -- sh -c "id -u; env"');
  assert.match(ran, /^0$/m, "the program keeps root's rights");
  assert.match(ran, /^SVC_BROKER_TOKEN=svc_agent_/m);
  assert.doesNotMatch(ran, /of-the-house|PURSER_/, "the program does not see the service's variables");
  assert.match(
    await tried('cd /tmp/trap && purser --data purser-data run --budget 1.00 -- true'),
    /belongs to user 65534.*\nexit 4$/,
    'another user does not answer',
  );
  await sh('systemctl stop purser && purser wallet create --name b --budget 5.00 && purser doctor || test $? = 1');
  assert.equal(await sh('find /var/lib/purser ! -user purser'), '', 'root left no file of its own');

  const key = await sh('sha256sum /var/lib/purser/master.key /etc/purser/purser.yaml');
  const removed = await sh('purser install --remove');
  assert.match(removed, /^Removed \/usr\/local\/bin\/purser\.$/m);
  assert.match(removed, /^Kept \/etc\/purser\/purser\.yaml, \/var\/lib\/purser /m);
  assert.match(await tried('systemctl cat purser'), /No files found/);
  // Beside a package, whose unit it would go on hiding, it is removed as well.
  await sh(`${install} && mkdir -p /usr/lib/systemd/system && touch /usr/lib/systemd/system/purser.service`);
  assert.match(await tried('purser install --remove'), /^There is a package beside it:/m);
  assert.match(await tried('/opt/purser install --remove'), /^A package installed the service\./m);
  await sh('rm /usr/lib/systemd/system/purser.service && systemctl daemon-reload');
  assert.equal(await sh('sha256sum /var/lib/purser/master.key /etc/purser/purser.yaml'), key);
  await sh(install);
  assert.match(await sh('purser wallet list'), /^wal_\w+ +b +active/m);

  // Where systemd lies and does not run, as in a machine that is being built, --remove undoes what an install did.
  await sh('purser install --remove');
  const built = (line: string) => tried(`unshare --mount sh -c 'mount -t tmpfs none /run/systemd && ${line}'`);
  assert.match(await built(install), /^Enabled the service\. It starts with the machine\.\nexit 0$/m);
  await sh('test -L /etc/systemd/system/multi-user.target.wants/purser.service');
  const undone = await built('purser install --remove');
  assert.match(undone, /^Removed \/usr\/local\/bin\/purser\.$/m);
  assert.doesNotMatch(undone, /Stopped the service/);
  await sh('test ! -L /etc/systemd/system/multi-user.target.wants/purser.service');
});
