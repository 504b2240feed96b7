// Portkey binds every interface and has no flag for the host, so this forces listen() onto 127.0.0.1.
const net = require('node:net');
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  const [first, second] = args;
  if (typeof first === 'number' || (typeof first === 'string' && /^\d+$/.test(first))) {
    args.splice(1, typeof second === 'string' ? 1 : 0, '127.0.0.1');
  } else if (first && typeof first === 'object' && first.port !== undefined) {
    args[0] = { ...first, host: '127.0.0.1' };
  }
  return listen.apply(this, args);
};
