// Draws the charts of a page with Plotly. The colours come from the style sheet.
"use strict";

const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false };
// The width of a bar in the histogram of a policy's values, in basis points.
const BIN_WIDTH = 250;
// The share of a bar's time step that stays empty, half of it on each side of the bar.
const BAR_GAP = 0.18;

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Escapes a name, because tenants choose names and Plotly interprets markup in them: links, bold text, entities.
function plain(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function frame(extra) {
  const axis = { gridcolor: color("line"), linecolor: color("line-strong"), zerolinecolor: color("line"), automargin: true, fixedrange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("muted") },
    margin: { l: 48, r: 8, t: 8, b: 32 },
    bargap: BAR_GAP,
    hovermode: "x unified",
    // Does not shorten names, because Plotly could cut them in the middle of an entity.
    hoverlabel: { namelength: -1, bgcolor: color("surface"), bordercolor: color("line-strong"), font: { color: color("text") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    ...extra,
    xaxis: { ...axis, showgrid: false, ...(extra.xaxis || {}) },
    yaxis: { ...axis, rangemode: "tozero", ...(extra.yaxis || {}) },
  };
}

// The ticks of a count must be integers. If the highest count is smaller than this number, Plotly would also
// draw fractional ticks.
const FRACTIONS_UNTIL = 10;

function countAxis(highest) {
  return { tickformat: "~s", ...(highest < FRACTIONS_UNTIL ? { tick0: 0, dtick: Math.max(1, Math.ceil(highest / 5)) } : {}) };
}

function highestBar(data) {
  const columns = data.x.map((_, column) => data.series.map((series) => series.values[column]));
  const heights = columns.map((values) => (data.overlap ? Math.max(...values) : values.reduce((sum, value) => sum + value, 0)));
  return Math.max(0, ...heights);
}

// Positions each bar inside its time step. By default, Plotly centres a bar on the start of its step.
function withinStep(data) {
  const step_ms = data.step_s * 1000;
  return { offset: (step_ms * BAR_GAP) / 2, width: step_ms * (1 - BAR_GAP) };
}

function bars(data) {
  const money = data.unit === "USD";
  const traces = data.series.map((series, number) => ({
    type: "bar",
    name: plain(series.name),
    x: data.x,
    y: series.values,
    marker: { color: series.tone ? color(`chart-${series.tone}`) : color(`chart-${1 + (number % 10)}`) },
    hovertemplate: money ? "$%{y:.8~f}" : "%{y}",
    ...(data.zoom ? withinStep(data) : {}),
  }));
  const layout = frame({
    barmode: data.overlap ? "overlay" : "stack",
    dragmode: data.zoom ? "zoom" : false,
    showlegend: data.series.length > 1,
    xaxis: { type: "date", fixedrange: !data.zoom },
    yaxis: money ? { tickprefix: "$", tickformat: "~g" } : countAxis(highestBar(data)),
  });
  return { traces, layout };
}

function lines(data) {
  const traces = data.series.map((series, number) => ({
    type: "scatter",
    mode: series.dash ? "lines" : "lines+markers",
    name: plain(series.name),
    x: data.x.slice(0, series.values.length),
    y: series.values,
    line: { color: color(series.dash ? "chart-9" : `chart-${1 + number}`), dash: series.dash ? "dot" : "solid", width: 2 },
    hovertemplate: "$%{y:.8~f}",
  }));
  return { traces, layout: frame({ dragmode: false, xaxis: { type: "date" }, yaxis: { tickprefix: "$", tickformat: "~g" } }) };
}

// Parses a time that Plotly wrote. Plotly writes midnight as a date without a time.
function unixSeconds(text) {
  return Math.round(Date.parse(text.includes(" ") ? `${text.replace(" ", "T")}Z` : text) / 1000);
}

// Returns the time range that the bars between two times cover. Returns the two times if there are no bars.
function timeOfBars(data, from, to) {
  const gap_s = (data.step_s * BAR_GAP) / 2;
  const starts = data.x.map(unixSeconds).filter((start) => start + data.step_s - gap_s > from && start + gap_s < to);
  return starts.length ? [starts[0], starts.at(-1) + data.step_s] : [from, Math.max(to, from + 1)];
}

// Opens the activity page with the time range of the bars that the user selects by dragging.
function zoomByDragging(plot, data) {
  plot.on("plotly_relayout", (change) => {
    const from = change["xaxis.range[0]"];
    const to = change["xaxis.range[1]"];
    if (from === undefined || to === undefined) return;
    const [since, until] = timeOfBars(data, unixSeconds(from), unixSeconds(to));
    const address = new URL(location.href);
    for (const name of ["range", "before", "notice"]) address.searchParams.delete(name);
    address.searchParams.set("since", since);
    address.searchParams.set("until", until);
    address.pathname = "/activity";
    location.assign(address);
  });
}

function thresholdLine(at) {
  return { type: "line", x0: at, x1: at, y0: 0, y1: 1, yref: "paper", line: { color: color("accent"), width: 3 } };
}

function histogram(data) {
  const counts = new Array(10000 / BIN_WIDTH).fill(0);
  for (const [probability, count] of data.points) {
    counts[Math.min(Math.floor(probability / BIN_WIDTH), counts.length - 1)] += count;
  }
  const traces = [{
    type: "bar",
    x: counts.map((_, bin) => bin * BIN_WIDTH + BIN_WIDTH / 2),
    y: counts,
    width: BIN_WIDTH,
    marker: { color: binColors(counts.length, data.at), line: { color: color("surface"), width: 1 } },
    hovertemplate: "%{y} verdicts<extra></extra>",
  }];
  const layout = frame({
    hovermode: "closest",
    dragmode: false,
    bargap: 0,
    shapes: [thresholdLine(data.at)],
    xaxis: { range: [0, 10000], tickformat: "d", tickvals: [0, 2000, 4000, 6000, 8000, 10000], ticktext: ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"], title: { text: data.value } },
    yaxis: countAxis(Math.max(...counts)),
    margin: { l: 48, r: 16, t: 8, b: 46 },
  });
  return { traces, layout };
}

function binColors(bins, threshold) {
  return Array.from({ length: bins }, (_, bin) => color((bin + 0.5) * BIN_WIDTH >= threshold ? "chart-2" : "chart-9"));
}

function matchesAt(points, threshold) {
  let sum = 0;
  for (const [probability, count] of points) if (probability >= threshold) sum += count;
  return sum;
}

function percent(basisPoints) {
  return `${Number((basisPoints / 100).toFixed(2))} %`;
}

// Returns the text about the guarantees at a threshold in basis points. Guarantees are known for whole percentages
// only. With a higher threshold, there are fewer false denials and more misses. So for a threshold between two
// percentages, uses the guarantee at the lower percentage for false denials, and at the higher percentage for misses.
function guaranteeAt(guarantees, threshold) {
  if (!guarantees) return "";
  const denied = threshold < 100 ? 1 : guarantees[Math.min(98, Math.floor(threshold / 100) - 1)][0];
  const missed = threshold > 9900 ? 1 : guarantees[Math.max(0, Math.ceil(threshold / 100) - 1)][1];
  return `With 95 % confidence, the labels support: at most ${(100 * denied).toFixed(1)} % of texts that should pass are denied, and at most ${(100 * missed).toFixed(1)} % of texts that should match are missed.`;
}

// Moves the slider when the user drags the line in the chart, and the line when the user moves the slider. Updates
// the texts with the counts at the same time.
function moveThreshold(plot, data) {
  const slider = document.getElementById("threshold-slider");
  if (!slider) return;
  const total = data.points.reduce((sum, [, count]) => sum + count, 0);
  let drawn = data.at;

  function say(threshold) {
    const matches = matchesAt(data.points, threshold);
    document.getElementById("threshold-value").textContent = percent(threshold);
    slider.setAttribute("aria-valuetext", percent(threshold));
    document.getElementById("threshold-guarantee").textContent = guaranteeAt(data.guarantees, threshold);
    document.getElementById("threshold-matches").textContent = matches;
    document.getElementById("threshold-share").textContent = total ? `${(100 * matches / total).toFixed(1)} %` : "–";
  }

  function draw(threshold) {
    drawn = threshold;
    Plotly.update(plot, { "marker.color": [binColors(plot.data[0].y.length, threshold)] }, { shapes: [thresholdLine(threshold)] });
  }

  slider.addEventListener("input", () => {
    say(Number(slider.value));
    draw(Number(slider.value));
  });
  const follow = (change) => {
    const at = change["shapes[0].x0"];
    if (at === undefined) return;
    const threshold = Math.min(9999, Math.max(1, Math.round(at)));
    slider.value = threshold;
    say(threshold);
  };
  plot.on("plotly_relayouting", follow);
  plot.on("plotly_relayout", (change) => {
    follow(change);
    if (change["shapes[0].x0"] !== undefined && Number(slider.value) !== drawn) draw(Number(slider.value));
  });
  say(Number(slider.value));
}

async function drawChart(figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const plot = figure.querySelector(".plot");
  const { traces, layout } = { threshold: histogram, bars, lines }[data.kind](data);
  const config = data.kind === "threshold" ? { ...CONFIG, edits: { shapePosition: true } } : CONFIG;
  await Plotly.newPlot(plot, traces, layout, config);
  if (data.zoom) zoomByDragging(plot, data);
  if (data.kind === "threshold") moveThreshold(plot, data);
  figure.dataset.drawn = "yes";
}

function drawAll() {
  for (const figure of document.querySelectorAll("figure.chart")) drawChart(figure);
}

drawAll();
document.addEventListener("refreshed", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
