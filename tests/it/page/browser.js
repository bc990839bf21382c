// Opens the status page in a headless Chromium over the DevTools protocol, and checks what a person would see.
//
//   node browser.js CHROMIUM PROFILE URL         prints a line after each step and reads one when the test has done its part
//   node browser.js CHROMIUM PROFILE URL FOLDER  writes screenshots to a folder instead
"use strict";
const assert = require("node:assert");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");

const [chromium, profile, url, folder] = process.argv.slice(2);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Messages are JSON that ends in a zero byte, on file descriptors 3 (to the browser) and 4 (from it).
const flags = ["--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", `--user-data-dir=${profile}`, "about:blank"];
const browser = spawn(chromium, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const [, , , to, from] = browser.stdio;
const waiting = new Map();
const problems = [];
const requested = new Set();
let last = 0;
let session;
let input = Buffer.alloc(0);
from.on("data", (data) => {
  input = Buffer.concat([input, data]);
  for (let end = input.indexOf(0); end >= 0; end = input.indexOf(0)) {
    receive(JSON.parse(input.subarray(0, end).toString()));
    input = input.subarray(end + 1);
  }
});

function receive({ id, result, error, method, params }) {
  if (id) {
    const { resolve, reject } = waiting.get(id);
    return error ? reject(new Error(error.message)) : resolve(result);
  }
  if (method === "Network.requestWillBeSent") requested.add(params.request.url);
  if (method === "Runtime.exceptionThrown") problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) problems.push(JSON.stringify(params.args));
  if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level)) problems.push(`${params.entry.text} ${params.entry.url ?? ""}`);
}

function send(method, params = {}) {
  last += 1;
  to.write(JSON.stringify({ id: last, method, params, sessionId: session }) + "\0");
  return new Promise((resolve, reject) => waiting.set(last, { resolve, reject }));
}

/** The value of an expression in the page. */
async function value(expression) {
  const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}

/** Waits until an expression in the page is true. Returns the milliseconds that it took. */
async function until(expression, limit = 30_000) {
  const began = Date.now();
  while (!(await value(expression))) {
    if (Date.now() - began > limit) throw new Error(`not within ${limit} ms: ${expression}\n${await value("document.body.innerText")}`);
    await pause(20);
  }
  return Date.now() - began;
}

async function key(name, code) {
  for (const type of ["keyDown", "keyUp"]) await send("Input.dispatchKeyEvent", { type, key: name, code: name, windowsVirtualKeyCode: code });
}

const width = (pixels, height = 800) => send("Emulation.setDeviceMetricsOverride", { width: pixels, height, deviceScaleFactor: 1, mobile: pixels < 600 });
const scheme = (wanted) => send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: wanted }] });

async function open() {
  const { targetInfos } = await send("Target.getTargets");
  const { targetId } = targetInfos.find((target) => target.type === "page");
  ({ sessionId: session } = await send("Target.attachToTarget", { targetId, flatten: true }));
  for (const domain of ["Page", "Runtime", "Network", "Log"]) await send(`${domain}.enable`);
  await width(1200);
  await scheme("light");
  await send("Page.navigate", { url });
  await until("document.body && Number(document.body.dataset.updated) > 0");
}

async function screenshot(name, height) {
  await pause(300);
  const { data } = await send("Page.captureScreenshot", { format: "png", clip: { x: 0, y: 0, width: await value("innerWidth"), height, scale: 1 }, captureBeyondViewport: true });
  fs.writeFileSync(path.join(folder, name), Buffer.from(data, "base64"));
}

/** The contrast of two colors, as WCAG defines it. */
const RATIO = `((...colors) => {
  const light = (color) => {
    const part = (n) => { const c = n / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
    const [r, g, b] = color.match(/[\\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const both = colors.map(light).sort((a, b) => b - a);
  return (both[0] + 0.05) / (both[1] + 0.05);
})`;
/** That of an element's text with the page, and those of the labels of the ring with what is below them. */
const CONTRAST = `((element) => ${RATIO}(getComputedStyle(element).color, getComputedStyle(document.body).backgroundColor))`;
const LABELS = `[...document.querySelectorAll('.arc')].flatMap((arc) => {
  const label = arc.nextElementSibling;
  return label?.classList.contains('on') ? [${RATIO}(getComputedStyle(label).fill, getComputedStyle(arc).fill)] : [];
})`;

