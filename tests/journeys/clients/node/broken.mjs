// Streams whose backend breaks off in the middle.
import OpenAI from "openai";

const model = process.env.MODEL;
const client = new OpenAI({ maxRetries: 0 });

const types = [];
let failure = null;
const events = await client.responses.create({ model, input: "Hello", stream: true });
for await (const event of events) {
  types.push(event.type);
  if (event.type === "response.failed") failure = event.response.error;
}

const chat = { text: "", error: null };
try {
  const messages = [{ role: "user", content: "Hello" }];
  const chunks = await client.chat.completions.create({ model, messages, stream: true });
  for await (const chunk of chunks) chat.text += chunk.choices[0]?.delta.content ?? "";
} catch (error) {
  chat.error = { kind: error.constructor.name, code: error.code, type: error.type };
}
console.log(JSON.stringify({ types, failure, chat }));
