// A panel: one photo seen by one model, and what is written and drawn next to it.

const WAIT = 70; // milliseconds without a movement until the small maps are drawn again

class Panel {
  /** data: what the page holds; library: gives the attention of a view; act: what a user can do. */
  constructor(data, library, ramp, act) {
    const { firstElementChild } = document.getElementById("panel").content.cloneNode(true);
    this.element = firstElementChild;
    this.data = data;
    this.library = library;
    this.ramp = ramp;
    this.act = act;
    this.map = document.createElement("canvas");
    this.photo = this.find("canvas.photo");
    paintScale(this.find(".scale canvas"), ramp);
    this.#fill(this.find(".photo-choice"), data.photos);
    this.#fill(this.find(".model-choice"), data.models);
    this.#listen();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  #fill(select, names) {
    select.replaceChildren(...names.map((name, i) => new Option(name, i)));
    select.disabled = names.length < 2;
    select.addEventListener("change", () =>
      this.act.open(this, +this.find(".photo-choice").value, +this.find(".model-choice").value),
    );
  }

  #listen() {
    const { photo, act } = this;
    const placeOf = (event) => {
      const box = photo.getBoundingClientRect();
      return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    };
    photo.addEventListener("pointermove", (event) => act.point(placeOf(event)));
    photo.addEventListener("click", (event) => act.hold(placeOf(event)));
    this.find(".whole").addEventListener("click", () => act.whole());
    new ResizeObserver(() => this.view && this.#paint()).observe(photo);
  }

  /** Show another photo or model; resolves when it is there. */
  async open(photo, model) {
    this.find(".photo-choice").value = photo;
    this.find(".model-choice").value = model;
    const view = this.data.views.find((v) => v.photo === photo && v.model === model);
    this.wanted = view;
    const { attention, image, distances } = await this.library.get(view);
    if (this.wanted !== view) return; // another was chosen meanwhile
    Object.assign(this, { view, attention, image, distances });
    this.photo.style.aspectRatio = `${view.size[1]} / ${view.size[0]}`;
    this.find(".tokens").textContent = tokensOf(view);
    this.find(".patch").textContent = `${view.size.map((side, i) => side / view.grid[i]).join(" × ")} pixels`;
    this.find(".whole span").textContent = view.prefix ? "Class token" : "Mean over all tokens";
    this.#answers(view.answers);
    const largest = Math.max(...distances.flat());
    const svg = this.find(".spread svg");
    drawDistances(svg, distances, largest || 1, (layer, head) => this.act.choose(this, layer, head));
    svg.setAttribute("aria-label", `Attention distance from ${Math.min(...distances.flat()).toFixed(1)} to ${largest.toFixed(1)} pixels, by layer and head`);
    this.find(".spread figcaption").textContent = view.kept > 1
      ? "How far each head looks on this photo, in pixels; click a dot to see it"
      : "How far the mean of the heads looks on this photo, in pixels";
  }

