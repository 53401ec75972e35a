// What the SDK makes of refusals: one after another, as a table of what it was told.
import OpenAI from "openai";

const model = process.env.MODEL;
const client = new OpenAI({ maxRetries: 0 });
const stranger = new OpenAI({ apiKey: "nobody", maxRetries: 0 });
const asked = { model, input: "Hello" };

const tries = {
  stranger: () => stranger.responses.create(asked),
  stored: () => client.responses.create({ ...asked, store: true }),
  previous: () => client.responses.create({ ...asked, previous_response_id: "resp_1" }),
  unknown: () => client.responses.create({ ...asked, model: "nobody", stream: true }),
  chat: () => client.chat.completions.create({ model, messages: [] }),
};

const told = {};
for (const [name, attempt] of Object.entries(tries)) {
  try {
    await attempt();
    told[name] = null;
  } catch (error) {
    const { status, code, param, requestID } = error;
    told[name] = { kind: error.constructor.name, status, code, param, requestID };
  }
}
console.log(JSON.stringify(told));
