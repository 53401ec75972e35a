// One answer in one piece.
import OpenAI from "openai";

const client = new OpenAI();
const response = await client.responses.create({
  model: process.env.MODEL,
  instructions: "Be brief.",
  input: "Hello",
});
console.log(
  JSON.stringify({
    text: response.output_text,
    status: response.status,
    usage: response.usage,
    requestId: response._request_id,
  }),
);
