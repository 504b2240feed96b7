// Everything works without this script. It copies, keeps figures up to date, and tells the reader’s time zone.
const all = (selector) => document.querySelectorAll(selector);

// 'Copied' stays, so that it is also seen where it is drawn late: until something else is copied.
for (const button of all('[data-copy]')) {
  button.hidden = !navigator.clipboard;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    for (const other of all('[data-copy]')) other.textContent = other === button ? 'Copied' : 'Copy';
  });
}

// The server writes times, and counts days, in the zone of the reader.
const isSecure = location.protocol === 'https:';
const { timeZone } = new Intl.DateTimeFormat().resolvedOptions();
// biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store is only there with TLS.
document.cookie = `${isSecure ? '__Host-' : ''}purser-zone=${timeZone}; path=/; max-age=31536000; samesite=lax${isSecure ? '; secure' : ''}`;

// A form is sent once.
for (const form of all('form[method=post]'))
  form.addEventListener('submit', () => {
    for (const button of form.querySelectorAll('button')) setTimeout(() => (button.disabled = true));
  });
addEventListener('pageshow', () => {
  for (const button of all('form[method=post] button')) button.disabled = false;
});

// A passkey: the browser asks the device, and the form takes its answer along.
for (const form of all('form[data-passkey]')) {
  const button = form.querySelector('button');
  const note = form.querySelector('[role=status]');
  const api = window.PublicKeyCredential;
  button.hidden = !api?.parseRequestOptionsFromJSON;
  note.textContent = button.hidden ? 'This browser has no passkeys at this address.' : '';
  form.addEventListener('submit', async (event) => {
    if (form.credential.value) return;
    event.preventDefault();
    try {
      const response = await fetch(form.dataset.passkey, { method: 'POST' });
      if (!response.ok) throw new Error('Purser does not answer. Reload the page.');
      const options = await response.json();
      const credential = options.user
        ? await navigator.credentials.create({ publicKey: api.parseCreationOptionsFromJSON(options) })
        : await navigator.credentials.get({ publicKey: api.parseRequestOptionsFromJSON(options) });
      form.credential.value = JSON.stringify(credential);
      form.submit();
    } catch (error) {
      note.textContent =
        {
          NotAllowedError: 'It was cancelled, or took too long.',
          InvalidStateError: 'This device has a passkey already.',
        }[error.name] ?? error.message;
      button.disabled = false;
    }
  });
}
addEventListener('pageshow', () => {
  for (const form of all('form[data-passkey]')) form.credential.value = '';
});

const { stream } = document.body.dataset;
if (stream) {
  const mark = document.getElementById('live');
  const source = new EventSource(stream);
  const show = (isLive) => {
    mark.hidden = false;
    mark.classList.toggle('off', !isLive);
    mark.textContent = isLive ? 'live' : 'not live';
  };
  source.onopen = () => show(true);
  source.onerror = () => show(false);
  source.onmessage = ({ data }) => {
    const values = JSON.parse(data);
    for (const element of all('[data-live]')) {
      const value = values[element.dataset.live];
      if (value === undefined || value === element.textContent) continue;
      element.textContent = value;
      const line = element.closest('[data-unless]');
      if (line) line.hidden = value === line.dataset.unless;
      element.classList.remove('changed');
      void element.offsetWidth;
      element.classList.add('changed');
    }
    for (const shape of all('[data-live-bar]')) {
      const value = values[shape.dataset.liveBar];
      if (value === undefined) continue;
      const [x, width] = value.split(' ');
      shape.setAttribute('x', x);
      shape.setAttribute('width', width);
    }
  };
  addEventListener('pagehide', () => source.close());
}
