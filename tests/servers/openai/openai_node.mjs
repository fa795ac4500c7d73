// Asks an agent server by OpenAI's client for Node: node openai_node.mjs URL FILE; prints what came as JSON.
import fs from "node:fs";
import OpenAI from "openai";

const [baseURL, path] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none" });
const model = "palimpsest";
const told = { models: [] };
for await (const each of client.models.list()) told.models.push(each.id);

const content = [
  { type: "file", file: { filename: "a.txt", file_data: fs.readFileSync(path, "base64") } },
  { type: "text", text: "What does Bob3 sell?" },
];
const messages = [{ role: "user", content }];
const whole = await client.chat.completions.create({ model, messages });
Object.assign(told, { whole: whole.choices[0].message.content, input: whole.palimpsest.input, streamed: "", reasoning: "" });
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  told.streamed += chunk.choices[0].delta.content ?? "";
  told.reasoning += chunk.choices[0].delta.reasoning_content ?? "";
}

const input = `<document>${fs.readFileSync(path, "utf8")}</document> What does Bob5 sell?`;
told.response = (await client.responses.create({ model, input })).output_text;
await client.chat.completions.create({ model, messages, n: 2 }).catch((error) => {
  told.error = [error.status, error.code];
});
console.log(JSON.stringify(told));
