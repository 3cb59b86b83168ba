// The table of the items. Every text of a manifest or a transcript is set as textContent, never as markup.
"use strict";

const PAGE_ROWS = 50;
const PART_S = 12; // a part of a text ends with a sentence, after this time …
const PART_WORDS = 40; // … or, without times, after so many words
const SENTENCE_END = /[.?!…。？！।؟]["'”’»)\]」』）]*$/;
const VIDEO = /\.(mp4|m4v|mov|mkv|webm|ogv|avi)$/i;
const SHAPES = ["●", "▲", "■", "◆", "★", "▼", "✚", "✖"]; // of speakers
const KINDS = { S: "substitution", D: "deletion", I: "insertion" };
const USUAL = { "=": [1, 1], S: [1, 1], D: [1, 0], I: [0, 1], ".": [0, 1] };

const DECODED_RATE = 8000; // samples a second of a decoded recording
const WAVE_RATE = 50; // columns of a waveform for each second
const EM_PER_SECOND = 4; // least width of a waveform, in the size of the text
const LEAST_LEVEL = 0.03; // silence is a thin line
const MAX_WAVE_BYTES = 64 << 20; // of a recording that is fetched to draw it

let chosen = []; // files of the folder that the reader has chosen
const undrawn = new Set(); // functions that look there for the recordings of opened rows

const byId = (id) => document.getElementById(id);

// Return an element: attributes by name, listeners by "onclick" and the like, and children that are elements or texts.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

async function readItems() {
  const packed = Uint8Array.from(atob(byId("data").textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const percent = (rate) => `${(100 * rate).toFixed(1)}%`;
const seconds = (time) => (time < 100 ? `${time.toFixed(2)} s` : `${Math.floor(time / 60)} min ${Math.round(time % 60)} s`);
const kindName = (kind) => kind.replaceAll("_", " ");

// Return one object for each row, made from the columns.
function rowsOf(items) {
  const { columns, texts } = items;
  return columns.id.map((id, at) => {
    const counts = columns.counts[at];
    const errors = counts ? counts[0] + counts[1] + counts[2] : null;
    return {
      at, id, counts, errors, texts: texts[at],
      rate: counts && counts[3] ? errors / counts[3] : null,
      unit: columns.cer[at] ? "CER" : "WER",
      audio: columns.audio[at], lang: columns.lang[at], duration: columns.duration[at], offset: columns.offset[at],
      confidence: columns.confidence[at], flags: columns.flags[at], warnings: columns.warnings[at],
      failure: columns.failure[at],
    };
  });
}

// Return the text that the search looks through.
function searchable(row) {
  const [words, , , reference] = row.texts || [[], [], [], []];
  const flags = row.flags.map(kindName);
  return [row.id, row.audio, row.lang, ...flags, row.failure, words.join(""), reference.join(" ")].join("\n").toLowerCase();
}

const FILTERS = {
  all: () => true,
  errors: (row) => row.errors > 0,
  flags: (row) => row.flags.length > 0,
  warnings: (row) => row.warnings > 0,
  failed: (row) => row.failure !== null,
};

// The columns of the table: title, value to sort by, cell, and the screens that leave the column out: narrow ones (wide), or those of a
// tablet, too (widest).
function columnsOf(rows) {
  const has = (name) => rows.some((row) => row[name] !== null);
  const number = (value, show) => (value === null ? "–" : show(value));
  return [
    { name: "Item", sort: (row) => row.id, first: 1 },
    { name: "Language", sort: (row) => row.lang, cell: (row) => row.lang ?? "–", leave: "widest", first: 1, shown: has("lang") },
    { name: "Duration", sort: (row) => row.duration, cell: (row) => number(row.duration, seconds), leave: "widest", number: true },
    { name: "Errors", sort: (row) => row.errors, cell: (row) => number(row.errors, String), leave: "wide", number: true, shown: has("counts") },
    { name: "Error rate", sort: (row) => row.rate, cell: (row) => number(row.rate, percent), number: true, shown: has("counts") },
    { name: "Confidence", sort: (row) => row.confidence, cell: (row) => number(row.confidence, (value) => value.toFixed(2)),
      leave: has("counts") ? "wide" : "", number: true, first: 1, shown: has("confidence") },
    { name: "State", sort: (row) => (row.failure !== null ? 1000 : 0) + row.flags.length + row.warnings / 1000, cell: stateOf },
  ].filter((column) => column.shown !== false);
}

function stateOf(row) {
  if (row.failure !== null) return element("span", { class: "tag failed" }, "failed");
  const tags = row.flags.flatMap((kind) => [element("span", { class: "tag" }, kindName(kind)), " "]);
  const warnings = row.warnings ? `${row.warnings} warning${row.warnings > 1 ? "s" : ""}` : "";
  return element("span", {}, ...tags, warnings);
}

// Return where the recording may be reached from this page, the likeliest place first.
function placesOf(path, folder) {
  if (/^https?:\/\//i.test(path)) return path.includes("…") ? [] : [path];
  if (!path.startsWith("/")) return [];
  const places = location.protocol === "file:" ? [`file://${encodePath(path)}`] : [];
  if (folder) {
    const from = folder.split("/").filter(Boolean);
    const to = path.split("/").filter(Boolean);
    while (from.length && to.length > 1 && from[0] === to[0]) { from.shift(); to.shift(); }
    places.push("../".repeat(from.length) + encodePath(to.join("/")));
  }
  return places;
}

// Percent-encode a path. The surrogates DC80 to DCFF stand for the bytes of a name that is not UTF-8.
function encodePath(path) {
  const encode = (char) => {
    const code = char.codePointAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return `%${(code & 0xff).toString(16)}`;
    return code >= 0xd800 && code <= 0xdfff ? "%EF%BF%BD" : encodeURIComponent(char);
  };
  return [...path].map((char) => (char === "/" ? char : encode(char))).join("");
}

// Return the player of an item, which says so if the recording cannot be reached.
function playerOf(row, places) {
  const name = element("bdi", {}, row.audio);
  const note = element("span", {}, name);
  // A video shows its own picture, which costs the page nothing.
  const isVideo = VIDEO.test(row.audio);
  const audio = element(isVideo ? "video" : "audio", { controls: true, preload: isVideo ? "metadata" : "none", "aria-label": "Recording", hidden: !places.length });
  audio.addEventListener("loadeddata", () => audio.classList.toggle("picture", audio.videoHeight > 0));
  if (!places.length) {
    note.prepend(/^\w+:\/\//.test(row.audio) ? "A browser cannot reach this address: " : "The recording cannot be reached from here: ");
    return { audio, view: element("div", { class: "player" }, audio, note) };
  }
  audio.addEventListener("error", () => {
    places.shift();
    if (places.length) {
      const [wasAt, wasPlaying] = [audio.currentTime, !audio.paused];
      audio.src = places[0];
      if (wasPlaying) playFrom(audio, wasAt);
    } else {
      note.replaceChildren("The recording cannot be reached from this page: ", name);
    }
  });
  audio.src = places[0];
  return { audio, view: element("div", { class: "player" }, audio, note) };
}

function playFrom(audio, time) {
  if (!audio.src) audio.parentElement.querySelector("input")?.click(); // the reader chooses the recording
  if (audio.readyState === 0) audio.addEventListener("loadedmetadata", () => { audio.currentTime = time; }, { once: true });
  audio.currentTime = time;
  audio.play().catch(() => {});
}

// Return the words of the transcript as buttons that play, or as plain texts without times.
function wordsOf(row, audio) {
  const [words, times, confidences] = row.texts;
  let end = 0;
  return words.map((word, at) => {
    const confidence = confidences.length && confidences[at] >= 0 ? confidences[at] / 100 : null;
    const shade = confidence === null || confidence >= 0.9 ? "" : confidence >= 0.7 ? " c1" : confidence >= 0.5 ? " c2" : " c3";
    const start = times.length ? (end + times[2 * at]) / 100 : null;
    if (start !== null) end += times[2 * at] + times[2 * at + 1];
    const parts = [start === null ? "" : `${start.toFixed(2)} to ${(end / 100).toFixed(2)} s`,
      confidence === null ? "" : `confidence ${confidence.toFixed(2)}`];
    const title = parts.filter(Boolean).join(", ") || null;
    if (start === null) return element("span", { class: `w${shade}`, title }, word.trimStart());
    const button = element("button", { type: "button", class: `w${shade}`, title, tabindex: "-1", "data-start": start, "data-end": end / 100 }, word.trimStart());
    button.addEventListener("click", () => playFrom(audio, start));
    return button;
  });
}

// Return the label of each turn by the index of its first word: one colour and one shape for each speaker.
function labelsOf(row) {
  const turns = row.texts[8];
  const names = [...new Set(turns.map(([name]) => name))].filter(Boolean);
  return new Map(turns.map(([name, at]) => {
    const number = names.indexOf(name) % SHAPES.length;
    return [at, element("span", { class: name ? `speaker k${number}` : "speaker" }, name ? `${SHAPES[number]} ${name}` : "–")];
  }));
}

// Return "1:04:09", or "4:09", of seconds.
function clock(time) {
  const [hours, minutes, rest] = [Math.floor(time / 3600), Math.floor(time / 60) % 60, Math.floor(time % 60)];
  return [...(hours ? [hours, String(minutes).padStart(2, "0")] : [minutes]), String(rest).padStart(2, "0")].join(":");
}

// Return the transcript in parts of some sentences, each with its time and its part of the reference beside it.
function textOf(row, words) {
  const [texts, , , reference, cells] = row.texts;
  const labels = labelsOf(row);
  const parts = [];
  let [wanted, found, begin, nodes] = [0, 0, [0, 0], []];
  const startOf = (at) => Number(words[at]?.dataset.start ?? NaN);
  const endPart = () => {
    if (!nodes.length) return;
    const time = startOf(Math.min(begin[1], words.length - 1));
    parts.push(element("div", { class: reference.length ? "part pair" : "part" },
      Number.isNaN(time) ? null : element("span", { class: "time" }, clock(time)),
      element("span", { class: "found", dir: "auto" }, ...nodes),
      reference.length ? element("span", { class: "reference", dir: "auto" }, reference.slice(begin[0], wanted).join(" ")) : null));
    [begin, nodes] = [[wanted, found], []];
  };
  const isFull = () => {
    const [first, next] = [startOf(begin[1]), startOf(found)];
    return found > begin[1] && found < words.length && (labels.has(found) || (SENTENCE_END.test(texts[found - 1])
      && (Number.isNaN(first) ? found - begin[1] >= PART_WORDS : next - first >= PART_S)));
  };
  // A word comes after the white space that its text begins with.
  const spaceBefore = (at) => (nodes.length && texts[at] !== texts[at].trimStart() ? " " : "");
  const shownWord = (at) => [labels.get(at) ?? spaceBefore(at), words[at]];
  for (const [, run, kind, more, fewer] of (cells || `${words.length}.`).matchAll(/(\d*)([=SDI.])(?:(\d+):(\d+);)?/g)) {
    const [fromReference, fromWords] = more === undefined ? USUAL[kind] : [Number(more), Number(fewer)];
    for (let left = Number(run || 1); left > 0; left -= 1) {
      if (fromWords && isFull()) endPart();
      const missed = reference.slice(wanted, wanted + fromReference).join(" ");
      const written = Array.from({ length: fromWords }, (_, at) => shownWord(found + at));
      [wanted, found] = [wanted + fromReference, found + fromWords];
      if (kind in KINDS) {
        const before = written.length ? written[0].shift() : " ";
        const struck = missed && element("del", {}, missed);
        const shown = written.length ? element("ins", {}, ...written.flat()) : null;
        const mark = element("b", { title: KINDS[kind] }, kind);
        nodes.push(before, element("span", { class: `cell ${kind.toLowerCase()}` }, struck || null, shown, mark));
      } else {
        nodes.push(...written.flat());
      }
    }
  }
  endPart();
  return parts;
}

// Let the arrow keys move among the words, as in one control with one tab stop.
function addArrowKeys(box) {
  const buttons = [...box.querySelectorAll("button.w")];
  if (!buttons.length) return;
  buttons[0].tabIndex = 0;
  let at = 0;
  const focus = (next) => {
    buttons[at].tabIndex = -1;
    at = Math.max(0, Math.min(buttons.length - 1, next));
    buttons[at].tabIndex = 0;
    buttons[at].focus();
  };
  box.addEventListener("focusin", (event) => {
    const found = buttons.indexOf(event.target);
    if (found >= 0 && found !== at) { buttons[at].tabIndex = -1; at = found; buttons[at].tabIndex = 0; }
  });
  box.addEventListener("keydown", (event) => {
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    focus(next);
  });
}

// Mark the word that is being heard.
function followAudio(audio, box) {
  const buttons = [...box.querySelectorAll("button.w")];
  let now = null;
  audio.addEventListener("timeupdate", () => {
    const heard = audio.currentTime;
    const next = buttons.find((button) => button.dataset.start <= heard && heard < button.dataset.end) ?? null;
    if (next === now) return;
    now?.classList.remove("now");
    next?.classList.add("now");
    now = next;
  });
}

// Return an SVG of levels from 0 to 1, one column for each.
function waveOf(levels) {
  const [svg, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  const about = { class: "wave", viewBox: `0 0 ${levels.length} 2`, preserveAspectRatio: "none", "aria-hidden": "true" };
  for (const [name, value] of Object.entries(about)) svg.setAttribute(name, value);
  path.setAttribute("d", levels.map((level, at) => `M${at} ${1 - level}h.75v${2 * level}h-.75z`).join(""));
  svg.append(path);
  return svg;
}

// Draw the sound of a recording over its words: over each word, the sound from its start to that of the next word.
async function drawWave(bytes, row, buttons) {
  const sound = await new OfflineAudioContext(1, 1, DECODED_RATE).decodeAudioData(bytes);
  const size = DECODED_RATE / WAVE_RATE;
  const levels = new Float32Array(Math.ceil(sound.length / size));
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    sound.getChannelData(channel).forEach((sample, at) => {
      const column = Math.floor(at / size);
      levels[column] = Math.max(levels[column], Math.abs(sample));
    });
  }
  const columnOf = (time) => Math.min(levels.length, Math.max(0, Math.round(time * WAVE_RATE)));
  const starts = buttons.map((button) => Number(button.dataset.start));
  const end = columnOf(row.offset + row.duration);
  const loudest = levels.subarray(columnOf(row.offset), end).reduce((most, level) => Math.max(most, level), 1e-9);
  buttons.forEach((button, at) => {
    const from = columnOf(at ? starts[at] : row.offset);
    const to = Math.max(columnOf(button.dataset.end), at + 1 < starts.length ? columnOf(starts[at + 1]) : end);
    const shown = [...levels.subarray(from, to)].map((level) => Math.max(LEAST_LEVEL, level / loudest));
    button.style.minWidth = `min(100%, ${(shown.length * EM_PER_SECOND) / WAVE_RATE}em)`;
    button.prepend(waveOf(shown));
  });
}

// Draw the waveform of an opened row as soon as its recording can be read: from a server, else from a folder that the
// reader chooses. A page that was opened as a file may play recordings, but no browser lets it read them.
function addWave(row, places, { audio, view }, text) {
  const buttons = [...text.querySelectorAll("button.w")].sort((a, b) => a.dataset.start - b.dataset.start);
  if (!buttons.length) return;
  const input = element("input", { type: "file", webkitdirectory: true });
  const note = element("span", { role: "status" });
  const picker = element("label", {}, "Waveform: choose the folder of the recordings ", input, " ", note);
  const draw = (bytes) => drawWave(bytes, row, buttons).then(() => { text.classList.add("drawn"); picker.remove(); });
  const look = async () => {
    const file = chosen.find((each) => row.audio.endsWith(`/${each.webkitRelativePath}`));
    if (!file) { note.textContent = "It has no such recording."; return; }
    undrawn.delete(look);
    if (!audio.src || audio.error) [audio.src, audio.hidden] = [URL.createObjectURL(file), false];
    await file.arrayBuffer().then(draw).catch(() => { note.textContent = "This browser cannot decode the recording."; });
  };
  input.addEventListener("change", () => { chosen = [...input.files]; undrawn.forEach((each) => each()); });
  const ask = () => { undrawn.add(look); view.append(picker); if (chosen.length) look(); };
  const served = location.protocol === "file:" ? undefined : places.find((place) => !/^\w+:/.test(place));
  if (served) fetchSmall(served).then(draw).catch(ask);
  else ask();
}

// Return the bytes of a recording beside the page, unless it is large.
async function fetchSmall(place) {
  const answer = await fetch(place);
  if (!answer.ok || Number(answer.headers.get("Content-Length")) > MAX_WAVE_BYTES) throw new Error(place);
  return answer.arrayBuffer();
}

function list(texts) {
  return texts.length ? element("ul", { class: "notes" }, ...texts.map((text) => element("li", { dir: "auto" }, text))) : null;
}

// Return what an opened row shows.
function detailOf(row, folder) {
  const box = element("div");
  if (row.failure !== null) {
    box.append(element("p", { dir: "auto" }, row.failure), element("p", { class: "facts" }, element("bdi", {}, row.audio)));
    return box;
  }
  const places = placesOf(row.audio, folder);
  const player = playerOf(row, places);
  const facts = row.counts
    ? `${row.counts[0]} substituted, ${row.counts[1]} deleted, ${row.counts[2]} inserted; reference of ${row.counts[3]}${row.unit === "CER" ? " characters" : " words"}. `
    : "";
  box.append(element("p", { class: "facts" }, facts, row.duration === null ? "" : `Audio: ${seconds(row.duration)}.`), player.view);
  if (!row.texts) {
    box.append(element("p", { class: "facts" }, "The text of this item had no room in the page; transcripts.jsonl has it."));
    return box;
  }
  const [, , , reference, , warnings, flags, isCut] = row.texts;
  const text = element("div", { class: "text", dir: "auto", role: "group", "aria-label": "Transcript" }, ...textOf(row, wordsOf(row, player.audio)));
  if (reference.length) text.prepend(element("div", { class: "part pair head" }, element("span", { class: "found" }, "Transcript"), element("span", { class: "reference" }, "Reference")));
  if (!text.textContent) text.append(element("em", {}, "no text"));
  box.append(text);
  addArrowKeys(text);
  followAudio(player.audio, text);
  addWave(row, places, player, text);
  if (isCut) box.append(element("p", { class: "facts" }, "Only the begin of the text is shown; transcripts.jsonl has all of it."));
  const reasons = flags.map(([kind, reason, start, end]) => {
    const span = start === null ? "" : ` (${seconds(start)}${end === null ? "" : ` to ${seconds(end)}`})`;
    return `Flag, ${kindName(kind)}: ${reason}${span}`;
  });
  const notes = list([...reasons, ...warnings.map((warning) => `Warning: ${warning}`)]);
  if (notes) box.append(notes);
  return box;
}

function show(items) {
  const rows = rowsOf(items);
  const columns = columnsOf(rows);
  const texts = new Map();
  const preferred = ["Errors", "State", "Item"].map((name) => columns.find((column) => column.name === name)).find(Boolean);
  let sorted = { column: preferred, sign: -1 };
  let page = 0;

  const compare = (a, b) => {
    const [x, y] = [sorted.column.sort(a), sorted.column.sort(b)];
    if (x === y) return a.at - b.at;
    if (x === null || y === null) return x === null ? 1 : -1; // without a value: last in both directions
    return (x < y ? -1 : 1) * sorted.sign;
  };
  const textOfRow = (row) => {
    if (!texts.has(row.at)) texts.set(row.at, searchable(row));
    return texts.get(row.at);
  };

  function headOf(column) {
    const sort = column === sorted.column ? (sorted.sign > 0 ? "ascending" : "descending") : "none";
    const button = element("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      sorted = { column, sign: column === sorted.column ? -sorted.sign : (column.first ?? -1) };
      page = 0;
      draw();
      for (const each of byId("table").querySelectorAll("thead button")) if (each.textContent === column.name) each.focus();
    });
    return element("th", { scope: "col", "aria-sort": sort, class: classOf(column) }, button);
  }

  const classOf = (column) => [column.leave ?? "", column.number ? "n" : ""].join(" ").trim() || null;

  function bodyOf(row) {
    const detailId = `item-${row.at}`;
    const open = element("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": detailId }, element("bdi", {}, row.id));
    const cells = columns.slice(1).map((column) => element("td", { class: classOf(column) }, column.cell(row)));
    const line = element("tr", { class: "item" }, element("th", { scope: "row" }, open), ...cells);
    const detail = element("tr", { id: detailId, hidden: true });
    const toggle = () => {
      detail.hidden = !detail.hidden;
      open.setAttribute("aria-expanded", String(!detail.hidden));
      if (detail.hidden) for (const audio of detail.querySelectorAll("audio, video")) audio.pause();
      else if (!detail.firstChild) detail.append(element("td", { class: "detail-cell", colspan: columns.length }, detailOf(row, items.folder)));
    };
    line.addEventListener("click", () => { if (!String(getSelection())) toggle(); });
    return [line, detail];
  }

  function draw() {
    const query = byId("search").value.trim().toLowerCase();
    const filter = FILTERS[byId("filter").value];
    const found = rows.filter((row) => filter(row) && (!query || textOfRow(row).includes(query))).sort(compare);
    const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
    page = Math.min(page, pages - 1);
    const onPage = found.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS);
    const head = element("thead", {}, element("tr", {}, ...columns.map(headOf)));
    const table = element("table", { class: "rows" }, element("caption", { class: "hidden" }, "Items"), head, element("tbody", {}, ...onPage.flatMap(bodyOf)));
    byId("table").replaceChildren(table);
    byId("count").textContent = `${found.length.toLocaleString("en")} item${found.length === 1 ? "" : "s"}`;
    byId("pages").hidden = pages === 1;
    byId("page").textContent = `Page ${page + 1} of ${pages}`;
    byId("previous").disabled = page === 0;
    byId("next").disabled = page === pages - 1;
  }

  const again = () => { page = 0; draw(); };
  byId("search").addEventListener("input", again);
  byId("filter").addEventListener("change", again);
  byId("previous").addEventListener("click", () => { page -= 1; draw(); });
  byId("next").addEventListener("click", () => { page += 1; draw(); });
  for (const button of document.querySelectorAll("[data-search]")) {
    button.addEventListener("click", () => {
      byId("search").value = button.dataset.search;
      byId("filter").value = "errors";
      again();
      byId("items").scrollIntoView();
      byId("search").focus({ preventScroll: true });
    });
  }
  byId("tools").hidden = false;
  draw();
}

readItems().then(show, () => {
  byId("table").textContent = "This browser cannot unpack the items: it needs DecompressionStream (Chrome 80, Firefox 113, Safari 16.4).";
});
