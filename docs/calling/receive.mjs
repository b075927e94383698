// Receives webhooks of a MemeCourt service, in Node: MEMECOURT_SECRET=whsec_… node receive.mjs 8090
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.MEMECOURT_SECRET);
createServer(async (request, response) => {
  try {
    const message = webhook.verify((await request.toArray()).join(""), request.headers);
    console.log(request.headers["webhook-id"], message.type, message.data.decision ?? "");
    response.writeHead(204).end();
  } catch {
    response.writeHead(401).end(); // not from there, altered, or older than five minutes
  }
}).listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
