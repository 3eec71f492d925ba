// node browser.js FOLDER CHROMIUM [PAGE...]: opens every page, or those named, on a wide light and on a narrow dark screen;
// prints serious faults that axe-core finds, console errors, requests to elsewhere, sideways scrolling.
"use strict";
const fs = require("fs");
const path = require("path");
const { chromium } = require("playwright-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [folder, executablePath] = process.argv.slice(2);
const pages = fs.readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".html"));

async function look(browser, name, width, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  const page = await context.newPage();
  page.setDefaultTimeout(300000);
  const say = (what) => console.log(`${name}, ${width} px, ${colorScheme}: ${what}`);
  page.on("console", (message) => message.type() === "error" && say(`console: ${message.text()}`));
  page.on("pageerror", (error) => say(`error: ${error.message}`));
  page.on("request", (request) => /^(file|data|blob):/.test(request.url()) || say(`request to ${request.url()}`));
  await page.goto("file://" + path.join(folder, name));
  const state = await page.evaluate(() => [document.documentElement.scrollWidth - innerWidth, document.querySelectorAll(".katex-error").length]);
  if (state[0] > 0) say(`scrolls sideways by ${state[0]} px`);
  if (state[1]) say(`${state[1]} formulas that KaTeX cannot set`);
  await page.evaluate(axe);
  const result = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"], preload: false }));
  for (const fault of result.violations)
    if (["serious", "critical"].includes(fault.impact)) say(`${fault.id}, ${fault.nodes.length} times, as in ${fault.nodes[0].html.slice(0, 160)}`);
  await context.close();
}

(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-renderer-backgrounding"] });
  const only = process.argv.slice(4);
  for (const name of only.length ? only : pages) {
    await look(browser, name, 1440, "light");
    await look(browser, name, 390, "dark");
  }
  await browser.close();
})();
