// The menu and the table of contents on narrow screens, the search, and copy buttons. Pages work without it.
"use strict";
const side = document.querySelector(".side"), menu = document.getElementById("menu");
const field = document.getElementById("search"), found = document.getElementById("found");
const root = document.currentScript.dataset.root;
document.documentElement.classList.add("js");

menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(side.classList.toggle("open")));
});

// On a narrow screen, the table of contents is above the text and is closed at first.
const contents = document.querySelector(".contents details"), narrow = matchMedia("(max-width: 75rem)");
if (contents) {
  contents.open = !narrow.matches;
  narrow.addEventListener("change", () => { contents.open = !narrow.matches; });
}

for (const block of document.querySelectorAll(".code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").innerText);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

// The index is large, so it is loaded with the first search. A script, because pages opened as files
// cannot fetch.
let loading;
function load() {
  loading ??= new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = root + "search.js";
    script.onload = resolve;
    document.head.append(script);
  });
  return loading;
}

function score(entry, words) {
  const title = entry.title.toLowerCase(), text = entry.text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const here = (title.includes(word) ? 10 : 0) + Math.min(text.split(word).length - 1, 5);
    if (here === 0) return 0;
    sum += here;
  }
  return sum;
}

function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 40);
  return (at ? "…" : "") + text.slice(at, at + 120) + (text.length > at + 120 ? "…" : "");
}

async function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) await load();
  const hits = words.length ? window.searchIndex
    .map((entry) => [score(entry, words), entry])
    .filter(([points]) => points > 0)
    .sort((one, other) => other[0] - one[0])
    .slice(0, 12) : [];
  found.replaceChildren(...hits.map(([, entry]) => {
    const line = document.createElement("li"), link = document.createElement("a");
    const more = document.createElement("span");
    link.href = root + entry.at;
    link.textContent = entry.title;
    more.textContent = excerpt(entry.text, words[0]);
    line.append(link, more);
    return line;
  }));
  document.getElementById("count").textContent =
    words.length ? (hits.length ? `${hits.length} results` : "Nothing was found.") : "";
}

field.addEventListener("input", search);
field.closest("form").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement.tagName !== "INPUT") {
    event.preventDefault();
    field.focus();
  } else if (event.key === "Escape" && field.value) {
    field.value = "";
    search();
  }
});
