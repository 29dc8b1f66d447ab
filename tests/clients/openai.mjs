// Drives the official OpenAI client for Node.js and prints what it saw as one line of JSON, for a Python test to assert on.
//
//   OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=gh_... node openai.mjs SCENARIO [JSON]
//
// SCENARIO  chat | completion | models | model: one call
//           stream | stream-completion: reads to the end
//           transcribe: a recording of params.bytes, with the rest of params before or behind it
//           response | stream-response: one response; count-response: its input's tokens; kept-response | erase-response: of {"id": ...}
//           batch: sends params.lines as a file, makes a batch of it, waits for its end, reads its results and deletes the file
//           cancel: leaves a chat stream after `after` chunks (1 unless told), as a closed browser tab does
// JSON      {"params": {...}}        handed to the call as they are
//           {"client": {...}}        options of the client, such as {"maxRetries": 0, "timeout": 2000}
//           {"after": 3}             for cancel
//
// The line always holds `attempts` (HTTP requests made, retries included), `seconds`, and either what the call gave or
// `error` {name, status, code, type, param, message}. The exit status is 0 in both cases; 2 is a wrong use of this file.
import OpenAI from "openai";

const [scenario, json = "{}"] = process.argv.slice(2);
const { params = {}, client: options = {}, after = 1, id = "" } = JSON.parse(json);
let attempts = 0;
const statuses = [];

const client = new OpenAI({
  ...options,
  fetch: async (url, init) => {
    attempts += 1;
    const response = await fetch(url, init);
    statuses.push(response.status);
    return response;
  },
});

async function collect(call, textOf) {
  const { data: stream, response } = await call.withResponse();
  const seen = { content: "", chunks: 0, finish_reason: null, usage: null, request_id: response.headers.get("x-request-id") };
  for await (const chunk of stream) {
    seen.chunks += 1;
    const choice = chunk.choices[0];
    seen.content += (choice && textOf(choice)) ?? "";
    seen.finish_reason = choice?.finish_reason ?? seen.finish_reason;
    seen.usage = chunk.usage ?? seen.usage;
  }
  return seen;
}

async function once(call, pick) {
  const { data, response } = await call.withResponse();
  return { ...pick(data), headers: Object.fromEntries(response.headers) };
}

function told(response) {
  const { id, status, usage, output, previous_response_id, store } = response;
  const text = output.flatMap((item) => item.content ?? []).map((part) => part.text).join("");
  return { id, status, usage, output, text, previous_response_id, store };
}

async function recording(bytes, name) {
  return OpenAI.toFile ? OpenAI.toFile(Buffer.alloc(bytes, 7), name) : new File([Buffer.alloc(bytes, 7)], name);
}

const scenarios = {
  // params.bytes: of the recording; the file comes where `order` says: "first" or "last"
  transcribe: async () => {
    const { bytes, order = "first", ...rest } = params;
    const file = await recording(bytes, "speech.wav");
    const given = order === "first" ? { file, ...rest } : { ...rest, file };
    const { data, response } = await client.audio.transcriptions.create(given).withResponse();
    return { transcript: data, headers: Object.fromEntries(response.headers) };
  },
  chat: () =>
    once(client.chat.completions.create(params), (data) => ({
      content: data.choices[0].message.content,
      finish_reason: data.choices[0].finish_reason,
      usage: data.usage,
      object: data.object,
    })),
  completion: () =>
    once(client.completions.create(params), (data) => ({
      content: data.choices[0].text,
      finish_reason: data.choices[0].finish_reason,
      usage: data.usage,
      object: data.object,
    })),
  models: async () => {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids };
  },
  model: async () => ({ model: await client.models.retrieve(params.model) }),
  stream: () => collect(client.chat.completions.create({ ...params, stream: true }), (choice) => choice.delta.content),
  "stream-completion": () => collect(client.completions.create({ ...params, stream: true }), (choice) => choice.text),
  response: () => once(client.responses.create(params), told),
  "count-response": async () => ({ count: await client.responses.inputTokens.count(params) }),
  "kept-response": () => once(client.responses.retrieve(id), told),
  "erase-response": async () => {
    await client.responses.delete(id);
    return {};
  },
  "stream-response": async () => {
    const seen = { types: [], deltas: "" };
    for await (const event of await client.responses.create({ ...params, stream: true })) {
      seen.types.push(event.type);
      if (event.type === "response.output_text.delta") seen.deltas += event.delta;
      if (event.type === "response.completed") Object.assign(seen, told(event.response));
    }
    return seen;
  },
  batch: async () => {
    const input = await client.files.create({ file: await OpenAI.toFile(Buffer.from(params.lines.join("\n")), "in.jsonl"), purpose: "batch" });
    let batch = await client.batches.create({ input_file_id: input.id, endpoint: params.endpoint, completion_window: "24h" });
    while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      batch = await client.batches.retrieve(batch.id);
    }
    const text = batch.output_file_id ? await (await client.files.content(batch.output_file_id)).text() : "";
    const listed = [];
    for await (const one of client.files.list({ limit: 1 })) listed.push(one.id);
    const deleted = (await client.files.delete(input.id)).deleted;
    return { batch, results: text.split("\n").filter(Boolean).map(JSON.parse), listed: listed.includes(input.id), deleted };
  },
  cancel: async () => {
    const { data: stream, response } = await client.chat.completions.create({ ...params, stream: true }).withResponse();
    let chunks = 0;
    for await (const _ of stream) {
      chunks += 1;
      if (chunks >= after) {
        stream.controller.abort();
        break;
      }
    }
    return { chunks, cancelled: stream.controller.signal.aborted, request_id: response.headers.get("x-request-id") };
  },
};

if (!Object.hasOwn(scenarios, scenario ?? "")) {
  console.error(`usage: openai.mjs ${Object.keys(scenarios).join("|")} [JSON]`);
  process.exit(2);
}
const begin = performance.now();
let result;
try {
  result = await scenarios[scenario]();
} catch (error) {
  if (!(error instanceof OpenAI.OpenAIError)) throw error;
  const { status, code, type, param, message } = error;
  result = { error: { name: error.constructor.name, status, code, type, param, message } };
}
console.log(JSON.stringify({ ...result, attempts, statuses, seconds: (performance.now() - begin) / 1000 }));
