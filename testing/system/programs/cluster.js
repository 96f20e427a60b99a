// A server of two processes that share a listener: cluster.js PORT POLICY
// Policy "none": the first process sends the listener to both, which accept for themselves. Policy "rr": it
// accepts, and sends them connections. Each request is answered by the number of the process.
const cluster = require("cluster");
const http = require("http");

const [port, policy] = process.argv.slice(2);
cluster.schedulingPolicy = policy === "none" ? cluster.SCHED_NONE : cluster.SCHED_RR;
if (cluster.isPrimary) {
  let listening = 0;
  cluster.on("listening", () => {
    listening += 1;
    if (listening === 2) console.log("both listen");
  });
  cluster.fork();
  cluster.fork();
} else {
  http
    .createServer((request, response) => {
      if (request.url === "/end") process.kill(process.pid, "SIGKILL");
      response.end(String(cluster.worker.id));
    })
    .listen(Number(port), "0.0.0.0");
}
