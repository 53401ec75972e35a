// Adds optional features to pages: buttons that copy, confirmation in a dialog, automatic refreshes and the live tail.
"use strict";

document.documentElement.classList.add("js");

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

const ANSWER_WITHIN_MS = 10000;

// Shows the confirmation page as a dialog. Returns false if the server sends no confirmation page in time. The browser
// then submits the form as it would without this script, and shows the response as a page.
async function askInDialog(form, submitter) {
  const body = new URLSearchParams(new FormData(form, submitter));
  body.set("asking", "yes");
  const answer = await fetch(form.action, { method: "POST", body, redirect: "manual", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const question = page.querySelector("[data-confirmation]");
  if (!answer.ok || !question) return false;
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", question.getAttribute("aria-labelledby"));
  dialog.append(...question.childNodes);
  dialog.addEventListener("close", () => { dialog.remove(); submitter?.focus(); });
  dialog.querySelector("[data-cancel]").addEventListener("click", (event) => {
    event.preventDefault();
    dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return true;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!("ask" in form.dataset)) return;
  event.preventDefault();
  const asked = await askInDialog(form, event.submitter).catch(() => false);
  if (asked) return;
  delete form.dataset.ask;
  form.requestSubmit(event.submitter);
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-submit-on-change]");
  if (form) form.requestSubmit();
});

// Omits empty filters from the URL.
document.addEventListener("formdata", (event) => {
  if (event.target.method !== "get") return;
  for (const [name, value] of [...event.formData.entries()]) {
    if (value === "") event.formData.delete(name);
  }
});

// Tells whether a part of the page must not be refreshed now: the page is hidden, or the user works in the part.
function isBusy(part) {
  return document.hidden || part.contains(document.activeElement) || part.matches(":hover");
}

async function refresh(part) {
  const answer = await fetch(location.href, { redirect: "error", headers: { Accept: "text/html", "X-Refresh": "1" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector(`[data-refresh="${part.dataset.refresh}"]`);
  if (!fresh || isBusy(part)) return;
  part.replaceChildren(...fresh.childNodes);
  document.dispatchEvent(new CustomEvent("refreshed"));
}

// A live tail reports new calls within about a second. When the server ends the tail, the browser opens it again. If
// the server refuses the tail, the button is switched off, and the page still refreshes at its interval.
for (const button of document.querySelectorAll("[data-tail]")) {
  let source = null;
  button.addEventListener("click", () => {
    if (source) {
      source.close();
      source = null;
    } else {
      source = new EventSource(button.dataset.tailAddress);
      source.onmessage = () => refresh(document.querySelector(`[data-refresh="${button.dataset.tail}"]`)).catch(() => {});
      source.onerror = () => { if (source?.readyState === EventSource.CLOSED) button.click(); };
    }
    button.setAttribute("aria-pressed", String(source !== null));
  });
}

for (const part of document.querySelectorAll("[data-refresh-every]")) {
  setInterval(() => {
    if (isBusy(part)) return;
    refresh(part).catch(() => {});
  }, Number(part.dataset.refreshEvery) * 1000);
}
