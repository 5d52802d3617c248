// The list of searches, refreshed every two seconds. Text only goes in as text.
"use strict";

const element = (id) => document.getElementById(id);
const show = (loggedIn) => {
  element("login").hidden = loggedIn;
  element("searches").hidden = !loggedIn;
  element("log-out").hidden = !loggedIn;
};
const say = (text) => { element("message").textContent = text; };

async function ask(path, options = {}) {
  const response = await fetch(path, options);
  if (response.status === 204) return null;
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.detail), { status: response.status });
  return body;
}

function rowOf(search) {
  const row = document.createElement("tr");
  const units = `${search.units.done} of ${search.units.total}`;
  const percent = `${(100 * search.progress).toFixed(0)} %`;
  for (const text of [search.id, search.state, units, percent, search.why_pending || ""]) {
    row.appendChild(document.createElement("td")).textContent = text;
  }
  return row;
}

async function refresh() {
  try {
    const { searches } = await ask("api/v1/searches");
    element("searches").tBodies[0].replaceChildren(...searches.map(rowOf));
    show(true);
    say(searches.length === 0 ? "There is no search yet: bitalloc submit makes one." : "");
  } catch (error) {
    if (error.status === 401) {
      show(false);
      say("Log in with the token that `bitalloc serve` or your operator names.");
    } else {
      say(error.message);
    }
  }
}

async function logIn() {
  const body = JSON.stringify({ token: element("token").value.trim() });
  try {
    await ask("login", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    element("token").value = "";
    await refresh();
  } catch (error) {
    say(error.message);
  }
}

async function logOut() {
  await ask("logout", { method: "POST" });
  await refresh();
}

element("log-in").addEventListener("click", logIn);
element("token").addEventListener("keydown", (event) => { if (event.key === "Enter") logIn(); });
element("log-out").addEventListener("click", logOut);
refresh();
setInterval(() => { if (element("login").hidden) refresh(); }, 2000);
