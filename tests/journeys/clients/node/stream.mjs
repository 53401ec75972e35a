// One answer as events, and one that the SDK puts together from its events.
import OpenAI from "openai";

const client = new OpenAI();
const asked = { model: process.env.MODEL, input: process.argv[2] ?? "Hello", max_output_tokens: 16 };

const types = [];
const deltas = [];
let ended;
for await (const event of await client.responses.create({ ...asked, stream: true })) {
  types.push(event.type);
  if (event.type === "response.output_text.delta") deltas.push(event.delta);
  ended = event.response;
}

const stream = client.responses.stream(asked);
const heard = [];
stream.on("response.output_text.delta", (event) => heard.push(event.snapshot));
const final = await stream.finalResponse();
console.log(
  JSON.stringify({
    types,
    deltas,
    heard,
    final: final.output_text,
    status: final.status,
    usage: [ended.usage, final.usage],
  }),
);
