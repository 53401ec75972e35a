// Looks around with a tool until the model has seen enough, then thanks it with the whole history.
// The provider speaks Responses by default, and chat if it is told to.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI();
const told = {};

async function converse(model, streamed) {
  const places = [];
  const look = tool({
    description: "Looks at a place.",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => {
      places.push(place);
      return `a ${place}`;
    },
  });
  const settings = {
    model,
    tools: { look },
    stopWhen: isStepCount(5),
    // Otherwise the provider refers to earlier answers by their ids, and the gateway keeps none.
    providerOptions: { openai: { store: false } },
  };
  const turn = async (messages) => {
    if (!streamed) return await generateText({ ...settings, messages });
    const stream = streamText({ ...settings, messages });
    let heard = "";
    for await (const piece of stream.textStream) heard += piece;
    const [steps, response, usage] = await Promise.all([
      stream.steps,
      stream.response,
      stream.totalUsage,
    ]);
    return { text: heard, steps, response, totalUsage: usage };
  };
  const messages = [{ role: "user", content: "Look around." }];
  const first = await turn(messages);
  messages.push(...first.steps.flatMap((step) => step.response.messages));
  const thanks = await turn([...messages, { role: "user", content: "Thanks." }]);
  return {
    places,
    text: first.text,
    steps: first.steps.length,
    tokens: first.totalUsage.totalTokens,
    farewell: thanks.text,
  };
}

for (const [wire, model] of Object.entries({
  responses: provider(process.env.MODEL),
  chat: provider.chat(process.env.MODEL),
})) {
  told[wire] = await converse(model, false);
  told[`${wire} streamed`] = await converse(model, true);
}
console.log(JSON.stringify(told));
