// Calls a function until the model has seen enough. The history goes back as the SDK's own objects.
import OpenAI from "openai";
import { zodResponsesFunction } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI();
const look = zodResponsesFunction({ name: "look", parameters: z.object({ place: z.string() }) });
const history = [{ role: "user", content: "Look around." }];
const places = [];

async function turn() {
  const asked = { model: process.env.MODEL, input: history, tools: [look] };
  return process.argv[2] === "streamed"
    ? await client.responses.stream(asked).finalResponse()
    : await client.responses.parse(asked);
}

let response = await turn();
while (response.output.some((item) => item.type === "function_call")) {
  history.push(...response.output);
  for (const call of response.output.filter((item) => item.type === "function_call")) {
    const { place } = call.parsed_arguments;
    places.push(place);
    history.push({ type: "function_call_output", call_id: call.call_id, output: `a ${place}` });
  }
  response = await turn();
}
history.push(...response.output, { role: "user", content: "Thanks." });
const farewell = await turn();
console.log(
  JSON.stringify({ places, text: response.output_text, farewell: farewell.status }),
);
