// Stands in for Prisma's `query-engine` program, which LiteLLM's database client starts.
//
// The program is downloaded from a server of its maker. The npm package @prisma/client contains the
// same engine of the same version as WebAssembly, with PostgreSQL's driver in JavaScript. That engine
// speaks Prisma's JSON protocol, and LiteLLM's client speaks its older GraphQL protocol, so this file
// translates requests and answers. It decides nothing about data.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { createRequire } = require("node:module");

// The packages are installed elsewhere, and this folder names them.
const load = createRequire(path.join(process.env.BILLING_PRISMA_PROJECT, "package.json"));
const ACTIONS = new RegExp(
  "^(findUnique|findFirst|findMany|createOne|createMany|updateOne|updateMany|deleteOne|deleteMany" +
    "|upsertOne|aggregate|groupBy)(.+?)(OrThrow)?$",
);
const RAW = ["queryRaw", "executeRaw"];
const TRACE = "{}";
let types = {};

// GraphQL to JSON protocol

function valueOf(node) {
  switch (node.kind) {
    case "ObjectValue":
      return Object.fromEntries(node.fields.map((field) => [field.name.value, valueOf(field.value)]));
    case "ListValue":
      return node.values.map(valueOf);
    case "IntValue": {
      const number = Number(node.value);
      return Number.isSafeInteger(number) ? number : { $type: "BigInt", value: node.value };
    }
    case "FloatValue":
      return Number(node.value);
    case "NullValue":
      return null;
    default:
      return node.value;
  }
}

// The type of each field of each model. The schema has one field on a line: its name, then its type.
function typesOf(schema) {
  const models = [...schema.matchAll(/^model (\w+) \{([^]*?)^\}/gm)];
  const fields = (body) => [...body.matchAll(/^\s+(\w+)\s+(\w+)/gm)].map((found) => found.slice(1));
  return Object.fromEntries(models.map(([, name, body]) => [name, Object.fromEntries(fields(body))]));
}

// GraphQL writes JSON as a string. The JSON protocol wants a tag, because a string is JSON as well.
function tagged(value, type) {
  if (Array.isArray(value)) return value.map((item) => tagged(item, type));
  if (type === "Json" && typeof value === "string") return { $type: "Json", value };
  if (value === null || typeof value !== "object" || "$type" in value) return value;
  const fields = types[type] || {};
  const typeOf = (name) => (name === "path" && type === "Json" ? "String" : fields[name] || type);
  return Object.fromEntries(
    Object.entries(value).map(([name, item]) => [name, tagged(item, typeOf(name))]),
  );
}

function argumentsOf(field) {
  return Object.fromEntries(field.arguments.map((found) => [found.name.value, valueOf(found.value)]));
}

function selectionOf(field) {
  const fields = field.selectionSet ? field.selectionSet.selections : [];
  return Object.fromEntries(
    fields.map((found) => [found.name.value, found.selectionSet ? nested(found) : true]),
  );
}

function nested(field) {
  return { arguments: argumentsOf(field), selection: selectionOf(field) };
}

// Returns the query in the JSON protocol, and the name of its answer in the GraphQL protocol.
function translate(text) {
  const [field] = load("graphql").parse(text).definitions[0].selectionSet.selections;
  const name = field.name.value;
  const found = ACTIONS.exec(name);
  if (!found && !RAW.includes(name)) throw new Error(`no such operation: ${name}`);
  const what = found ? { modelName: found[2], action: found[1] + (found[3] || "") } : { action: name };
  const query = nested(field);
  query.arguments = tagged(query.arguments, what.modelName);
  return { query: { ...what, query }, alias: (field.alias || field.name).value };
}

// Answers of the JSON protocol tag values that JSON does not have. GraphQL has them as plain values.
function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  if ("$type" in value) return value.value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, plain(item)]));
}

function answerOf(answer, alias) {
  if (!answer.data) return answer;
  const [[name, value]] = Object.entries(answer.data);
  return { data: { [alias]: RAW.includes(name) ? value : plain(value) } };
}

// The engine

// The adapter of the driver does not know some types of catalogue queries: char, name and lists of names,
// regclass, void.
const AS_TEXT = { 18: 25, 19: 25, 1003: 1009, 2205: 25, 2278: 25 };

