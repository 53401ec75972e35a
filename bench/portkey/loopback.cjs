// The gateway listens on every address and has no option for it: an open proxy stays on loopback.
const net = require("node:net");

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  return listen.call(this, port, "127.0.0.1", ...rest.filter((value) => typeof value === "function"));
};
