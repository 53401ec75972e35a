// Portkey listens on every address and has no option to change that. This makes it listen on loopback only,
// so that the measurement does not open a proxy to the network.
const net = require("node:net");

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  return listen.call(this, port, "127.0.0.1", ...rest.filter((value) => typeof value === "function"));
};
