"use strict";
// The list of events. Text of a box becomes text nodes and nothing else; nothing is fetched.
(() => {
  const byId = (id) => document.getElementById(id);
  const runs = JSON.parse(byId("runs-data").textContent);
  const list = byId("list"), rows = byId("rows"), detail = byId("detail"), count = byId("count");
  const search = byId("search"), kind = byId("kind"), failed = byId("failed"), run = byId("run");
  const loaded = new Map();
  let events = null, shown = [], chosen = -1, height = 28, scheduled = false, timer = 0;

  const node = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const unpack = async (base64) => {
    const raw = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };

  const load = async (number) => {
    if (loaded.has(number)) return loaded.get(number);
    const packed = byId("events-" + number);
    const table = await unpack(packed.textContent);
    const size = table.seq.length, seq = new Float64Array(size), time = new Float64Array(size);
    let at = 0, moment = 0;
    for (let i = 0; i < size; i++) {
      seq[i] = at += table.seq[i];
      time[i] = moment += table.time[i];
    }
    const lower = (values) => values.map((one) => String(one).toLowerCase());
    const made = {
      number, size, seq, time, table,
      texts: {
        actor: table.actor.values.map((one) => (one[0] + " " + one[1]).toLowerCase()),
        kind: lower(table.kind.values), error: lower(table.error.values),
        what: lower(table.what.values), more: lower(table.more.values),
      },
    };
    loaded.set(number, made);
    return made;
  };

  const value = (column, i) => events.table[column].values[events.table[column].rows[i]];

  const stamp = (ns) => {
    const ms = ns / 1e6;
    return ms < 10000 ? ms.toFixed(3) + " ms" : (ms / 1000).toFixed(3) + " s";
  };

  const filter = () => {
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = kind.value ? kind.value.split(" ") : [];
    const columns = ["actor", "kind", "error", "what", "more"];
    const hits = terms.map((term) => columns.map((name) => events.texts[name].map((text) => text.includes(term))));
    const numbers = terms.map((term) => (/^#?\d+$/.test(term) ? Number(term.replace("#", "")) : -1));
    const isKind = events.texts.kind.map((text) => !kinds.length || kinds.includes(text.split(" ")[0]));
    const isError = events.texts.error.map((text) => !failed.checked || text !== "");
    const cells = columns.map((name) => events.table[name].rows);
    const found = [];
    for (let i = 0; i < events.size; i++) {
      if (!isKind[cells[1][i]] || !isError[cells[2][i]]) continue;
      let fits = true;
      for (let t = 0; fits && t < terms.length; t++) {
        fits = numbers[t] === events.seq[i];
        for (let c = 0; !fits && c < columns.length; c++) fits = hits[t][c][cells[c][i]];
      }
      if (fits) found.push(i);
    }
    shown = found;
    const about = runs[events.number];
    const all = about.kept < about.total
      ? `${about.kept.toLocaleString("en")} events here of ${about.total.toLocaleString("en")} in the bundle; left out are later opens for reading and looks`
      : `${about.total.toLocaleString("en")} events`;
    const whole = found.length === events.size;
    count.textContent = (whole ? "" : `${found.length.toLocaleString("en")} found in `) + all + (runs.length > 1 ? ` of ${about.name}` : "");
    list.dataset.found = found.length;
  };

  const row = (at) => {
    const i = shown[at], actor = value("actor", i), error = value("error", i);
    const made = node("div", "event" + (at === chosen ? " chosen" : "") + (actor[2] ? " harness" : ""));
    made.id = "row-" + at;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", at === chosen ? "true" : "false");
    made.setAttribute("aria-setsize", shown.length);
    made.setAttribute("aria-posinset", at + 1);
    made.dataset.at = at;
    made.dataset.seq = events.seq[i];
    made.style.transform = `translateY(${at * height}px)`;
    made.append(
      node("span", "seq", "#" + events.seq[i]), node("span", "time", stamp(events.time[i])),
      node("span", "pid", actor[0]), node("span", "kind", value("kind", i)),
      node("span", error ? "err" : "ok", error || "ok"), node("span", "what", value("what", i)));
    return made;
  };

  const draw = () => {
    scheduled = false;
    rows.style.height = shown.length * height + "px"; // before the place is read: a shorter list moves it
    const first = Math.max(0, Math.floor(list.scrollTop / height) - 10);
    const last = Math.min(shown.length, first + Math.ceil(list.clientHeight / height) + 20);
    const made = [];
    for (let at = first; at < last; at++) made.push(row(at));
    rows.replaceChildren(...made);
    if (chosen >= first && chosen < last) list.setAttribute("aria-activedescendant", "row-" + chosen);
    else list.removeAttribute("aria-activedescendant");
  };

  const schedule = () => {
    if (!scheduled) { scheduled = true; requestAnimationFrame(draw); }
  };

  const tell = () => {
    detail.replaceChildren();
    if (chosen < 0 || chosen >= shown.length) return;
    const i = shown[chosen], actor = value("actor", i), parts = node("dl", "facts");
    const pairs = [
      ["Event", "#" + events.seq[i] + " · " + value("kind", i) + " · " + (value("error", i) || "ok")],
      ["After", stamp(events.time[i])],
      ["What", value("what", i)], ["More", value("more", i)],
      ["Process", "pid " + actor[0] + " " + actor[1] + (actor[2] ? " – the harness’s own check" : "")],
    ];
    for (const [name, text] of pairs) {
      if (!text) continue;
      const pair = node("div");
      const body = node("dd");
      body.append(node("code", "", text));
      pair.append(node("dt", "", name), body);
      parts.append(pair);
    }
    const only = node("button", "", "Only this process");
    only.type = "button";
    only.addEventListener("click", () => { search.value = String(actor[0]); again(); search.focus(); });
    detail.append(parts, only);
  };

  const choose = (at, center) => {
    if (!shown.length) return;
    chosen = Math.max(0, Math.min(shown.length - 1, at));
    const top = chosen * height;
    if (center) list.scrollTop = top - list.clientHeight / 2;
    else if (top < list.scrollTop) list.scrollTop = top;
    else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
    draw();
    tell();
  };

  const again = () => {
    const kept = chosen >= 0 && events ? events.seq[shown[chosen]] : -1;
    filter();
    chosen = shown.findIndex((i) => events.seq[i] === kept);
    rows.style.height = shown.length * height + "px";
    list.scrollTop = chosen < 0 ? 0 : chosen * height - list.clientHeight / 2;
    draw();
    tell();
  };

  const open = async (number) => {
    events = await load(number);
    chosen = -1;
    if (run) run.value = String(number);
    filter();
    list.scrollTop = 0;
    draw();
    tell();
    document.documentElement.dataset.ready = String(number);
  };

  const follow = async () => {
    const link = /^#e-(\d+)-(\d+)$/.exec(location.hash);
    if (!link) {
      const target = location.hash && document.getElementById(location.hash.slice(1));
      for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
      if (target) target.scrollIntoView();
      return;
    }
    const number = Number(link[1]), wanted = Number(link[2]);
    if (number >= runs.length) return;
    if (!events || events.number !== number) await open(number);
    const find = () => shown.findIndex((i) => events.seq[i] === wanted);
    let at = find();
    if (at < 0) {
      search.value = ""; kind.value = ""; failed.checked = false;
      filter();
      at = find();
    }
    byId("events").scrollIntoView();
    if (at < 0) { count.textContent = `Event ${wanted} is not on this page; the bundle has it.`; draw(); return; }
    list.focus({ preventScroll: true });
    choose(at, true);
    document.documentElement.dataset.followed = String(wanted);
  };

  const measure = () => {
    height = parseFloat(getComputedStyle(list).getPropertyValue("--row")) || 28;
    schedule();
  };

  list.addEventListener("scroll", schedule, { passive: true });
  list.addEventListener("click", (event) => {
    const hit = event.target.closest(".event");
    if (hit) choose(Number(hit.dataset.at), false);
  });
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / height) - 1);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(step === Infinity ? shown.length - 1 : step === -Infinity ? 0 : chosen + step, false);
  });
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(again, 120); });
  kind.addEventListener("change", again);
  failed.addEventListener("change", again);
  if (run) run.addEventListener("change", () => open(Number(run.value)));
  addEventListener("hashchange", follow);
  addEventListener("resize", measure);
  // Folded runs of a suite stay folded on paper; all else is told in full, and folded again afterwards.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open], .run, .run:not([open]) *)")];
    for (const one of unfolded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of unfolded) one.open = false;
  });
  // the same link again: the address does not change, so nothing else tells us
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) follow();
  });

  measure();
  if (runs.length) open(0).then(follow, (error) => { count.textContent = "The events cannot be shown here: " + error; });
  else count.textContent = "No run.";
})();
