// An answer in the form of a schema.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const Place = z.object({ name: z.string(), rooms: z.number().int() });
const asked = {
  model: process.env.MODEL,
  input: "Where?",
  text: { format: zodTextFormat(Place, "place") },
};

const client = new OpenAI();
const parsed = await client.responses.parse(asked);
const streamed = await client.responses.stream(asked).finalResponse();
console.log(JSON.stringify({ parsed: parsed.output_parsed, streamed: streamed.output_parsed }));
