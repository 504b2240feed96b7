// Imported before everything else: a server survives SIGHUP from its first instant. Until it has read its settings there is
// nothing to reload (cli/serve.ts).
if (process.argv.includes('serve')) process.on('SIGHUP', () => {});
