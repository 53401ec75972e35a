// Chat: in one piece, as a stream, and with the SDK's own loop over functions.
import OpenAI from "openai";

const client = new OpenAI();
const asked = { model: process.env.MODEL, messages: [{ role: "user", content: "Hello" }] };

const whole = await client.chat.completions.create(asked);

const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
const streamed = await stream.finalChatCompletion();

const places = [];
const look = {
  type: "function",
  function: {
    name: "look",
    parameters: { type: "object", properties: { place: { type: "string" } } },
    parse: JSON.parse,
    function: ({ place }) => {
      places.push(place);
      return `a ${place}`;
    },
  },
};
const loop = client.chat.completions.runTools({ ...asked, tools: [look] });
console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed: streamed.choices[0].message.content,
    usage: streamed.usage,
    looped: await loop.finalContent(),
    places,
  }),
);
