// Drives the official Anthropic client for Node.js and prints what it saw as one line of JSON, for a Python test to assert on.
//
//   ANTHROPIC_BASE_URL=http://127.0.0.1:8080 ANTHROPIC_API_KEY=gh_... node anthropic.mjs SCENARIO [JSON]
//
// SCENARIO  message | count | models: one call
//           stream: reads to the end with the client's own accumulator
// JSON      {"params": {...}}        handed to the call as they are
//
// The line holds what the call gave, or `error` {name, status, type, message}. The exit status is 0 in both cases; 2 is a wrong use.
import Anthropic from "@anthropic-ai/sdk";

const [scenario, json = "{}"] = process.argv.slice(2);
const { params = {} } = JSON.parse(json);
const client = new Anthropic({ maxRetries: 0 });

async function once(call) {
  const { data, response } = await call.withResponse();
  return { data, request_id: response.headers.get("request-id") };
}

async function stream() {
  const kinds = [];
  const run = client.messages.stream(params);
  run.on("streamEvent", (event) => kinds.push(event.type));
  return { data: await run.finalMessage(), kinds };
}

const scenarios = {
  message: () => once(client.messages.create(params)),
  count: () => once(client.messages.countTokens(params)),
  models: async () => ({ data: (await client.models.list()).data }),
  stream,
};

if (!(scenario in scenarios)) {
  console.error(`use: node anthropic.mjs ${Object.keys(scenarios).join("|")} [JSON]`);
  process.exit(2);
}
let seen;
try {
  seen = await scenarios[scenario]();
} catch (error) {
  seen = { error: { name: error.constructor.name, status: error.status ?? null, type: error.type ?? null, message: error.message } };
}
console.log(JSON.stringify(seen));
