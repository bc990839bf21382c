// The status page: asks for the state once a second, and shows it. Every text from the server is set as text, never as markup.
"use strict";

const SECOND = 1000;
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const two = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const count = (n) => number.format(n);
const rate = (n) => (n == null ? "–" : two.format(n) + "/s");
const percent = (n) => (n == null ? "–" : (Math.floor(n * 1000) / 10).toFixed(1) + " %");
const bytes = (n) => (n == null ? "–" : two.format(n / 1048576) + " MiB");
const seconds = (n) =>
  n == null ? "–" : n < 1e-3 ? two.format(n * 1e6) + " µs" : n < 1 ? two.format(n * 1e3) + " ms" : n < 600 ? two.format(n) + " s" : two.format(n / 3600) + " h";

/** An element with attributes and children; texts become text nodes. */
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) if (value != null) element.setAttribute(key, value);
  element.append(...children.filter((child) => child != null));
  return element;
}

function drawn(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text != null) element.textContent = text;
  return element;
}

/** Replaces the contents of an element, unless they are the same: focus and selection stay where they are. */
const shown = new Map();
function show(id, data, build, compared = data) {
  const text = JSON.stringify(compared);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  $(id).replaceChildren(...[build(data)].flat());
}

/** A table. Columns: title, the metric behind it, its text for a row, whether it is a number. */
function table(caption, columns, rows, empty) {
  if (!rows.length) return make("p", {}, empty || "None.");
  const heads = columns.map((c) =>
    make("th", { role: "columnheader", scope: "col", class: c.n ? "n" : null, title: c.metric }, c.title, c.metric ? make("span", { class: "metric" }, c.metric) : null));
  const line = (row) =>
    make("tr", { role: "row" }, ...columns.map((c, at) => {
      const value = c.of(row);
      const css = [c.n ? "n" : "name", c.state ? c.state(row) : ""].join(" ").trim();
      if (at === 0) return make("th", { class: css, role: "rowheader", scope: "row" }, value);
      return make("td", { class: css, role: "cell", "data-title": c.title }, value);
    }));
  // The roles remain those of a table where a narrow screen shows cards.
  const head = make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads));
  const body = make("table", { class: "cards", role: "table" }, make("caption", {}, caption), head, make("tbody", { role: "rowgroup" }, ...rows.map(line)));
  return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, body);
}

// Servers.

const STATES = { up: "up", down: "down", sick: "sick: too slow", unknown: "not connected yet" };
const PLACES = { own: "on the server", standby: "on the standby servers", drained: "on the standby servers: drained", unknown: "not served: no valid view" };
const tone = (server) => ({ up: "up", down: "down", sick: "warn" })[server.state] || "";

function ring(pool) {
  const words = pool.servers.map((s) => `${s.name} ${STATES[s.state]}, ${percent(s.share)}`).join("; ");
  const svg = drawn("svg", { viewBox: "-100 -100 200 200", role: "img", "aria-label": `Ring of pool ${pool.name}: ${words}` });
  let from = 0;
  pool.servers.forEach((server, at) => {
    if (server.share <= 0) return;
    const to = from + server.share;
    const point = (turn, radius) => {
      const angle = turn * 2 * Math.PI - Math.PI / 2;
      return `${(Math.cos(angle) * radius).toFixed(2)} ${(Math.sin(angle) * radius).toFixed(2)}`;
    };
    const end = Math.min(to, from + 0.9999);
    const large = end - from > 0.5 ? 1 : 0;
    const path = `M ${point(from, 95)} A 95 95 0 ${large} 1 ${point(end, 95)} L ${point(end, 55)} A 55 55 0 ${large} 0 ${point(from, 55)} Z`;
    const away = server.keys === "standby" || server.keys === "drained" ? " away" : "";
    const arc = drawn("path", { class: `arc ${server.state}${away}`, d: path });
    arc.append(drawn("title", {}, `${at + 1}: ${server.name}, ${STATES[server.state]}, ${percent(server.share)} of the keys`));
    svg.append(arc);
    const [x, y] = point((from + end) / 2, 75).split(" ");
    if (server.share > 0.03) svg.append(drawn("text", { class: `on${away}`, x, y, "text-anchor": "middle", "dominant-baseline": "central" }, String(at + 1)));
    from = to;
  });
  const up = pool.servers.filter((s) => s.state === "up").length;
  svg.append(drawn("text", { x: 0, y: 0, "text-anchor": "middle", "dominant-baseline": "central" }, `${up} of ${pool.servers.length} up`));
  return svg;
}

