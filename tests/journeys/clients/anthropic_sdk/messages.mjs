// Sends messages with the package that the first argument names: loops of tools, a count, refusals.
const { default: Anthropic } = await import(process.argv[2]);

const model = process.env.MODEL;
const client = new Anthropic({ maxRetries: 0 });
const stranger = new Anthropic({ apiKey: "nobody", maxRetries: 0 });
const hello = [{ role: "user", content: "Hello" }];
const look = {
  name: "look",
  description: "Looks at a place.",
  input_schema: { type: "object", properties: { place: { type: "string" } } },
};

async function ask(asked, streamed) {
  if (!streamed) return await client.messages.create(asked);
  return await client.messages.stream(asked).finalMessage();
}

// Runs the tool that the model calls until it calls none.
async function loop(streamed) {
  const messages = [{ role: "user", content: "What is there?" }];
  let tokens = 0;
  let answer;
  for (;;) {
    answer = await ask({ model, max_tokens: 1000, messages, tools: [look] }, streamed);
    tokens += answer.usage.output_tokens;
    const used = answer.content.filter((block) => block.type === "tool_use");
    if (!used.length) break;
    const results = used.map(({ id, input }) => ({
      type: "tool_result",
      tool_use_id: id,
      content: input.place,
    }));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: results });
  }
  return { text: answer.content.at(-1).text, stop_reason: answer.stop_reason, tokens };
}

async function refusal(sender, changes, streamed) {
  try {
    const asked = { model, max_tokens: 9, messages: hello, ...changes };
    if (streamed) await sender.messages.stream(asked).finalMessage();
    else await sender.messages.create(asked);
    return null;
  } catch (error) {
    const { status, error: body } = error;
    return { kind: error.constructor.name, status, param: body.error.param };
  }
}

const told = { counted: (await client.messages.countTokens({ model, messages: hello })).input_tokens };
for (const streamed of [false, true]) {
  told[streamed ? "streamed" : "whole"] = {
    loop: await loop(streamed),
    unknown: await refusal(client, { model: "nobody" }, streamed),
    too_long: await refusal(client, { max_tokens: 4096 }, streamed),
    stranger: await refusal(stranger, {}, streamed),
  };
}
console.log(JSON.stringify(told));
