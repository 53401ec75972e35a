// Sends what a policy denies, with the package that the first argument names: whole and streamed.
const { default: Anthropic } = await import(process.argv[2]);

const client = new Anthropic({ maxRetries: 0 });
const asked = {
  model: process.env.MODEL,
  max_tokens: 100,
  messages: [{ role: "user", content: "Hello" }],
};

const told = {};
for (const way of ["whole", "streamed"]) {
  let text = "";
  try {
    if (way === "whole") {
      text = (await client.messages.create(asked)).content[0].text;
    } else {
      const stream = client.messages.stream(asked);
      stream.on("text", (piece) => (text += piece));
      await stream.finalMessage();
    }
    told[way] = { text, denied: false };
  } catch (error) {
    // Older ones have the event only in the message of the error's cause.
    const said = `${error.message} ${error.cause?.message}`;
    told[way] = { text, denied: said.includes("policy_denied") };
  }
}
console.log(JSON.stringify(told));
