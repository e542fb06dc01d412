// The page: one photo, its edits, and the answer next to that for the original.
import { Picture } from "/canvas.js";

const $ = (id) => document.getElementById(id);
const BARS = 6;
const PAUSE = 60; // milliseconds between the last stroke and the question
const TRIES = 5; // when the app is busy

const state = { model: null, file: null, original: null, asking: false, again: false, timer: 0, tilings: [], seed: 1 };
const picture = new Picture($("picture"), () => { words(); ask(); });

async function start() {
  try {
    state.model = await (await fetch("/model")).json();
  } catch {
    return say("The app does not answer. Is it still running?");
  }
  const { name, classes, size, grid, sizes, looks, no_look: noLook } = state.model;
  document.title = `${name} - patchwords`;
  $("name").textContent = name;
  $("about").textContent = `${classes.toLocaleString()} classes; sees ${pair(size)} pixels as ${pair(grid)} ${looks ? "patches" : "places"}`;
  const own = sizes.findIndex((one) => String(one.size) === String(size));
  $("size").max = sizes.length - 1;
  $("size").value = own;
  $("size").disabled = sizes.length === 1;
  $("looking").hidden = !looks;
  $("no-look").hidden = looks;
  $("no-look").textContent = looks ? "" : `Where it looked: ${noLook}.`;
  nearState();
  words();
}

// A new photo: everything is undone.
function take(file) {
  if (!file) return;
  if (state.model && file.size > state.model.most_bytes) {
    return say(`This file has ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${state.model.most_bytes / 2 ** 20} MiB are taken.`);
  }
  state.file = file;
  state.original = null;
  picture.hidden.clear();
  $("tiles").value = 0;
  $("size").value = state.model.sizes.findIndex((one) => String(one.size) === String(state.model.size));
  words();
  ask();
}

// Only the newest wish is asked; while the model thinks, wishes wait.
function ask() {
  if (!state.file) return;
  $("answer").classList.add("waiting");
  clearTimeout(state.timer);
  state.timer = setTimeout(async () => {
    state.timer = 0;
    if (state.asking) { state.again = true; return; }
    state.asking = true;
    try {
      await round();
    } finally {
      state.asking = false;
      if (state.again) { state.again = false; ask(); }
      if (!state.timer) $("answer").classList.remove("waiting");
    }
  }, PAUSE);
}

async function round() {
  const file = state.file;
  const untouched = !state.original || plain(); // the original comes first, whatever was done meanwhile
  const form = new FormData();
  const [height, width] = chosen().size;
  const settings = untouched ? {} : { height, width, tiles: tiles(), seed: state.seed, hidden: [...picture.hidden].join(",") };
  for (const [name, value] of Object.entries(settings)) form.append(name, value);
  form.append("file", file, "photo");
  const found = await send(form);
  if (state.file !== file) return;
  if (found.error) {
    if (!state.original) state.file = null;
    return say(found.error);
  }
  say("");
  const image = new Image();
  image.src = found.picture;
  await image.decode();
  if (untouched) {
    state.original = found;
    $("original").src = found.picture;
    if (!plain()) state.again = true;
  }
  state.tilings = found.tilings;
  if (String(picture.grid) === String(found.grid) || untouched) picture.show(image, found.grid, found.looked);
  $("drop").hidden = true;
  $("stage").hidden = false;
  words();
  answer(found, untouched);
  near(found.neighbours);
}

async function send(form) {
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch("/look", { method: "POST", body: form });
    } catch {
      return { error: "The app did not take the photo: it has stopped, or the file is far too large." };
    }
    if (response.status === 429 && attempt < TRIES) {
      const seconds = Number(response.headers.get("Retry-After")) || 1;
      await new Promise((done) => setTimeout(done, 1000 * seconds));
      continue;
    }
    try {
      return await response.json();
    } catch {
      return { error: `The app answered with status ${response.status}.` };
    }
  }
}

// Whether nothing is done to the photo: its answer is the one to compare with.
function plain() {
  return !picture.hidden.size && tiles() === 1 && String(chosen().size) === String(state.model.size);
}

function answer(found, untouched) {
  const now = found.predictions;
  const then = state.original ? state.original.predictions : now;
  const before = new Map(then.map(({ label, score }) => [label, score]));
  $("nothing").hidden = true;
  $("answered").hidden = false;
  $("best").textContent = now[0].label;
  $("sure").textContent = percent(now[0].score);
  $("best-before").textContent = then[0].label;
  $("sure-before").textContent = percent(then[0].score);
  const kept = now.find(({ label }) => label === then[0].label);
  const change = (kept ? kept.score : 0) - then[0].score;
  $("change").textContent = untouched ? "nothing is changed yet" : `${then[0].label} is ${points(change)}`;
  $("bars").replaceChildren(...now.slice(0, BARS).map(({ label, score }) => bar(label, score, before.get(label) ?? 0)));
}