function pools(all) {
  return all.map((pool) => {
    const standby = (server) =>
      [...server.standby].sort((a, b) => b[1] - a[1]).slice(0, 4).map(([at, share]) => `${at + 1} (${Math.round(share * 100)} %)`).join(", ") + (server.standby.length > 4 ? ", …" : "");
    const columns = [
      { title: "server", of: (s) => make("span", { class: "address" }, `${pool.servers.indexOf(s) + 1}  ${s.name}`) },
      { title: "state", metric: "kennel_upstream_up, kennel_upstream_healthy", of: (s) => STATES[s.state], state: tone },
      { title: "share", metric: "/page.json share", n: true, of: (s) => percent(s.share) },
    ];
    if (pool.servers.some((s) => s.keys)) {
      columns.push({ title: "guarded keys", metric: "kennel_failover_place, kennel_failover_view_valid", of: (s) => PLACES[s.keys] || "on the server", state: (s) => (s.keys === "own" ? "up" : "down") });
      columns.push({ title: "standby", metric: "/page.json standby", of: standby });
    }
    const notes = pool.unknown_placements.map((other) =>
      make("p", { class: "down" }, `Another sidecar places the keys of ${pool.name} by ${other}, which is not adjacent: they miss each other's invalidations`));
    const rules = pool.rules?.in_use ?? [];
    if (new Set(rules.map((used) => used.fingerprint)).size > 1) {
      const list = rules.map((used) => `${used.fingerprint} (Kennel ${used.version}, since ${used.since})`).join(", ");
      notes.push(make("p", { class: "down" }, `Sidecars of ${pool.name} have different rules: ${list}; that of this one is ${pool.rules.own}. `, make("span", { class: "metric" }, "kennel_pool_rules_differ")));
    }
    const placement = pool.placement ? make("p", {}, `Placement ${pool.placement}. `, make("span", { class: "metric" }, "kennel_pool_placements")) : null;
    const rows = table(`Servers of pool ${pool.name}; the share is an estimate within about a percent`, columns, pool.servers, "No server is known.");
    return make("div", {}, make("h3", {}, `Pool ${pool.name}`), make("div", { class: "pool" }, ring(pool), rows), fences(pool), placement, ...notes);
  });
}

/** The fences of the views of a pool that fails over, for those who compare them with what `kennel explain` says. */
function fences(pool) {
  const known = pool.servers.filter((s) => s.fence);
  if (!known.length) return null;
  const id = `fences-${pool.name}`;
  const list = known.map((s) => make("li", {}, `${s.name}: fence ${s.fence}`));
  return make("details", { id, open: $(id)?.open ? "" : null }, make("summary", {}, "Fences"), make("ul", {}, ...list));
}

// Slab classes.

const chunk = (n) => (n < 1024 ? `${n} B` : `${two.format(n / 1024)} KiB`);
const COLUMN = 14;
const [ABOVE, BELOW] = [90, 40];

