// A server of files on node's http: http_server.js PORT FOLDER
const fs = require("fs");
const http = require("http");
const path = require("path");

const [port, folder] = process.argv.slice(2);
http
  .createServer((request, response) => {
    const content = fs.readFileSync(path.join(folder, path.basename(request.url)));
    response.writeHead(200, { "Content-Length": content.length });
    response.end(content);
  })
  .listen(Number(port), "0.0.0.0");
