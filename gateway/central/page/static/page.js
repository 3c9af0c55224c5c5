// Pages work without this. With it they stay up to date: when the ledger changes, the page is asked for again and the
// regions marked data-live are exchanged for the server's own markup, so that nothing is ever put together here.
"use strict";

(() => {
  const PAUSE_MS = 2000; // between two updates, however much happens
  const SETTLED_MS = 3000; // figures are counted some seconds after the rows they count
  const AGES_MS = 10000;
  const badge = document.getElementById("live");
  const regions = () => [...document.querySelectorAll("[data-live][id]")];

  const say = (state, text) => {
    if (!badge) return;
    badge.hidden = false;
    badge.dataset.state = state;
    badge.textContent = text;
  };

  document.querySelector(".nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" }); // on a phone

  // --- ages
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const span = (seconds) => {
    for (const [index, [size, name]] of units.entries()) {
      const count = Math.floor(seconds / size);
      if (!count) continue;
      const next = units[index + 1];
      const rest = next ? Math.floor((seconds % size) / next[0]) : 0;
      return count < 10 && rest ? `${count} ${name} ${rest} ${next[1]}` : `${count} ${name}`;
    }
    return "0 s";
  };
  const skew = Date.parse(document.querySelector("time[data-now]")?.dateTime ?? "") - Date.now() || 0; // its clock, not ours
  const refreshAges = () => {
    for (const place of document.querySelectorAll("time > [data-age]")) {
      const seconds = (Date.now() + skew - Date.parse(place.parentElement.dateTime)) / 1000;
      if (Number.isNaN(seconds)) continue;
      const text = Math.abs(seconds) < 1 ? "now" : seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
      if (place.textContent !== text) place.textContent = text;
    }
  };
  setInterval(refreshAges, AGES_MS);

  // --- updates
  const rowsOf = (region) => new Map([...region.querySelectorAll("[data-row]")].map((row) => [row.dataset.row, row.dataset.version]));
  const markFresh = (region, before) => {
    for (const row of region.querySelectorAll("[data-row]")) {
      if (before.get(row.dataset.row) !== row.dataset.version) row.classList.add("fresh");
    }
  };
  const exchange = (region, found) => {
    if (region.innerHTML === found.innerHTML) return;
    const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const places = [...region.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const unfolded = [...region.querySelectorAll("details")].map((part) => part.open);
    const before = rowsOf(region);
    region.replaceChildren(...document.importNode(found, true).childNodes);
    region.querySelectorAll("details").forEach((part, index) => { part.open = unfolded[index] ?? part.open; });
    region.querySelectorAll(".scroll").forEach((box, index) => box.scrollTo(...(places[index] ?? [0, 0])));
    if (before.size) markFresh(region, before);
    if (focused) [...region.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused)?.focus();
  };
  const busy = (region) => region.contains(document.activeElement) && document.activeElement.matches("input, select, button");

  let settled = 0;
  const changed = () => {
    update();
    if (document.querySelector("[data-figures]")) {
      clearTimeout(settled);
      settled = setTimeout(update, SETTLED_MS);
    }
  };

  let due = false;
  let running = false;
  const update = async () => {
    if (running) { due = true; return; }
    running = true;
    due = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; } // the session has ended
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const region of regions()) {
        const found = page.getElementById(region.id);
        if (found && !busy(region)) exchange(region, found);
      }
      refreshAges();
    } catch {
      say("off", "not live");
    } finally {
      setTimeout(() => { running = false; if (due) update(); }, PAUSE_MS);
    }
  };
  // A browser has six connections to a host, over all its tabs: only the tab that is looked at holds one for itself.
  let stream = null;
  let away = false;
  const follow = () => {
    stream = new EventSource("/live");
    stream.addEventListener("open", () => { say("on", "live"); if (away) update(); away = false; });
    stream.addEventListener("change", changed);
    stream.addEventListener("error", () => {
      away = true;
      say("off", "not live");
      if (stream?.readyState === EventSource.CLOSED) update(); // refused: if the session has ended, this shows it
    });
  };
  const leave = () => { stream.close(); stream = null; away = true; say("off", "not live"); };
  if (regions().length && "EventSource" in window) {
    if (!document.hidden) follow();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden && stream) leave();
      else if (!document.hidden && !stream) follow();
    });
  }

  // --- forms: one press is one request
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "yes";
    const button = event.submitter;
    if (button?.dataset.busy) button.textContent = button.dataset.busy;
  });
})();