/** The memory of a server: a column for each class, pages upward, evictions downward. */
function classes({ server, classes: all }) {
  const most = Math.max(1, ...all.map((c) => c.total_pages));
  const evictions = Math.max(1, ...all.map((c) => c.evicted));
  const pages = all.reduce((sum, c) => sum + c.total_pages, 0);
  const evicted = all.reduce((sum, c) => sum + c.evicted, 0);
  const words = `${count(pages)} pages in ${all.length} slab classes, ${count(evicted)} items evicted`;
  const width = Math.max(160, all.length * COLUMN);
  const height = ABOVE + BELOW + 16;
  const svg = drawn("svg", { class: "slabs", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Slab classes of ${server}: ${words}` });
  all.forEach((c, at) => {
    const used = c.total_chunks ? c.used_chunks / c.total_chunks : 0;
    const bar = (kind, y, tall) => drawn("rect", { class: kind, x: at * COLUMN + 2, y, width: COLUMN - 4, height: tall.toFixed(1) });
    const tall = (c.total_pages / most) * ABOVE;
    const group = drawn("g", {});
    group.append(drawn("title", {}, `class ${c.class}, chunks of ${chunk(c.chunk_size)}: ${count(c.total_pages)} pages, ${count(c.used_chunks)} of ${count(c.total_chunks)} chunks used, ${count(c.evicted)} evicted`));
    group.append(bar("page", ABOVE - tall, tall), bar("used", ABOVE - tall * used, tall * used));
    if (c.evicted) group.append(bar("evicted", ABOVE + 2, Math.max(2, (c.evicted / evictions) * BELOW)));
    if (at % 2 === 0) group.append(drawn("text", { x: at * COLUMN + COLUMN / 2, y: height - 2, "text-anchor": "middle" }, String(c.class)));
    svg.append(group);
  });
  svg.append(drawn("line", { x1: 0, x2: width, y1: ABOVE + 1, y2: ABOVE + 1 }));
  return [make("figcaption", {}, words), make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `Picture of the slab classes of ${server}` }, svg)];
}

function slabs(page) {
  const rows = page.servers.flatMap((s) => s.classes.map((c) => ({ ...c, server: s.server })));
  const figures = page.servers.map((s) => {
    const title = make("h3", {}, `${s.server} of pool ${s.pool}`);
    if (s.error) return make("figure", {}, title, make("p", { class: "down" }, s.error));
    if (!s.classes.length) return make("figure", {}, title, make("p", {}, "No slab class: an embedded server has none."));
    return make("figure", {}, title, ...classes(s));
  });
  const all = table("Slab classes of all servers", [
    { title: "server", of: (c) => c.server },
    { title: "class", metric: "/slabs class", n: true, of: (c) => String(c.class) },
    { title: "chunk", metric: "slabs chunk_size", n: true, of: (c) => chunk(c.chunk_size) },
    { title: "pages", metric: "slabs total_pages", n: true, of: (c) => count(c.total_pages) },
    { title: "chunks used", metric: "slabs used_chunks", n: true, of: (c) => count(c.used_chunks) },
    { title: "of", metric: "slabs total_chunks", n: true, of: (c) => count(c.total_chunks) },
    { title: "evicted", metric: "items evicted", n: true, of: (c) => count(c.evicted), state: (c) => (c.evicted ? "warn" : "") },
    { title: "last evicted unused for", metric: "items evicted_time", n: true, of: (c) => (c.evicted ? seconds(c.evicted_time) : "–") },
  ], rows, "No server has told its slab classes.");
  const omitted = page.omitted ? make("p", {}, `Of the first ${page.servers.length} servers; ${page.omitted} are omitted.`) : null;
  return [make("div", { class: "figures" }, ...figures), ...(omitted ? [omitted] : []), make("details", { open: $("slab-table")?.open ? "" : null, id: "slab-table" }, make("summary", {}, "As a table"), all)];
}

/** Asks for the slab classes, without making the other questions wait: a server may not reply. */
let asking = false;
async function askSlabs() {
  if (asking) return;
  asking = true;
  try {
    await ask("/slabs", "slab-figures", slabs, (page) => ({ ...page, at: null }));
  } catch (error) {
    show("slab-figures", error.message, () => make("p", {}, `Not shown: ${error.message}`));
  }
  asking = false;
}

// The last hour.

const history = { next: 0, names: "", at: [], series: {}, servers: {} };
const PLOTS = [
  { title: "Requests per second by outcome", unit: rate, metric: "kennel_requests_total", lines: ["hit", "stale", "miss", "stored", "other", "error"] },
  { title: "Hit ratio", unit: percent, metric: "kennel_requests_total", lines: ["fresh", "with stale"], top: 1 },
  { title: "Rebuilds and builds avoided per second", unit: rate, metric: "kennel_leases_total, kennel_waits_total, kennel_requests_total", lines: ["rebuilds", "avoided"] },
  { title: "Duration of a client's request", unit: seconds, metric: "kennel_request_duration_seconds", lines: ["p50", "p99"] },
  { title: "Median duration by server", unit: seconds, metric: "kennel_upstream_request_duration_seconds", servers: "p50" },
  { title: "99th percentile by server", unit: seconds, metric: "kennel_upstream_request_duration_seconds", servers: "p99" },
  { title: "Tags bumped per second", unit: rate, metric: "kennel_tag_bumps_total", lines: ["bumps"] },
  { title: "Connections", unit: count, metric: "kennel_client_connections", lines: ["connections"] },
  { title: "Memory", unit: bytes, metric: "process_resident_memory_bytes", lines: ["memory"] },
];
const MAX_LINES = 8;
/** The time between two points, in seconds. */
const POINT = 5;

/** Adds new points. Returns whether there were any. */
function remember(page) {
  const names = page.servers.map((s) => s.name).join("\n");
  // The servers are others, or the process is: all points are needed.
  const other = names !== history.names || page.first !== history.next;
  if (other) Object.assign(history, { at: [], series: {}, servers: {} });
  if (other && history.next > 0) {
    history.next = 0;
    return false;
  }
  history.names = names;
  history.next = page.next;
  const add = (to, key, values) => {
    to[key] = (to[key] || []).concat(values).slice(-page.max_points);
  };
  history.at = history.at.concat(page.at_ms.map((ms) => ms / 1000)).slice(-page.max_points);
  page.series.forEach((s) => add(history.series, s.name, s.values));
  page.servers.forEach((s) => {
    const server = (history.servers[s.name] = history.servers[s.name] || {});
    add(server, "p50", s.p50);
    add(server, "p99", s.p99);
  });
  const s = history.series;
  const ratio = (of) => s.hit.map((hit, i) => (hit + s.stale[i] + s.miss[i] > 0 ? of(hit, i) / (hit + s.stale[i] + s.miss[i]) : null));
  s.fresh = ratio((hit) => hit);
  s["with stale"] = ratio((hit, i) => hit + s.stale[i]);
  return page.at_ms.length > 0;
}

const linesOf = (plot) => plot.lines || Object.keys(history.servers).slice(0, MAX_LINES);
const valuesOf = (plot, line) => (plot.servers ? (history.servers[line] || {})[plot.servers] : history.series[line]) || [];
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASHES = [[], [6, 3], [2, 3]];

function draw(plot) {
  const lines = linesOf(plot);
  const key = lines.join("\n");
  const data = [history.at, ...lines.map((line) => valuesOf(plot, line))];
  if (!plot.figure) {
    plot.box = make("div", { class: "plot", role: "img" });
    plot.legend = make("ul", { class: "legend" });
    plot.figure = make("figure", {}, make("figcaption", {}, plot.title, make("br"), make("span", { class: "metric" }, plot.metric)), plot.box, plot.legend);
    $("plots").append(plot.figure);
  }
  if (plot.key !== key || !plot.chart) {
    if (plot.chart) plot.chart.destroy();
    plot.key = key;
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    plot.chart = new uPlot({
      width: Math.max(200, plot.box.clientWidth), height: 150, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, plot.top || (high > 0 ? high * 1.1 : 1)] } },
      axes: [{ ...axis, space: 60 }, { ...axis, size: 74, values: (_, ticks) => ticks.map((tick) => (plot.unit === percent ? Math.round(tick * 100) + " %" : plot.unit(tick))) }],
      series: [{}, ...lines.map((line, at) => ({ label: line, stroke: color(`--s${at % 8}`), width: 1.5, dash: DASHES[at % 3], spanGaps: false, points: { show: false } }))],
    }, data, plot.box);
  } else {
    plot.chart.setData(data);
  }
  const latest = lines.map((line) => [line, plot.unit(valuesOf(plot, line).at(-1) ?? null)]);
  plot.box.setAttribute("aria-label", `${plot.title}, now: ${latest.map((pair) => pair.join(" ")).join(", ")}`);
  plot.legend.replaceChildren(...latest.map(([line, value], at) => {
    const swatch = drawn("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" });
    swatch.append(drawn("line", { x1: 0, x2: 14, y1: 5, y2: 5, stroke: `var(--s${at % 8})`, "stroke-width": 3, "stroke-dasharray": DASHES[at % 3].join(" ") || "none" }));
    return make("li", {}, swatch, `${line} ${value}`);
  }));
}

function minute() {
  const names = PLOTS.filter((p) => p.lines).flatMap((p) => p.lines.map((line) => [p, line]));
  const rows = history.at.slice(-12).map((at, i, all) => [at, history.at.length - all.length + i]).reverse();
  $("minute-head").replaceChildren(make("tr", {}, make("th", { scope: "col" }, "time"), ...names.map(([p, line]) => make("th", { scope: "col", class: "n", title: p.metric }, line))));
  $("minute").replaceChildren(...rows.map(([at, index]) =>
    make("tr", {}, make("th", { scope: "row" }, new Date(at * 1000).toISOString().slice(11, 19)), ...names.map(([p, line]) => make("td", { class: "n" }, p.unit(valuesOf(p, line)[index] ?? null))))));
}

function plots() {
  if (history.at.length < 2) {
    if (!PLOTS[0].figure) show("plots", history.at.length, () => make("p", {}, "The first points follow within 15 seconds."));
    return;
  }
  if (!PLOTS[0].figure) $("plots").replaceChildren();
  PLOTS.forEach(draw);
  minute();
}

function redraw() {
  PLOTS.forEach((plot) => {
    if (plot.chart) plot.chart.destroy();
    plot.chart = null;
  });
  plots();
}

// Rules, keys, configuration.

/** What a guard has spared, and would spare: now, in the last hour, and since the start. */
function spared(all) {
  const avoided = history.series.avoided ?? [];
  const built = history.series.rebuilds ?? [];
  const from = (history.at.at(-1) ?? 0) - 3600;
  const hour = (rates) => Math.round(rates.reduce((sum, each, at) => sum + (history.at[at] > from ? each * POINT : 0), 0));
  const total = (of) => all.reduce((sum, rule) => sum + of(rule), 0);
  const builds = (number) => `${count(number)} ${number === 1 ? "build" : "builds"}`;
  const figures = [
    ["Builds spared now", rate(avoided.at(-1)), `while ${rate(built.at(-1))} are built`],
    ["Spared in the last hour", builds(hour(avoided)), `while ${count(hour(built))} were built`],
    ["Spared since the start", builds(total((r) => r.served_meanwhile)), `${seconds(total(sparedSeconds))} of building`],
  ];
  const observed = total((r) => r.observed.builds);
  if (observed) {
    const would = total((r) => r.observed.spared_builds);
    figures.push(["Rules that observe: a guard would spare", builds(would), `of ${count(observed)}, ${seconds(total((r) => r.observed.spared_build_seconds))} of building`]);
  }
  const metrics = "kennel_waits_total, kennel_requests_total, kennel_leases_total, kennel_rebuild_duration_seconds, kennel_observed_spared_builds_total";
  return figures.map(([title, large, small]) => make("div", { title: metrics }, make("dt", {}, title), make("dd", { class: "large" }, large), make("dd", {}, small)));
}

function rules(all) {
  const requests = "kennel_requests_total";
  const columns = [
    { title: "rule", of: (r) => r.name },
    { title: "kind", of: (r) => r.kind },
    { title: "spared", metric: "kennel_requests_total, kennel_waits_total, kennel_rebuild_duration_seconds", of: saves },
    { title: "rebuilds", metric: "kennel_leases_total", n: true, of: (r) => count(r.rebuilds) },
    { title: "mean build", metric: "kennel_rebuild_duration_seconds", n: true, of: (r) => seconds(r.build_seconds) },
    { title: "hits", metric: requests, n: true, of: (r) => count(r.hits) },
    { title: "stale", metric: requests, n: true, of: (r) => count(r.stale) },
    { title: "misses", metric: requests, n: true, of: (r) => count(r.misses) },
    { title: "writes", metric: requests, n: true, of: (r) => count(r.writes) },
    { title: "errors", metric: requests, n: true, of: (r) => count(r.errors), state: (r) => (r.errors ? "down" : "") },
  ];
  if (all.some((r) => spares(r) !== "–")) {
    columns.splice(3, 0, { title: "what a guard would spare", metric: "kennel_observed_builds_total, kennel_observed_spared_builds_total, kennel_observed_spared_build_seconds_total", of: spares });
  }
  return table("Rules, in the order of the configuration; counts since the start", columns, all);
}

// Requests that were served while one client built the value, each of which would have built it too.
const sparedSeconds = (r) => r.served_meanwhile * (r.build_seconds ?? 0);

function saves(r) {
  return r.served_meanwhile ? `${count(r.served_meanwhile)} ${r.served_meanwhile === 1 ? "build" : "builds"}, ${seconds(sparedSeconds(r))}` : "–";
}

// Of the raw keys that are observed, beside the guarded ones of the same rule.
function spares(r) {
  const o = r.observed;
  const each = (builds, overlapping) => String(Math.round(10 * builds / (builds - overlapping)) / 10);
  const guarded = each(o.guarded_builds, o.guarded_overlapping_builds);
  const builds = (number) => `${number} ${number === "1" ? "build" : "builds"} per expiry`;
  if (!o.builds) return o.guarded_builds ? `guarded: ${builds(guarded)}` : "–";
  const observed = each(o.builds, o.spared_builds);
  if (o.guarded_builds) return `guarded: ${builds(guarded)}; not: ${observed}`;
  return `${count(o.spared_builds)} of ${count(o.builds)} builds, ${seconds(o.spared_build_seconds)}; ${builds(observed)}, at most ${o.builds_at_once} at once`;
}

function about(page) {
  const t = page.uptime_seconds;
  const up = t < 120 ? `${t} s` : t < 7200 ? `${Math.floor(t / 60)} min` : t < 172800 ? `${Math.floor(t / 3600)} h` : `${Math.floor(t / 86400)} d`;
  $("about").textContent = `version ${page.version} (kennel_build_info), up for ${up} (process_start_time_seconds)`;
  const errors = page.config.errors.map((error) => `The configuration file was refused: ${error}`);
  const lost = page.pools.flatMap((pool) => pool.servers.filter((s) => s.state === "down" || s.state === "sick").map((s) => `Server ${s.name} of pool ${pool.name} is ${STATES[s.state]}`));
  const problems = [...errors, ...lost, ...page.notes];
  const servers = page.pools.reduce((sum, pool) => sum + pool.servers.length, 0);
  const state = lost.length ? `${page.state}, ${lost.length} of ${servers} servers not up` : page.state;
  $("state").textContent = state;
  $("state").className = "badge " + (page.state !== "ready" ? "down" : problems.length ? "warn" : "up");
  document.title = `Kennel: ${state}`;
  $("problems").hidden = !problems.length;
  show("problem-list", problems, (all) => all.map((text) => make("li", { class: "down" }, text)));
}

function errors(all) {
  return table("The last warnings and errors of the log, 32 at most, the latest first", [
    { title: "time (UTC)", of: (e) => e.at.replace("T", " ").slice(0, 19) },
    { title: "level", of: (e) => e.level, state: (e) => (e.level === "error" ? "down" : "warn") },
    { title: "server", of: (e) => e.of || "–" },
    { title: "what", of: (e) => (e.from ? `${e.text} from=${e.from}` : e.text) },
    { title: "times", metric: "/page.json count", n: true, of: (e) => count(e.count) },
  ], all, "None since the start.");
}

function configuration(page) {
  const { config } = page;
  show("reload", [config.hash, config.read_at, config.errors.length > 0], () => [
    `Configuration ${config.hash} (kennel_config_info), read at ${config.read_at} (kennel_config_last_reload_timestamp_seconds). `,
    config.errors.length ? "The last attempt to read it failed; see Problems." : "The last attempt to read it succeeded.",
  ].map((text) => make("span", {}, text)));
  show("settings", config.set, (set) => table("Settings of the file and the environment", [{ title: "key", of: (s) => s.key }, { title: "value", of: (s) => s.value }], set, "All settings have their defaults."));
  if (page.discovery.length) {
    show("discovery", page.discovery, (all) => table("Discovery of servers", [
      { title: "entry", of: (d) => `${d.pool}: ${d.entry}` },
      { title: "servers", metric: "kennel_discovery_servers", n: true, of: (d) => count(d.servers) },
      { title: "found at", metric: "kennel_discovery_last_success_timestamp_seconds", of: (d) => d.found_at || "never" },
      { title: "state", metric: "kennel_discovery_step", of: (d) => d.error ? `not found: ${d.error}` : d.step ? `the servers change: step ${d.step} of 3` : "found", state: (d) => (d.error ? "down" : "") },
    ], all));
  }
}

/** Shows what a path has, or why it is not shown. `part` is what decides whether it has changed. */
async function ask(path, id, build, part = (page) => page) {
  const reply = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5 * SECOND) });
  const text = await reply.text();
  if (reply.ok) {
    const page = JSON.parse(text);
    show(id, page, build, part(page));
  } else show(id, text, () => make("p", {}, "Not shown: " + text.trim()));
}

const leases = (page) =>
  table(`Leases in flight, the oldest first (kennel_leases_live), at most ${page.most}`, [
    { title: "key", of: (l) => l.key },
    { title: "held for", metric: "/leases held_ms", n: true, of: (l) => seconds(l.held_ms / 1000) },
    { title: "waiters", metric: "kennel_waiters", n: true, of: (l) => count(l.waiters) },
  ], page.leases, "No client builds a value now.");

const hot = (page) => {
  const of = (name, unit) => (k) => (k[name] ? unit(k[name].per_second) : "–");
  return table(`Hot keys: each one's part of the metrics, estimated over about ${2 * page.half_life_seconds} s; 1 of ${page.counted_one_of} requests counted`, [
    { title: "key", of: (k) => k.key },
    { title: "rule", of: (k) => k.rule },
    { title: "requests", metric: "kennel_requests_total", n: true, of: of("requests", rate) },
    { title: "bytes", metric: "kennel_bytes_written_total", n: true, of: of("bytes", (n) => two.format(n / 1024) + " KiB/s") },
    { title: "misses", metric: "kennel_requests_total", n: true, of: of("misses", rate) },
    { title: "building", metric: "kennel_rebuild_duration_seconds", n: true, of: of("rebuild", (n) => two.format(n * 1000) + " ms/s") },
  ], page.keys, "No request in the last seconds.");
};

