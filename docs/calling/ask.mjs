// Asks for a verdict over HTTP: COURT, TOKEN in the environment, meme.png in this folder. Node 20, no package.
import { openAsBlob } from "node:fs";

const form = new FormData();
form.set("image", await openAsBlob("meme.png"), "meme.png");
form.set("text", "when the printer works");
const answer = await fetch(process.env.COURT + "/v1/judge", {
  method: "POST",
  headers: { Authorization: `Bearer ${process.env.TOKEN}`, "Idempotency-Key": "post-7" },
  body: form,
});
const result = await answer.json();
console.log(answer.ok ? result.decision : `hold back: ${result.reason}`);