function bar(label, now, then) {
  const item = element("li");
  const line = element("p");
  line.append(element("span", label), element("small", `${percent(now)}, was ${percent(then)}`));
  const track = element("div", "", "bar");
  const [full, mark] = [element("i"), element("u")];
  full.style.width = `${100 * now}%`;
  mark.style.width = `${100 * then}%`;
  track.append(full, mark);
  item.append(line, track);
  return item;
}

function near(photos) {
  $("gallery").replaceChildren(...photos.map(({ label, similarity, picture: source }) => {
    const figure = element("figure");
    const image = new Image();
    if (source) image.src = source;
    if (source && source.startsWith("data:image/png")) image.className = "tiny";
    image.alt = label ? `a training photo of ${label}` : "a training photo";
    const caption = element("figcaption", `${label ?? "no label"} `);
    caption.append(element("small", `cosine ${similarity.toFixed(2)}`));
    figure.append(image, caption);
    return figure;
  }));
}

async function nearState() {
  const { state: how, reason, done, photos, of } = state.model.neighbours;
  const many = (count) => count.toLocaleString();
  const drawn = of > photos ? `${many(photos)} of ${many(of)} training photos, drawn at random` : `${many(photos ?? 0)} training photos`;
  $("near-said").textContent = {
    none: `None: ${reason}.`,
    preparing: `Looking at ${drawn}: ${many(done ?? 0)} are done.`,
    ready: `Among ${drawn}, by what the classifier sees of them; a cosine of 1 is the same to the model.`,
  }[how];
  if (how !== "preparing") return;
  await new Promise((later) => setTimeout(later, 1500));
  try {
    state.model.neighbours = (await (await fetch("/model")).json()).neighbours;
  } catch {
    return;
  }
  if (state.model.neighbours.state === "ready") ask();
  nearState();
}

// Texts next to the controls.
function words() {
  if (!state.model) return;
  const { size, grid } = chosen();
  $("tiles").max = state.tilings.length;
  const sides = tiles();
  $("tiles-said").textContent = sides === 1 ? "not shuffled" : `${sides} × ${sides} tiles`;
  $("deal").disabled = sides === 1;
  $("size-said").textContent = pair(size);
  $("strength-said").textContent = picture.strength ? `${Math.round(100 * picture.strength)} %` : "not shown";
  const gone = picture.hidden.size;
  $("seen").textContent = `As the model sees it: ${pair(size)} pixels, ${pair(grid)} ${state.model.looks ? "patches" : "places"}` + (gone ? `, ${gone} painted away` : "") +
    (picture.looked && picture.strength ? ". The lighter, the more it looked there, by attention rollout: how patches were mixed, not why it answered so." : ".");
}

function tiles() {
  const place = Number($("tiles").value);
  return place ? state.tilings[place - 1] : 1;
}

function chosen() {
  return state.model.sizes[Number($("size").value)];
}

function resize() {
  const sides = tiles();
  picture.regrid(chosen().grid);
  state.tilings = tilings(chosen());
  $("tiles").max = state.tilings.length;
  const place = state.tilings.indexOf(sides);
  $("tiles").value = place + 1;
  words();
  ask();
}

// As edits.py has it: numbers of tiles that divide both sides.
function tilings({ size, grid }) {
  const all = Array.from({ length: 2 * Math.max(...grid) - 1 }, (_, i) => i + 2);
  return all.filter((count) => size.every((side) => side % count === 0));
}

function brush(taking) {
  picture.taking = taking;
  $("paint").setAttribute("aria-pressed", String(taking));
  $("bring").setAttribute("aria-pressed", String(!taking));
}

function say(line) {
  $("fault").textContent = line;
  $("fault").hidden = !line;
}

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

const pair = ([rows, columns]) => `${columns} × ${rows}`;
const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);
const points = (change) => {
  const size = (100 * Math.abs(change)).toFixed(1);
  return size === "0.0" ? "as sure as before" : `${size} points ${change < 0 ? "less" : "more"} likely`;
};

$("file").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });
$("paint").addEventListener("click", () => brush(true));
$("bring").addEventListener("click", () => brush(false));
$("whole").addEventListener("click", () => { picture.hidden.clear(); picture.draw(); words(); ask(); });
$("tiles").addEventListener("input", () => { words(); ask(); });
$("deal").addEventListener("click", () => { state.seed += 1; ask(); });
$("size").addEventListener("input", resize);
$("strength").addEventListener("input", (event) => { picture.strength = event.target.value / 100; picture.draw(); words(); });
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files].find((one) => one.type.startsWith("image/"));
  if (file) take(file); else say("What was pasted is not a picture.");
});
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); document.body.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); document.body.classList.remove("over"); });
}
document.addEventListener("drop", (event) => {
  const file = event.dataTransfer.files[0];
  if (file) take(file); else say("Drop a file: addresses of pictures are not opened.");
});
start();
