// Asks a MemeCourt service for verdicts, from Node: node judge.mjs http://127.0.0.1:50051 meme.png [another.png …]
// One picture is asked for with Judge, several with JudgeStream. Exit code 0 only if all of them may be allowed.
import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { Court, LabelSchema } from "./gen/memecourt/v1/court_pb.js";

const ATTEMPTS = 5;
const [address, ...pictures] = process.argv.slice(2);
const token = process.env.MEMECOURT_TOKEN; // over https only
const court = createClient(Court, createGrpcTransport({ baseUrl: address }));
const headers = token ? { authorization: `Bearer ${token}` } : {};

/** Seconds that the server wants to be left alone, or undefined. */
function delayOf(error) {
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return delay && Number(delay.seconds) + delay.nanos / 1e9;
}

/** Whether to ask again may help: a message over the limit is ResourceExhausted too, but has no RetryInfo. */
function passing(error) {
  return [Code.Unavailable, Code.Aborted].includes(error.code)
    || (error.code === Code.ResourceExhausted && delayOf(error) !== undefined);
}

/** A verdict. The request_id is made up once: however often it is asked for, the meme is tried once. */
async function judge(image, timeoutMs) {
  const request = { requestId: randomUUID(), image };
  const deadline = Date.now() + timeoutMs;
  for (let attempt = 1; ; attempt++) {
    try {
      return await court.judge(request, { headers, timeoutMs: Math.max(1, deadline - Date.now()) });
    } catch (thrown) {
      const error = ConnectError.from(thrown);
      const least = delayOf(error) ?? 0;
      const wait = 1000 * (least + Math.random() * Math.max(least, 0.2 * 2 ** (attempt - 1)));
      if (attempt === ATTEMPTS || !passing(error) || Date.now() + wait >= deadline) throw error;
      await sleep(wait);
    }
  }
}

/** What a response says; only the decision "allow" is an acquittal. */
function tell(file, verdict) {
  const label = LabelSchema.value[verdict.label]?.name ?? "a label of a later version";
  console.log(`${file}: ${verdict.decision}, ${label}, ${verdict.verdictId}`);
  if (verdict.decision !== "allow") process.exitCode ||= 10; // an error outweighs it
}

/** Why there is no verdict; never "not harmful". */
function complain(file, code, reason, message) {
  console.error(`${file}: no verdict: ${code} ${reason}: ${message}`);
  process.exitCode = 1;
}

async function* requests() {
  // Each request has a name of its own, by which its outcome is known.
  for (const file of pictures) {
    yield { request: { requestId: file, image: await readFile(file) }, timeout: { seconds: 60n } };
  }
}

try {
  if (pictures.length === 1) {
    tell(pictures[0], await judge(await readFile(pictures[0]), 60_000));
  } else {
    for await (const { requestId, outcome } of court.judgeStream(requests(), { headers })) {
      if (outcome.case === "verdict") tell(requestId, outcome.value);
      else complain(requestId, Code[outcome.value?.code], outcome.value?.reason, outcome.value?.message);
    }
  }
} catch (thrown) {
  const error = ConnectError.from(thrown);
  complain(address, Code[error.code], error.findDetails(ErrorInfoSchema)[0]?.reason ?? "", error.rawMessage);
}