async function check() {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const told = async (word) => assert.strictEqual((await lines.next()).value, word);
  await open();
  await until("document.querySelectorAll('#plots canvas').length === 9");
  const turns = Number(await value("document.body.dataset.updated"));
  await until(`Number(document.body.dataset.updated) > ${turns + 1}`, 5_000);
  await until("document.querySelector('#hot-table').innerText.includes('page:')");
  // First what is spared, then the rest; metrics' names for those who ask.
  const headings = await value("[...document.querySelectorAll('main section:not([hidden]) > h2')].map((head) => head.innerText)");
  assert.strictEqual(headings[0], "Rules", headings.join());
  await until("/^[1-9]/.test(document.querySelectorAll('#spared dd.large')[1].innerText)");
  assert.match(await value("document.querySelector('#spared').innerText"), /^Builds spared now\n\n?[\d.]+\/s/);
  assert.ok(!(await value("document.body.innerText")).includes("kennel_upstream_up"));
  await value("document.querySelector('#names').click()");
  const text = await value("document.body.innerText");
  for (const word of ["ready", "kennel_upstream_up", "kennel_requests_total", "3 of 3 up", "pages", "1 build, ", "process_resident_memory_bytes", "pools.main.servers"]) {
    assert.ok(text.includes(word), `the page shows no ${word}:\n${text}`);
  }
  await until("document.querySelector('#lease-table tbody th')?.innerText === 'page:building'");
  // A picture of the slab classes of each server, and the same as a table.
  await until("document.querySelectorAll('#slab-figures svg rect.used').length >= 3");
  const pictures = await value("[...document.querySelectorAll('#slab-figures svg')].map((svg) => svg.getAttribute('aria-label'))");
  assert.strictEqual(pictures.length, 3);
  for (const words of pictures) assert.match(words, /^Slab classes of 127\.0\.0\.1:\d+: [1-9]\d* pages in [1-9]\d* slab classes, 0 items evicted$/);
  assert.ok((await value("document.querySelectorAll('#slab-table tbody tr').length")) >= 3);
  // Every number has the name of where it is from.
  const unnamed = await value("[...document.querySelectorAll('thead th.n')].filter((head) => !head.title).map((head) => head.innerText)");
  assert.deepStrictEqual(unnamed, []);
  await value("document.querySelector('#names').click()");
  const hits = "Number(document.querySelector('#rule-table td[data-title=hits]').innerText.replaceAll(',', ''))";
  const before = await value(hits);
  await until(`${hits} > ${before}`, 5_000);

  for (const wanted of ["light", "dark"]) {
    await scheme(wanted);
    for (const selector of ["p", "h1", "td", ".metric", ".badge", "th", "a"]) {
      const contrast = await value(`${CONTRAST}(document.querySelector('main ${selector}, header ${selector}'))`);
      assert.ok(contrast >= 4.5, `${selector} in ${wanted}: ${contrast}`);
    }
  }
  const paper = "getComputedStyle(document.body).backgroundColor";
  const dark = await value(paper);
  await scheme("light");
  assert.notStrictEqual(await value(paper), dark);

  for (const pixels of [360, 800, 1280]) {
    await width(pixels);
    await until(`document.documentElement.scrollWidth <= ${pixels}`, 2_000);
    // Nothing is beside the screen, and no address is broken. Tables of classes and points may be wider: a picture shows the same.
    const wide = await value("[...document.querySelectorAll('main > section > div .wide')].filter((box) => !box.closest('details') && box.scrollWidth > box.clientWidth).map((box) => box.getAttribute('aria-label'))");
    assert.deepStrictEqual(wide, [], `at ${pixels}`);
    const broken = await value("[...document.querySelectorAll('.address')].filter((address) => address.getClientRects().length !== 1).map((address) => address.innerText)");
    assert.deepStrictEqual(broken, [], `at ${pixels}`);
  }
  await width(1200);

  // By keyboard: the link that skips, the sections, then the tables.
  await value("document.activeElement.blur()");
  const order = [];
  for (let n = 0; n < 16; n += 1) {
    await key("Tab", 9);
    order.push(await value("document.activeElement.getAttribute('href') || document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"));
  }
  const first = await value("[...document.querySelectorAll('.skip, nav a')].map((link) => link.getAttribute('href'))");
  assert.deepStrictEqual(order.slice(0, first.length), first);
  assert.ok(order.some((label) => label.startsWith("Servers of pool main")), order.join());
  assert.notStrictEqual(await value("getComputedStyle(document.activeElement).outlineStyle"), "none");
  // What a screen reader finds.
  const { nodes } = await send("Accessibility.getFullAXTree");
  const named = (role) => nodes.filter((node) => node.role?.value === role && !node.ignored).map((node) => node.name?.value);
  for (const role of ["main", "navigation", "banner"]) assert.strictEqual(named(role).length, 1, role);
  assert.ok(named("heading").includes("Servers") && named("heading").includes("Rules"), named("heading").join());
  for (const role of ["image", "img", "table", "region", "link"]) assert.ok(named(role).every((name) => name), `${role}: ${named(role)}`);
  assert.ok(named("image").concat(named("img")).some((name) => name.startsWith("Ring of pool main")));

  console.log("loaded");
  await told("killed");
  const took = await until("document.querySelector('#pools').innerText.includes('down') && document.querySelector('#problem-list').innerText.includes('is down')", 3_000);
  await until(`[...document.querySelectorAll('#error-table tbody tr')].some((row) => row.innerText.includes('not connected') && row.innerText.includes('127.0.0.1:'))`, 3_000);
  // Neither the title nor the badge is that of a pool without problems, and the label of the dead server can be read.
  await until("document.title === 'Kennel: ready, 1 of 3 servers not up' && document.querySelector('#state').className === 'badge warn'");
  for (const wanted of ["light", "dark"]) {
    await scheme(wanted);
    for (const contrast of await value(LABELS)) assert.ok(contrast >= 4.5, `a server's label in ${wanted}: ${contrast}`);
  }
  await scheme("light");
  console.log(`down after ${took} ms`);
  await told("restarted");
  await until("document.querySelector('#pools').innerText.includes('3 of 3 up')");

  assert.deepStrictEqual(problems, []);
  const elsewhere = [...requested].filter((address) => !address.startsWith(url) && !address.startsWith("data:") && address !== "about:blank");
  assert.deepStrictEqual(elsewhere, []);
  console.log("passed");
}

async function screenshots() {
  await open();
  await width(1280);
  await until("document.querySelectorAll('#plots canvas').length === 9");
  await screenshot("page-light.png", 1500);
  await scheme("dark");
  await screenshot("page-dark.png", 1500);
  await width(360);
  await screenshot("page-phone.png", 1500);
}

const limit = setTimeout(() => fail(new Error("it takes too long")), 150_000);
function fail(error) {
  console.error(error.stack, problems);
  browser.kill("SIGKILL");
  process.exit(1);
}
browser.on("error", fail);
(folder ? screenshots() : check()).then(async () => {
  clearTimeout(limit);
  session = undefined;
  send("Browser.close").catch(() => {});
  browser.on("exit", () => process.exit(0));
}, fail);