  #answers(answers) {
    this.find(".answered").hidden = !answers.length;
    this.find(".answers").replaceChildren(
      ...answers.map(([label, probability]) => {
        const item = document.createElement("li");
        const [name, chance, bar] = ["span", "span", "i"].map((tag) => document.createElement(tag));
        [name.textContent, name.title, chance.textContent] = [label, label, percent(probability)];
        bar.style.setProperty("--share", `${100 * probability}%`);
        item.append(name, chance, bar);
        return item;
      }),
    );
  }

  /** state: of the page; the layers of a model with another depth are those at the same share. */
  show(state) {
    const { attention, view } = this;
    if (!view) return;
    const scaled = (at, of, to) => (of > 0 ? Math.round((at / of) * to) : 0);
    this.state = state;
    this.layer = scaled(state.layer, state.layers - 1, view.layers - 1);
    this.depth = scaled(state.depth, state.layers, view.layers);
    this.head = view.kept > 1 && state.head < view.kept ? state.head : MEAN;
    this.cell = state.place && cellAt(state.place, view.grid);
    this.query = this.cell
      ? view.prefix + this.cell[0] * view.grid[1] + this.cell[1]
      : view.prefix ? 0 : ALL;
    this.weights = state.mode === "rollout"
      ? attention.rollout(this.depth, this.query)
      : attention.row(this.layer, this.head, this.query);
    this.#paint();
    this.#describe();
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.#strip(this.waiting), WAIT);
  }

  get patches() {
    return this.weights.subarray(this.view.prefix);
  }

  #paint() {
    const { state, view } = this;
    if (!state) return;
    paintMap(this.map, this.patches, view.grid, this.ramp, state.stretched);
    paintPhoto(this.photo, this.image, this.map, state.opacity, view.grid, this.cell, state.held);
  }

  #describe() {
    const { view, weights, patches, state, query, cell } = this;
    const largest = largestOf(patches);
    const best = patches.indexOf(largest);
    const place = nameOf([Math.floor(best / view.grid[1]), best % view.grid[1]]);
    const rollout = state.mode === "rollout";
    const who = cell ? `the patch at ${nameOf(cell)}`
      : view.prefix ? "the class token" : "all tokens, on average,";
    const how = rollout ? `rollout through ${layersOf(this.depth, view)}`
      : `layer ${this.layer + 1} of ${view.layers}, ${headOf(this.head, view)}`;
    const way = rollout ? "comes from" : "goes to";
    const toClass = view.prefix ? ` ${percent(weights[0])} ${way} the class token.` : "";
    const line = document.createElement("b");
    line.textContent = `${how[0].toUpperCase()}${how.slice(1)}: `;
    const times = (largest * weights.length).toFixed(1);
    this.find(".shown").replaceChildren(
      line, `${who} ${rollout ? "is made most of" : "attends most to"} ${place}: ${percent(largest)}, ` +
        `${times} times an even share.${toClass}${state.held ? " Held: click to let go." : ""}`,
    );
    this.photo.setAttribute(
      "aria-label",
      `${this.data.photos[view.photo]} in ${view.grid[0]} rows and ${view.grid[1]} columns of ` +
        "patches; arrow keys choose one, C the class token, question mark lists all keys",
    );
    this.find(".largest").textContent = `${percent(largest)}${state.stretched ? ", square root" : ""}`;
    const whole = this.find(".whole");
    whole.setAttribute("aria-pressed", String(!cell));
    const shade = 4 * Math.round(255 * Math.min(1, placeOnScale(weights[0], largest, state.stretched)));
    whole.firstElementChild.hidden = !view.prefix;
    whole.firstElementChild.style.background = `rgb(${this.ramp.slice(shade, shade + 3).join(" ")})`;
    this.find(".itself").textContent = query === ALL ? "–" : percent(weights[query]);
    const far = rollout ? "–" : `${this.attention.distance(this.layer, this.head).toFixed(1)} pixels`;
    this.find(".distance").textContent = far;
    for (const dot of this.element.querySelectorAll(".dot")) {
      const [layer, head] = dot.dataset.place.split(" ").map(Number);
      dot.classList.toggle("layer", !rollout && layer === this.layer);
      const now = !rollout && layer === this.layer && (head === this.head || view.kept === 1);
      if (dot.classList.toggle("now", now)) dot.parentNode.append(dot); // over the others
    }
  }

  /** Small maps of what can be chosen: heads, layers, or depths of rollout. */
  async #strip(turn) {
    const { view, state } = this;
    const group = this.find(".strip div");
    const choices = this.#choices();
    const what = state.mode === "rollout" ? "Rollout through layers"
      : view.kept > 1 ? `Heads of layer ${this.layer + 1}`
      : `Layers; of the ${view.heads} heads only their mean is kept, so that the page stays small`;
    this.find(".strip figcaption").textContent = what;
    group.setAttribute("aria-label", what);
    while (group.children.length > choices.length) group.lastChild.remove();
    let paused = performance.now();
    for (const [i, { name, weights, now, act }] of choices.entries()) {
      if (performance.now() - paused > 10) { // rollout of a large model: the pointer goes first
        await new Promise((resume) => setTimeout(resume));
        if (this.waiting !== turn) return;
        paused = performance.now();
      }
      const button = group.children[i] ?? group.appendChild(smallMap());
      const patches = weights().subarray(view.prefix);
      paintMap(button.firstElementChild, patches, view.grid, this.ramp, state.stretched);
      button.lastElementChild.textContent = name;
      button.setAttribute("aria-pressed", String(now));
      button.onclick = act;
    }
  }

  #choices() {
    const { attention, act, depth, head, layer, query, view } = this;
    const count = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
    if (this.state.mode === "rollout") {
      return count(0, view.layers + 1).map((d) => ({
        name: d > 1 ? `1–${d}` : d ? "1" : "none",
        weights: () => attention.rollout(d, query),
        now: d === depth,
        act: () => act.deepen(this, d),
      }));
    }
    if (view.kept > 1) {
      return count(MEAN, view.kept).map((k) => ({
        name: k === MEAN ? "mean" : `${k + 1}`,
        weights: () => attention.row(layer, k, query),
        now: k === head,
        act: () => act.choose(this, layer, k),
      }));
    }
    return count(0, view.layers).map((l) => ({
      name: `${l + 1}`,
      weights: () => attention.row(l, MEAN, query),
      now: l === layer,
      act: () => act.choose(this, l, MEAN),
    }));
  }
}

function smallMap() {
  const button = document.createElement("button");
  button.type = "button";
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  button.append(canvas, document.createElement("span"));
  return button;
}

/** The patch at a place, each coordinate a share of the photo. */
function cellAt([down, across], grid) {
  return [
    Math.max(0, Math.min(grid[0] - 1, Math.floor(down * grid[0]))),
    Math.max(0, Math.min(grid[1] - 1, Math.floor(across * grid[1]))),
  ];
}

function nameOf([row, column]) {
  return `row ${row + 1}, column ${column + 1}`;
}

function layersOf(depth, view) {
  return depth ? `layers 1 to ${depth} of ${view.layers}` : "no layer";
}

function headOf(head, view) {
  return head === MEAN ? `mean of ${view.heads} heads` : `head ${head + 1} of ${view.heads}`;
}

function tokensOf(view) {
  const [rows, columns] = view.grid;
  return `${rows * columns + view.prefix} = ${rows} × ${columns}${view.prefix ? " + 1" : ""}`;
}

/** 0.0312 -> "3.1 %" */
function percent(share) {
  const value = 100 * share;
  return `${value > 0 && value < 0.1 ? "<0.1" : value.toFixed(1)}\u00a0%`;
}