function describeAsText(Result) {
  const { addFields } = Result.prototype;
  Result.prototype.addFields = function (fields) {
    for (const field of fields) field.dataTypeID = AS_TEXT[field.dataTypeID] || field.dataTypeID;
    return addFields.call(this, fields);
  };
}

async function startEngine(datamodel) {
  const runtime = path.join(path.dirname(load.resolve("@prisma/client/package.json")), "runtime");
  const bound = load(path.join(runtime, "query_engine_bg.postgresql.js"));
  const bytes = fs.readFileSync(path.join(runtime, "query_engine_bg.postgresql.wasm"));
  const { instance } = await WebAssembly.instantiate(bytes, { "./query_engine_bg.js": bound });
  bound.__wbg_set_wasm(instance.exports);
  describeAsText(load("pg/lib/result"));
  const { Pool } = load("pg");
  const { PrismaPg } = load("@prisma/adapter-pg");
  const { bindAdapter } = load("@prisma/driver-adapter-utils");
  const url = new URL(process.env.DATABASE_URL);
  const pool = new Pool({
    connectionString: process.env.DATABASE_URL,
    max: Number(url.searchParams.get("connection_limit") || 10),
  });
  pool.on("error", (error) => console.error(error.message));
  const settings = { datamodel, logLevel: "error", logQueries: false, datasourceOverrides: {} };
  const more = { env: process.env, configDir: ".", engineProtocol: "json", enableTracing: false };
  const adapter = bindAdapter(new PrismaPg(pool));
  const engine = new bound.QueryEngine({ ...settings, ...more }, () => {}, adapter);
  await engine.connect(TRACE);
  return engine;
}

async function runQueries(engine, body, transaction) {
  if (!body.batch) {
    const { query, alias } = translate(body.query);
    return answerOf(JSON.parse(await engine.query(JSON.stringify(query), TRACE, transaction)), alias);
  }
  const translated = body.batch.map((one) => translate(one.query));
  const batch = translated.map(({ query }) => query);
  // A batch within a transaction belongs to that transaction already.
  const together = body.transaction && !transaction ? { transaction: {} } : {};
  const asked = JSON.stringify({ batch, ...together });
  const answer = JSON.parse(await engine.query(asked, TRACE, transaction));
  if (!answer.batchResult) return answer;
  return { batchResult: answer.batchResult.map((one, at) => answerOf(one, translated[at].alias)) };
}

async function answer(engine, method, address, transaction, content) {
  if (address === "/status") return { status: "ok" };
  if (address === "/") return runQueries(engine, JSON.parse(content), transaction);
  const [, , first, second] = address.split("/");
  if (address === "/transaction/start") {
    return JSON.parse(await engine.startTransaction(content, TRACE));
  }
  if (second === "commit") return JSON.parse(await engine.commitTransaction(first, TRACE));
  if (second === "rollback") return JSON.parse(await engine.rollbackTransaction(first, TRACE));
  throw new Error(`no such address: ${method} ${address}`);
}

async function serve(port) {
  const schema = fs.readFileSync(process.env.PRISMA_DML_PATH, "utf8");
  types = typesOf(schema);
  const engine = await startEngine(schema);
  const server = http.createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const content = Buffer.concat(pieces).toString();
    const transaction = request.headers["x-transaction-id"];
    let said;
    try {
      said = await answer(engine, request.method, request.url, transaction, content);
    } catch (error) {
      console.error(error.message, content.slice(0, 2000));
      said = { errors: [{ error: error.message, user_facing_error: { message: error.message } }] };
    }
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify(said));
  });
  server.listen(port, "127.0.0.1");
}

const words = process.argv.slice(2);
if (words[0] === "--version") {
  console.log(`query-engine ${load("@prisma/client/package.json").version} as WebAssembly`);
} else if (words[0] === "dmmf") {
  const prismaSchema = fs.readFileSync(words[1], "utf8");
  console.log(load("@prisma/prisma-schema-wasm").get_dmmf(JSON.stringify({ prismaSchema })));
} else {
  for (const name of ["SIGINT", "SIGTERM"]) process.on(name, () => process.exit(0));
  serve(Number(words[words.indexOf("-p") + 1]));
}