// The loop.

let turns = 0;
async function turn() {
  try {
    const reply = await fetch(`/page.json?since=${history.next}`, { cache: "no-store", signal: AbortSignal.timeout(5 * SECOND) });
    if (!reply.ok) throw new Error(`the sidecar replied ${reply.status}`);
    const page = await reply.json();
    about(page);
    show("pools", page.pools, pools);
    show("rule-table", page.rules, rules);
    configuration(page);
    show("error-table", page.errors, errors);
    if (turns % 5 === 0) askSlabs();
    if (remember(page.history) || turns === 0) plots();
    show("spared", page.rules, spared, [page.rules, history.next]);
    if (turns % 2 === 0) await Promise.all([ask("/leases", "lease-table", leases), ask("/hot?limit=15", "hot-table", hot)]);
    turns += 1;
    if ($("connection").textContent) $("connection").textContent = "";
    $("connection").className = "";
    document.body.dataset.updated = String(turns);
  } catch (error) {
    $("connection").textContent = `No reply from the sidecar: what is shown is old (${error.message})`;
    $("connection").className = "down";
  }
  // A page that nobody sees asks for nothing.
  if (document.hidden) document.addEventListener("visibilitychange", turn, { once: true });
  else setTimeout(turn, SECOND);
}

$("names").addEventListener("change", (event) => document.body.classList.toggle("names", event.target.checked));
let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(redraw, 100);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
turn();
