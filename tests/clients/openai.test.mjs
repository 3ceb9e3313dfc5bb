// What OpenAI's client for Node makes of the daemon's answers, streams and errors.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { Daemon } from "./daemon.mjs";

const request = {
  model: "smollm2-135m",
  messages: [{ role: "user", content: "Why is the sky blue?" }],
  max_tokens: 24,
  temperature: 0.8,
  seed: 7,
};
let daemon;
let client;

before(async () => {
  daemon = new Daemon();
  const { url } = await daemon.logged("listening");
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  await daemon.logged("ready");
});

after(async () => assert.equal(await daemon.stop(), 0));

test("a stream's pieces are the answer that comes at once", async () => {
  const whole = await client.chat.completions.create(request);
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 0);
  assert.equal(text, whole.choices[0].message.content);
  // What was drafted depends on timing, the tokens do not.
  assert.equal(usage.total_tokens, whole.usage.total_tokens);
  assert.equal(whole.speculation.mode, "ssd");
});

test("a completion continues its prompt", async () => {
  const { messages, ...rest } = request;
  const answer = await client.completions.create({ ...rest, prompt: "The capital of France is" });
  assert.equal(answer.object, "text_completion");
  assert.equal(answer.usage.completion_tokens, answer.choices[0].token_ids.length);
});

test("the served model is listed", async () => {
  const { data } = await client.models.list();
  assert.deepEqual(data.map((model) => model.id), ["smollm2-135m"]);
});

test("a wrong field is an error that names it", async () => {
  await assert.rejects(client.chat.completions.create({ ...request, temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
});

test("an aborted stream leaves a daemon that answers", async () => {
  const stream = await client.chat.completions.create({ ...request, max_tokens: 500, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id.startsWith("chatcmpl-"));
    break;
  }
  stream.controller.abort();
  const answer = await client.chat.completions.create({ ...request, max_tokens: 2 });
  assert.equal(answer.choices[0].finish_reason, "length");
});
